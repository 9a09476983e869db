"""A certificate's subject, as Java's ``X500Principal.getName`` writes it (RFC 2253). So ACLs and mapping rules of a
Kafka cluster work here too, whatever spelling gRPC or Python uses.

Parses only the DER that this requires (X.690, RFC 5280).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

_KEYWORDS: Final = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.1": "UID",
    "0.9.2342.19200300.100.1.25": "DC",
}
_ENCODINGS: Final = {
    12: "utf-8",
    19: "ascii",
    20: "latin-1",
    22: "ascii",
    27: "latin-1",
    28: "utf-32-be",
    30: "utf-16-be",
}
"""By tag: UTF8String, PrintableString, T61String, IA5String, GeneralString, UniversalString, BMPString."""
_ESCAPED: Final = frozenset(',=+<>#;"\\')
_VERSION: Final = 0xA0
_SUBJECT: Final = 4
"""The index among a certificate's fields after the version: serial, algorithm, issuer, validity, subject."""


class _Element(NamedTuple):
    tag: int
    content: bytes
    whole: bytes


def subject_of(certificate: bytes) -> str:
    """Return the subject of a certificate in DER. Raises ``ValueError`` if it is not a certificate."""
    try:
        (outer,) = _elements(certificate)
        fields = list(_elements(next(_elements(outer.content)).content))
        if fields[0].tag == _VERSION:
            del fields[0]
        names = [_relative(element) for element in _elements(fields[_SUBJECT].content)]
    except (IndexError, StopIteration, ValueError) as error:
        raise ValueError(f"expected a certificate in DER, found {len(certificate)} bytes that are not") from error
    return ",".join(reversed(names))


def _relative(element: _Element) -> str:
    return "+".join(_attribute(*_elements(pair.content)) for pair in _elements(element.content))


def _attribute(kind: _Element, value: _Element) -> str:
    name = _identifier(kind.content)
    keyword, encoding = _KEYWORDS.get(name), _ENCODINGS.get(value.tag)
    if keyword is None or encoding is None:
        return f"{keyword or name}=#{value.whole.hex()}"
    text = value.content.decode(encoding)
    lead = len(text) - len(text.lstrip(" \r"))
    trail = len(text.rstrip(" \r"))
    shown = (
        "\\00" if char == "\0" else "\\" + char if char in _ESCAPED or not lead <= at < trail else char
        for at, char in enumerate(text)
    )
    return f"{keyword}={''.join(shown)}"


def _identifier(content: bytes) -> str:
    numbers, value = [], 0
    for byte in content:
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            numbers.append(value)
            value = 0
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:])))


def _elements(data: bytes) -> Iterator[_Element]:
    at = 0
    while at < len(data):
        start, tag, size = at, data[at], data[at + 1]
        at += 2
        if size >= 0x80:
            digits = size & 0x7F
            size = int.from_bytes(data[at : at + digits], "big")
            at += digits
        if at + size > len(data):
            raise ValueError("an element is longer than its container")
        yield _Element(tag, data[at : at + size], data[start : at + size])
        at += size
