"""An OAuth issuer that really runs: it publishes its keys, and signs tokens for clients that know their secret."""

from __future__ import annotations

import base64
import json
import ssl
import threading
import time
import urllib.parse
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

NAME = "https://issuer.example"
AUDIENCE = "tidelog-tests"
CLIENTS = {"alice": "alice's own secret", "bob": "bob's"}
ELSEWHERE = "/elsewhere"
"""Where it sends askers with a redirect, and answers them."""
MADE_BY = {
    "RSA": lambda: rsa.generate_private_key(65537, 2048),
    "P-256": lambda: ec.generate_private_key(ec.SECP256R1()),
    "P-384": lambda: ec.generate_private_key(ec.SECP384R1()),
    "Ed25519": ed25519.Ed25519PrivateKey.generate,
}


class Issuer:
    """Serves ``/jwks`` and ``/token`` (client credentials). ``keys`` may change while it runs."""

    def __init__(self, kind: str = "RSA") -> None:
        self.keys: dict[str, Any] = {}
        self.url = ""
        self.lifetime_s = 3600.0
        self.broken: str | None = None
        """What it answers instead: ``500``, ``junk`` or ``redirect``."""
        self.asked = Counter[str]()
        self.add_key("first", kind)

    def add_key(self, kid: str, kind: str = "RSA") -> None:
        self.keys[kid] = MADE_BY[kind]()

    def jwks(self) -> dict[str, Any]:
        return {"keys": [self._public(kid, key) for kid, key in self.keys.items()]}

    def token(self, sub: str = "alice", kid: str | None = "first", algorithm: str = "RS256", **claims: Any) -> str:
        """A signed token; ``None`` takes a claim away."""
        now = time.time()
        said = {"iss": NAME, "aud": AUDIENCE, "sub": sub, "iat": int(now), "exp": int(now + self.lifetime_s)} | claims
        found = {name: value for name, value in said.items() if value is not None}
        key = self.keys[kid or "first"]
        return jwt.encode(found, key, algorithm, headers=None if kid is None else {"kid": kid})

    def granted(self, form: dict[str, str], authorization: str) -> dict[str, Any] | None:
        """The answer to a request for a token."""
        kind, _, said = authorization.partition(" ")
        name, _, secret = base64.b64decode(said).decode().partition(":") if kind == "Basic" else ("", "", "")
        if form.get("grant_type") != "client_credentials" or CLIENTS.get(name) != secret:
            return None
        scope = {"scope": form["scope"]} if "scope" in form else {}
        token = self.token(name, **scope)
        return {"access_token": token, "token_type": "Bearer", "expires_in": int(self.lifetime_s)} | scope

    def _public(self, kid: str, key: Any) -> dict[str, Any]:
        kinds: dict[Any, Any] = {
            rsa.RSAPrivateKey: jwt.algorithms.RSAAlgorithm,
            ec.EllipticCurvePrivateKey: jwt.algorithms.ECAlgorithm,
            ed25519.Ed25519PrivateKey: jwt.algorithms.OKPAlgorithm,
        }
        form = next(made for kind, made in kinds.items() if isinstance(key, kind))
        found: dict[str, Any] = form.to_jwk(key.public_key(), as_dict=True)
        found.pop("key_ops", None)
        return found | {"kid": kid, "use": "sig"}


class _Handler(BaseHTTPRequestHandler):
    issuer: Issuer

    def do_GET(self) -> None:
        self.issuer.asked[self.path] += 1
        self._answer(200, json.dumps(self.issuer.jwks()).encode())

    def do_POST(self) -> None:
        self.issuer.asked[self.path] += 1
        said = self.rfile.read(int(self.headers["Content-Length"])).decode()
        granted = self.issuer.granted(dict(urllib.parse.parse_qsl(said)), self.headers.get("Authorization", ""))
        if granted is None:
            self._answer(401, b'{"error": "invalid_client"}')
        else:
            self._answer(200, json.dumps(granted).encode())

    def _answer(self, code: int, body: bytes) -> None:
        match self.issuer.broken:
            case "500":
                code, body = 500, b"no"
            case "junk":
                body = b"[" * 100_000
            case "redirect" if self.path != ELSEWHERE:
                code = 302
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if code == 302:
            self.send_header("Location", ELSEWHERE)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def running(issuer: Issuer, certificate: str | None = None) -> Iterator[Issuer]:
    """Serve an issuer on the loopback address; over TLS with a certificate."""

    class Handler(_Handler):
        pass

    Handler.issuer = issuer
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    issuer.url = f"http{'' if certificate is None else 's'}://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield issuer
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
