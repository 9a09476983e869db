"""Regular expressions of users: RE2's syntax, matched in time linear in the text. Pure.

RE2 knows no lookaround and no back-references, and neither does RE2/J, which Kafka takes for subscriptions (KIP-848).
Python's ``re`` could be made to match for ever.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

import re2

PATTERN_BYTES_MAX: Final = 4_096
"""Longest pattern, in UTF-8. Tidelog's own bound."""
_MEMORY_MAX: Final = 1 << 20
"""Bytes that a compiled pattern may take."""


class BadPattern(ValueError):
    """A pattern that is no regular expression of RE2, or too large; the text says why."""


@lru_cache(maxsize=256)
def compiled(pattern: str) -> Any:
    """Raises :class:`BadPattern`."""
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
