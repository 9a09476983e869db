"""The documentation's code runs, and the commands it names are there.

A Python block runs against a real cluster in place of the addresses it names; those of the README run in order
(``test_readme.py``). What marks mean: ``code_blocks.py``. Lines that begin with ``$`` in a ``console`` block, and every
line of a ``sh`` block, are commands.
"""

from __future__ import annotations

import importlib
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import click
import pytest

from .code_blocks import ADDRESS, PAGES, README, ROOT, CodeBlock, blocks_of


def programs() -> Iterator[tuple[CodeBlock, str]]:
    """Python blocks that run, each behind those it continues."""
    before = ""
    for block in blocks_of("python"):
        before = before + block.text if "after" in block.info else block.text
        if "no-run" not in block.info and block.page != README:
            yield block, before


PROGRAMS: Final = list(programs())


@pytest.fixture(scope="module")
def addresses() -> Iterator[dict[str, str]]:
    """The addresses in the text, and those of the cluster."""
    from tidelog.testing import Cluster

    with Cluster(nodes=1, transport="grpc") as cluster:
        yield {ADDRESS: cluster.bootstrap}


def test_there_is_something_to_run() -> None:
    assert {block.page.name for block, _ in PROGRAMS} >= {"sdk.md", "kafka-clients.md", "in-process-cluster.md"}


@pytest.mark.filterwarnings("ignore:(read|open)_text is deprecated:DeprecationWarning")  # kafka-python's import
@pytest.mark.parametrize("text", [text for _, text in PROGRAMS], ids=[block.where for block, _ in PROGRAMS])
def test_python_block_runs(
    text: str,
    addresses: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "__main__"}
    for named, real in addresses.items():
        text = text.replace(named, real)
    exec(compile(text, "<documentation>", "exec"), names)
    for name, tested in list(names.items()):
        if name.startswith("test_") and callable(tested) and not tested.__code__.co_argcount:
            tested()


@pytest.mark.parametrize("block", blocks_of("python"), ids=lambda block: block.where)
def test_python_block_compiles(block: CodeBlock) -> None:
    compile(block.text, block.where, "exec")


def commands() -> list[tuple[str, str]]:
    """Every command line of the documentation and where it stands."""
    found = []
    for block in blocks_of("sh", "console"):
        whole = block.text.replace("\\\n", " ")
        for line in whole.splitlines():
            if block.info[0] == "console":
                if not line.startswith("$ "):
                    continue
                line = line[2:]
            found += [(part.strip(), block.where) for part in re.split(r"&&|\|", line) if part.strip()]
    return [(line, where) for line, where in found if not line.startswith("#")]


OURS: Final = [(line, where) for line, where in commands() if shlex.split(line)[0] in ("./dev", "tidelog")]


@pytest.mark.parametrize("line", [line for line, _ in OURS], ids=[f"{where} {line}" for line, where in OURS])
def test_command_is_there_with_its_options(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    words = shlex.split(line, comments=True)
    if words[0] == "./dev":
        monkeypatch.syspath_prepend(str(ROOT / "tools"))
        known = importlib.import_module("dev.commands").COMMANDS
        if len(words) == 1:
            return
        assert words[1] in known, f"./dev has no command {words[1]}"
        if words[1] == "sim":
            check_sim(words[2:])
        if words[1] != "run":
            return
        words = words[2:]
    if words[0] == "tidelog":
        check_tidelog(words[1:])


def check_tidelog(words: list[str]) -> None:
    from tidelog.cli.root import tree

    command: click.Command = tree
    context = click.Context(tree, info_name="tidelog")
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        found = command.get_command(context, words[0])
        assert found is not None, f"{context.command_path} has no command {words[0]}"
        context = click.Context(found, info_name=words[0], parent=context)
        command, words = found, words[1:]
    options = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    for word in words:
        if word.startswith("--"):
            name = word.split("=")[0]
            assert name in options | {"--help", "--version"}, f"{context.command_path} has no option {name}"


def check_sim(words: list[str]) -> None:
    from tidelog.chaos.simulated.runner.command import parser
    from tidelog.chaos.simulated.scenarios.registry import SCENARIOS

    options = parser().parse_args(words)
    for name in filter(None, options.scenario.split(",")):
        assert name in SCENARIOS or options.file, f"./dev sim has no scenario {name}"


def test_the_checker_refuses_a_command_that_is_not_there() -> None:
    with pytest.raises(AssertionError, match="has no command cluser"):
        check_tidelog(["cluser", "start"])
    with pytest.raises(AssertionError, match="has no option --nodez"):
        check_tidelog(["cluster", "start", "--nodez", "3"])
    with pytest.raises(AssertionError, match="has no scenario nobody"):
        check_sim(["--scenario", "nobody"])
    with pytest.raises(SystemExit):
        check_sim(["--seedz", "3"])


def test_links_between_pages_lead_somewhere() -> None:
    broken = []
    for page in PAGES:
        for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
            path = target.split("#")[0]
            if path and "://" not in path and not (page.parent / path).exists():
                broken.append(f"{page.relative_to(ROOT)}: {target}")
    assert broken == []


def test_every_test_that_a_page_names_is_there() -> None:
    missing = []
    for page in PAGES:
        for path, name in re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", page.read_text(encoding="utf-8")):
            source = ROOT / path
            if not source.exists() or (name and not re.search(rf"def {name}\(", source.read_text(encoding="utf-8"))):
                missing.append(f"{page.relative_to(ROOT)}: {path}::{name}")
    assert missing == []


def test_no_page_holds_a_place_for_output_that_is_not_there() -> None:
    for page in PAGES:
        assert re.findall(r"\b[A-Z]+_(?:OUTPUT|TABLE|TIME|DEMO|TEST)\b", page.read_text(encoding="utf-8")) == []
