"""Points and spans of time on the command line."""

from __future__ import annotations

from datetime import UTC, datetime, tzinfo

import click

from tidelog.cli.terminal.numbers import INT64_MAX
from tidelog.model.settings.config_def import ConfigError


def time_ms(text: str, option: str, zone: tzinfo | None = None) -> int:
    """Read ISO 8601, or ms since 1970. A time without a zone is in ``zone``, by default this machine's.

    Raises ``click.BadParameter`` that names ``option``."""
    try:
        if text.isascii() and text.isdecimal():
            found_ms = int(text)
        else:
            found = datetime.fromisoformat(text)
            if found.tzinfo is None:
                found = found.astimezone() if zone is None else found.replace(tzinfo=zone)
            found_ms = round(found.timestamp() * 1000)
        if 0 <= found_ms <= INT64_MAX:
            return found_ms
    except (ValueError, OverflowError):
        pass
    raise click.BadParameter(
        f"expected ISO 8601 (2026-01-31T12:00:00Z) or ms since 1970, found {text!r}", param_hint=option
    )


def utc_ms(text: str, option: str) -> int:
    """Read a time as :func:`time_ms` does, but without a zone it is UTC, as in Kafka's tools."""
    return time_ms(text, option, UTC)


def duration_ms(text: str, option: str) -> int:
    """Read an ISO 8601 duration such as ``PT1H30M``. Raises ``click.BadParameter`` that names ``option``."""
    from tidelog.client.config.consumer import OffsetReset

    try:
        return OffsetReset.parse(f"by_duration:{text}").duration_ms
    except (ConfigError, OverflowError):
        raise click.BadParameter(
            f"expected an ISO 8601 duration (PnDTnHnMnS, such as PT1H30M), found {text!r}", param_hint=option
        ) from None
