"""``tidelog quotas`` against a running node."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cli.in_process import Tidelog, as_json, runs_commands
from tidelog.testing.cluster import Cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=1, transport="grpc") as found:
        yield found


@pytest.fixture
def quotas(cluster: Cluster, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Tidelog]:
    run = runs_commands(cluster.bootstrap, capfd, monkeypatch)

    def call(*arguments: str, stdin: bytes = b"") -> tuple[int, str, str]:
        return run("quotas", *arguments, stdin=stdin)

    yield call
    with cluster.admin() as admin:
        found = admin.describe_client_quotas()
        admin.alter_client_quotas({entity: dict.fromkeys(values) for entity, values in found.items()})


def test_quotas_are_set_shown_and_removed(quotas: Tidelog) -> None:
    code, out, _ = quotas("alter", "--user", "alice", "--set", "producer_byte_rate=1048576", "--set",
                          "request_percentage=12.5")  # fmt: skip
    assert (code, out) == (0, "changed for user alice: producer_byte_rate=1048576, request_percentage=12.5\n")
    assert quotas("alter", "--user", "alice", "--client-defaults", "--set", "consumer_byte_rate=10")[0] == 0
    assert quotas("alter", "--ip-defaults", "--set", "connection_creation_rate=5")[0] == 0
    alice = {"entity": {"user": "alice"}, "quotas": {"producer_byte_rate": 1048576.0, "request_percentage": 12.5}}
    both = {"entity": {"user": "alice", "client-id": None}, "quotas": {"consumer_byte_rate": 10.0}}
    address = {"entity": {"ip": None}, "quotas": {"connection_creation_rate": 5.0}}

    def shown(*arguments: str) -> list[object]:
        found: list[object] = as_json(quotas("describe", *arguments, "--json"))
        return found

    for arguments, wanted in (
        ((), [alice, both, address]),
        (("--user", "alice"), [alice, both]),
        (("--user", "alice", "--strict"), [alice]),
        (("--client-defaults",), [both]),
        (("--ip-defaults",), [address]),
        (("--user-defaults",), []),
    ):
        found = shown(*arguments)
        assert len(found) == len(wanted), (arguments, found)
        assert all(each in found for each in wanted), (arguments, found)
    lines = quotas("describe", "--user", "alice")[1].splitlines()
    assert [line.split() for line in lines if "consumer_byte_rate" in line] == [
        ["alice", "<default>", "-", "consumer_byte_rate", "10"]
    ]
    code, out, _ = quotas(
        "alter", "--user", "alice", "--delete", "producer_byte_rate", "--delete", "request_percentage"
    )
    assert (code, "producer_byte_rate removed" in out) == (0, True)
    assert shown("--user", "alice") == [both]


def test_a_dry_run_changes_nothing(quotas: Tidelog) -> None:
    code, out, _ = quotas("alter", "--client", "c", "--set", "producer_byte_rate=1", "--dry-run")
    assert (code, "could be changed" in out) == (0, True)
    assert as_json(quotas("describe", "--json")) == []


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("alter", "--set", "producer_byte_rate=1"), 2, "expected --user"),
        (("alter", "--user", "a"), 2, "--set or --delete"),
        (("alter", "--user", "a", "--user-defaults", "--delete", "x"), 2, "found both"),
        (("alter", "--user", "", "--delete", "x"), 2, "--user-defaults"),
        (("alter", "--user", "a", "--set", "producer_byte_rate=much"), 2, "expected a number"),
        (("alter", "--user", "a", "--set", "x=1", "--delete", "x"), 2, "found x in --set"),
        (("alter", "--user", "a", "--set", "producer_byte_rate=0"), 1, "greater than 0"),
        (("alter", "--ip", "example.com", "--set", "connection_creation_rate=1"), 1, "IPv4 or IPv6"),
        (("describe", "--ip", "10.0.0.1", "--user", "a"), 1, "by itself"),
    ],
)
def test_what_makes_no_sense_is_refused(quotas: Tidelog, arguments: tuple[str, ...], code: int, said: str) -> None:
    found, _, err = quotas(*arguments)
    assert (found, said in err) == (code, True), err
