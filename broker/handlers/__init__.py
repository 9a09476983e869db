"""A node's handlers, one module per group of calls and streams. They do not depend on the transport."""
