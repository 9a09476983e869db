"""The README from top to bottom: every command and program in its order on a real cluster, with the output it shows.

Numbers that differ from run to run (seconds, megabytes, pids) are not compared, nor how wide a table is. The cluster
takes free ports and a home directory of its own; both are put in place of those on the page.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tidelog.cli.local.cluster import LocalCluster

from .code_blocks import README, ROOT, CodeBlock, code_blocks

STEP_TIMEOUT_S: Final = 100
LINES_MAX: Final = 249
"""The front page can be read in one go."""
_VARYING: Final = (
    (re.compile(r"\b\d+\.\d+ s\b"), "# s"),
    (re.compile(r"\b\d+\.\d+ MB\b"), "# MB"),
    (re.compile(r"\(pid \d+\)"), "(pid #)"),
    (re.compile(r"\bready \d+ "), "ready # "),
    (re.compile("─+"), "─"),
)


def settled(text: str) -> list[str]:
    """The lines of an output without what differs from run to run."""
    lines = [" ".join(line.split()) for line in text.splitlines()]
    for pattern, put in _VARYING:
        lines = [pattern.sub(put, line) for line in lines]
    return [line for line in lines if line]


def steps(block: CodeBlock) -> Iterator[tuple[str, str]]:
    """The commands of a console block, each with the output shown below it."""
    command, shown = "", ""
    for line in block.text.splitlines():
        if line.startswith("$ "):
            if command:
                yield command, shown
            command, shown = line[2:], ""
        else:
            shown += line + "\n"
    assert command, f"{block.where}: a console block without a command"
    yield command, shown


class Reader:
    """Does what the page says, in a home of its own."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.data = home / ".local/share/tidelog"
        outer = {name: value for name, value in os.environ.items() if not name.startswith(("TIDELOG_", "XDG_"))}
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        self._environment = {**outer, "HOME": str(home), "PATH": path}
        self._addresses: dict[str, str] = {}

    def run(self, block: CodeBlock, *command: str) -> str:
        done = subprocess.run(
            [self._real(word) for word in command],
            cwd=self.home,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE if block.info[0] == "python" else subprocess.STDOUT,
            text=True,
            timeout=STEP_TIMEOUT_S,
        )
        assert done.returncode == 0, f"{block.where}: {command[-1]}\n{done.stdout}{done.stderr or ''}"
        self._look_for_addresses()
        return self._as_on_the_page(done.stdout)

    def console(self, block: CodeBlock) -> None:
        for command, shown in steps(block):
            real = command.replace("cluster start", "cluster start --free-ports")
            said = self.run(block, "bash", "-o", "pipefail", "-c", real)
            assert settled(said) == settled(shown), f"{block.where}: {command}"

    def _look_for_addresses(self) -> None:
        if (layout := self.data / "cluster.json").exists():
            for number, ports in json.loads(layout.read_text())["nodes"].items():
                for name, first in (("kafka", 9092), ("http", 9095), ("client", 9096)):
                    at = first + 100 * (int(number) - 1)
                    self._addresses[f"127.0.0.1:{at}"] = f"127.0.0.1:{ports[name]}"

    def _real(self, text: str) -> str:
        return re.sub(r"127\.0\.0\.1:\d+", lambda found: self._addresses.get(found[0], found[0]), text)

    def _as_on_the_page(self, text: str) -> str:
        text = text.replace(str(self.home), "~")
        for named, real in self._addresses.items():
            text = text.replace(real, named)
        return text


def do(reader: Reader, page: Path) -> int:
    """Follow a page; returns how many blocks were run."""
    count = 0
    printed = ""
    for block in code_blocks(page):
        language, *marks = block.info or ("text",)
        if "no-run" in marks:
            continue
        if any(mark.startswith("needs-") and shutil.which(mark[6:]) is None for mark in marks):
            continue
        if language == "console":
            reader.console(block)
        elif language == "python":
            printed = reader.run(block, sys.executable, "-P", "-W", "error", "-c", block.text)
        elif "output" in marks:
            assert settled(printed) == settled(block.text), block.where
        else:
            assert language == "text", f"{block.where}: expected a block that runs or is marked, found {block.info}"
            continue
        count += 1
    return count


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    made = Reader(tmp_path)
    yield made
    if LocalCluster.exists(made.data):
        cluster = LocalCluster.open(made.data)
        for node_id in cluster.nodes:
            cluster.kill(node_id)


@pytest.mark.timeout(400)
def test_the_readme_does_what_it_says(reader: Reader) -> None:
    assert do(reader, README) >= 7
    assert not reader.data.exists(), "the page leaves nothing behind"


def test_the_readme_is_short_and_compares_itself_with_kafka() -> None:
    """It repeats the ratios of the benchmarks' page, those below 1 too."""
    text = README.read_text()
    assert len(text.splitlines()) <= LINES_MAX
    measured = (ROOT / "docs" / "benchmarks.md").read_text().partition("\n## Beside Apache Kafka\n")[2]
    rows = re.findall(r"^\| ((?:produce|processor time of the nodes|read).*?) \| ([\d.]+), ([\d.]+) \|", measured, re.M)
    assert len(rows) == 4, "expected the table of ratios"
    shown = text.partition("\n## How fast\n")[2].partition("\n## ")[0]
    assert [what for what, *ratios in rows if not all(re.search(rf"\b{each}\b", shown) for each in ratios)] == []


@pytest.mark.parametrize(
    "text",
    [
        "```console\n$ printf 'a\\nb\\n'\na\nc\n```\n",
        "```console\n$ false\n```\n",
        "```console\n$ printf 'more\\n'\n```\n",
        "```python\nprint(1)\n```\n\n```text output\n2\n```\n",
        "```python\nraise SystemExit(1)\n```\n",
        "```yaml\na: 1\n```\n",
    ],
)
def test_a_page_that_shows_something_else_is_refused(reader: Reader, tmp_path: Path, text: str) -> None:
    page = tmp_path / "page.md"
    page.write_text(text)
    with pytest.raises(AssertionError):
        do(reader, page)


def test_times_sizes_and_pids_may_differ_and_nothing_else() -> None:
    shown = "   1   ready   658   127.0.0.1:9092   67.3 MB   0.6 s\nnode 2 (pid 659) is dead\n───\n"
    same = " 1 ready 31169 127.0.0.1:9092  73.0 MB  11.1 s\nnode 2 (pid 7) is dead\n─────\n"
    assert settled(shown) == settled(same)
    assert settled(shown) != settled(same.replace("node 2", "node 3"))
