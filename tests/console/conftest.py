"""A console of its own over a cluster in this process, asked by plain HTTP."""

from __future__ import annotations

import asyncio
import http.client
import json
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from typing import Any, NamedTuple

import pytest

from tidelog.client.background import BackgroundLoop
from tidelog.console.access import Access, access_of
from tidelog.console.schemas.settings import Messages
from tidelog.console.serving import Place, serve
from tidelog.testing import Cluster

DEADLINE_S = 60.0


class Said(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Console:
    """A console that serves. ``now_s`` is its clock, which tests put forward."""

    def __init__(
        self, bootstrap: str, access: Access, about: dict[str, Any] | None = None, *,
        tls: ssl.SSLContext | None = None, drills: bool = False, messages: Messages | None = None,
    ) -> None:  # fmt: skip
        self.now_s = 1_000.0
        self.bootstrap = bootstrap
        self.url = ""
        self._background = BackgroundLoop()
        serving = threading.Event()

        def tell(url: str) -> None:
            self.url = url.partition("#")[0].rstrip("/")
            serving.set()

        work = serve(
            bootstrap, access, Place("127.0.0.1", 0, tls=tls), self._background,
            {"bootstrap": bootstrap, **(about or {})}, tell, lambda: self.now_s, messages=messages, drills=drills,
        )  # fmt: skip
        self._serving: Future[None] = asyncio.run_coroutine_threadsafe(work, self._background.loop)
        assert serving.wait(DEADLINE_S)

    @property
    def host(self) -> str:
        return self.url.partition("://")[2]

    def close(self) -> None:
        self._serving.cancel()
        self._background.run(_ended())
        self._background.stop()

    def person(self) -> Person:
        return Person(self.host, self.url)


async def _ended() -> None:
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    if others:
        await asyncio.wait(others, timeout=30)


class Person:
    """A browser without a page: keeps the cookie and the session's token."""

    def __init__(self, host: str, url: str) -> None:
        self.host, self.url = host, url
        self.cookie = ""
        self.csrf = ""

    @classmethod
    def at(cls, host: str) -> Person:
        return cls(host, f"http://{host}")

    def ask(self, method: str, path: str, body: object = None, headers: Mapping[str, str | None] | None = None) -> Said:
        """As the page asks; ``headers`` replace what it sends, or with ``None`` leave it out."""
        sent: dict[str, str | None] = {"Host": self.host, "Cookie": self.cookie or None}
        if method != "GET":
            sent |= {
                "Origin": self.url, "X-CSRF-Token": self.csrf, "Content-Type": "application/json",
            }  # fmt: skip
        sent |= headers or {}
        data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        connection = http.client.HTTPConnection(self.host, timeout=DEADLINE_S)
        try:
            connection.request(method, path, data, {k: v for k, v in sent.items() if v is not None})
            answer = connection.getresponse()
            said = Said(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        finally:
            connection.close()
        if cookie := said.headers.get("set-cookie"):
            self.cookie = cookie.partition(";")[0]
        return said

    def get(self, path: str) -> Said:
        return self.ask("GET", path)

    def post(self, path: str, body: object = None) -> Said:
        return self.ask("POST", path, {} if body is None else body)

    def enter(self, user: str | None = None, password: str = "") -> Said:
        said = (
            self.get("/api/session") if user is None else self.post("/api/login", {"user": user, "password": password})
        )
        if said.status == 200:
            self.csrf = said.json["csrf"] or ""
        return said

    def events(self, path: str, until: Callable[[str, Any], bool]) -> list[tuple[str, Any]]:
        """The events of a stream until one is as wanted, or it ends. The deadline is the socket's."""
        connection = http.client.HTTPConnection(self.host, timeout=DEADLINE_S)
        found: list[tuple[str, Any]] = []
        try:
            connection.request(
                "GET", path, headers={"Host": self.host, "Cookie": self.cookie, "Accept": "text/event-stream"}
            )
            answer = connection.getresponse()
            assert answer.status == 200, answer.read()
            kind = "message"
            for raw in answer:
                line = raw.decode().rstrip("\n")
                if line.startswith("event: "):
                    kind = line.removeprefix("event: ")
                elif line.startswith("data: "):
                    found.append((kind, json.loads(line.removeprefix("data: "))))
                    if until(*found[-1]):
                        break
                    kind = "message"
        finally:
            connection.close()
        return found


@pytest.fixture(scope="module")
def open_cluster() -> Iterator[Cluster]:
    with Cluster(1, transport="grpc") as cluster:
        yield cluster


@pytest.fixture(scope="module")
def open_console(open_cluster: Cluster) -> Iterator[Console]:
    """Of a cluster that asks nobody for a password."""
    console = Console(open_cluster.bootstrap, access_of({}))
    yield console
    console.close()


@pytest.fixture
def anybody(open_console: Console) -> Person:
    person = open_console.person()
    assert person.enter().status == 200
    return person


@pytest.fixture(scope="module")
def secured_cluster() -> Iterator[Cluster]:
    with Cluster(1, transport="grpc", security="scram") as cluster:
        cluster.create_topic("secret-topic")
        cluster.add_user("mallory", "m-password")
        yield cluster


@pytest.fixture(scope="module")
def secured_console(secured_cluster: Cluster) -> Iterator[Console]:
    settings = dict(secured_cluster.client_settings())
    console = Console(secured_cluster.bootstrap, access_of(settings))
    yield console
    console.close()


@pytest.fixture
def admin_password(secured_cluster: Cluster) -> str:
    return str(secured_cluster.client_settings()["sasl_password"])
