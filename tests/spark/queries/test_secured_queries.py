"""Queries on a secured cluster: each with its own user, and no trace of keys and passwords in what Spark shows."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlparse

import pytest

from tests.security.issuer import AUDIENCE, CLIENTS, NAME, Issuer, running
from tests.spark.conftest import LOG
from tidelog import AclBinding, AclOperation, Admin, PatternType, PermissionType, ResourceType
from tidelog.spark_connector import connections, reading
from tidelog.spark_connector.options import OptionError, SourceOptions
from tidelog.spark_connector.sink_options import SinkOptions
from tidelog.testing import Cluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WRITER = "spark-writer"
STRANGER = "spark-stranger"
PASSWORD = " päss of the writer "  # to the last blank
DONE = "the secured job"
SAID = "a word of a worker"
REFUSED = r"AuthorizationFailedError"


@pytest.fixture(scope="module", params=["tls", "tls+scram"])
def secured(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    with Cluster(security=request.param, config={"delegation.token.secret.key": "a key of all nodes"}) as running:
        if request.param != "tls":
            running.add_user(WRITER, PASSWORD)
            running.add_user(STRANGER)
        with running.admin() as admin:
            for kind, name in (
                (ResourceType.TOPIC, "orders"),
                (ResourceType.TOPIC, "copies"),
                (ResourceType.TRANSACTIONAL_ID, "__sink"),
                (ResourceType.CLUSTER, "kafka-cluster"),
            ):
                pattern = PatternType.PREFIXED if name == "__sink" else PatternType.LITERAL
                entry = (kind, name, pattern, f"User:{WRITER}", "*", AclOperation.ALL, PermissionType.ALLOW)
                admin.create_acls([AclBinding(*entry)])
        for topic in ("orders", "copies"):
            running.create_topic(topic)
        yield running
        reading.close_idle()
        connections.close()


@pytest.fixture
def options_of(secured: Cluster) -> Callable[[str], dict[str, str]]:
    """A user's options, by the names of Kafka's clients."""

    def made(user: str) -> dict[str, str]:
        given = secured.client_settings(user)
        found = {
            "tidelog.bootstrap.servers": secured.bootstrap,
            "tidelog.security.protocol": given["security_protocol"],
            "tidelog.ssl.truststore.type": "PEM",
            "tidelog.ssl.truststore.location": given["ssl_cafile"] or "",
            "tidelog.ssl.keystore.location": given.get("ssl_certfile"),
            "tidelog.sasl.mechanism": given.get("sasl_mechanism"),
            "tidelog.sasl.username": given.get("sasl_username"),
            "tidelog.sasl.password": given.get("sasl_password"),
        }
        return {name: value for name, value in found.items() if value is not None}

    return made


def secrets_in(options: dict[str, str]) -> list[str]:
    """What must be seen nowhere."""
    if "tidelog.sasl.password" in options:
        return [options["tidelog.sasl.password"], options["tidelog.sasl.password"].strip()]
    key = Path(options["tidelog.ssl.keystore.location"])
    return [key.read_text().splitlines()[1], key.name]


def test_what_is_written_is_read_and_no_secret_is_seen(
    spark: SparkSession, options_of: Callable[[str], dict[str, str]], checkpoint: str
) -> None:
    options = options_of(WRITER)
    spark.sparkContext.setJobDescription(DONE)
    spark.sparkContext.setLogLevel("DEBUG")
    rows = spark.createDataFrame([("k", "v")], "key string, value string")
    rows.write.format("tidelog").options(**options, topic="orders").mode("append").save()
    found = spark.read.format("tidelog").options(**options, subscribe="orders").load()
    assert (b"k", b"v") in [(bytes(row.key), bytes(row.value)) for row in found.collect()]
    stream = spark.readStream.format("tidelog").options(**options, subscribe="orders", startingOffsets="earliest")
    writer = stream.load().writeStream.format("tidelog").options(**options, topic="copies")
    query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    assert query.awaitTermination(120)
    shown = [str(query.lastProgress), str(query.status), str(found.schema)]
    shown.append(query._jsq.explainInternal(True))
    shown += [
        spark._jvm.PythonSQLUtils.explainString(found._jdf.queryExecution(), mode)  # type: ignore[union-attr]
        for mode in ("simple", "extended", "codegen", "cost", "formatted")
    ]
    spark.sparkContext.parallelize([0], 1).foreach(lambda _: print(SAID, file=sys.stderr, flush=True))
    spark.sparkContext.setLogLevel("OFF")
    spark.sparkContext.setJobDescription("")
    home = Path(urlparse(spark.conf.get("spark.eventLog.dir") or "").path)
    logged = "".join(path.read_text() for path in home.rglob("*events_*") if path.is_file())
    assert DONE in logged
    of_processes = (home / LOG).read_text(errors="replace")
    assert SAID in of_processes, "what workers write"
    assert " DEBUG " in of_processes, "what the driver logs"
    assert " INFO DAGScheduler: Job " in of_processes
    kept = [path.read_text(errors="replace") for path in Path(checkpoint).rglob("*") if path.is_file()]
    assert kept
    for secret in secrets_in(options):
        assert not [text for text in (*shown, *kept, logged, of_processes) if secret in text]


@pytest.mark.parametrize("secured", ["tls+scram"], indirect=True)
def test_a_delegation_token_takes_the_place_of_a_password(
    spark: SparkSession, secured: Cluster, options_of: Callable[[str], dict[str, str]], checkpoint: str
) -> None:
    with Admin(secured.bootstrap, **secured.client_settings(WRITER)) as admin:
        token = admin.create_delegation_token()
    deadline = time.monotonic() + 60
    while any(token.token_id not in secured.node(node).view.image.delegation_tokens for node in secured.node_ids):
        assert time.monotonic() < deadline, "not every node knows the token"
        time.sleep(0.05)
    options = options_of(WRITER) | {
        "tidelog.sasl.username": token.token_id,
        "tidelog.sasl.password": token.hmac_as_base64,
        "tidelog.sasl.tokenauth": "true",
    }
    test_what_is_written_is_read_and_no_secret_is_seen(spark, lambda _: options, checkpoint)


def test_a_user_without_a_list_reads_and_writes_nothing(
    spark: SparkSession, options_of: Callable[[str], dict[str, str]]
) -> None:
    rows = spark.createDataFrame([("k", "v")], "key string, value string")
    rows.write.format("tidelog").options(**options_of(WRITER), topic="orders").mode("append").save()
    stranger = options_of(STRANGER) | {"tidelog.default.api.timeout.ms": "5000"}
    with pytest.raises(Exception, match=REFUSED):
        spark.read.format("tidelog").options(**stranger, subscribe="orders").load().collect()
    with pytest.raises(Exception, match=REFUSED):
        # The process keeps the writer's connections; the stranger's must not be among them.
        rows.write.format("tidelog").options(**stranger, topic="orders").mode("append").save()


@pytest.mark.parametrize("secured", ["tls+scram"], indirect=True)
def test_a_wrong_password_is_said_and_not_shown(
    spark: SparkSession, options_of: Callable[[str], dict[str, str]]
) -> None:
    wrong = options_of(WRITER) | {"tidelog.default.api.timeout.ms": "5000"}
    wrong["tidelog.sasl.password"] = "guess-of-a-stranger"
    rows = spark.createDataFrame([("k", "v")], "key string, value string")
    with pytest.raises(Exception, match="invalid credentials") as read:
        spark.read.format("tidelog").options(**wrong, subscribe="orders").load().collect()
    with pytest.raises(Exception, match="invalid credentials") as written:
        rows.write.format("tidelog").options(**wrong, topic="orders").mode("append").save()
    assert "guess-of-a-stranger" not in str(read.value) + str(written.value)


def test_options_that_would_be_shown_or_do_not_fit_are_refused() -> None:
    given = {
        "tidelog.bootstrap.servers": "127.0.0.1:1",
        "tidelog.security.protocol": "SASL_SSL",
        "tidelog.sasl.mechanism": "PLAIN",
        "tidelog.sasl.username": "u",
        "tidelog.sasl.password": PASSWORD,
    }
    query = SourceOptions.of(given | {"subscribe": "t"}, streaming=True)
    write = SinkOptions.of(given, streaming=True)
    assert query.client["sasl_password"] == write.ledger["sasl_password"] == write.producer["sasl_password"] == PASSWORD
    assert PASSWORD.strip() not in repr((query, write))
    for of in (
        lambda more: SourceOptions.of(given | more | {"subscribe": "t"}, streaming=True),
        lambda more: SinkOptions.of(given | more, streaming=True),
    ):
        with pytest.raises(OptionError, match=r"'sasl\.jaas\.config'.*give 'tidelog\.sasl\.username'") as refused:
            of({"tidelog.sasl.jaas.config": 'x username="u" password="hidden"'})
        assert "hidden" not in str(refused.value)
        with pytest.raises(OptionError, match=r"tidelog\.security\.protocol: expected SASL_SSL with sasl_mechanism"):
            of({"tidelog.security.protocol": "SSL"})
        with pytest.raises(OptionError, match=r"tidelog\.ssl\.truststore\.type: expected PEM, found 'JKS'"):
            of({"tidelog.ssl.truststore.type": "JKS"})


def test_a_query_asks_an_issuer_for_its_tokens(spark: SparkSession) -> None:
    settings = {
        "listener.security.protocol.map": "KAFKA:SASL_PLAINTEXT,CLIENT:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        "sasl.oauthbearer.expected.issuer": NAME,
        "sasl.oauthbearer.expected.audience": AUDIENCE,
    }
    with running(Issuer()) as issuer:
        settings["sasl.oauthbearer.jwks.endpoint.url"] = f"{issuer.url}/jwks"
        with Cluster(transport="grpc", config=settings) as cluster:
            options = {
                "tidelog.bootstrap.servers": cluster.bootstrap,
                "tidelog.security.protocol": "SASL_PLAINTEXT",
                "tidelog.sasl.mechanism": "OAUTHBEARER",
                "tidelog.sasl.oauthbearer.token.endpoint.url": f"{issuer.url}/token",
                "tidelog.sasl.oauthbearer.client.id": "alice",
                "tidelog.sasl.oauthbearer.client.secret": CLIENTS["alice"],
            }
            assert CLIENTS["alice"] not in repr(SinkOptions.of(options, streaming=False))
            rows = spark.createDataFrame([("k", "v")], "key string, value string")
            rows.write.format("tidelog").options(**options, topic="orders").mode("append").save()
            found = spark.read.format("tidelog").options(**options, subscribe="orders").load()
            assert [bytes(row.value) for row in found.collect()] == [b"v"]
            assert issuer.asked["/token"] >= 2, "the writer's process and the reader's"
            connections.close()
            reading.close_idle()
