"""The checks, one file a program."""

from __future__ import annotations

from tidelog.bench.ecosystem.checks import franz_go, spark_token

CHECKS = (franz_go.CHECK, spark_token.CHECK)
