"""Uses what release 0.1 does not have, on a live cluster whose feature levels have been raised: a user with a password,
a move between log directories, a group whose coordinator assigns (KIP-848)."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from tidelog import Admin, Consumer, Producer
from tidelog.cli.failure import CommandFailed
from tidelog.cli.work.replicas.disk_moves import DiskMover, replicas_in
from tidelog.cli.work.replicas.moving import POLL_S
from tidelog.client.admin.types import NewTopic
from tidelog.client.admin.users import UserScramCredentialUpsertion

NAME: Final = "upgraded"
"""The name of the topic, the user and the group."""
RECORDS: Final = 200
PARTITIONS: Final = 2
WITHIN_S: Final = 60.0


def use_what_is_new(bootstrap: str, node: int) -> None:
    """Use all of it. ``node`` has two log directories. Raises :class:`CommandFailed`."""
    with Admin(bootstrap) as admin:
        admin.alter_user_scram_credentials([UserScramCredentialUpsertion(NAME, "between two releases")])
        _wait(lambda: NAME in admin.describe_user_scram_credentials(), f"user {NAME}")
        admin.create_topics([NewTopic(NAME, PARTITIONS, 3)])
        with Producer(bootstrap) as producer:
            producer.send_many(NAME, [b"%d" % number for number in range(RECORDS)]).result()
        _move_to_the_other_disk(DiskMover(admin, node, lambda text: None))
        with Consumer(bootstrap, group_id=NAME, group_protocol="consumer", auto_offset_reset="earliest") as consumer:
            consumer.subscribe([NAME])
            read: set[bytes | None] = set()

            def is_read() -> bool:
                read.update(record.value for record in consumer.poll(1.0))
                return len(read) == RECORDS

            _wait(is_read, f"{RECORDS} values of topic {NAME} read by group {NAME}")
            consumer.commit()
            types = {group.group_id: group.group_type for group in admin.list_groups()}
        if types.get(NAME) != "consumer":
            raise CommandFailed(f"expected group {NAME} to be of type consumer, found {types}")


def _move_to_the_other_disk(mover: DiskMover) -> None:
    dirs = mover.dirs()
    wanted = {
        at: next(directory.path for directory in dirs if directory.path != replica.path)
        for at, replica in replicas_in(dirs).items()
        if at.topic == NAME
    }
    if len(wanted) != PARTITIONS:
        raise CommandFailed(f"expected {PARTITIONS} replicas of topic {NAME} to move, found {len(wanted)}")
    mover.begin(wanted)

    def moved() -> bool:
        found = replicas_in(mover.dirs())
        return all(found[at].path == path for at, path in wanted.items())

    _wait(moved, f"the replicas of topic {NAME} in {', '.join({*wanted.values()})}")


def _wait(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not condition():
        if time.monotonic() > deadline:
            raise CommandFailed(
                f"expected {what} within {WITHIN_S:g} s after the upgrade was finalised, found it missing"
            )
        time.sleep(POLL_S)
