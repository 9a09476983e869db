"""Builds the optional parts: the compiled record codec and the producers' fast path. The rest is in pyproject.toml.

Without Cython, a compiler or Python's headers the package is complete all the same: plain Python does the work.
``TIDELOG_NO_COMPILE=1`` leaves the parts out on purpose.
"""

from __future__ import annotations

import os
import sys

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext


def left_out(why: object) -> None:
    sys.stderr.write(f"warning: compiled code is left out, plain Python does its work: {why}\n")


class OptionalBuild(build_ext):
    """Builds what can be built. Setuptools' own ``optional`` lets a missing compiler pass as an error."""

    def run(self) -> None:
        try:
            super().run()
        except Exception as error:
            left_out(error)

    def build_extension(self, ext: Extension) -> None:
        try:
            super().build_extension(ext)
        except Exception as error:
            left_out(error)


def extensions() -> list[Extension]:
    if os.environ.get("TIDELOG_NO_COMPILE"):
        return []
    sources = [
        Extension(f"tidelog.{path.replace('/', '.')}", [f"src/tidelog/{path}.pyx"], optional=True)
        for path in ("proto/records/_codec", "client/_fast_path")
    ]
    try:
        from Cython.Build import cythonize

        found: list[Extension] = cythonize(sources, build_dir="build", quiet=True)
    except Exception as error:
        left_out(error)
        return []
    return found


setup(
    ext_modules=extensions(),
    cmdclass={"build_ext": OptionalBuild},
    options={"build_ext": {"parallel": True}},  # one compiler for each part
)
