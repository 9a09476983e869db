"""Builds the one optional part: the compiled record codec. All else stands in pyproject.toml.

Without a compiler, or without Cython, the package is complete: ``tidelog.proto`` then uses its plain
Python codec. ``TIDELOG_NO_COMPILE=1`` leaves the part out on purpose.
"""

from __future__ import annotations

import os

from setuptools import Extension, setup


def extensions() -> list[Extension]:
    if os.environ.get("TIDELOG_NO_COMPILE"):
        return []
    try:
        from Cython.Build import cythonize
    except ImportError:
        return []
    source = Extension("tidelog.proto._codec", ["src/tidelog/proto/_codec.pyx"], optional=True)
    found: list[Extension] = cythonize([source], build_dir="build", quiet=True)
    return found


setup(ext_modules=extensions())
