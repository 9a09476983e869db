"""The ``tidelog`` command."""
