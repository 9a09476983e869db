"""Requests to an OAuth issuer: for its keys, and for a token. Source: RFC 6749, section 4.4; KIP-768.

Everything here blocks. An address is ``https://…``, ``http://`` on this machine, or a file; redirects are not followed
(CVE-2025-27817).
"""

from __future__ import annotations

import base64
import json
import re
import threading
import time
import urllib.parse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tidelog.model.settings.listeners import is_this_machine
from tidelog.security.sasl import LoginRefused

if TYPE_CHECKING:
    from urllib.error import HTTPError

TIMEOUT_S: Final = 5.0
BYTES_MAX: Final = 1024 * 1024
RENEWED_AFTER: Final = 0.8
"""The share of a token's life after which a new one is requested, as in Kafka (``sasl.login.refresh.window.factor``).
"""
_LIFETIME_S_WITHOUT: Final = 60.0
"""How long to use a token if the issuer does not say."""
_CODE: Final = re.compile("[a-z_]{1,40}")


class IssuerError(Exception):
    """No answer, or an unusable one. The text contains no secret."""


def check_url(url: str) -> str:
    """Return the address if requests to it are allowed. Raises ``ValueError``."""
    found = urllib.parse.urlsplit(url)
    if found.scheme == "file" and found.netloc in ("", "localhost") and found.path:
        return url
    if found.hostname and (found.scheme == "https" or (found.scheme == "http" and is_this_machine(found.hostname))):
        return url
    raise ValueError(f"expected https://…, http:// on this machine, or file:///…, found {url[:80]!r}")


def is_file(url: str) -> bool:
    return url.startswith("file:")


def fetch(url: str, form: dict[str, str] | None = None, authorization: str | None = None) -> bytes:
    """Return the response to a GET, or to a POST of a form. Raises :class:`IssuerError`."""
    import urllib.error  # here, because only nodes with OAuth need them and they take 25 ms to load
    import urllib.request
    from http.client import HTTPException

    class NoRedirects(urllib.request.HTTPRedirectHandler):
        def redirect_request(self, *_: object) -> None:
            return None

    try:
        if is_file(url):
            return _bounded(url, Path(urllib.request.url2pathname(urllib.parse.urlsplit(url).path)).read_bytes())
        request = urllib.request.Request(url, headers={"Accept": "application/json"})
        if form is not None:
            request.data = urllib.parse.urlencode(form).encode("ascii")
        if authorization is not None:
            request.add_header("Authorization", authorization)
        with urllib.request.build_opener(NoRedirects).open(request, timeout=TIMEOUT_S) as answer:
            return _bounded(url, answer.read(BYTES_MAX + 1))
    except urllib.error.HTTPError as refused:
        with refused:
            raise IssuerError(f"{url}: found HTTP {refused.code}{_reason(refused)}") from None
    except (OSError, HTTPException, ValueError) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        raise IssuerError(f"{url}: {getattr(reason, 'strerror', None) or reason or type(reason).__name__}") from None


class TokenEndpoint:
    """Gets tokens for a client: with its own credentials, or from a file. Caches a token while it is valid.
    Thread-safe."""

    def __init__(
        self,
        url: str,
        client_id: str | None,
        client_secret: str | None,
        scope: str | None,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._url = url
        self._authorization = "Basic " + base64.b64encode(f"{client_id}:{client_secret}".encode()).decode("ascii")
        self._form = {"grant_type": "client_credentials"} | ({"scope": scope} if scope else {})
        self._now_s = now_s
        self._lock = threading.Lock()
        self._token = ""
        self._good_until_s = 0.0

    def __call__(self) -> str:
        """Return a token. Raises :class:`LoginRefused`."""
        with self._lock:
            if not self._token or self._now_s() >= self._good_until_s:
                try:
                    self._token, lifetime_s = self._ask()
                except IssuerError as error:
                    raise LoginRefused(f"no token: {error}") from None
                self._good_until_s = self._now_s() + RENEWED_AFTER * lifetime_s
            return self._token

    def _ask(self) -> tuple[str, float]:
        if is_file(self._url):
            return fetch(self._url).decode("ascii", "replace").strip(), 0.0
        answer = fetch(self._url, self._form, self._authorization)
        try:
            found = json.loads(answer)
            token, lifetime = found["access_token"], found.get("expires_in", _LIFETIME_S_WITHOUT)
            return str(token), float(lifetime)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise IssuerError(f"{self._url}: expected JSON with an access_token, found something else") from None


def _bounded(url: str, data: bytes) -> bytes:
    if len(data) > BYTES_MAX:
        raise IssuerError(f"{url}: expected at most {BYTES_MAX} bytes, found more")
    return data


def _reason(refused: HTTPError) -> str:
    """Return the issuer's error code, such as invalid_client."""
    from http.client import HTTPException

    try:
        code = str(json.loads(refused.read(BYTES_MAX))["error"])
    except (OSError, HTTPException, ValueError, TypeError, KeyError, RecursionError):
        return ""
    return f" ({code})" if _CODE.fullmatch(code) else ""
