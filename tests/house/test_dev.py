"""``./dev``: each check of the machine fails with one line and its mend; set-up resumes; the list is whole."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tidelog.cli.failure import CommandFailed
from tidelog.demo.command import _await_install

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def tools(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, ModuleType]]:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    yield {name: importlib.import_module(f"dev.{name}") for name in ("preflight", "environment", "checks", "commands")}
    for name in [name for name in sys.modules if name == "dev" or name.startswith("dev.")]:
        del sys.modules[name]


def dev(*arguments: str, **more: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(ROOT / "dev"), *arguments], capture_output=True, text=True, timeout=240, **more)


def test_alone_it_lists_its_commands() -> None:
    done = dev()
    assert done.returncode == 0
    for command in ("demo", "test [--quick]", "check", "bench [--check]", "setup", "clean"):
        assert f"\n  {command}" in done.stdout


def test_an_unknown_command_is_refused_with_those_there_are() -> None:
    done = dev("demmo")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "'demmo'" in done.stderr
    assert "demo" in done.stderr


def test_what_python_compiled_is_kept_outside_of_the_tree(
    tools: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    (tmp_path / "compiled_once.py").write_text("")
    done = subprocess.run(
        [sys.executable, "-c", "import compiled_once; print(compiled_once.__cached__)"],
        cwd=tmp_path,
        env=tools["environment"].variables(),
        capture_output=True,
        text=True,
        check=True,
    )
    kept = Path(done.stdout.strip())
    assert kept.is_relative_to(ROOT / ".cache")
    assert kept.exists()
    kept.unlink()
    assert list(tmp_path.iterdir()) == [tmp_path / "compiled_once.py"]


@pytest.mark.parametrize("name", ["check", "shell", "generate", "setup", "wheel", "clean"])
@pytest.mark.parametrize(("argument", "code"), [("--help", 0), ("-h", 0), ("--dry-run", 2), ("everything", 2)])
def test_what_is_not_understood_does_nothing(
    tools: dict[str, ModuleType],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
    argument: str,
    code: int,
) -> None:
    """`./dev clean --help` once removed the environment."""
    commands = tools["commands"]

    def ran(_: object) -> int:
        raise AssertionError("it ran")

    monkeypatch.setitem(commands.COMMANDS, name, commands.COMMANDS[name]._replace(run=ran, steps=None))
    assert commands.main([name, argument]) == code
    out, err = capsys.readouterr()
    assert (f"usage: ./dev {name}" in out) == (code == 0)
    assert (argument in err) == (code == 2)


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ((), "all"),
        (("--rows", "2000"), "all"),
        (("--part", "spark"), "spark"),
        (("--part", "all"), "all"),
        (("--part", "log"), "log"),
        (("--rows", "2000", "--part=log"), "log"),
        (("--help",), "log"),
    ],
)
def test_only_the_spark_half_alone_waits_for_spark(
    tools: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], part: str
) -> None:
    """Spark is 590 MB to download: the log half begins without, and alone it does not bring it."""
    commands, environment = tools["commands"], tools["environment"]
    ensured: list[list[str]] = []
    started: list[tuple[str, ...]] = []
    monkeypatch.setattr(environment, "ensure", lambda names: ensured.append(list(names)))
    monkeypatch.setattr(environment, "is_ready", lambda names: False)

    def start(*command: str, pass_fds: tuple[int, ...] = ()) -> int:
        started.append(command)
        return 0

    monkeypatch.setattr(commands, "_start", start)
    with subprocess.Popen(["sleep", "60"]) as behind:
        monkeypatch.setattr(commands.subprocess, "Popen", lambda *_, **__: behind)
        assert commands.main(["demo", *arguments]) == 0
        assert (behind.poll() is not None) == (part == "all"), "the set-up behind ends with the demo"
        behind.kill()
    (names,), (command,) = ensured, started
    assert names[:4] == ["environment", "runtime", "tidelog", "demo"]
    assert ("spark" in names, "picture" in names) == (part == "spark", part == "spark")
    assert ("--installing" in command) == (part == "all")


@pytest.mark.parametrize(
    ("program", "cause"),
    [
        ("print('set-up  Spark  3.0 s'); print('Ready: .venv')", None),
        ("sys.stderr.write('FAIL  Spark: no network')", "Spark: no network"),
        ("os.kill(os.getpid(), 9)", "its set-up was interrupted"),
    ],
)
def test_the_demo_learns_what_came_of_the_set_up_behind_it(
    tools: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, program: str, cause: str | None
) -> None:
    """The real pipe and a real process, with a set-up that ends in each way."""
    commands = tools["commands"]
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "__main__.py").write_text(
        f"import os, sys\nassert sys.argv[1:] == ['setup', 'demo']\n{program}"
    )
    said: list[str] = []

    def second_half(*command: str, pass_fds: tuple[int]) -> int:
        assert command[-2:] == ("--installing", str(pass_fds[0]))
        _await_install(os.dup(pass_fds[0]), said.append)
        return 7

    monkeypatch.setattr(commands, "ROOT", tmp_path)
    monkeypatch.setattr(commands.environment, "is_ready", lambda names: False)
    monkeypatch.setattr(commands, "_start", second_half)
    if cause is None:
        assert commands._demo([]) == 7
        assert said[-1] == "Spark is set up"
    else:
        with pytest.raises(CommandFailed, match=f"cannot begin: {cause}. Run ./dev demo again"):
            commands._demo([])


def test_what_is_installed_behind_a_running_demo_replaces_nothing() -> None:
    """pip keeps what is there if its version is pinned: grpcio must not change under the nodes."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pinned = {
        line.partition("==")[0].lower().replace("_", "-")
        for line in (ROOT / "constraints.txt").read_text().splitlines()
    }
    running = {re.split(r"[<>=!;\[ ]", wanted)[0].lower() for wanted in project["dependencies"]}
    assert running - pinned == set()


def test_it_works_through_a_link_and_from_another_directory(tmp_path: Path) -> None:
    (tmp_path / "my-dev").symlink_to(ROOT / "dev")
    done = subprocess.run([tmp_path / "my-dev"], cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0
    assert "demo" in done.stdout


def test_no_python_is_one_line_with_a_mend(tmp_path: Path) -> None:
    """Every python of this PATH is too old."""
    text = (ROOT / "dev").read_text().replace("/usr/bin/python3 /usr/local/bin/python3", "")
    (tmp_path / "dev").write_text(text)
    place = tmp_path / "bin"
    place.mkdir()
    for name in ("python3", "python3.11", "python3.12", "python3.13", "python3.14", "python"):
        (place / name).write_text('#!/bin/sh\n[ "$1" = --version ] && echo Python 3.9.2 && exit 0\nexit 1\n')
        (place / name).chmod(0o755)
    for name in ("dirname", "readlink"):
        found = shutil.which(name)
        assert found is not None
        (place / name).symlink_to(found)
    done = subprocess.run(
        ["/bin/sh", str(tmp_path / "dev"), "test"],
        env={"PATH": str(place)},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("FAIL  Python: expected 3.11 or later, found Python 3.9.2. Install it")
    assert done.stderr.count("\n") == 1


def test_this_machine_passes_every_check(tools: dict[str, ModuleType]) -> None:
    assert tools["preflight"].failures() == []


def one_line(text: str | None, *words: str) -> None:
    assert text is not None
    assert "\n" not in text
    for word in words:
        assert word in text


def test_an_old_python(tools: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 10, 4))
    one_line(tools["preflight"].python_version(), "expected 3.11 or later, found 3.10.4", "TIDELOG_PYTHON")


def test_a_python_without_ensurepip(tools: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "ensurepip" else find(name))
    one_line(tools["preflight"].venv_and_ensurepip(), "without ensurepip", "apt install python3.")


def test_links_checked_out_as_files(tools: dict[str, ModuleType], tmp_path: Path) -> None:
    package = tmp_path / "src" / "tidelog"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "py.typed").touch()
    one_line(tools["preflight"].links_are_links(tmp_path), "there are no links", "git")
    (package / "model").symlink_to("../../model")
    one_line(tools["preflight"].links_are_links(tmp_path), "model", "core.symlinks")
    (tmp_path / "model").mkdir()
    assert tools["preflight"].links_are_links(tmp_path) is None
    (package / "broker").write_text("../../broker")
    one_line(tools["preflight"].links_are_links(tmp_path), "broker are no links")


def test_a_full_disk(tools: dict[str, ModuleType], tmp_path: Path) -> None:
    one_line(tools["preflight"].free_disk(tmp_path, 10**18), "MB free at", "Free some")


def test_a_directory_that_cannot_be_written(tools: dict[str, ModuleType], tmp_path: Path) -> None:
    one_line(tools["preflight"].writable(tmp_path / "not there"), "cannot be written", "Clone to")


def test_a_path_that_no_environment_can_have(tools: dict[str, ModuleType]) -> None:
    one_line(tools["preflight"].usable_path(Path("/srv/a:b")), "Rename")


def test_setup_resumes_after_a_failure_and_does_nothing_twice(
    tools: dict[str, ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    environment = tools["environment"]
    done: list[str] = []
    broken = [True]
    inputs: dict[str, list[object]] = {"first": [1], "second": [1]}

    def second() -> None:
        if broken[0]:
            raise environment.StepFailed("no network")
        done.append("second")

    def first() -> None:
        done.append("first")

    steps = {
        "first": environment._Step("first", "the first step", first, lambda: inputs["first"]),
        "second": environment._Step("second", "the second step", second, lambda: inputs["second"]),
    }
    monkeypatch.setattr(environment, "_STEPS", steps)
    monkeypatch.setattr(environment, "STAMPS", tmp_path / "stamps")
    monkeypatch.setattr(environment, "CACHE", tmp_path)
    monkeypatch.setattr(environment, "LOG", tmp_path / "setup.log")
    with pytest.raises(environment.StepFailed, match="the second step: no network"):
        environment.ensure(["first", "second"])
    broken[0] = False
    environment.ensure(["first", "second"])
    assert done == ["first", "second"]
    assert "the first step" in capsys.readouterr().out
    environment.ensure(["first", "second"])
    assert done == ["first", "second"]
    assert capsys.readouterr().out == ""
    inputs["second"] = [2]  # a requirement changed
    environment.ensure(["first", "second"])
    assert done == ["first", "second", "second"]


@pytest.mark.parametrize("name", ["proto/v1/api_pb2.pyi", "client/admin/blocking.py"])
def test_stale_generated_code_is_found(
    tools: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    checks = tools["checks"]
    assert checks.generated_code_is_fresh() is None
    generate = checks.generate

    def with_another_field(into: Path) -> str | None:
        found: str | None = generate(into)
        path = into / "tidelog" / name
        path.write_text(path.read_text() + "surprise: int\n")
        return found

    monkeypatch.setattr(checks, "generate", with_another_field)
    trouble = checks.generated_code_is_fresh()
    assert trouble is not None
    assert name in trouble
    assert "./dev generate" in trouble


def test_a_failed_check_fails_the_command(
    tools: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tools["checks"], "CHECKS", (("first", lambda: None), ("second", lambda: "line 1 is long")))
    assert tools["commands"]._check(["--no-tests"]) == 1
    out = capsys.readouterr().out
    assert "ok    first" in out
    assert "FAIL  second" in out
    assert "line 1 is long" in out


def test_a_test_file_that_cannot_be_imported_is_found_without_running_a_test(
    tools: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tools["checks"], "ROOT", tmp_path)
    (tmp_path / "test_whole.py").write_text("def test_it():\n    open('ran', 'w')\n")
    assert tools["checks"].collection() is None
    (tmp_path / "test_broken.py").write_text("import not_there\n")
    trouble = tools["checks"].collection()
    assert "No module named 'not_there'" in trouble
    assert "test_whole" not in trouble
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("given", "pytests"),
    [
        ([], ["-n", "4"]),
        (["-q", "-x"], ["-q", "-x", "-n", "4"]),
        (["--quick"], ["tests/near.py", "-q", "--no-loadscope-reorder", "-n", "4"]),
        (["--quick", "-s"], ["tests/near.py", "-s", "--no-loadscope-reorder"]),
        (["tests/house"], ["tests/house"]),
        (["-k", "name", "-n", "2"], ["-k", "name", "-n", "2"]),
        (["--pdb"], ["--pdb"]),
    ],
)
def test_four_processes_run_tests_that_nobody_chose(
    tools: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch, given: list[str], pytests: list[str]
) -> None:
    commands = tools["commands"]
    started: list[tuple[str, ...]] = []

    def start(*command: str) -> int:
        started.append(command)
        return 0

    monkeypatch.setattr(commands, "_start", start)
    monkeypatch.setattr(commands.quick, "choose", lambda: ["tests/near.py"])
    assert commands._test(given) == 0
    options = list(started[0][started[0].index("pytest") + 1 :])
    assert options[-len(pytests) :] == pytests
    assert all("junit" in option or option in ("-o", "--cache-clear") for option in options[: -len(pytests)])


REPORT = """<testsuites><testsuite tests="4" failures="1" errors="1" skipped="1">
<testcase name="a"><failure message="m"/></testcase><testcase name="b"><error message="m"/></testcase>
<testcase name="c"><skipped message="m"/></testcase><testcase name="d"/></testsuite></testsuites>"""


@pytest.mark.parametrize(
    ("failed", "codes", "code", "ends"),
    [
        (2, [1, 0, 0, 0], 0, "3 passed, 2 of them unstable\n"),
        (2, [1, 0, 1], 1, "2 failed: 3 times more, alone\n"),
        (4, [1], 1, ""),
        (2, [2], 2, ""),
        (0, [0], 0, ""),
    ],
)
def test_a_few_tests_that_fail_beside_others_run_again_alone(
    tools: dict[str, ModuleType],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    failed: int,
    codes: list[int],
    code: int,
    ends: str,
) -> None:
    commands = tools["commands"]
    names = [f"tests/t.py::test_{number}" for number in range(failed)]
    cache = tmp_path / ".pytest_cache" / "v" / "cache"
    cache.mkdir(parents=True)
    (cache / "lastfailed").write_text(json.dumps(dict.fromkeys(names, True)))
    started: list[list[str]] = []

    def start(*command: str) -> int:
        started.append(list(command))
        (tmp_path / "tests.xml").write_text(REPORT)
        return codes[len(started) - 1]

    monkeypatch.setattr(commands, "_start", start)
    monkeypatch.setattr(commands, "ROOT", tmp_path)
    monkeypatch.setattr(commands.environment, "CACHE", tmp_path)
    monkeypatch.chdir(tmp_path)
    assert commands._test([]) == code
    assert len(started) == len(codes)
    assert all(again[-len(names) - 1 :] == ["-q", *names] for again in started[1:])
    assert capsys.readouterr().out.endswith(ends)


def test_every_pin_is_a_version_alone() -> None:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    assert lines
    assert [line for line in lines if line.count("==") != 1 or "/" in line or "@" in line] == []
