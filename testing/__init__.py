"""An in-process cluster for tests, and the pytest plugin that hands one out."""
