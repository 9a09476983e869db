"""HTTP for browsers: files, sessions, and the one door that every request passes."""
