"""A private certificate authority and the certificates that it signs, for ``tidelog security`` and clusters in tests.

Keys are ECDSA on P-256: a handshake takes a third of the time of RSA. Uses ``cryptography``, which nodes do not need.
"""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tidelog.model.classes.frozen import dataclass

_CLOCK_SKEW: Final = datetime.timedelta(minutes=5)
"""Certificates are valid from a little before they are made, because other clocks may be behind."""


@dataclass(frozen=True, slots=True)
class Authority:
    """A signing key and its certificate."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @classmethod
    def make(cls, name: str, days: int) -> Authority:
        """Make a new authority."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = _named(name)
        certificate = (
            _begun(subject, subject, key.public_key(), days)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs_certificates=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .sign(key, hashes.SHA256())
        )
        return cls(key, certificate)

    @classmethod
    def read(cls, key_pem: str, pem: str) -> Authority:
        """Load an authority from :attr:`key_pem` and :attr:`pem`. Raises ``ValueError``."""
        try:
            key = serialization.load_pem_private_key(key_pem.encode(), None)
        except TypeError as error:  # the key is encrypted
            raise ValueError(str(error)) from None
        certificate = x509.load_pem_x509_certificate(pem.encode())
        if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
            raise ValueError("the key does not belong to the certificate")
        return cls(key, certificate)

    @property
    def key_pem(self) -> str:
        """The key in PEM."""
        return _private(self.key)

    @property
    def pem(self) -> str:
        """The certificate in PEM. Everybody who trusts this authority needs it."""
        return _public(self.certificate)

    def issue(self, name: str, hosts: Sequence[str], days: int) -> str:
        """Return a new key with its certificate, in PEM: for a node reached at ``hosts``, or for a user."""
        key = ec.generate_private_key(ec.SECP256R1())
        purposes = [ExtendedKeyUsageOID.CLIENT_AUTH, *([ExtendedKeyUsageOID.SERVER_AUTH] if hosts else [])]
        authority = self.certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
        made = (
            _begun(_named(name), self.certificate.subject, key.public_key(), days)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(authority), critical=False)
        )
        if hosts:
            made = made.add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False)
        return _private(key) + _public(made.sign(self.key, hashes.SHA256()))


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _begun(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(min(now, now + datetime.timedelta(days=days)) - _CLOCK_SKEW)
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _private(key: ec.EllipticCurvePrivateKey) -> str:
    made = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return made.decode("ascii")


def _public(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode("ascii")
