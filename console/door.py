"""The one door: every request passes it and is checked before it reaches a page.

In this order: the address in ``Host`` is one of ours (otherwise a page from another name that resolves to us could
read); the session is alive; a change comes from our own page (``Origin``, a session token, JSON); an irreversible
change was confirmed by typing. The brokers authorize the rest: pages act through the SDK as the person.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import math
from collections.abc import AsyncIterator, Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final

from tidelog.cli.failure import CommandFailed
from tidelog.client.background import BackgroundLoop
from tidelog.client.errors import TidelogError
from tidelog.console.access import Access, Way
from tidelog.console.desk import Desk
from tidelog.console.drill_runs import Drills
from tidelog.console.routes import Act, Call, Route, body_of, parts_of, text_of
from tidelog.console.schemas.settings import Messages
from tidelog.console.table import ROUTES
from tidelog.console.web.files import PREFIX, Files
from tidelog.console.web.messages import EVENTS, JSON, Answer, Request, Stream, Wrong, event, json_answer
from tidelog.console.web.sessions import FAILURE_S, STREAMS_MAX, Attempts, Session, Sessions
from tidelog.model.errors import ErrorCode
from tidelog.model.settings.config_def import ConfigError

log = logging.getLogger(__name__)

HEADERS: Final = (
    (
        "Content-Security-Policy",
        "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; object-src 'none'; "
        "require-trusted-types-for 'script'; trusted-types tidelog",
    ),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
)
THREADS: Final = 8
LOGINS_MAX: Final = 4
"""How many logins may be tried at the brokers at a time."""
ALIVE_S: Final = 15.0
"""How often an idle stream sends a keep-alive."""
API: Final = "api"
_NOT_THERE: Final = frozenset(
    (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
        ErrorCode.RESOURCE_NOT_FOUND,
    )
)
_AWAY: Final = frozenset((ErrorCode.REQUEST_TIMED_OUT, ErrorCode.BROKER_NOT_AVAILABLE, ErrorCode.NETWORK_EXCEPTION))


def status_of(code: ErrorCode) -> int:
    """Return the HTTP status for an outcome of the cluster."""
    if code is ErrorCode.SASL_AUTHENTICATION_FAILED:
        return 401
    if code.name.endswith("AUTHORIZATION_FAILED"):
        return 403
    if code in _NOT_THERE:
        return 404
    return 503 if code in _AWAY else 409


def told(error: Exception) -> tuple[int, dict[str, str]]:
    """Return the status and body that tell a browser about an error. Re-raises errors that are our own defects."""
    match error:
        case Wrong():
            return error.status, {"error": "WRONG", "message": str(error)}
        case TidelogError():
            text = str(error) if str(error) != error.code.name else ""
            return status_of(error.code), {"error": error.code.name, "message": text}
        case CommandFailed() | ConfigError():
            return 400, {"error": "WRONG", "message": str(error)}
        case _:
            raise error


class Door:
    """``origins``: the addresses at which browsers find the console, as ``http://127.0.0.1:8790``. ``clock``: seconds,
    as ``time.monotonic``. ``about``: what the page learns about the console."""

    def __init__(
        self,
        bootstrap: str,
        access: Access,
        origins: Collection[str],
        background: BackgroundLoop,
        clock: Callable[[], float],
        about: dict[str, Any],
        messages: Messages,
        drills: Drills | None = None,
    ) -> None:
        self._bootstrap = bootstrap
        self._access = access
        self._origins = frozenset(origins)
        self._hosts = frozenset(origin.partition("://")[2] for origin in origins)
        self._secure = all(origin.startswith("https://") for origin in origins)
        first = min(origins)
        self._cookie = "__Host-tidelog" if self._secure else f"tidelog-{first.rpartition(':')[2]}"
        self._background = background
        self._about = about
        self._messages = messages
        self._drills = drills
        self._files = Files()
        self._common: Desk | None = None
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="console")
        self._logins = asyncio.Semaphore(LOGINS_MAX)
        self._opening = asyncio.Lock()
        self._closing: set[asyncio.Future[None]] = set()
        self.sessions: Final[Sessions[Desk]] = Sessions(clock, self._close_desk)
        self._attempts = Attempts(clock)

    async def close(self) -> None:
        """End every session, and wait until its connections are closed."""
        self.sessions.end_all()
        if self._common is not None:
            common, self._common = self._common, None
            self._close_desk(common)
        await asyncio.gather(*self._closing, return_exceptions=True)
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _close_desk(self, desk: Desk) -> None:
        if desk is not self._common:
            closing = self._in_thread(desk.close)
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    def _in_thread(self, act: Callable[[], Any]) -> asyncio.Future[Any]:
        return asyncio.get_running_loop().run_in_executor(self._threads, act)

    async def handle(self, request: Request) -> Answer | Stream:
        """Answer one request. Raises nothing."""
        try:
            found = await self._handle(request)
        except Exception as error:
            try:
                status, body = told(error)
            except Exception:
                log.exception("%s %s failed", request.method, request.path)
                status, body = 500, {"error": "OURS", "message": "the console failed; its log says how"}
            wait = (("Retry-After", str(math.ceil(FAILURE_S))),) if status == 429 else ()
            found = json_answer(body, status, wait)
        if isinstance(found, Stream):
            return Stream(found.events, (*found.headers, *HEADERS))
        return Answer(found.status, found.body, found.content_type, (*found.headers, *HEADERS))

    async def _handle(self, request: Request) -> Answer | Stream:
        host = request.headers.get("host", "")
        if host.lower() not in self._hosts:
            raise Wrong(f"expected one of {', '.join(sorted(self._hosts))} as the address, found {host[:80]!r}", 421)
        parts = parts_of(request.path)
        if parts[0] == API:
            return await self._api(request, parts)
        if request.method not in ("GET", "HEAD"):
            raise Wrong(f"expected GET, found {request.method}", 405)
        if request.path.startswith(PREFIX):
            if (file := self._files.answer(request)) is None:
                raise Wrong("no such file", 404)
            return file
        return self._files.page(request)

    # --- Who it is -------------------------------------------------------------------------------------

    async def _api(self, request: Request, parts: tuple[str, ...]) -> Answer | Stream:
        if request.method != "GET":
            self._check_own(request)
        match request.method, parts[1:]:
            case "GET", ("session",):
                return await self._session(request)
            case "POST", ("login",):
                return await self._login(request)
        session = self.sessions.find(request.cookie(self._cookie))
        if session is None:
            raise Wrong("log in first", 401)
        if request.method != "GET":
            given = request.headers.get("x-csrf-token", "")
            if not hmac.compare_digest(given.encode(), session.csrf.encode()):
                raise Wrong("expected the token of this session; load the page again", 403)
        if (request.method, parts[1:]) == ("POST", ("logout",)):
            self.sessions.end(session)
            return json_answer({}, headers=(self._set_cookie("", 0),))
        return await self._ask(session, request, parts)

    def _check_own(self, request: Request) -> None:
        """Check that a change comes from our own page. Raises :class:`Wrong`."""
        origin = request.headers.get("origin", "")
        if origin not in self._origins:
            raise Wrong(
                f"expected a request from the console's own page, found one from {origin[:80] or 'nowhere'}", 403
            )
        if request.headers.get("content-type", "").partition(";")[0].strip() != JSON:
            raise Wrong(f"expected a body of {JSON}", 415)

    async def _session(self, request: Request) -> Answer:
        session = self.sessions.find(request.cookie(self._cookie))
        headers: tuple[tuple[str, str], ...] = ()
        if session is None and self._access.way is Way.OPEN:
            async with self._opening:
                if self._common is None:
                    self._common = await self._in_thread(lambda: self._desk(self._access.settings))
            session = self.sessions.open(None, self._common)
            headers = (self._set_cookie(session.id, None),)
        return json_answer(self._describe(session), headers=headers)

    def _describe(self, session: Session[Desk] | None) -> dict[str, Any]:
        return {
            **self._about,
            "way": self._access.way.value,
            "user": None if session is None else session.user,
            "csrf": None if session is None else session.csrf,
        }

    async def _login(self, request: Request) -> Answer:
        body = body_of(request)
        if self._access.way is Way.OPEN:
            raise Wrong("this console has no login: the cluster does not ask for passwords")
        user = text_of(body, "user", "")
        keys = (f"from {request.peer}", f"user {user[:256]}")
        if (wait_s := self._attempts.wait_s(*keys)) > 0:
            raise Wrong(f"too many failed logins; try again in {math.ceil(wait_s)} s", 429)
        self._attempts.failed(*keys)  # counted until it succeeds, so that concurrent attempts count too
        async with self._logins:
            desk = await (self._by_token(body) if self._access.way is Way.TOKEN else self._by_password(user, body))
        self._attempts.succeeded(*keys)
        if (before := self.sessions.find(request.cookie(self._cookie))) is not None:
            self.sessions.end(before)
        session = self.sessions.open(user or None, desk)
        return json_answer(self._describe(session), headers=(self._set_cookie(session.id, None),))

    async def _by_token(self, body: dict[str, Any]) -> Desk:
        if not hmac.compare_digest(text_of(body, "password").encode(), self._access.token.encode()):
            raise Wrong("expected the token that the console printed at its start, found another", 401)
        return await self._in_thread(lambda: self._desk(self._access.settings))  # type: ignore[no-any-return]

    async def _by_password(self, user: str, body: dict[str, Any]) -> Desk:
        password = text_of(body, "password")
        if not user or not password:
            raise Wrong("expected a name and a password", 401)

        def try_it() -> Desk:
            desk = self._desk(self._access.of_person(user, password))
            try:
                desk.admin.list_topics()  # any answer means that the brokers accepted the login
            except BaseException:
                desk.close()
                raise
            return desk

        return await self._in_thread(try_it)  # type: ignore[no-any-return]

    def _desk(self, settings: Any) -> Desk:
        return Desk(self._bootstrap, settings, self._background, self._messages, self._drills)

    def _set_cookie(self, value: str, age_s: int | None) -> tuple[str, str]:
        parts = [f"{self._cookie}={value}", "Path=/", "HttpOnly", "SameSite=Strict"]
        parts += ["Secure"] * self._secure + ([] if age_s is None else [f"Max-Age={age_s}"])
        return "Set-Cookie", "; ".join(parts)

    # --- What is asked ---------------------------------------------------------------------------------

    async def _ask(self, session: Session[Desk], request: Request, parts: tuple[str, ...]) -> Answer | Stream:
        others = set()
        for route in ROUTES:
            if (names := route.match(parts)) is None:
                continue
            if route.method != request.method:
                others.add(route.method)
                continue
            call = Call(session, request, names)
            if route.typed is not None and text_of(call.body(), "confirm", "") != names[route.typed]:
                raise Wrong(f"this cannot be undone: type the {route.typed}'s name again to confirm", 428)
            if route.tell is not None:
                return self._stream(session, route.tell(call))
            assert route.act is not None
            if EVENTS in request.headers.get("accept", "") and route.live_s:
                return self._stream(session, self._live(call, route, route.act))
            return json_answer(await self._in_thread(partial(route.act, call)))
        if others:
            raise Wrong(f"expected {' or '.join(sorted(others))}, found {request.method}", 405)
        raise Wrong("nothing is at this address", 404)

    async def _taken(self, call: Call, route: Route, act: Act) -> Any:
        """Return what a stream shows. A person's streams of the same address share it."""
        key = (call.request.path, repr(sorted(call.request.query.items())))
        return await call.desk.shared.get(key, route.live_s / 2, lambda: self._in_thread(partial(act, call)))

    def _stream(self, session: Session[Desk], events: AsyncIterator[bytes]) -> Stream:
        if session.streams >= STREAMS_MAX:
            raise Wrong(f"expected at most {STREAMS_MAX} open pages per person", 429)
        return Stream(self._counted(session, events))

    async def _counted(self, session: Session[Desk], events: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """Yield the events until the session ends."""
        session.streams += 1
        try:
            async for one in events:
                if not self.sessions.lasts(session):
                    yield event({}, "over")
                    return
                yield one
        except Exception as error:
            yield event({"status": told(error)[0], **told(error)[1]}, "trouble")
        finally:
            session.streams -= 1
            if (close := getattr(events, "aclose", None)) is not None:
                await close()

    async def _live(self, call: Call, route: Route, act: Act) -> AsyncIterator[bytes]:
        """Yield what the address shows, and yield it again whenever it has changed."""
        loop = asyncio.get_running_loop()
        before, told_at = b"", loop.time()
        while True:
            began = loop.time()
            try:
                now = event(await self._taken(call, route, act))
            except Exception as error:
                status, body = told(error)
                now = event({"status": status, **body}, "trouble")
            if now != before or loop.time() - told_at >= ALIVE_S:
                yield now if now != before else b": still here\n\n"
                before, told_at = now, loop.time()
            else:
                yield b""  # so that the session's end is noticed
            took_s = loop.time() - began
            await asyncio.sleep(max(route.live_s - took_s, took_s))  # do not poll a slow cluster without a pause
