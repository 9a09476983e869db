"""Before the sub-command: the cluster's address, suggestions for a mistyped name, completion by the shell."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from tidelog.cli.root import tree
from tidelog.testing import Cluster

from .in_process import Tidelog, as_json, runs_commands

NOBODY = "127.0.0.1:1"
WITHOUT_JSON = {
    "server": "it runs a node, and prints nothing but its log",
    "profile create": "what it made is a file, which `profile list --json` shows",
    "profile use": "the same",
    "profile delete": "the same",
    "login": "the same",
    "security init": "what it made is files",
    "security issue": "the same",
    "links run": "it copies until it is stopped, and prints nothing but its log",
    "metrics dashboard": "it is JSON already",
    "console": "it serves pages until it is stopped",
    "verifiable-producer": "each event is a JSON object",
    "verifiable-consumer": "the same",
}


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    with Cluster(nodes=1, transport="grpc") as cluster:
        cluster.create_topic("lines", partitions=1)
        yield cluster.bootstrap


@pytest.fixture
def tidelog(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Tidelog:
    return runs_commands(NOBODY, capfd, monkeypatch)


@pytest.mark.parametrize("option", ["--bootstrap", "-b"])
def test_the_address_may_stand_before_the_command_or_after_it(tidelog: Tidelog, bootstrap: str, option: str) -> None:
    before = as_json(tidelog(option, bootstrap, "topics", "list", "--json"))
    assert before == as_json(tidelog("topics", "list", "--json", option, bootstrap))
    assert [topic["name"] for topic in before] == ["lines"]
    # The nearer one counts, and either beats the environment, which names nobody here.
    assert as_json(tidelog(option, NOBODY, "topics", "list", "--json", option, bootstrap)) == before
    code, _, err = tidelog(option, bootstrap, "topics", "list", option, NOBODY)
    assert (code, f"no broker listens at {NOBODY}" in err) == (1, True)
    assert tidelog("topics", "list")[0] == 1


def test_an_address_before_a_command_without_use_for_it_is_refused(tidelog: Tidelog, tmp_path: Path) -> None:
    code, _, err = tidelog("--bootstrap", NOBODY, "cluster", "stop", "--dir", str(tmp_path))
    assert code == 2
    assert "expected no --bootstrap: tidelog cluster stop does not connect to a cluster" in err


@pytest.mark.parametrize(
    ("arguments", "suggestion"),
    [
        (("topcs", "list"), "Did you mean 'topics'?"),
        (("dril",), "Did you mean 'drill'?"),
        (("topics", "lst"), "Did you mean 'list'?"),
        (("topics", "list", "--jsn"), "Did you mean '--json'?"),
    ],
)
def test_a_mistyped_name_gets_a_suggestion(tidelog: Tidelog, arguments: tuple[str, ...], suggestion: str) -> None:
    code, _, err = tidelog(*arguments)
    assert code == 2
    assert suggestion in err


def test_a_name_like_no_other_gets_no_suggestion(tidelog: Tidelog) -> None:
    code, _, err = tidelog("xyzzy")
    assert (code, "Did you mean" in err) == (2, False)


_COMPLETE = """eval "$(_TIDELOG_COMPLETE=bash_source tidelog)"
    COMP_WORDS=(tidelog $WORDS); COMP_CWORD=${#COMP_WORDS[@]}; COMP_CWORD=$((COMP_CWORD - 1))
    _tidelog_completion tidelog; printf '%s\\n' "${COMPREPLY[@]}" """


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("top", ["topics"]),
        ("topics des", ["describe"]),
        (f"--bootstrap {NOBODY} groups reset", ["reset-offsets"]),
        (f"consume lines --bootstrap {NOBODY} --from-b", ["--from-beginning"]),
    ],
)
def test_bash_completes_names_without_asking_a_cluster(words: str, found: list[str]) -> None:
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "WORDS": words}
    done = subprocess.run(["bash", "-c", _COMPLETE], capture_output=True, text=True, env=environment, timeout=240)
    assert (done.stdout.split(), done.stderr) == (found, "")


@pytest.mark.parametrize(
    ("shell", "sign"), [("bash", "complete -o"), ("zsh", "#compdef tidelog"), ("fish", "complete ")]
)
def test_there_is_a_script_for_each_shell(shell: str, sign: str) -> None:
    command = [sys.executable, "-P", "-m", "tidelog.cli.main"]
    environment = {**os.environ, "_TIDELOG_COMPLETE": f"{shell}_source"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=240)
    assert done.returncode == 0
    assert sign in done.stdout


def _commands(group: click.Group, context: click.Context, path: str = "") -> Iterator[tuple[str, click.Command]]:
    for name in group.list_commands(context):
        found = group.get_command(context, name)
        assert found is not None
        if isinstance(found, click.Group):
            yield from _commands(found, click.Context(found, parent=context, info_name=name), f"{path}{name} ")
        else:
            yield f"{path}{name}", found


def test_every_command_answers_in_json_or_has_a_reason_not_to() -> None:
    commands = dict(_commands(tree, click.Context(tree)))
    without = {name for name, command in commands.items() if all("--json" not in it.opts for it in command.params)}
    assert without == WITHOUT_JSON.keys()
