"""The checksum is the package's, and costs a program no more at its start than its extension does."""

from __future__ import annotations

import subprocess
import sys
from importlib.machinery import PathFinder

import pytest
from crc32c import crc32c as of_the_package
from hypothesis import given
from hypothesis import strategies as st

from tidelog.model.hashes import crc32c as module


@given(st.binary(max_size=200), st.integers(0, (1 << 32) - 1))
def test_it_is_the_packages(data: bytes, before: int) -> None:
    assert module.crc32c(memoryview(bytearray(data)), before) == of_the_package(data, before)


def test_where_the_extension_is_elsewhere_the_package_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    assert module.crc32c is not of_the_package
    monkeypatch.setattr(PathFinder, "find_spec", lambda *_: None)
    assert module._load() is of_the_package


def test_the_metadata_of_packages_is_not_read() -> None:
    code = "import sys, tidelog.broker.node.node; sys.exit('importlib.metadata' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
