"""Property tests here are judged by what they find, not by how fast a shared machine runs an example."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("proto", deadline=None)
settings.load_profile("proto")
