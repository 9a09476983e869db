"""A cluster, a PostgreSQL server, and a schema of it for each test."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from tests.postgres import Postgres
from tidelog.testing import Cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    config = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "500"}
    with Cluster(1, transport="grpc", config=config) as made:
        yield made


@pytest.fixture
def name(cluster: Cluster, request: pytest.FixtureRequest) -> str:
    """A relay's name; its rows go to the topic ``outbox.event.`` and this name."""
    made: str = request.node.name.removeprefix("test_")[:40]
    cluster.create_topic(f"outbox.{made}", partitions=1)
    cluster.create_topic(f"outbox.event.{made}", partitions=2)
    return made


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    made = Postgres()
    yield made
    made.close()


@pytest.fixture
def conninfo(postgres: Postgres, request: pytest.FixtureRequest) -> str:
    """Leads to an empty schema."""
    schema: str = request.node.name[:60].replace("[", "_").replace("]", "").replace("-", "_")
    with psycopg.connect(postgres.conninfo()) as connection:
        connection.execute(f"CREATE SCHEMA {schema}".encode())
    return postgres.conninfo(schema)
