"""The pytest plugin as a user's own test run meets it."""

from __future__ import annotations

import pytest

pytest_plugins = ["pytester"]

# Other plugins of this environment are kept out: one of them warns of a setting of its own.
STRICT = [
    "-p",
    "no:cacheprovider",
    "-p",
    "no:asyncio",
    "-p",
    "no:hypothesispytest",
    "-W",
    "error",
    "--strict-markers",
    "-q",
]


def test_the_fixture_is_a_running_cluster(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        def test_default(tidelog_cluster):
            tidelog_cluster.create_topic("t")
            assert len(tidelog_cluster.node_ids) == 1

        @pytest.mark.tidelog_cluster(nodes=3, config={"num.partitions": "5"})
        def test_marked(tidelog_cluster):
            assert len(tidelog_cluster.node_ids) == 3
            with tidelog_cluster.producer() as producer:
                producer.send("fresh", b"x").result(30)
                assert len(producer.partitions_for("fresh")) == 5
        """
    )
    result = pytester.runpytest_subprocess(*STRICT)
    result.assert_outcomes(passed=2)


def test_the_ini_file_sets_it_up_and_a_session_shares_it(pytester: pytest.Pytester) -> None:
    pytester.makeini(
        """
        [pytest]
        tidelog_nodes = 2
        tidelog_transport = grpc
        tidelog_scope = session
        """
    )
    pytester.makepyfile(
        """
        def test_first(tidelog_cluster):
            assert len(tidelog_cluster.node_ids) == 2
            assert tidelog_cluster.bootstrap.startswith("127.0.0.1:")
            tidelog_cluster.create_topic("shared")

        def test_second(tidelog_cluster):
            assert tidelog_cluster.leader_of("shared", 0) is not None
        """
    )
    pytester.runpytest_subprocess(*STRICT).assert_outcomes(passed=2)


def test_a_wrong_setting_is_said(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\ntidelog_nodes = three\n")
    pytester.makepyfile("def test_it(tidelog_cluster): pass")
    result = pytester.runpytest_subprocess(*STRICT)
    result.stdout.fnmatch_lines(["*tidelog_nodes: expected a whole number, found 'three'*"])


def test_a_run_that_does_not_use_it_pays_nothing(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import sys

        def test_it():
            heavy = ("tidelog.broker", "tidelog.storage", "tidelog.client", "grpc", "google.protobuf")
            assert [name for name in sys.modules if name.startswith(heavy)] == []
        """
    )
    pytester.runpytest_subprocess(*STRICT).assert_outcomes(passed=1)


def test_a_marker_secures_it(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest
        from tidelog import errors

        @pytest.mark.tidelog_cluster(security="tls")
        def test_secured(tidelog_cluster):
            tidelog_cluster.create_topic("t")
            with tidelog_cluster.producer(user="alice") as producer:
                with pytest.raises(errors.TopicAuthorizationFailedError):
                    producer.send("t", b"x").result(30)
        """
    )
    result = pytester.runpytest_subprocess(*STRICT)
    result.assert_outcomes(passed=1)
