"""How long a follower waits at its leader."""

from __future__ import annotations

from tidelog.replication.partition.settings import ReplicationSettings


def test_a_wait_grows_while_nothing_comes_and_stays_below_a_quarter_of_the_lag_time() -> None:
    settings = ReplicationSettings()
    assert [settings.fetch_wait_ms(fruitless) for fruitless in (0, 1, 2, 3, 99)] == [500, 1_000, 2_000, 2_000, 2_000]
    assert ReplicationSettings(replica_lag_time_max_ms=4_000).fetch_wait_ms(99) == 1_000


def test_a_wait_never_shrinks_below_the_setting() -> None:
    settings = ReplicationSettings(replica_fetch_wait_max_ms=500, replica_lag_time_max_ms=1_000)
    assert {settings.fetch_wait_ms(fruitless) for fruitless in range(20)} == {500}
    assert ReplicationSettings(replica_fetch_idle_wait_max_ms=0).fetch_wait_ms(9) == 500
