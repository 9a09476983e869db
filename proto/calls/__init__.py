"""Every call between processes: request and answer types, and their way into protobuf and back."""
