"""``./dev test --quick``: the tests that it runs after a change, and how it knows a file's needs."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]

IMPORTS: dict[str, set[str]] = {
    "storage/log.py": set(),
    "replication/leader.py": {"storage/log.py"},
    "broker/node.py": {"replication/leader.py"},
    "cli/main.py": {"broker/node.py"},
    "tests/storage/conftest.py": {"storage/log.py"},
    "tests/storage/test_log.py": {"storage/log.py"},
    "tests/storage/test_slow.py": {"storage/log.py"},
    "tests/replication/test_leader.py": {"replication/leader.py"},
    "tests/broker/inner/test_node.py": {"broker/node.py"},
    "tests/cli/test_main.py": {"cli/main.py"},
    "tests/replication/test_quick_log.py": {"storage/log.py"},
    "tests/model/test_names.py": set(),
    "tests/house/test_wheel.py": set(),
    "tests/spark/test_read.py": {"spark_connector/reading.py"},
    "tests/spark/test_write.py": {"spark_connector/reading.py"},
    "tests/examples/test_read.py": {"spark_connector/reading.py"},
}
SECONDS = {
    "tests/storage/test_log.py": 2.0,
    "tests/storage/test_slow.py": 30.0,
    "tests/replication/test_leader.py": 4.0,
    "tests/broker/inner/test_node.py": 3.0,
    "tests/cli/test_main.py": 1.0,
    "tests/replication/test_quick_log.py": 0.25,
    "tests/model/test_names.py": 0.5,
    "tests/house/test_wheel.py": 40.0,
    "tests/spark/test_read.py": 30.0,
    "tests/spark/test_write.py": 31.0,
    "tests/examples/test_read.py": 32.0,
}


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    module = importlib.import_module("dev.quick")
    monkeypatch.setattr(module, "WORKERS", 2)
    yield module
    for name in [name for name in sys.modules if name == "dev" or name.startswith("dev.")]:
        del sys.modules[name]


@pytest.mark.parametrize(
    ("changed", "budget_s", "files", "left_out"),
    [
        pytest.param(
            {"storage/log.py"},
            100,
            [
                "storage/test_log",
                "storage/test_slow",
                "replication/test_quick_log",
                "replication/test_leader",
                "broker/inner/test_node",
            ],
            [],
            id="the nearest first, then the folder of the same name, then the fastest; four imports are not near",
        ),
        pytest.param(
            {"storage/log.py"},
            5,
            ["storage/test_log", "replication/test_quick_log", "replication/test_leader", "broker/inner/test_node"],
            ["storage/test_slow"],
            id="what does not fit is left out, what fits behind it is not",
        ),
        pytest.param(
            {"storage/log.py"},
            2,
            ["storage/test_log", "replication/test_quick_log"],
            ["storage/test_slow", "replication/test_leader", "broker/inner/test_node"],
            id="the nearest has the room",
        ),
        pytest.param({"tests/storage/test_slow.py"}, 100, ["storage/test_slow"], [], id="a test file itself"),
        pytest.param({"broker/node.py", "gone.py"}, 100, ["broker/inner/test_node", "cli/test_main"], [], id="removed"),
        pytest.param({"README.md"}, 100, [], [], id="nothing is near"),
        pytest.param(
            set(),
            4,
            ["replication/test_quick_log", "cli/test_main", "storage/test_log", "broker/inner/test_node"],
            [
                "replication/test_leader",
                "spark/test_read",
                "storage/test_slow",
                "spark/test_write",
                "examples/test_read",
                "house/test_wheel",
            ],
            id="nothing changed: the fastest",
        ),
        pytest.param(
            {"spark_connector/reading.py"},
            60,
            ["spark/test_read", "examples/test_read"],
            ["spark/test_write"],
            id="files that share a session share a worker's time",
        ),
    ],
)
def test_what_is_chosen(
    quick: ModuleType, changed: set[str], budget_s: float, files: list[str], left_out: list[str]
) -> None:
    found = quick.select(changed, IMPORTS, SECONDS, budget_s)
    always = "tests/model/test_names.py"
    assert [path for path in found.files if path != always] == [f"tests/{name}.py" for name in files]
    assert found.files.count(always) == 1
    assert found.left_out == [f"tests/{name}.py" for name in left_out]
    assert found.seconds == pytest.approx(sum(SECONDS[path] for path in found.files))
    assert found.seconds <= budget_s * quick.WORKERS


def test_an_unmeasured_file_counts_too(quick: ModuleType) -> None:
    found = quick.select({"storage/log.py"}, IMPORTS, {}, quick.UNMEASURED_S * 1.5)
    assert len(found.files) == 3
    assert len(found.left_out) == 2


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    files = {
        "src/tidelog/__init__.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n"
        "    from tidelog.client.producer import Producer as Producer\n",
        "client/__init__.py": "",
        "client/producer.py": "from typing import TYPE_CHECKING\nfrom tidelog.model import ids\nif TYPE_CHECKING:\n"
        "    from tidelog.client.typed import Typed\nSCHEMA = 'v1/schema.json'\n",
        "client/typed.py": "",
        "model/__init__.py": "",
        "model/ids.py": "",
        "proto/v1/schema.json": "{}",
        "tests/conftest.py": "",
        "tests/client/conftest.py": "",
        "tests/client/scripted.py": "",
        "tests/client/test_producer.py": "import tidelog.model.ids\nfrom tidelog import Producer\n"
        "from .scripted import Broker\n\ndef test() -> None:\n    from tidelog.client import typed\n",
        "tests/cli/test_main.py": "COMMAND = ['-m', 'tidelog.client.producer']\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    git = ["git", "-c", "user.name=x", "-c", "user.email=x@example.org", "-C", str(tmp_path)]
    for command in (["init", "-q", "-b", "main"], ["add", "."], ["commit", "-qm", "first"], ["switch", "-qc", "topic"]):
        subprocess.run([*git, *command], check=True)
    (tmp_path / "client" / "typed.py").write_text("committed = 1\n")
    subprocess.run([*git, "commit", "-qam", "second"], check=True)
    subprocess.run([*git, "switch", "-q", "main"], check=True)
    subprocess.run([*git, "rm", "-q", "tests/cli/test_main.py"], check=True)
    subprocess.run([*git, "commit", "-qm", "main moves on"], check=True)
    subprocess.run([*git, "switch", "-q", "topic"], check=True)
    return tmp_path


def test_what_a_file_needs(quick: ModuleType, checkout: Path) -> None:
    """By imports at the top and in functions, through what a package hands on, by a name in a string, by a conftest."""
    found = quick.read_imports(checkout)
    assert found["client/producer.py"] == {"model/ids.py", "proto/v1/schema.json"}
    assert found["tests/client/test_producer.py"] == {
        "model/ids.py",
        "client/producer.py",
        "client/typed.py",
        "tests/client/scripted.py",
        "tests/client/conftest.py",
        "tests/conftest.py",
    }
    assert found["tests/cli/test_main.py"] == {"client/producer.py", "tests/conftest.py"}


def test_what_counts_as_changed(quick: ModuleType, checkout: Path) -> None:
    """Committed, uncommitted, untracked and deleted files of the branch."""
    (checkout / "client" / "producer.py").write_text("uncommitted = 1\n")
    (checkout / "client" / "new file.py").write_text("")
    (checkout / "model" / "ids.py").unlink()
    assert quick.changed_files(checkout) == {
        "client/typed.py",
        "client/producer.py",
        "client/new file.py",
        "model/ids.py",
    }


def test_measured_seconds_are_kept_and_those_of_gone_files_are_not(
    quick: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "durations.json"
    kept.write_text('{"tests/house/test_dev.py": 9.0, "tests/house/test_quick.py": 8.0, "tests/test_gone.py": 1}')
    monkeypatch.setattr(quick, "DURATIONS", kept)
    report = tmp_path / "tests.xml"
    report.write_text(
        '<testsuites><testsuite><testcase classname="tests.house.test_quick" time="0.25"/>'
        '<testcase classname="tests.house.test_quick.TestAll" file="tests/workers.py" time="1.0"/>'
        "</testsuite></testsuites>"
    )
    quick.keep_durations(report)
    assert json.loads(kept.read_text()) == {"tests/house/test_dev.py": 9.0, "tests/house/test_quick.py": 1.2}


def test_most_test_files_have_been_measured(quick: ModuleType) -> None:
    files = {str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("test_*.py")}
    assert len(files & json.loads(quick.DURATIONS.read_text()).keys()) > len(files) / 2
