"""The checks, one file a program."""

from __future__ import annotations

from tidelog.bench.ecosystem.checks import connect, franz_go, mirrormaker, spark_token, streams

CHECKS = (connect.CHECK, franz_go.CHECK, mirrormaker.CHECK, spark_token.CHECK, streams.CHECK)
