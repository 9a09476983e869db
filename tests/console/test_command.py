"""The command and what it starts: a console, and drills as processes of their own."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidelog.cli.local import process as local_process
from tidelog.cli.local.console import LocalConsole
from tidelog.console.access import access_of
from tidelog.console.drill_runs import Drills
from tidelog.console.table import ROUTES
from tidelog.testing import Cluster
from tidelog.testing.ports import free_ports

from .conftest import DEADLINE_S, Console, Person

MEMORY_MAX_KB = 60_000
"""58,000 were measured."""


def test_the_command_serves_until_it_is_interrupted(open_cluster: Cluster) -> None:
    with open_cluster.producer() as producer:
        producer.send("seen", b"1").result(DEADLINE_S)
    command = [sys.executable, "-m", "tidelog.cli.main", "console", "--port", "0", "-b", open_cluster.bootstrap]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            assert process.stdout is not None
            found = re.search(r"http://(127\.0\.0\.1:\d+)/$", process.stdout.readline().strip())
            assert found is not None
            person = Person.at(found[1])
            person.enter()
            addresses = [
                route.path for route in ROUTES if route.act and route.method == "GET" and "{" not in route.path
            ]
            for path in ("/", *addresses, "/api/topics/seen", "/api/topics/seen/settings", *addresses):
                assert person.get(path).status == 200, path
            found_rows = person.events(
                "/api/topics/seen/messages?from=oldest&value=1&mode=re2", lambda kind, _: kind in ("done", "trouble")
            )
            assert found_rows[-1][0] == "done", found_rows
            status = Path(f"/proc/{process.pid}/status")
            if status.exists():
                resident = re.search(r"VmRSS:\s+(\d+) kB", status.read_text())
                assert resident is not None
                assert int(resident[1]) < MEMORY_MAX_KB
            process.send_signal(signal.SIGINT)
            assert process.wait(DEADLINE_S) == 130
            assert process.stdout.read().strip() == "", "nothing went wrong on the way"
        finally:
            process.kill()


def test_a_local_cluster_starts_with_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It stays when the command has ended, is found by the next start, and goes with the cluster."""
    home = tmp_path / "home"
    monkeypatch.setenv("TIDELOG_HOME", str(home))

    def tidelog(*arguments: str) -> str:
        command = [sys.executable, "-P", "-m", "tidelog.cli.main", "cluster", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=True).stdout

    try:
        told = json.loads(tidelog("start", "--console", "--nodes", "1", "--free-ports", "--json"))
        person = Person.at(re.sub("https?://|/$", "", told["console"]))
        person.enter()
        assert person.get("/api/cluster").json["nodes"][0]["state"] == "live"
        assert LocalConsole(home).start("") == told["console"], "one is enough"
        mark = local_process.read_mark(home / "console.json")
        assert mark is not None
    finally:
        tidelog("stop", "--delete-data")
    assert not local_process.alive(mark)
    assert not home.exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--host", "0.0.0.0"], "does not ask for passwords"),
        (["--origin", "console.example"], "expected an address"),
        (["--port", "PORT"], "cannot listen"),
        (["-b", "127.0.0.1:1"], "no broker listens"),
    ],
)
def test_what_it_cannot_do_is_one_clear_line(open_cluster: Cluster, options: list[str], said: str) -> None:
    (port,) = free_ports(1)
    with socket.create_server(("127.0.0.1", port)):
        given = [str(port) if one == "PORT" else one for one in options]
        done = subprocess.run(
            [sys.executable, "-m", "tidelog.cli.main", "console", "-b", open_cluster.bootstrap, "--port", "0", *given],
            capture_output=True, text=True, timeout=DEADLINE_S,
        )  # fmt: skip
    assert done.returncode in (1, 2)
    (line,) = done.stderr.splitlines()
    assert said in line


@pytest.fixture
def with_drills(secured_cluster: Cluster) -> Iterator[Console]:
    settings = dict(secured_cluster.client_settings())
    console = Console(secured_cluster.bootstrap, access_of(settings), drills=True)
    yield console
    console.close()


def test_a_drill_is_held_as_the_person_and_its_word_is_shown(
    secured_cluster: Cluster, with_drills: Console, admin_password: str
) -> None:
    """On a cluster of one node, which the drill reaches by the person's password, and refuses."""
    mallory = with_drills.person()
    mallory.enter("mallory", "m-password")
    said = mallory.post("/api/drills/leader-loss")
    assert (said.status, said.json["error"]) == (403, "CLUSTER_AUTHORIZATION_FAILED")
    admin = with_drills.person()
    admin.enter("admin", admin_password)
    shown = admin.get("/api/drills").json
    assert "leader-loss" in [one["name"] for one in shown["drills"]]
    assert admin.post("/api/drills/no-such-drill").status == 404
    assert admin.post("/api/drills/leader-loss", {"here": True, "confirm": "another"}).status == 428
    assert admin.post("/api/drill-stop").status == 409
    assert admin.post("/api/drills/leader-loss", {"here": True, "confirm": shown["cluster"]}).status == 200
    assert admin.post("/api/drills/leader-loss").status == 409, "one at a time"
    deadline = time.monotonic() + DEADLINE_S
    while (held := admin.get("/api/drills").json["held"])["running"]:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert (held["code"], held["by"], held["verdict"]) == (2, "admin", None)
    assert "broker" in held["lines"][-1], held["lines"]
    assert admin_password not in "".join(held["lines"])
    assert mallory.get("/api/drills").json["held"] is None, "another person's"


def test_the_end_of_the_console_ends_a_drill(open_cluster: Cluster) -> None:
    drills = Drills(open_cluster.bootstrap)
    held = drills.start("leader-loss", None, None, {})
    drills.close()
    assert held.process.returncode is not None
    assert held.code is not None
