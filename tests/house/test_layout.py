"""The house: links, layers, names, generated code, and what a wheel carries."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "tidelog"
FOLDERS = sorted(path.parent.name for path in ROOT.glob("*/__init__.py"))
SHIPPED = [name for name in FOLDERS if name != "bench"]


def run(*command: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=110)


def test_every_folder_has_its_link_and_every_link_its_folder() -> None:
    links = {path.name: path for path in PACKAGE.iterdir() if path.is_symlink()}
    assert sorted(links) == FOLDERS
    for name, path in links.items():
        assert str(path.readlink()) == f"../../{name}"
        assert path.resolve() == ROOT / name


def test_import_tidelog_never_yields_bare_folders() -> None:
    """``import broker`` works from the repository root and would be a second set of classes."""
    code = (
        "import importlib, pkgutil, sys, tidelog\n"
        "found = [m.name for m in pkgutil.walk_packages(tidelog.__path__, 'tidelog.') if '.tests' not in m.name]\n"
        "for name in found:\n"
        "    name.endswith('__main__') or importlib.import_module(name)\n"
        f"print(len(found), sorted(set({FOLDERS!r}) & set(sys.modules)))\n"
    )
    done = run(sys.executable, "-P", "-c", code)
    assert done.returncode == 0, done.stderr
    count, bare = done.stdout.split(maxsplit=1)
    assert int(count) > len(FOLDERS)
    assert bare.strip() == "[]"
    assert not set(FOLDERS) & set(sys.modules), "a test imports a folder under its bare name"


def test_no_source_imports_a_folder_under_its_bare_name() -> None:
    """ruff bans it too; this holds for what ruff leaves out (generated code)."""
    bare = re.compile(rf"^\s*(?:import|from) (?:{'|'.join(FOLDERS)})(?:\.|\s|$)", re.MULTILINE)
    guilty = [
        str(path.relative_to(ROOT))
        for folder in (*FOLDERS, "tests")
        for path in (ROOT / folder).rglob("*.py")
        if bare.search(path.read_text())
    ]
    assert guilty == []


def test_the_layers_hold() -> None:
    done = run(str(Path(sys.executable).parent / "lint-imports"), "--no-cache")
    assert done.returncode == 0, done.stdout
    assert "0 broken" in done.stdout


def test_every_folder_stands_in_the_layers() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    assert sorted(name.strip() for layer in layers for name in layer.split("|")) == FOLDERS


def test_generated_code_is_fresh(tmp_path: Path) -> None:
    contracts = sorted(str(path.relative_to(ROOT / "src")) for path in (PACKAGE / "proto/v1").glob("*.proto"))
    done = run(
        sys.executable, "-P", "-W", "ignore", "-m", "grpc_tools.protoc", f"-I{ROOT / 'src'}",
        f"--python_out={tmp_path}", f"--pyi_out={tmp_path}", *contracts,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    made = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*_pb2.py*"))
    assert len(made) == 2 * len(contracts) > 0
    for path in made:
        assert (ROOT / "src" / path).read_text() == (tmp_path / path).read_text(), f"{path}: run ./dev generate"


@pytest.fixture(scope="module")
def wheel_names(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Names in a wheel built from the files that git knows, or would add."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    listed = run("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    assert listed.returncode == 0, listed.stderr
    for name in filter(None, listed.stdout.split("\0")):
        if name.startswith(("tests/", "docs/")) or (not (ROOT / name).is_symlink() and not (ROOT / name).is_file()):
            continue
        target = source / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_symlink():
            target.symlink_to((ROOT / name).readlink())
        else:
            target.write_bytes((ROOT / name).read_bytes())
    done = run(
        sys.executable, "-m", "pip", "wheel", "--quiet", "--no-build-isolation", "--no-deps", "--no-index",
        "--wheel-dir", str(out), str(source), cwd=source,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    (wheel,) = out.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_wheel_holds_tidelog_its_name_for_spark_and_nothing_beside(wheel_names: set[str]) -> None:
    tops = {name.split("/")[0] for name in wheel_names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"tidelog", "pyspark_tidelog"}
    assert {name for name in wheel_names if name.startswith("pyspark_tidelog/")} == {"pyspark_tidelog/__init__.py"}


def test_wheel_holds_every_shipped_module_once(wheel_names: set[str]) -> None:
    listed = run("git", "ls-files", "--cached", "--others", "--exclude-standard", *SHIPPED).stdout.split()
    wanted = {
        f"tidelog/{name}" for name in listed if name.endswith((".py", ".pyi", ".proto")) and (ROOT / name).exists()
    }
    assert wanted - wheel_names == set()
    assert {"tidelog/__init__.py", "tidelog/py.typed"} <= wheel_names


def test_wheel_leaves_out_tests_and_benchmarks(wheel_names: set[str]) -> None:
    assert [name for name in wheel_names if name.startswith(("tidelog/tests", "tidelog/bench", "tests", "tools"))] == []


def test_wheel_names_the_command_the_licence_and_the_pytest_plugin(wheel_names: set[str]) -> None:
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in wheel_names)
    assert any(name.endswith(".dist-info/entry_points.txt") for name in wheel_names)
