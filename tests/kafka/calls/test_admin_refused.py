"""The answers to admin tools of a cluster without access control and with one level of its features."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.kafka.wire_client import WireClient
from tidelog.model.errors import ErrorCode
from tidelog.testing.cluster import Cluster

SECURITY_DISABLED = 54
DESCRIBE_ACLS, CREATE_ACLS, DELETE_ACLS, UPDATE_FEATURES = 29, 30, 31, 57
ACL = {
    "resource_type": 2, "resource_name": "t", "resource_pattern_type": 3, "principal": "User:a", "host": "*",
    "operation": 3, "permission_type": 3,
}  # fmt: skip
FILTER = {"resource_type_filter": 1, "pattern_type_filter": 1, "operation": 1, "permission_type": 1}


@pytest.fixture
def wire(kafka_cluster: Cluster) -> Iterator[WireClient]:
    with WireClient(kafka_cluster.kafka_bootstrap) as made:
        yield made


@pytest.mark.parametrize("version", [1, 2, 3])
def test_access_control_says_that_it_is_not_there(wire: WireClient, version: int) -> None:
    described = wire.ask(DESCRIBE_ACLS, version, **FILTER)
    assert (described.error_code, described.resources) == (SECURITY_DISABLED, ())
    created = wire.ask(CREATE_ACLS, version, creations=[ACL, ACL])
    assert [found.error_code for found in created.results] == [SECURITY_DISABLED] * 2
    deleted = wire.ask(DELETE_ACLS, version, filters=[FILTER])
    assert [(found.error_code, found.matching_acls) for found in deleted.filter_results] == [(SECURITY_DISABLED, ())]


def test_librdkafka_hears_that_access_control_is_not_there(kafka_cluster: Cluster) -> None:
    from confluent_kafka import KafkaError, KafkaException
    from confluent_kafka.admin import (
        AclBinding,
        AclBindingFilter,
        AclOperation,
        AclPermissionType,
        AdminClient,
        ResourcePatternType,
        ResourceType,
    )

    admin = AdminClient({"bootstrap.servers": kafka_cluster.kafka_bootstrap})
    anything: Any = None  # the stubs ask for a text
    every = AclBindingFilter(
        ResourceType.ANY, anything, ResourcePatternType.ANY, anything, anything, AclOperation.ANY, AclPermissionType.ANY
    )
    one = AclBinding(
        ResourceType.TOPIC, "t", ResourcePatternType.LITERAL, "User:a", "*", AclOperation.READ, AclPermissionType.ALLOW
    )
    # Its describe_acls passes over the error of the whole answer and returns no access control lists at all.
    for future in (*admin.create_acls([one]).values(), *admin.delete_acls([every]).values()):
        with pytest.raises(KafkaException) as refused:
            future.result(30)
        assert refused.value.args[0].code() == KafkaError.SECURITY_DISABLED


@pytest.mark.parametrize(
    ("feature", "level", "error", "text"),
    [
        ("transaction.version", 2, ErrorCode.NONE, None),
        ("metadata.version", 2, ErrorCode.NONE, None),
        ("transaction.version", 1, ErrorCode.INVALID_UPDATE_VERSION, "expected at least the level in use, 2, found 1"),
        ("metadata.version", 99, ErrorCode.INVALID_UPDATE_VERSION, "found 99"),
        ("no.such", 1, ErrorCode.INVALID_UPDATE_VERSION, "found 'no.such'"),
    ],
)
def test_levels_of_features_are_answered(
    wire: WireClient, feature: str, level: int, error: ErrorCode, text: str | None
) -> None:
    update: dict[str, Any] = {"feature": feature, "max_version_level": level, "upgrade_type": 1}
    for version in (0, 1, 2):
        done = wire.ask(UPDATE_FEATURES, version, feature_updates=[update], timeout=5_000)
        assert done.error_code == error
        assert text in done.error_message if text else done.error_message is None
        if version < 2:
            assert [each.feature for each in done.results] == ([] if error else [feature])


def test_a_level_goes_down_and_up_and_every_client_hears_of_it() -> None:
    def levels(wire: WireClient, version: int) -> tuple[int, dict[str, int], set[str]]:
        found = wire.ask(18, version, client_software_name="a", client_software_version="1")
        used = {one.name: one.max_version_level for one in found.finalized_features}
        return found.finalized_features_epoch, used, {one.name for one in found.supported_features}

    def update(wire: WireClient, version: int, level: int, **kind: Any) -> int:
        change = {"feature": "transaction.version", "max_version_level": level, **kind}
        return int(wire.ask(UPDATE_FEATURES, version, feature_updates=[change], timeout=5_000).error_code)

    groups = {"group.version": 1}
    with Cluster(1, transport="grpc") as cluster, WireClient(cluster.kafka_bootstrap) as wire:
        node = cluster.node(1)
        cluster.wait_for(lambda: 1 in node.view.image.controllers, "the controller is registered")
        epoch, used, supported = levels(wire, 4)
        assert (epoch, used) == (node.view.image.offset, {"metadata.version": 2, "transaction.version": 2, **groups})
        assert supported == {"group.version", "metadata.version", "transaction.version"}
        assert levels(wire, 3)[2] == {"metadata.version"}, "clients of version 3 fail on a lowest level of 0"
        assert update(wire, 0, 0, allow_downgrade=False) == ErrorCode.INVALID_UPDATE_VERSION
        assert update(wire, 0, 1, allow_downgrade=True) == 0
        assert update(wire, 2, 0, upgrade_type=1) == ErrorCode.INVALID_UPDATE_VERSION
        assert update(wire, 2, 0, upgrade_type=0) == ErrorCode.INVALID_UPDATE_VERSION
        assert update(wire, 2, 0, upgrade_type=2) == 0
        later, used, _ = levels(wire, 4)
        assert later > epoch
        assert used == {"metadata.version": 2, **groups}
        assert update(wire, 2, 2, upgrade_type=1) == 0
        assert levels(wire, 3)[1]["transaction.version"] == 2


def test_a_topic_that_keeps_everything(wire: WireClient, topic_name: Callable[..., str]) -> None:
    name = topic_name("keeps")
    config = [{"name": "cleanup.policy", "value": ""}]
    topic = {"name": name, "num_partitions": 1, "replication_factor": 1, "configs": config}
    (made,) = wire.ask(19, 7, topics=[topic], timeout=20_000).topics
    assert (made.error_code, made.error_message) == (0, None)
    wanted = [{"resource_type": 2, "resource_name": name, "configuration_keys": ["cleanup.policy"]}]
    (found,) = wire.ask(32, 4, resources=wanted).results
    assert [(each.name, each.value) for each in found.configs] == [("cleanup.policy", "")]
