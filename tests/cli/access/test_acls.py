"""``tidelog acls`` against a running node."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.cli.in_process import Tidelog, as_json, runs_commands
from tidelog import (
    ScramCredentialInfo,
    ScramMechanism,
    TopicPartition,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from tidelog.testing.cluster import Cluster

STANDARD = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    config = {"authorizer.class.name": STANDARD, "super.users": "User:ANONYMOUS"}
    with Cluster(nodes=1, transport="grpc", config=config) as found:
        yield found


@pytest.fixture
def acls(cluster: Cluster, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Tidelog]:
    run = runs_commands(cluster.bootstrap, capfd, monkeypatch)

    def call(*arguments: str, stdin: bytes = b"") -> tuple[int, str, str]:
        return run("acls", *arguments, stdin=stdin)

    yield call
    for kind in ("--topic", "--group", "--transactional-id"):
        call("remove", "--force", kind, "orders", "--resource-pattern-type", "match")
    call("remove", "--force", "--cluster")


def entries(acls: Tidelog, *arguments: str) -> set[str]:
    found = as_json(acls("list", *arguments, "--json"))
    names = ("permission", "principal", "host", "operation", "resource_type", "resource_name", "pattern_type")
    return {" ".join(each[name] for name in names) for each in found}


def test_the_shortcuts_are_kafkas(acls: Tidelog) -> None:
    assert acls(
        "add", "--allow-principal", "User:p", "--producer", "--idempotent", "--topic", "orders",
        "--transactional-id", "orders",
    )[0] == 0  # fmt: skip
    assert acls("add", "--allow-principal", "User:c", "--consumer", "--topic", "orders", "--group", "orders")[0] == 0
    assert entries(acls) == {
        "ALLOW User:p * WRITE TOPIC orders LITERAL",
        "ALLOW User:p * DESCRIBE TOPIC orders LITERAL",
        "ALLOW User:p * CREATE TOPIC orders LITERAL",
        "ALLOW User:p * WRITE TRANSACTIONAL_ID orders LITERAL",
        "ALLOW User:p * DESCRIBE TRANSACTIONAL_ID orders LITERAL",
        "ALLOW User:p * IDEMPOTENT_WRITE CLUSTER kafka-cluster LITERAL",
        "ALLOW User:c * READ TOPIC orders LITERAL",
        "ALLOW User:c * DESCRIBE TOPIC orders LITERAL",
        "ALLOW User:c * READ GROUP orders LITERAL",
    }
    assert entries(acls, "--group", "orders") == {"ALLOW User:c * READ GROUP orders LITERAL"}
    assert len(entries(acls, "--topic", "orders", "--principal", "User:c")) == 2


def test_entries_are_added_listed_and_removed(acls: Tidelog) -> None:
    code, out, _ = acls(
        "add", "--allow-principal", "User:a", "--allow-host", "10.0.0.1", "--deny-principal", "User:b",
        "--operation", "read", "--topic", "ord", "--resource-pattern-type", "prefixed",
    )  # fmt: skip
    assert (code, out.splitlines()) == (
        0,
        ["ALLOW User:a from 10.0.0.1: READ on TOPIC:PREFIXED:ord", "DENY User:b from *: READ on TOPIC:PREFIXED:ord"],
    )
    assert entries(acls, "--topic", "orders") == set()
    assert len(entries(acls, "--topic", "orders", "--resource-pattern-type", "match")) == 2
    code, out, _ = acls("list", "--topic", "ord", "--resource-pattern-type", "any")
    assert "User:a" in out
    kept = ("remove", "--topic", "orders", "--resource-pattern-type", "match")
    code, _, err = acls(*kept, stdin=b"n\n")
    assert (code, "Remove 2 entr" in err) == (1, True)
    assert acls("remove", "--force", "--deny-principal", "User:b", "--operation", "read", "--topic", "ord",
                "--resource-pattern-type", "prefixed")[0] == 0  # fmt: skip
    assert len(entries(acls)) == 1
    assert acls(*kept, stdin=b"y\n")[0] == 0
    assert entries(acls) == set()


def test_why_names_the_entry_that_decides(acls: Tidelog) -> None:
    asked = ("why", "--operation", "read", "--topic", "orders", "--principal")
    assert acls(*asked, "User:ANONYMOUS")[1] == "allowed: a super user may do everything\n"
    assert acls(*asked, "User:a")[1] == "denied: no entry allows it\n"
    acls("add", "--allow-principal", "User:a", "--topic", "ord", "--resource-pattern-type", "prefixed")
    acls("add", "--deny-principal", "User:*", "--deny-host", "10.0.0.1", "--topic", "orders")
    assert acls(*asked, "User:a")[1] == "allowed: ALLOW User:a from *: ALL on TOPIC:PREFIXED:ord\n"
    denied = as_json(acls(*asked, "User:a", "--host", "10.0.0.1", "--json"))
    entry = "DENY User:* from 10.0.0.1: ALL on TOPIC:LITERAL:orders"
    assert denied == {"allowed": False, "rule": "MatchingAcl", "entry": entry}


def test_entries_about_nothing_and_nobody_are_found(cluster: Cluster, acls: Tidelog) -> None:
    """Among entries of every kind that are about somebody and something."""
    cluster.create_topic("orders")
    run = partial(acls, "add", "--operation", "describe")

    def orphans(*more: str) -> set[tuple[str, str, str]]:
        found = as_json(acls("list", "--orphans", *more, "--json"))
        return {(each["principal"], each["resource_name"], each["reason"]) for each in found}

    with cluster.admin() as admin, cluster.consumer(group_id="orders") as consumer:
        consumer.assign([TopicPartition("orders", 0)])
        consumer.commit({TopicPartition("orders", 0): 0})
        for words in (
            ("--allow-principal", "User:alice", "--topic", "orders", "--group", "orders"),
            ("--allow-principal", "User:alice", "--topic", "ord", "--resource-pattern-type", "prefixed"),
            ("--allow-principal", "User:CN=alice", "--topic", "*", "--cluster"),
            ("--deny-principal", "User:*", "--topic", "orders"),
        ):
            assert run(*words)[0] == 0
        assert orphans() == set(), "nobody has a password: users come from elsewhere"
        assert run("--allow-principal", "User:al", "--topic", "gone", "--transactional-id", "orders")[0] == 0
        assert run("--allow-principal", "User:al", "--topic", "go", "--resource-pattern-type", "prefixed")[0] == 0
        lost = {
            ("User:al", "gone", "no such topic"),
            ("User:al", "orders", "no such transactional id"),
            ("User:al", "go", "no topic begins with it"),
        }
        assert orphans() == lost
        assert orphans("--principal", "User:alice") == set()
        password = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512)
        admin.alter_user_scram_credentials([UserScramCredentialUpsertion("al", "secret", password)])
        nobody = "no user with a password has this name"
        assert orphans() == lost | {("User:alice", name, nobody) for name in ("orders", "ord")}
        assert "no such topic" in acls("list", "--orphans")[1]
        admin.alter_user_scram_credentials([UserScramCredentialDeletion("al", ScramMechanism.SCRAM_SHA_512)])
    for name in ("gone", "*"):
        assert acls("remove", "--force", "--topic", name, "--resource-pattern-type", "match")[0] == 0


def test_the_entries_become_those_of_a_file(acls: Tidelog, tmp_path: Path) -> None:
    file = tmp_path / "acls.json"
    for name, user in (("orders", "a"), ("ord", "b")):
        pattern = "literal" if name == "orders" else "prefixed"
        words = ("--topic", name, "--resource-pattern-type", pattern, "--operation", "read")
        assert acls("add", "--allow-principal", f"User:{user}", *words)[0] == 0
    before = entries(acls)
    file.write_text(acls("list", "--json")[1])
    assert acls("diff", str(file)) == (0, "", "")
    assert acls("apply", str(file)) == (0, "", "")
    wanted = [entry for entry in json.loads(file.read_text()) if entry["principal"] == "User:a"]
    wanted += [{"principal": "User:c", "resource_type": "Group", "resource_name": "orders", "operation": "read"}] * 2
    file.write_text(json.dumps(wanted))
    difference = (
        "+ ALLOW User:c from *: READ on GROUP:LITERAL:orders\n- ALLOW User:b from *: READ on TOPIC:PREFIXED:ord\n"
    )
    assert acls("diff", str(file))[:2] == (1, difference)
    assert as_json((0, *acls("diff", str(file), "--json")[1:])).keys() == {"add", "remove"}
    code, _, err = acls("apply", str(file), stdin=b"n\n")
    assert (code, "nothing was changed" in err) == (1, True)
    assert entries(acls) == before
    assert acls("apply", str(file), "--force")[:2] == (0, difference)
    assert entries(acls) == {"ALLOW User:a * READ TOPIC orders LITERAL", "ALLOW User:c * READ GROUP orders LITERAL"}
    assert acls("apply", str(file)) == (0, "", "")
    assert acls("remove", "--force", "--topic", "orders")[0] == 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "expected JSON"),
        ("{}", "expected a list of entries"),
        ('["a"]', "entry 1: expected an object with the fields resource_type, "),
        ('[{"principal": 1}]', "entry 1: expected an object"),
        ('[{"principle": "User:a"}]', "found 'principle'"),
        ('[{"principal": "User:a", "resource_type": "TOPIC", "resource_name": "t"}]', "found no operation"),
        ('[{"principal": "User:a", "resource_type": "X", "resource_name": "t", "operation": "READ"}]',
         "resource_type: expected one of TOPIC, GROUP, CLUSTER, TRANSACTIONAL_ID, DELEGATION_TOKEN, USER, found 'X'"),
        ('[{"principal": "a", "resource_type": "TOPIC", "resource_name": "t", "operation": "READ"}]', "User:alice"),
    ],
)  # fmt: skip
def test_a_file_that_makes_no_sense_changes_nothing(acls: Tidelog, tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "acls.json"
    file.write_text(text)
    for command in ("diff", "apply"):
        code, _, err = acls(command, str(file))
        assert (code, said in err) == (1, True), err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("add", "--allow-principal", "User:a"), "expected a resource"),
        (("add", "--topic", "t"), "--allow-principal or --deny-principal"),
        (("add", "--allow-principal", "User:a", "--operation", "idempotent-write", "--topic", "t"), "on a topic"),
        (("add", "--allow-principal", "User:a", "--consumer", "--topic", "t"), "--group"),
        (("add", "--allow-principal", "User:a", "--producer", "--operation", "read", "--topic", "t"), "no --operation"),
        (("add", "--allow-principal", "User:a", "--idempotent", "--topic", "t"), "--producer"),
        (("add", "--deny-host", "1.2.3.4", "--allow-principal", "User:a", "--topic", "t"), "--deny-principal too"),
        (("remove", "--force"), "expected a resource"),
        (("why", "--principal", "User:a", "--operation", "read"), "expected one resource"),
    ],
)
def test_what_makes_no_sense_is_refused(acls: Tidelog, arguments: tuple[str, ...], said: str) -> None:
    code, _, err = acls(*arguments)
    assert (code, said in err) == (2, True), err


def test_a_principal_without_its_type_is_refused_by_the_cluster(acls: Tidelog) -> None:
    code, _, err = acls("add", "--allow-principal", "alice", "--topic", "t")
    assert code == 1
    assert "User:alice" in err


def test_without_an_authorizer_it_says_so(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with Cluster(nodes=1, transport="grpc") as cluster:
        code, _, err = runs_commands(cluster.bootstrap, capfd, monkeypatch)("acls", "list")
    assert (code, "authorizer.class.name" in err) == (1, True), err
