"""Users and their credentials through the admin clients of librdkafka and kafka-python."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tidelog import Admin, ScramCredentialInfo, ScramMechanism
from tidelog.security.scram import is_password_of
from tidelog.testing.cluster import Cluster

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient


@pytest.fixture
def admin(kafka_cluster: Cluster) -> AdminClient:
    from confluent_kafka.admin import AdminClient

    return AdminClient({"bootstrap.servers": kafka_cluster.kafka_bootstrap})


def code_of(future: Any) -> int:
    """The error of one user."""
    from confluent_kafka import KafkaException

    with pytest.raises(KafkaException) as caught:
        future.result(20)
    return int(caught.value.args[0].code())


def test_librdkafka_makes_describes_and_deletes_users(kafka_cluster: Cluster, admin: AdminClient) -> None:
    from confluent_kafka import KafkaError
    from confluent_kafka import admin as rd

    sha256 = rd.ScramCredentialInfo(rd.ScramMechanism.SCRAM_SHA_256, 8192)
    weak = rd.ScramCredentialInfo(rd.ScramMechanism.SCRAM_SHA_512, 100)
    made = admin.alter_user_scram_credentials(
        [
            rd.UserScramCredentialUpsertion("rd-alice", sha256, b"pencil"),
            rd.UserScramCredentialUpsertion("rd-weak", weak, b"pencil"),
            rd.UserScramCredentialDeletion("rd-nobody", rd.ScramMechanism.SCRAM_SHA_256),
        ]
    )
    assert made["rd-alice"].result(20) is None
    assert code_of(made["rd-weak"]) == KafkaError.UNACCEPTABLE_CREDENTIAL
    assert code_of(made["rd-nobody"]) == KafkaError.RESOURCE_NOT_FOUND
    record = kafka_cluster.node(1).view.image.users["rd-alice", 1]
    assert is_password_of(ScramMechanism.SCRAM_SHA_256, record, "pencil"), "librdkafka salts passwords otherwise"
    with Admin(kafka_cluster.bootstrap) as ours:
        assert ours.describe_user_scram_credentials() == {
            "rd-alice": [ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 8192)]
        }
    described: Any = admin.describe_user_scram_credentials(["rd-alice", "rd-nobody"])
    (info,) = described["rd-alice"].result(20).scram_credential_infos
    assert (info.mechanism, info.iterations) == (rd.ScramMechanism.SCRAM_SHA_256, 8192)
    assert code_of(described["rd-nobody"]) == KafkaError.RESOURCE_NOT_FOUND
    everybody: Any = admin.describe_user_scram_credentials()
    assert set(everybody.result(20)) == {"rd-alice"}
    gone = admin.alter_user_scram_credentials(
        [rd.UserScramCredentialDeletion("rd-alice", rd.ScramMechanism.SCRAM_SHA_256)]
    )
    assert gone["rd-alice"].result(20) is None
    nobody: Any = admin.describe_user_scram_credentials()
    assert nobody.result(20) == {}
