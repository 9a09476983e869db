"""Users' regular expressions: RE2's syntax, matched in time linear in the text. Pure.

RE2 has no lookaround and no back-references, and neither has RE2/J, which Kafka uses for subscriptions (KIP-848). A
pattern could keep Python's ``re`` busy forever.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

import re2

PATTERN_BYTES_MAX: Final = 4_096
"""Longest pattern, in bytes of UTF-8. Tidelog's own bound."""
_MEMORY_MAX: Final = 1 << 20
"""Memory limit of a compiled pattern, in bytes."""


class BadPattern(ValueError):
    """A pattern that is not a valid RE2 expression, or is too large; the text says why."""


@lru_cache(maxsize=256)
def compiled(pattern: str) -> Any:
    """Compile a pattern. Raises :class:`BadPattern`."""
    if len(pattern.encode()) > PATTERN_BYTES_MAX:
        raise BadPattern(f"expected a pattern of at most {PATTERN_BYTES_MAX} bytes, found {len(pattern.encode())}")
    options = re2.Options()
    options.log_errors = False
    options.max_mem = _MEMORY_MAX
    try:
        return re2.compile(pattern, options=options)
    except re2.error as error:
        reason = error.args[0]
        text = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        raise BadPattern(f"expected a regular expression of RE2, found {pattern!r}: {text}") from None
