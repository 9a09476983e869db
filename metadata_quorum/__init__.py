"""The Raft quorum of controllers, the metadata log, the controller's decisions and the image built from them."""
