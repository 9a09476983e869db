"""A secured cluster for foreign programs: TLS, every kind of login, a user with rights and one without."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa

from tidelog import (
    AclBinding,
    AclOperation,
    PatternType,
    PermissionType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from tidelog.testing import Cluster

ISSUER: Final = "https://issuer.example"
AUDIENCE: Final = "tidelog-ecosystem"
SHA_256: Final = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256)
"""``add_user`` sets a password for SCRAM-SHA-512 alone."""
ALICE: Final = "alice"
"""May do everything with topics, groups and transactions whose names begin with :data:`PREFIX`."""
MALLORY: Final = "mallory"
"""May log in, and nothing else."""
PREFIX: Final = "eco"
_KEY_ID: Final = "first"
_TOKEN_S: Final = 3600


class Secured(NamedTuple):
    cluster: Cluster
    authority: Path
    """PEM file of the certificate that nodes' certificates are signed with."""
    passwords: dict[str, str]
    key: rsa.RSAPrivateKey

    def token(self, user: str) -> str:
        """Return an issuer's token for a user."""
        now = int(time.time())
        claims = {"iss": ISSUER, "aud": AUDIENCE, "sub": user, "iat": now, "exp": now + _TOKEN_S}
        return jwt.encode(claims, self.key, "RS256", headers={"kid": _KEY_ID})


@contextmanager
def running(root: Path) -> Iterator[Secured]:
    """Yield a cluster of three nodes."""
    key = rsa.generate_private_key(65537, 2048)
    public = jwt.algorithms.RSAAlgorithm(jwt.algorithms.RSAAlgorithm.SHA256).to_jwk(key.public_key(), as_dict=True)
    keys = root / "jwks.json"
    keys.write_text(json.dumps({"keys": [public | {"kid": _KEY_ID, "use": "sig"}]}))
    config = {
        "sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512,PLAIN,OAUTHBEARER",
        "sasl.oauthbearer.jwks.endpoint.url": keys.as_uri(),
        "sasl.oauthbearer.expected.issuer": ISSUER,
        "sasl.oauthbearer.expected.audience": AUDIENCE,
        "delegation.token.secret.key": secrets.token_urlsafe(32),
    }
    with Cluster(nodes=3, security="tls+scram", config=config) as cluster:
        passwords = {user: secrets.token_urlsafe(18) for user in (ALICE, MALLORY)}
        for user, password in passwords.items():
            cluster.add_user(user, password)
        with cluster.admin() as admin:
            admin.alter_user_scram_credentials(
                [UserScramCredentialUpsertion(*one, SHA_256) for one in passwords.items()]
            )
            for kind in (ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID):
                entry = (kind, PREFIX, PatternType.PREFIXED, f"User:{ALICE}", "*", AclOperation.ALL)
                admin.create_acls([AclBinding(*entry, PermissionType.ALLOW)])
        yield Secured(cluster, Path(cluster.client_settings(ALICE)["ssl_cafile"] or ""), passwords, key)
