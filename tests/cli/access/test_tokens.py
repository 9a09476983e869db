"""``tidelog tokens`` against a running node."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.in_process import Tidelog, as_json, runs_commands
from tidelog import DelegationToken
from tidelog.cli.commands.access.spark_token import token_file
from tidelog.cli.commands.access.tokens import _login_file
from tidelog.cli.terminal.connection import read_command_config
from tidelog.testing.cluster import Cluster

KEY = "delegation.token.secret.key"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=1, transport="grpc", security="scram", config={KEY: "a key"}) as found:
        found.add_user("alice")
        found.add_user("bob")
        yield found


@pytest.fixture
def tokens(
    cluster: Cluster, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Tidelog:
    run = runs_commands(cluster.bootstrap, capfd, monkeypatch)
    for user in ("alice", "bob"):
        given = cluster.client_settings(user)
        lines = [f"{name.replace('_', '.')}={value}" for name, value in given.items()]
        (tmp_path / user).write_text("\n".join(lines))

    def call(*arguments: str, user: str = "alice", stdin: bytes = b"") -> tuple[int, str, str]:
        monkeypatch.setenv("TIDELOG_COMMAND_CONFIG", str(tmp_path / user))
        return run("tokens", *arguments, stdin=stdin)

    return call


def test_tokens_are_made_listed_renewed_and_expired(tokens: Tidelog) -> None:
    made = as_json(tokens("create", "--renewer", "User:bob", "--max-lifetime-ms", "3600000", "--json"))
    assert (made["owner"], made["requester"], made["renewers"]) == ("User:alice", "User:alice", ["User:bob"])
    assert made["max_timestamp"] == made["issue_timestamp"] + 3_600_000 == made["expiry_timestamp"]
    token_id, hmac = made["token_id"], made["hmac"]
    listed = as_json(tokens("list", "--json"))
    assert [each["token_id"] for each in listed] == [token_id]
    assert "hmac" not in listed[0]
    assert as_json(tokens("list", "--hmac", "--json"))[0]["hmac"] == hmac
    assert as_json(tokens("list", "--owner", "User:carol", "--json")) == []
    shown = tokens("list", user="bob")[1]
    assert token_id in shown
    assert hmac not in shown
    renewed = as_json(tokens("renew", token_id, "--period-ms", "60000", "--json", user="bob"))
    assert renewed["expiry_timestamp"] < made["expiry_timestamp"]
    assert tokens("renew", token_id)[1].startswith(f"{token_id}: expires 20")
    assert tokens("expire", token_id, "--period-ms", "60000")[1].startswith(f"{token_id}: expires 20")
    assert tokens("expire", token_id)[1] == f"{token_id}: removed\n"
    assert as_json(tokens("list", "--json")) == []


def test_a_saved_token_logs_in(
    cluster: Cluster,
    tokens: Tidelog,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    saved = tmp_path / "token.properties"
    code, out, err = tokens("create", "--save", str(saved))
    assert code == 0, err
    assert "HMAC" not in out
    assert stat.S_IMODE(saved.stat().st_mode) == 0o600
    assert "security.protocol=SASL_PLAINTEXT\n" in saved.read_text()
    monkeypatch.delenv("TIDELOG_COMMAND_CONFIG")
    run = runs_commands(cluster.bootstrap, capfd, monkeypatch)
    assert run("topics", "list", "--command-config", str(saved))[0] == 0
    code, _, err = run("tokens", "list", "--command-config", str(saved))
    assert code == 1
    assert "by something other than a delegation token" in err
    saved.write_text(saved.read_text().replace("tokenauth", "other"))
    assert run("topics", "list", "--command-config", str(saved))[0] == 1, "without the extension it is a user's name"


def test_a_saved_token_takes_nobodys_certificate_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Made over TLS by a certificate, it is for a listener with a login."""
    monkeypatch.chdir(tmp_path)
    token = DelegationToken("id", "User:a", "User:a", (), 1, 2, 3, b"secret")
    settings = {"security_protocol": "SSL", "ssl_cafile": "ca.pem", "ssl_certfile": "mine.pem"}
    (tmp_path / "saved").write_text(_login_file(token, settings))
    assert read_command_config(tmp_path / "saved") == {
        "security_protocol": "SASL_SSL",
        "ssl_cafile": str(tmp_path / "ca.pem"),
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_username": "id",
        "sasl_password": token.hmac_as_base64,
        "sasl_tokenauth": "true",
    }


def test_a_token_for_spark_is_the_file_that_hadoop_writes() -> None:
    """Written by ``Credentials.writeTokenStorageToStream`` of Hadoop 3.5.0, format WRITABLE."""
    hmac = "kIhwW6rIxTfvGcy/8dRc9G8XvQ1p2QxZpI4o2gGqQmZ3nS1m8rj5cT7vX0yB6dEwKfHsLuA9oPzRtNqMbVgCxw=="
    written = bytes.fromhex(
        "484454530001226b61666b612e7365727665722e64656c65676174696f6e2e746f6b656e2e6d61696e17644739725a573474"
        "615751744d54497a4e4455324e7a67586b49687757367249785466764763792f3864526339473858765131703251785a7049"
        "346f32674771516d5a336e53316d38726a356354377658307942366445774b6648734c7541396f507a52744e714d62566743"
        "78773d3d164b41464b415f44454c45474154494f4e5f544f4b454e226b61666b612e7365727665722e64656c65676174696f"
        "6e2e746f6b656e2e6d61696e00"
    )
    assert token_file("dG9rZW4taWQtMTIzNDU2Nzg", hmac, "main").encode() == written


def test_a_token_is_saved_for_spark(tokens: Tidelog, tmp_path: Path) -> None:
    saved = tmp_path / "token"
    code, out, err = tokens("create", "--save-for-spark", "main", str(saved))
    assert code == 0, err
    assert "HMAC" not in out
    assert stat.S_IMODE(saved.stat().st_mode) == 0o600
    there = as_json(tokens("list", "--hmac", "--json"))
    assert saved.read_text() in [token_file(made["token_id"], made["hmac"], "main") for made in there]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("create", "--owner", "User:bob"), "Delegation Token authorization failed"),
        (("create", "--renewer", "Group:staff"), "expected a principal of the kind User"),
        (("create", "--max-lifetime-ms", "0"), "x>=1"),
        (("create", "--save-for-spark", "a.b", "file"), "expected up to 64 letters"),
        (("renew", "nobody"), "expected a token that you may see"),
        (("expire", "nobody"), "expected a token that you may see"),
    ],
)
def test_what_makes_no_sense_is_refused(tokens: Tidelog, arguments: tuple[str, ...], said: str) -> None:
    code, _, err = tokens(*arguments)
    assert code in (1, 2)
    assert said in err
