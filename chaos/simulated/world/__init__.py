"""Virtual time, network, disks and clocks, and the cluster in them."""
