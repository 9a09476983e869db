"""Every call between processes: request and answer types, and their conversion to and from protobuf."""
