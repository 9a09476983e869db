"""The checks, one file a program."""

from __future__ import annotations

from typing import Final

from tidelog.bench.ecosystem.check import Check
from tidelog.bench.ecosystem.checks import (
    apicurio,
    client_suites,
    connect,
    franz_go,
    kafka_tools,
    karapace,
    kcat,
    mirrormaker,
    processors,
    small_clients,
    spark_avro,
    spark_token,
    streams,
    suites,
    verifiable,
)

CHECKS: Final[tuple[Check, ...]] = (
    kafka_tools.CHECK,
    kcat.CHECK,
    franz_go.CHECK,
    small_clients.SARAMA,
    small_clients.KAFKA_GO,
    small_clients.KAFKA_JS,
    spark_token.CHECK,
    spark_avro.CHECK,
    processors.QUIX,
    processors.FAUST,
    processors.FASTSTREAM,
    streams.CHECK,
    connect.CHECK,
    mirrormaker.CHECK,
    karapace.CHECK,
    apicurio.CHECK,
    verifiable.CHECK,
    suites.FRANZ_GO_TESTS,
    suites.LIBRDKAFKA_TESTS,
    suites.CONFLUENT_KAFKA_TESTS,
    client_suites.SARAMA_TESTS,
    client_suites.KAFKA_GO_TESTS,
    client_suites.KAFKAJS_TESTS,
)
