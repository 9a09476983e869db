"""A broker's view of the cluster, and its reports to the controller: image, registration, heartbeats, ISR."""
