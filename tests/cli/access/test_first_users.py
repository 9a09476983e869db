"""``tidelog server --add-scram``: the users that a new cluster begins with."""

from __future__ import annotations

import base64
import random
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.broker.node.test_server_process import Process
from tests.controller.conftest import CLUSTER_ID
from tidelog import Admin, errors
from tidelog.cli.work.first_users import parse_first_users
from tidelog.metadata_quorum.controller.controller import Controller
from tidelog.model.ids import ControllerEpoch, NodeId, Offset
from tidelog.model.settings.broker_config import NodeConfig
from tidelog.model.settings.config_def import ConfigError
from tidelog.proto.logs.metadata_records import DecoySecretRecord, UserScramCredentialRecord
from tidelog.security.scram import ScramMechanism, is_password_of, salted_password

SHA256, SHA512 = ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512


def users_in(*given: str) -> list[UserScramCredentialRecord]:
    secret, *users = parse_first_users(given)
    assert isinstance(secret, DecoySecretRecord)
    found = [each for each in users if isinstance(each, UserScramCredentialRecord)]
    assert len(found) == len(users)
    return found


def test_kafkas_forms(tmp_path: Path) -> None:
    file = tmp_path / "users"
    file.write_text("# the first\nSCRAM-SHA-512=[name=carol,password=c]\n\n")
    salted = salted_password(SHA256, "b", b"salt", 8192)
    salt, key = (base64.b64encode(each).decode() for each in (b"salt", salted))
    spelt = f'iterations=8192,salt="{salt}",saltedpassword="{key}"'
    alice, bob, carol = users_in(
        'SCRAM-SHA-256=[name="alice",password="a, b]"]', f'SCRAM-SHA-256=[name="bob",{spelt}]', f"@{file}"
    )
    assert (alice.name, bob.name, carol.name) == ("alice", "bob", "carol")
    assert is_password_of(SHA256, alice, "a, b]")
    assert (bob.iterations, is_password_of(SHA256, bob, "b")) == (8192, True)
    assert is_password_of(SHA512, carol, "c")
    assert parse_first_users(()) == ()


@pytest.mark.parametrize(
    "text",
    [
        "SCRAM-SHA-1=[name=a,password=hidden]",
        "SCRAM-SHA-256=name=a,password=hidden",
        "SCRAM-SHA-256=[password=hidden]",
        "SCRAM-SHA-256=[name=a]",
        "SCRAM-SHA-256=[name=a,password=hidden,saltedpassword=aaaa,salt=aaaa]",
        "SCRAM-SHA-256=[name=a,saltedpassword=aaaa]",
        "SCRAM-SHA-256=[name=a,saltedpassword=hidden!,salt=aaaa]",
        "SCRAM-SHA-256=[name=a,password=hidden,iterations=100]",
        "SCRAM-SHA-256=[name=a,password=hidden,iterations=999999]",
        "SCRAM-SHA-256=[name=a,password=hidden,iterations=x]",
        "SCRAM-SHA-256=[name=a,password=hidden,name=b]",
        "SCRAM-SHA-256=[name=*,password=hidden]",
        "SCRAM-SHA-256=[name=a,secret=hidden]",
    ],
)
def test_what_makes_no_sense_is_refused_without_the_password(text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_first_users((text,))
    assert "hidden" not in str(refused.value)


def test_only_a_new_cluster_takes_them() -> None:
    records = parse_first_users(("SCRAM-SHA-256=[name=admin,password=x]",))
    config = NodeConfig.parse({"node.id": "1"})
    controller = Controller(config, CLUSTER_ID, random.Random(7), lambda: [NodeId(1)], lambda: 0, records)
    first = tuple(controller.lead(ControllerEpoch(1), 0))
    assert set(records) <= set(first)
    controller.commit(first, Offset(0), ControllerEpoch(1))
    controller.resign()
    assert controller.lead(ControllerEpoch(2), 0) == []


def test_the_first_administrator_of_a_node_comes_in_by_password(tmp_path: Path) -> None:
    """No listener for clients lets anybody in without a login, not even at first."""
    secret = tmp_path / "secret"
    secret.write_text('SCRAM-SHA-512=[name="admin",password="pencil"]\n')
    settings = {
        "listener.security.protocol.map": "CLIENT:SASL_PLAINTEXT",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS;User:admin",
    }
    node = Process(tmp_path, settings, arguments=("--add-scram", f"@{secret}"))
    client: dict[str, Any] = {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_username": "admin",
    }
    node.start()
    try:
        node.wait_ready()
        with Admin(str(node.client), **client, sasl_password="pencil") as admin:
            assert set(admin.describe_user_scram_credentials()) == {"admin"}
        with Admin(str(node.client)) as nobody, pytest.raises(errors.SaslAuthenticationError):
            nobody.describe_cluster()
        assert node.end(signal.SIGTERM) == 0
        assert "pencil" not in node.output.read_text()
    finally:
        node.end(signal.SIGKILL)
