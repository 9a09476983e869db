"""Fetches and parses nodes' metrics pages over HTTP."""

from __future__ import annotations

import base64
import http.client
import ipaddress
import re
import ssl
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from http import HTTPStatus
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import urlsplit

from tidelog.broker import metrics as m
from tidelog.broker.health.facts import Labels, NodeMetrics
from tidelog.client.config.security import ClientSecurity
from tidelog.model.settings.config_def import ConfigError
from tidelog.model.settings.http_auth import BASIC, BEARER
from tidelog.model.settings.listener_security import OAUTHBEARER
from tidelog.security.sasl import LoginRefused

if TYPE_CHECKING:
    from tidelog import Admin
    from tidelog.proto.calls.api import DescribeClusterResponse

HTTP_LISTENER: Final = "http.listener"
TIMEOUT_S: Final = 5.0
PAGE_BYTES_MAX: Final = 16 * 2**20
"""A page of 10,000 topics has some 5 MB."""
AT_ONCE: Final = 8
GAP_S: Final = 1.0
"""The minimum time between two looks that give a busy share."""
_LABELS: Final = r'(?:[a-zA-Z_]\w*="(?:[^"\\]|\\.)*",?)*'
_SAMPLE: Final = re.compile(
    rf"([a-zA-Z_:][\w:]*)(?:\{{({_LABELS})\}})? ([+-]?(?:\d+\.?\d*(?:e[+-]?\d+)?|Inf)|NaN)", re.ASCII
)
_LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_ESCAPED: Final = re.compile(r"\\(.)")


class PageUnread(Exception):
    """A page could not be fetched; the text says why."""


class Page(NamedTuple):
    """One reading of a page: its time by our clock, its duration, and the values by exported name."""

    at_s: float
    took_s: float
    values: Mapping[str, Mapping[Labels, float]]


def page_address(listener: str, host: str) -> str:
    """Return the URL of a node's metrics, from its ``http.listener`` and the ``host`` at which clients reach it.

    Raises :class:`PageUnread` if it has none, or only one that is reachable from its own machine.
    """
    if not listener:
        raise PageUnread("it has no http.listener")
    found = urlsplit(listener)
    name, port = found.hostname or "", found.port or 0
    if name in ("", "0.0.0.0", "::"):
        name = host
    elif _is_loopback(name) and not _is_loopback(host):
        raise PageUnread(f"http.listener={listener}, which is reachable only from its own machine")
    return f"{found.scheme.lower()}://{f'[{name}]' if ':' in name else name}:{port}/metrics"


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def page_of(admin: Admin, node: int, host: str) -> str:
    """Return the URL of a node's metrics; clients reach it at ``host``. Raises :class:`PageUnread` and errors of the
    cluster."""
    from tidelog import ConfigResource

    resource = ConfigResource("broker", str(node))
    return page_address(admin.describe_configs([resource])[resource][HTTP_LISTENER].value or "", host)


def hosts(cluster: DescribeClusterResponse) -> dict[int, str]:
    """Return where clients reach the brokers."""
    return {int(broker.node_id): broker.listeners[0].host for broker in cluster.brokers if broker.listeners}


def tls_context(settings: Mapping[str, Any]) -> ssl.SSLContext:
    """Return a context for pages over HTTPS: the same authorities and certificate as for brokers."""
    context = ssl.create_default_context(cafile=settings.get("ssl_cafile"))
    if chain := settings.get("ssl_certfile"):
        context.load_cert_chain(chain, settings.get("ssl_keyfile"))
    return context


def read_page(url: str, context: ssl.SSLContext | None, settings: Mapping[str, Any] = MappingProxyType({})) -> Page:
    """Fetch a page. ``settings``: the client's, for logging in if the page requires it. Raises :class:`PageUnread`."""
    began, began_s = time.monotonic(), time.time()
    try:
        body = _body(url, context, settings)
    except (OSError, http.client.HTTPException, LoginRefused, ConfigError) as error:
        raise PageUnread(f"{url}: {error}") from None
    if len(body) > PAGE_BYTES_MAX:
        raise PageUnread(f"{url}: expected at most {PAGE_BYTES_MAX:,} bytes")
    took_s = time.monotonic() - began
    return Page(began_s + took_s / 2, took_s, parse(body.decode("utf-8", "replace"), url))


def _body(url: str, context: ssl.SSLContext | None, settings: Mapping[str, Any]) -> bytes:
    status, asks, body = _get(url, context)
    if status == HTTPStatus.UNAUTHORIZED:
        shown = _authorization(asks.partition(" ")[0].lower(), url, settings)
        if shown is not None:
            status, _, body = _get(url, context, shown)
    if status != HTTPStatus.OK:
        said = body.decode("utf-8", "replace").strip()
        raise PageUnread(f"{url}: {status} {http.client.responses.get(status, '')}: {said[:200]}")
    return body


def _get(url: str, context: ssl.SSLContext | None, authorization: str | None = None) -> tuple[int, str, bytes]:
    """Return status, what the page asks for, and the body. No proxy from the environment is asked for one's own
    nodes."""
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port
    connection = (
        http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)
        if parts.scheme == "http"
        else http.client.HTTPSConnection(host, port, timeout=TIMEOUT_S, context=context)
    )
    try:
        connection.request("GET", parts.path, headers={} if authorization is None else {"Authorization": authorization})
        answer = connection.getresponse()
        return answer.status, answer.headers.get("WWW-Authenticate", ""), answer.read(PAGE_BYTES_MAX + 1)
    finally:
        connection.close()


def _authorization(scheme: str, url: str, settings: Mapping[str, Any]) -> str | None:
    """Return the credentials for a page that requires ``scheme``; ``None`` if there are none, or others could read
    them."""
    parts = urlsplit(url)
    if parts.scheme != "https" and not _is_loopback(parts.hostname or ""):
        return None
    user, secret = settings.get("sasl_username"), settings.get("sasl_password")
    if scheme == BASIC and user and secret:
        return "Basic " + base64.b64encode(f"{user}:{secret}".encode()).decode()
    if scheme == BEARER and settings.get("sasl_mechanism") == OAUTHBEARER:
        named = {name: value for name, value in settings.items() if name in ClientSecurity.__dataclass_fields__}
        return f"Bearer {ClientSecurity(**named).token_source()()}"
    return None


def parse(text: str, url: str) -> dict[str, dict[Labels, float]]:
    """Parse Prometheus's text format. Labels are ordered as in our metrics' definitions. Raises :class:`PageUnread`.

    ``prometheus_client.parser`` takes seven times the processor time for a page, and 3 MB of memory.
    """
    orders = {metric.exported: metric.labels for metric in m.ALL_METRICS.values()}
    found: dict[str, dict[Labels, float]] = {}
    for line in text.split("\n"):
        if not line or line.startswith("#"):
            continue
        sample = _SAMPLE.fullmatch(line)
        if sample is None:
            raise PageUnread(f"{url}: expected Prometheus's text format, found {line[:80]!r}")
        name, written, value = sample.groups()
        if name.endswith("_bucket"):  # half of a page, and no rule looks at it
            continue
        given = {each: _unescaped(said) for each, said in _LABEL.findall(written or "")}
        order = orders.get(name, tuple(sorted(given)))
        found.setdefault(name, {})[tuple(given.get(one, "") for one in order)] = float(value)
    return found


def _unescaped(said: str) -> str:
    return said if "\\" not in said else _ESCAPED.sub(lambda one: "\n" if one[1] == "n" else one[1], said)


class Pages:
    """Reads the pages of several nodes repeatedly. The first look reads twice, to get a busy share."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settings = settings
        self._before: dict[int, Page] = {}

    def look(self, urls: Mapping[int, str]) -> tuple[dict[int, NodeMetrics], dict[int, str]]:
        """Return the nodes' metrics, and why those of others are missing."""
        if not urls:
            return {}, {}
        context = None
        if any(url.startswith("https:") for url in urls.values()):  # it reads all authorities' certificates
            context = tls_context(self._settings)
        with ThreadPoolExecutor(AT_ONCE) as pool:
            if not self._before.keys() & urls.keys():
                self._before = {
                    node: page for node, page in self._read(pool, urls, context).items() if isinstance(page, Page)
                }
                time.sleep(GAP_S if self._before else 0)
            found = self._read(pool, urls, context)
        pages = {node: page for node, page in found.items() if isinstance(page, Page)}
        metrics = {node: _metrics(node, page, self._before.get(node)) for node, page in pages.items()}
        self._before = pages
        return metrics, {node: str(page) for node, page in found.items() if isinstance(page, PageUnread)}

    def _read(
        self, pool: ThreadPoolExecutor, urls: Mapping[int, str], context: ssl.SSLContext | None
    ) -> dict[int, Page | PageUnread]:
        def one(url: str) -> Page | PageUnread:
            try:
                return read_page(url, context, self._settings)
            except PageUnread as error:
                return error

        return dict(zip(urls, pool.map(one, urls.values()), strict=True))


def _metrics(node: int, page: Page, before: Page | None) -> NodeMetrics:
    found = NodeMetrics(node, page.values)
    if m.CLOCK.exported in page.values:
        found = replace(found, clock_ahead_s=found.total(m.CLOCK) - page.at_s, clock_error_s=page.took_s / 2)
    if before is None:
        return found
    earlier = NodeMetrics(node, before.values)
    passed_s = found.total(m.UPTIME) - earlier.total(m.UPTIME)
    if passed_s < GAP_S / 2:  # it was restarted, or this look came immediately after
        return found
    busy = (found.total(m.LOOP_BUSY) - earlier.total(m.LOOP_BUSY)) / passed_s
    return replace(found, busy=min(max(busy, 0.0), 1.0))
