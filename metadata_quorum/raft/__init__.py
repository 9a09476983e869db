"""The hardened Raft engine: elections, journal, snapshots, streams between controllers."""
