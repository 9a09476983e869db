"""Values that no request or batch could carry are refused at the call, not by the tasks behind it."""

from __future__ import annotations

import pytest

from tidelog.client.errors import InvalidTopicError
from tidelog.testing import Cluster


def test_a_name_that_is_not_utf_8_and_a_time_beyond_64_bits() -> None:
    with Cluster(nodes=1) as cluster, cluster.producer(max_block_ms=5_000) as producer:
        with pytest.raises(InvalidTopicError, match="expected a topic name of ASCII letters"):
            producer.send("\udcff", b"x")
        with pytest.raises(ValueError, match="timestamp_ms: expected 0 to 9223372036854775807"):
            producer.send("here", b"x", timestamp_ms=1 << 63)
        assert producer.send("here", b"x").result(30).offset == 0
