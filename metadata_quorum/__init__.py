"""The Raft quorum of controllers, the metadata log, the controller's decisions and the resulting image."""
