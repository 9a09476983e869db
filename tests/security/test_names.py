"""From a certificate to a principal's name: the subject as Java writes it, and Kafka's mapping rules."""

from __future__ import annotations

import datetime

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from hypothesis import given
from hypothesis import strategies as st

from tidelog.security.distinguished_name import subject_of
from tidelog.security.principal_mapping import PrincipalMapping


def certificate(*relative: x509.RelativeDistinguishedName) -> bytes:
    key = ec.generate_private_key(ec.SECP256R1())
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(x509.Name(relative))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "issuer")]))
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now)
        .not_valid_after(now + datetime.timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    return made.public_bytes(serialization.Encoding.DER)


def one(oid: x509.ObjectIdentifier, value: str) -> x509.RelativeDistinguishedName:
    return x509.RelativeDistinguishedName([x509.NameAttribute(oid, value)])


def test_the_last_part_comes_first_and_keywords_are_rfc_2253s() -> None:
    der = certificate(
        one(NameOID.COUNTRY_NAME, "US"),
        one(NameOID.STATE_OR_PROVINCE_NAME, "CA"),
        one(NameOID.LOCALITY_NAME, "Mountain View"),
        one(NameOID.ORGANIZATION_NAME, "Co"),
        one(NameOID.ORGANIZATIONAL_UNIT_NAME, "Team"),
        one(NameOID.USER_ID, "7"),
        one(NameOID.DOMAIN_COMPONENT, "example"),
        one(NameOID.COMMON_NAME, "alice"),
    )
    assert subject_of(der) == "CN=alice,DC=example,UID=7,OU=Team,O=Co,L=Mountain View,ST=CA,C=US"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("a,b", r"CN=a\,b"),
        ("a=b+c", r"CN=a\=b\+c"),
        ('q"<>;#\\', r"CN=q\"\<\>\;\#\\"),
        (" both ends ", r"CN=\ both ends\ "),
        ("Žofie", "CN=Žofie"),
    ],
)
def test_what_java_escapes_is_escaped(value: str, shown: str) -> None:
    assert subject_of(certificate(one(NameOID.COMMON_NAME, value))) == shown


def test_what_java_has_no_keyword_for_is_a_number_and_bytes() -> None:
    der = certificate(one(NameOID.EMAIL_ADDRESS, "a@b"), one(NameOID.COMMON_NAME, "x"))
    assert subject_of(der) == "CN=x,1.2.840.113549.1.9.1=#1603614062"


def test_a_part_may_have_several_attributes() -> None:
    both = x509.RelativeDistinguishedName(
        [x509.NameAttribute(NameOID.COMMON_NAME, "a"), x509.NameAttribute(NameOID.ORGANIZATION_NAME, "b")]
    )
    assert subject_of(certificate(both)) in ("CN=a+O=b", "O=b+CN=a")


@given(st.binary(max_size=200))
def test_what_is_no_certificate_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="expected a certificate in DER, found"):
        subject_of(data)


def test_a_certificate_that_was_cut_is_refused() -> None:
    der = certificate(one(NameOID.COMMON_NAME, "x"))
    for size in range(len(der)):
        with pytest.raises(ValueError, match="expected a certificate in DER"):
            subject_of(der[:size])


RULES = ", ".join(
    (
        r"RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/",
        r"RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L",
        r"RULE:^cn=(.*?),ou=(.*?),dc=(.*?),dc=(.*?)$/$1@$2/U",
        r"RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/U",
        "DEFAULT",
    )
)


@pytest.mark.parametrize(
    ("subject", "name"),
    [  # Kafka's SslPrincipalMapperTest
        ("CN=Duke,OU=ServiceUsers,O=Org,C=US", "Duke"),
        ("CN=Duke,OU=SME,O=mycp,L=Fulton,ST=MD,C=US", "duke@sme"),
        ("cn=duke,ou=sme,dc=mycp,dc=com", "DUKE@SME"),
        ("cN=duke,OU=JavaSoft,O=Sun Microsystems", "DUKE"),
        ("OU=JavaSoft,O=Sun Microsystems,C=US", "OU=JavaSoft,O=Sun Microsystems,C=US"),
    ],
)
def test_the_first_rule_that_matches_counts(subject: str, name: str) -> None:
    assert PrincipalMapping(RULES).name_of(subject) == name


@pytest.mark.parametrize(
    ("rule", "name"),
    [
        (r"RULE:^CN=(.*)$/$1@$4/", "a@$4"),
        (r"RULE:^CN=(.*)$/$12/", "a2"),
        (r"RULE:^CN=(.*)$/x\/y\$1/", "x/y$1"),
        (r"RULE:^CN=(.*)$/$0/", "CN=a"),
    ],
)
def test_what_java_makes_of_a_replacement(rule: str, name: str) -> None:
    assert PrincipalMapping(rule).name_of("CN=a") == name


def test_a_subject_that_no_rule_matches_has_no_name() -> None:
    assert PrincipalMapping("RULE:^CN=(.*?),OU=x$/$1/").name_of("CN=a,OU=y") is None


@pytest.mark.parametrize(
    "text",
    ["", "default", "DEFAULT/L", "RULE:CN=(.*?),OU=x", "RULE:^CN=(.*?)$/$1/X", "RULE:^CN=(.*?/$1/", "DEFAULT DEFAULT"],
)
def test_what_is_no_rule_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        PrincipalMapping(text)
