"""Limits on connections per address, and on new connections per second."""

from __future__ import annotations

import pytest
from immutables import Map

from tidelog.broker import connection_quotas
from tidelog.broker.connection_quotas import WINDOW_S, ConnectionQuotas
from tidelog.metadata_quorum.image.change import MetadataDelta
from tidelog.metadata_quorum.image.image import MetadataImage
from tidelog.model.client_quotas import CONNECTION_CREATION_RATE, ClientQuotaEntity
from tidelog.model.settings.broker_config import NodeConfig
from tidelog.model.settings.config_def import ConfigError
from tidelog.model.settings.listeners import plain_address
from tidelog.proto.calls.quota_api import wire_entity

ONE = {"node.id": "1"}


def test_an_address_has_so_many_connections_and_others_their_own() -> None:
    quotas = ConnectionQuotas(2, {"10.0.0.9": 1}, 100)
    assert [quotas.take("10.0.0.1") for _ in range(2)] == [None, None]
    assert quotas.take("10.0.0.1") == "expected at most 2 connections of one address (max.connections.per.ip)"
    assert quotas.take("::ffff:10.0.0.1") is not None, "the same address in IPv6's clothes"
    assert quotas.take("10.0.0.9") is None
    assert "at most 1 " in (quotas.take("10.0.0.9") or "")
    assert quotas.take("10.0.0.2") is None
    quotas.give("10.0.0.1")
    assert quotas.take("10.0.0.1") is None
    assert quotas.take("10.0.0.1") is not None


def test_what_was_refused_is_not_counted_and_what_ended_is_forgotten() -> None:
    quotas = ConnectionQuotas(1, {}, 100)
    for _ in range(3):
        assert quotas.take("a") is None
        assert quotas.take("a") is not None
        quotas.give("a")


def test_new_connections_wait_once_their_rate_is_reached() -> None:
    quotas = ConnectionQuotas(10**9, {}, 2)
    now_s = 1_000.0
    for _ in range(int(2 * WINDOW_S)):
        assert quotas.pause_s(now_s) == 0
        quotas.taken()
    assert quotas.pause_s(now_s) == pytest.approx(0.5)
    assert quotas.pause_s(now_s + 0.5) == 0
    quotas.taken()
    taken = 0
    for tick in range(1, 101):  # ten seconds without a pause
        while not quotas.pause_s(now_s + 0.5 + tick / 10):
            quotas.taken()
            taken += 1
    assert taken == 20


def test_the_settings_are_kafkas() -> None:
    config = NodeConfig.parse(
        {**ONE, "max.connections.per.ip": "0", "max.connections.per.ip.overrides": "localhost:3,::1:4"}
    )
    assert config.describe()["max.connections.per.ip.overrides"] == "localhost:3,::1:4"
    quotas = ConnectionQuotas.of(config)
    assert [quotas.take("127.0.0.1") for _ in range(3)] == [None] * 3
    assert quotas.take("127.0.0.1") is not None
    assert quotas.take("10.0.0.1") is not None
    assert [quotas.take("::1") for _ in range(4)] == [None] * 4
    with pytest.raises(ConfigError, match=r"expected 0 only with max.connections.per.ip.overrides"):
        NodeConfig.parse({**ONE, "max.connections.per.ip": "0"})
    for wrong, said in (("a", "expected host:count"), ("a:b", "expected host:count"), ("a:1,a:2", "each host once")):
        with pytest.raises(ConfigError, match=said):
            NodeConfig.parse({**ONE, "max.connections.per.ip.overrides": wrong})


def test_a_host_that_nobody_knows_is_named() -> None:
    config = NodeConfig.parse({**ONE, "max.connections.per.ip.overrides": "no-such-host.invalid:3"})
    with pytest.raises(OSError, match=r"max\.connections\.per\.ip\.overrides: no address of 'no-such-host.invalid'"):
        ConnectionQuotas.of(config)


@pytest.mark.parametrize(
    ("host", "one"),
    [("127.0.0.1", "127.0.0.1"), ("::ffff:1.2.3.4", "1.2.3.4"), ("fe80::1%eth0", "fe80::1"), ("::0:1", "::1")],
)
def test_an_address_has_one_spelling(host: str, one: str) -> None:
    assert plain_address(host) == one


def test_an_address_makes_so_many_connections_a_second() -> None:
    """As ``SampledRate`` has it: ten seconds' worth at once, then a wait of a second at most, which counts for
    nothing."""
    quotas = ConnectionQuotas(10**9, {}, 10**9)
    set_to(quotas, {ClientQuotaEntity(ip="10.0.0.1"): 2.0, ClientQuotaEntity(ip=""): 5.0})
    assert [quotas.hold_ms("::ffff:10.0.0.1", 0) for _ in range(20)] == [0] * 20
    assert [quotas.hold_ms("10.0.0.1", 0) for _ in range(3)] == [500, 500, 500], "what is refused does not count"
    assert [quotas.hold_ms("10.0.0.2", 0) for _ in range(51)] == [0] * 50 + [200], "each has a rate of its own"
    assert quotas.hold_ms("10.0.0.1", 10_600) == 0
    set_to(quotas, {ClientQuotaEntity(ip="10.0.0.1"): 0.1})
    assert quotas.hold_ms("10.0.0.1", 10_700) == 1_000, "a window at most"
    assert [quotas.hold_ms("10.0.0.2", 0) for _ in range(100)] == [0] * 100
    set_to(quotas, {})
    assert quotas.hold_ms("10.0.0.1", 10_700) == 0


def test_the_rates_of_so_many_addresses_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_quotas, "RATES_MAX", 2)
    quotas = ConnectionQuotas(10**9, {}, 10**9)
    set_to(quotas, {ClientQuotaEntity(ip=""): 1.0})
    for host in ("10.0.0.1", "10.0.0.2"):
        assert [quotas.hold_ms(host, 0) for _ in range(11)] == [0] * 10 + [1_000]
    assert quotas.hold_ms("10.0.0.1", 1)
    assert not quotas.hold_ms("10.0.0.3", 2), "the one that was silent for longest is forgotten"
    assert quotas.hold_ms("10.0.0.1", 3)
    assert not quotas.hold_ms("10.0.0.2", 4)


def set_to(quotas: ConnectionQuotas, limits: dict[ClientQuotaEntity, float]) -> None:
    values = {wire_entity(entity): Map({CONNECTION_CREATION_RATE: limit}) for entity, limit in limits.items()}
    image = MetadataImage(quotas=Map(values))
    quotas.on_metadata(image, MetadataDelta(quotas=True))
