"""The programs under `examples/`, run under kill -9."""
