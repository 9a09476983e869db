"""No request reaches a page without what it needs, whatever the route: walked over the door's own table."""

from __future__ import annotations

import socket
import ssl
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tidelog import ConfigResource
from tidelog.cli.failure import CommandFailed
from tidelog.console.access import access_of, check_place
from tidelog.console.routes import Route
from tidelog.console.table import ROUTES
from tidelog.console.web.server import BODY_BYTES_MAX
from tidelog.console.web.sessions import FAILURES_MAX, IDLE_S, SESSION_S, SESSIONS_MAX, STREAMS_MAX
from tidelog.security.authority import Authority
from tidelog.testing import Cluster

from .conftest import Console, Person

NAMES = {
    "topic": "secret-topic", "group": "secret-group", "transaction": "secret-id", "user": "admin", "node": "1",
    "partition": "0", "offset": "0", "drill": "leader-loss", "sink": "secret-sink",
}  # fmt: skip
BODY: dict[str, Any] = {
    "name": "made-by-mallory", "partitions": 3, "value": "1", "expected": None, "to": "earliest", "password": "x",
    "topic": "secret-topic", "partition": 0, "start": 0, "before": 0, "batch": 0, "job": "j",
    "principal": "User:mallory", "resource_type": "TOPIC", "resource_name": "*", "operation": "ALL", "user": "mallory",
    "client": None, "ip": None,
    "values": {"producer_byte_rate": 1}, "moves": [{"topic": "secret-topic", "partition": 0, "from": None, "to": 0}],
}  # fmt: skip
TOO_LONG = b"x" * (BODY_BYTES_MAX + 1)
CHANGES = [route for route in ROUTES if route.method != "GET"]


def path_of(route: Route) -> str:
    return route.path.format(**NAMES)


def body_of(route: Route) -> dict[str, Any]:
    body = dict(BODY)
    if route.path == "/api/topics/{topic}/records":
        body = {"key": None, "value": {"text": "from mallory"}}
    elif route.path in ("/api/acls", "/api/acls/remove"):
        wanted = ("principal", "resource_type", "resource_name", "operation")
        body = {name: BODY[name] for name in wanted}
    if route.path.endswith("/settings"):
        body["name"] = "retention.ms"
    if route.typed is not None:
        body["confirm"] = NAMES[route.typed]
    return body


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
def test_without_a_login_nothing_is_answered(secured_console: Console, route: Route) -> None:
    said = secured_console.person().ask(route.method, path_of(route), body_of(route) if route in CHANGES else None)
    assert (said.status, said.json["error"]) == (401, "WRONG")


@pytest.mark.parametrize("route", CHANGES, ids=lambda route: route.path)
def test_a_change_needs_the_sessions_token_and_our_own_page(anybody: Person, route: Route) -> None:
    path, body = path_of(route), body_of(route)
    for headers, status in (
        ({"X-CSRF-Token": None}, 403),
        ({"X-CSRF-Token": anybody.csrf[:-1] + "x"}, 403),
        ({"Origin": None}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Content-Type": "text/plain"}, 415),  # what a form of another page can send
        ({"Host": "evil.example"}, 421),  # a name of theirs that resolves to us
    ):
        assert anybody.ask("POST", path, body, headers).status == status, headers


@pytest.mark.parametrize("route", [route for route in ROUTES if route.typed], ids=lambda route: route.path)
def test_what_cannot_be_undone_is_typed_once_more(anybody: Person, route: Route) -> None:
    for typed in ("", "secret"):
        assert anybody.post(path_of(route), body_of(route) | {"confirm": typed}).status == 428


@pytest.mark.timeout(120)
def test_a_person_without_rights_sees_nothing_and_changes_nothing(
    secured_cluster: Cluster, secured_console: Console
) -> None:
    mallory = secured_console.person()
    assert mallory.enter("mallory", "m-password").status == 200
    with secured_cluster.admin() as admin:

        def state() -> list[Any]:
            settings = admin.describe_configs([ConfigResource("topic", "secret-topic"), ConfigResource("broker", "1")])
            users, quotas = admin.describe_user_scram_credentials(), admin.describe_client_quotas()
            return [admin.list_topics(), settings, users, quotas, admin.describe_acls(), admin.list_groups()]

        before = state()
        for route in ROUTES:
            if route.tell is not None:
                kinds = mallory.events(path_of(route), lambda kind, _: kind in ("trouble", "done"))
                assert [kind for kind, _ in kinds] == ["trouble"], route.path
                assert kinds[0][1]["error"] == "TOPIC_AUTHORIZATION_FAILED", route.path
                continue
            said = mallory.ask(route.method, path_of(route), body_of(route) if route in CHANGES else None)
            assert said.status in (200, 403, 404, 409), (route.path, said.body)
            if said.status == 200:
                assert b"secret" not in said.body, route.path
                assert b'"admin"' not in said.body, route.path
                assert route not in CHANGES, (route.path, said.body)
        assert state() == before
        assert admin.list_offsets({("secret-topic", 0): _latest()})[("secret-topic", 0)].offset == 0  # type: ignore[dict-item,index]


def _latest() -> Any:
    from tidelog import OffsetSpec

    return OffsetSpec.latest()


def test_a_person_acts_under_the_own_name_and_may_what_the_brokers_allow(
    secured_console: Console, admin_password: str
) -> None:
    admin = secured_console.person()
    assert admin.enter("admin", admin_password).json["user"] == "admin"
    assert admin.post("/api/topics", {"name": "made-by-admin", "partitions": 2, "copies": 1}).status == 200
    assert admin.post("/api/topics", {"name": "made-by-admin"}).json["error"] == "TOPIC_ALREADY_EXISTS"
    names = [one["name"] for one in admin.get("/api/topics").json["topics"]]
    assert names == ["made-by-admin", "secret-topic"]
    assert admin.post("/api/users/zoe/password", {"password": "p", "mechanism": "SCRAM-SHA-512"}).status in (200, 409)
    assert admin.post("/api/logout").status == 200
    assert admin.get("/api/topics").status == 401


def test_a_wrong_password_is_told_and_many_are_slowed_down(secured_console: Console) -> None:
    eve = secured_console.person()
    statuses = [eve.enter("mallory", f"guess {number}").status for number in range(FAILURES_MAX + 1)]
    assert statuses == [401] * FAILURES_MAX + [429]
    assert eve.enter("mallory", "m-password").status == 429, "the right one, too early"
    secured_console.now_s += 3_600
    assert eve.enter("mallory", "m-password").status == 200


def test_a_session_ends_when_it_is_idle_or_old(open_console: Console) -> None:
    person = open_console.person()
    person.enter()
    began_s = open_console.now_s
    while open_console.now_s + IDLE_S - 1 < began_s + SESSION_S:
        open_console.now_s += IDLE_S - 1
        assert person.get("/api/plan-inputs").status == 200
    open_console.now_s = began_s + SESSION_S
    assert person.get("/api/plan-inputs").status == 401
    person.enter()
    open_console.now_s += IDLE_S
    assert person.get("/api/plan-inputs").status == 401


def test_a_stream_ends_with_its_session(open_console: Console) -> None:
    person = open_console.person()
    person.enter()

    def until(kind: str, _: object) -> bool:
        open_console.now_s += IDLE_S  # once the stream has begun
        return kind == "over"

    assert [kind for kind, _ in person.events("/api/moves", until)] == ["message", "over"]


def test_sessions_and_streams_are_bounded(open_console: Console) -> None:
    people = [open_console.person() for _ in range(SESSIONS_MAX + 1)]
    for person in people:
        open_console.now_s += 1
        person.enter()
    assert people[0].get("/api/plan-inputs").status == 401, "the one that was idle longest"
    assert people[-1].get("/api/plan-inputs").status == 200
    opened = []
    try:
        for _ in range(STREAMS_MAX):
            stream = socket.create_connection(open_console.host.split(":"))  # type: ignore[arg-type]
            opened.append(stream)
            head = f"GET /api/moves HTTP/1.1\r\nHost: {open_console.host}\r\nCookie: {people[-1].cookie}\r\n"
            stream.sendall(f"{head}Accept: text/event-stream\r\n\r\n".encode())
            stream.settimeout(60)
            received = b""
            while b"data:" not in received:
                received += stream.recv(65_536)
        said = people[-1].ask("GET", "/api/moves", headers={"Accept": "text/event-stream"})
        assert said.status == 429
    finally:
        for stream in opened:
            stream.close()


def test_cookies_and_headers_are_strict(open_console: Console) -> None:
    said = open_console.person().enter()
    parts = [part.strip() for part in said.headers["set-cookie"].split(";")]
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(parts)
    assert len(parts[0].partition("=")[2]) >= 40
    for path in ("/", "/static/app.js", "/api/session", "/api/nothing", "/static/nothing"):
        headers = open_console.person().get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'self'" in policy, path
        assert "frame-ancestors 'none'" in policy, path
        assert "unsafe" not in policy, path
        assert headers["x-content-type-options"] == "nosniff", path


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GARBAGE\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nHost: HOST\r\nX: " + b"x" * 70_000 + b"\r\n\r\n", b"431"),
        (b"GET /api/plan?" + b"&".join(b"a%d=1" % n for n in range(100)) + b" HTTP/1.1\r\nHost: HOST\r\n\r\n", b"400"),
        (b"GET /../../etc/passwd HTTP/1.1\r\nHost: HOST\r\n\r\n", b"200"),  # the page, which then says that it is none
        (b"GET /static/../door.py HTTP/1.1\r\nHost: HOST\r\n\r\n", b"404"),
        (b"GET /static/%2e%2e/door.py HTTP/1.1\r\nHost: HOST\r\n\r\n", b"404"),
        (b"DELETE / HTTP/1.1\r\nHost: HOST\r\n\r\n", b"405"),
        (b"POST /api/topics HTTP/1.1\r\nHost: HOST\r\nContent-Length: 9999999\r\n\r\n" + TOO_LONG, b"413"),
    ],
)  # fmt: skip
def test_strange_requests_are_refused(open_console: Console, sent: bytes, status: bytes) -> None:
    with socket.create_connection(open_console.host.split(":"), timeout=60) as stream:  # type: ignore[arg-type]
        stream.sendall(sent.replace(b"HOST", open_console.host.encode()))
        assert stream.recv(65_536).split()[1] == status
    assert open_console.person().get("/api/session").status == 200


@pytest.mark.parametrize("body", [b"", b"[1]", b"{", b'{"a":' * 50_000, b"\xff\xfe"])
def test_bodies_that_are_no_objects_are_refused(anybody: Person, body: bytes) -> None:
    said = anybody.ask("POST", "/api/topics", body)
    assert said.status == 400
    assert "expected" in said.json["message"]


def test_over_tls_cookies_are_for_tls_alone(open_cluster: Cluster, tmp_path: Path) -> None:
    authority = Authority.make("authority", 7)
    own = tmp_path / "own.pem"
    own.write_text(authority.issue("console", ("127.0.0.1", "localhost"), 7))
    served, trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context(cadata=authority.pem)
    served.load_cert_chain(own)
    console = Console(open_cluster.bootstrap, access_of({}), tls=served)
    try:
        assert console.url.startswith("https://127.0.0.1:")
        with urllib.request.urlopen(f"{console.url}/api/session", context=trusting, timeout=60) as answer:
            cookie = answer.headers["Set-Cookie"]
        assert cookie.startswith("__Host-tidelog=")
        assert {"Secure", "HttpOnly", "SameSite=Strict", "Path=/"} <= {part.strip() for part in cookie.split(";")}
    finally:
        console.close()


# --- Where it may listen --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "host", "encrypted", "refused"),
    [
        ({}, "127.0.0.1", False, None),
        ({}, "::1", False, None),
        ({}, "0.0.0.0", True, "does not ask for passwords"),
        ({"security_protocol": "SSL", "ssl_certfile": "me.pem"}, "10.0.0.1", True, "your certificate"),
        ({"security_protocol": "SASL_SSL"}, "10.0.0.1", False, "in the clear"),
        ({"security_protocol": "SASL_SSL"}, "10.0.0.1", True, None),
    ],
)
def test_it_listens_where_no_stranger_can_act(
    settings: dict[str, str], host: str, encrypted: bool, refused: str | None
) -> None:
    access = access_of(settings)
    if refused is None:
        check_place(access, host, encrypted=encrypted)
        return
    with pytest.raises(CommandFailed, match=refused):
        check_place(access, host, encrypted=encrypted)


def test_the_starters_password_is_nobody_elses() -> None:
    access = access_of(
        {
            "security_protocol": "SASL_SSL",
            "sasl_mechanism": "SCRAM-SHA-256",
            "sasl_username": "root",
            "sasl_password": "p",
        }
    )
    assert access.settings == {"security_protocol": "SASL_SSL", "sasl_mechanism": "SCRAM-SHA-256"}
    assert access.of_person("ann", "q")["sasl_username"] == "ann"
