"""Leaders that read a backup themselves: what they read, what they refuse to, and that the result is the same."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn, cast

import pytest

from tidelog import TopicPartition
from tidelog.broker.logs import backup_reading
from tidelog.broker.logs.backup_places import AllowedPlaces, NotReadHere
from tidelog.broker.logs.backup_reading import BackupReading
from tidelog.client.backup import restoring
from tidelog.metadata_quorum.image.image import MetadataImage
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import LeaderEpoch, Offset, TopicId
from tidelog.proto.backups.copying import PartitionFile
from tidelog.proto.backups.manifest import NAME, Damaged, Manifest, TopicPart
from tidelog.proto.backups.place import Directory, key_of, read_manifest
from tidelog.proto.calls.backup_api import ImportRecordsRequest, ImportRecordsResponse
from tidelog.proto.records.batches import patch_batch, split_batches
from tidelog.proto.records.encoder import encode_values
from tidelog.testing import Cluster

NONE = ErrorCode.NONE
TOPIC_ID = TopicId(b"t" * 16)
KEY = key_of("t", 0)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A backup of two partitions with 40 batches each."""
    place = Directory(tmp_path_factory.mktemp("backups") / "one")
    place.make()
    parts = []
    for partition in range(2):
        file = PartitionFile(TopicPartition("t", partition), place)
        for number in range(40):
            batch = encode_values([b"%d" % number * 50], 1_000)
            patch_batch(batch, 0, base_offset=number, leader_epoch=77)
            file.append(split_batches(batch))
        parts.append(file.finish(40, 1_000))
    topic = TopicPart("t", TOPIC_ID.hex(), 1, {}, tuple(parts))
    place.write_manifest(Manifest("cluster", 1_000, 5, 0, (topic,), {}).to_json())
    return place.path


@pytest.fixture
def target(made: Path) -> Iterator[Cluster]:
    with Cluster(nodes=3, transport="grpc", config={"backup.dirs": str(made.parent)}) as cluster:
        yield cluster


def restored(cluster: Cluster, directory: Path, **more: Any) -> list[str]:
    """Restore, and return what the command would say."""
    told: list[str] = []

    async def work() -> None:
        async with restoring.BackupRestorer(cluster.bootstrap) as restorer:
            await restorer.restore(Directory(directory), tell=told.append, **more)

    asyncio.run(work())
    return told


def values(cluster: Cluster) -> dict[tuple[int, int], bytes | None]:
    with cluster.consumer(auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition("t", 0), TopicPartition("t", 1)])
        found: dict[tuple[int, int], bytes | None] = {}
        while len(found) < 80:
            found |= {(one.partition, one.offset): one.value for one in consumer.poll(1)}
    return found


WANTED = {(partition, number): b"%d" % number * 50 for partition in range(2) for number in range(40)}


def sends(_: object, *_more: object) -> NoReturn:
    raise AssertionError("it is read, not sent")


def test_leaders_read_and_followers_have_it_as_well(
    made: Path, target: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidelog.proto.backups.place.READ_BYTES", 300)
    monkeypatch.setattr(restoring.BackupRestorer, "_import", sends)
    for _ in range(2):  # once more does no harm
        assert restored(target, made, replicas=3) == []
    leader = target.leader_of("t", 0)
    assert leader is not None
    target.kill(leader)
    assert values(target) == WANTED


def test_a_leader_goes_on_where_an_interrupted_restore_ended(
    made: Path, target: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidelog.proto.backups.place.READ_BYTES", 300)
    real = BackupReading._put

    async def full(*arguments: Any) -> None:
        reading = arguments[1]
        if reading.end > 10:
            raise backup_reading._Ended(ImportRecordsResponse(ErrorCode.INVALID_TOPIC_EXCEPTION, error_message="died"))
        await real(*arguments)

    monkeypatch.setattr(BackupReading, "_put", full)
    with pytest.raises(Exception, match="died"):
        restored(target, made)
    monkeypatch.setattr(BackupReading, "_put", real)
    monkeypatch.setattr(restoring.BackupRestorer, "_import", sends)
    restored(target, made)
    assert values(target) == WANTED


def test_damage_is_named_and_what_was_restored_is_deleted(made: Path, target: Cluster) -> None:
    path = made / KEY
    sound = path.read_bytes()
    path.write_bytes(sound[:-9] + bytes([sound[-9] ^ 1]) + sound[-8:])
    try:
        with pytest.raises(Damaged, match=rf"{KEY}.*offsets 39\.\.39.*topics created from it were deleted again"):
            restored(target, made)
        with target.admin() as admin:
            assert admin.list_topics() == []
    finally:
        path.write_bytes(sound)


def test_what_a_leader_may_not_read_is_sent(made: Path, target: Cluster, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    os.symlink(made, made.parent / "link")
    for path in (KEY, key_of("t", 1), NAME):
        (copy / path).parent.mkdir(parents=True, exist_ok=True)
        (copy / path).write_bytes((made / path).read_bytes())
    (told,) = restored(target, copy)
    assert "records are sent" in told
    assert "expected a directory within backup.dirs of this node" in told
    assert values(target) == WANTED


def test_a_throttled_restore_sends(made: Path, target: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BackupReading, "ask", sends)
    assert restored(target, made, throttle=10_000_000) == []
    assert values(target) == WANTED


# --- Which files ---------------------------------------------------------------------------------------------------


def digest(directory: Path) -> str:
    return hashlib.sha256((directory / NAME).read_bytes()).hexdigest()


@pytest.fixture
def own(made: Path, tmp_path: Path) -> Path:
    """A directory that is allowed, with a copy of the backup."""
    for path in (KEY, key_of("t", 1), NAME):
        (tmp_path / "allowed/b" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "allowed/b" / path).write_bytes((made / path).read_bytes())
    return tmp_path / "allowed"


def test_what_is_there_is_found_also_by_a_link_to_the_allowed_directory(own: Path) -> None:
    os.symlink(own, own.parent / "by-link")
    for allowed in (own, own / "b", own.parent / "by-link"):
        place, part = AllowedPlaces(("/nonexistent", str(allowed))).find(str(own / "b"), digest(own / "b"), "t", 0)
        assert part.end == 40
        assert b"".join(map(bytes, place.read(KEY))) == (own / "b" / KEY).read_bytes()


Change = Callable[[Path], str]


def outside(own: Path) -> str:
    own.rename(own.parent / "elsewhere")
    own.mkdir()
    return str(own.parent / "elsewhere/b")


def beside(own: Path) -> str:
    """Its name begins like the allowed one's."""
    own.rename(own.parent / "allowed-not")
    own.mkdir()
    return str(own.parent / "allowed-not/b")


def above(own: Path) -> str:
    outside(own)
    return f"{own}/../elsewhere/b"


def by_link(own: Path) -> str:
    outside(own)
    os.symlink(own.parent / "elsewhere/b", own / "b")
    return str(own / "b")


def file_by_link(own: Path) -> str:
    (own / "b" / KEY).rename(own.parent / "file")
    os.symlink(own.parent / "file", own / "b" / KEY)
    return str(own / "b")


def manifest_by_link(own: Path) -> str:
    (own / "b" / NAME).rename(own.parent / "file")
    os.symlink(own.parent / "file", own / "b" / NAME)
    return str(own / "b")


def pipe(own: Path) -> str:
    (own / "b" / KEY).unlink()
    os.mkfifo(own / "b" / KEY)
    return str(own / "b")


def another(own: Path) -> str:
    manifest = read_manifest(Directory(own / "b"))
    (own / "b" / NAME).write_text(replace(manifest, cluster_id="other").to_json())
    return str(own / "b")


def missing(own: Path) -> str:
    (own / "b" / KEY).unlink()
    return str(own / "b")


def short(own: Path) -> str:
    (own / "b" / KEY).write_bytes((own / "b" / KEY).read_bytes()[:-1])
    return str(own / "b")


REFUSED: list[tuple[Change, str]] = [
    (outside, r"expected a directory within backup\.dirs"),
    (beside, r"expected a directory within backup\.dirs"),
    (above, r"expected a directory within backup\.dirs"),
    (by_link, "Not a directory"),
    (file_by_link, "symbolic links"),
    (manifest_by_link, "symbolic links"),
    (pipe, "expected a file"),
    (another, "expected the backup that is being restored, found another one"),
    (missing, "bytes, found None"),
    (short, "bytes, found"),
]


@pytest.mark.parametrize(("change", "text"), REFUSED, ids=lambda each: getattr(each, "__name__", ""))
def test_nothing_else_is_read(own: Path, change: Change, text: str) -> None:
    found = digest(own / "b")
    with pytest.raises(NotReadHere, match=text):
        AllowedPlaces((str(own),)).find(change(own), found, "t", 0)


def test_without_the_setting_nothing_is_read(own: Path) -> None:
    with pytest.raises(NotReadHere, match=r"within backup\.dirs"):
        AllowedPlaces(()).find(str(own / "b"), digest(own / "b"), "t", 0)


def test_a_manifest_beyond_the_bound_is_not_read(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = (own / "b" / NAME).stat().st_size
    for most in (size, size - 1):
        monkeypatch.setattr("tidelog.broker.logs.backup_places.MANIFEST_BYTES_MAX", most)
        if most == size:
            AllowedPlaces((str(own),)).find(str(own / "b"), digest(own / "b"), "t", 0)
    with pytest.raises(NotReadHere, match=f"expected at most {size - 1} bytes, found more"):
        AllowedPlaces((str(own),)).find(str(own / "b"), digest(own / "b"), "t", 0)


# --- When it ends --------------------------------------------------------------------------------------------------


class Stopped:
    """A clock that stands until a test moves it."""

    now = 1_000

    def monotonic_ms(self) -> int:
        return self.now

    now_ms = monotonic_ms


class Leader:
    """A reading of the backup, and the leader that takes what it reads: it answers with ``errors`` first."""

    def __init__(self, directory: Path, *errors: ErrorCode, wait_ms: int = 5_000) -> None:
        self.errors = list(errors)
        self.clock = Stopped()
        self.ends: list[int] = []
        self.end = Offset(0)
        self.came, self.may = asyncio.Event(), asyncio.Event()
        self.request = ImportRecordsRequest(
            TOPIC_ID, 0, LeaderEpoch(3), Offset(0), b"", wait_ms, "", str(directory), digest(directory)
        )
        image = cast(MetadataImage, SimpleNamespace(topics={self.request.topic_id: SimpleNamespace(name="t")}))
        self.reading = BackupReading((str(directory),), self.take, lambda: image, self.clock)

    async def take(self, request: ImportRecordsRequest, *, checked: bool = False) -> ImportRecordsResponse:
        assert not request.place
        if not len(request.records):
            return ImportRecordsResponse(NONE, self.end)
        assert checked, "the reading has compared the CRCs"
        self.came.set()
        await self.may.wait()
        self.ends.append(request.log_end_offset)
        return ImportRecordsResponse(self.errors.pop(0) if self.errors else NONE)

    async def ask(self) -> ImportRecordsResponse:
        return await asyncio.wait_for(self.reading.ask(self.request), 60)

    async def last(self) -> ImportRecordsResponse:
        while (answer := await self.ask()).reads and not answer.done:
            pass
        return answer


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelog.proto.backups.place.READ_BYTES", 300)


def test_it_goes_on_once_followers_are_back(own: Path) -> None:
    async def work() -> None:
        leader = Leader(own / "b", ErrorCode.NOT_ENOUGH_REPLICAS, NONE, ErrorCode.REQUEST_TIMED_OUT)
        leader.may.set()
        answer = await leader.last()
        assert (answer.error, answer.done, answer.log_end_offset) == (NONE, True, 40)
        assert answer.read_bytes == (own / "b" / KEY).stat().st_size
        assert leader.ends[0] == leader.ends[1] == 0
        assert leader.ends[2] == leader.ends[3] > 0
        assert leader.ends[1:3] + leader.ends[4:] == sorted(set(leader.ends)), "no piece twice, except what failed"

    asyncio.run(work())


def test_it_ends_when_the_leadership_does(own: Path) -> None:
    async def work() -> None:
        leader = Leader(own / "b", NONE, ErrorCode.FENCED_LEADER_EPOCH)
        leader.may.set()
        assert (await leader.last()).error is ErrorCode.FENCED_LEADER_EPOCH
        assert len(leader.ends) == 2

    asyncio.run(work())


def test_it_ends_if_nobody_asks_any_more(own: Path) -> None:
    async def work() -> None:
        leader = Leader(own / "b", wait_ms=1)
        first = await leader.ask()
        assert (first.reads, first.done) == (True, False)
        await asyncio.wait_for(leader.came.wait(), 60)
        leader.clock.now += backup_reading.IDLE_MS + 1
        leader.may.set()
        (begun,) = leader.reading._readings.values()
        answer = await asyncio.wait_for(begun.task, 60)
        assert answer.error is ErrorCode.REQUEST_TIMED_OUT
        assert leader.ends == [0], "the piece that it had"
        assert (await leader.last()).done, "asked again, it begins again"

    asyncio.run(work())


def test_a_result_that_nobody_came_for_counts_only_for_the_same_log(own: Path) -> None:
    async def work() -> None:
        leader = Leader(own / "b", NONE, ErrorCode.FENCED_LEADER_EPOCH, wait_ms=1)

        async def asked(end: int) -> tuple[bool, int]:
            """Ask once, wait for the end, and return whether it is done and how many pieces were taken."""
            leader.ends.clear()
            leader.end = Offset(end)
            leader.may.clear()
            answer = await leader.ask()
            leader.may.set()
            for begun in leader.reading._readings.values():
                answer = await asyncio.wait_for(begun.task, 60)
            return answer.done, len(leader.ends)

        assert await asked(0) == (False, 2)
        done, pieces = await asked(0)
        assert done
        assert pieces > 2
        ended = dict(leader.reading._readings)
        assert await asked(40) == (True, 0)
        leader.reading._readings |= ended
        assert await asked(0) == (True, pieces), "the topic was deleted and came back"

    asyncio.run(work())


def test_no_more_files_are_read_at_once_than_the_bound(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backup_reading, "AT_ONCE", 1)

    async def work() -> None:
        leader = Leader(own / "b", wait_ms=1)
        other = replace(leader.request, partition=1)
        await leader.ask()
        await asyncio.wait_for(leader.came.wait(), 60)
        for _ in range(20):
            assert (await leader.reading.ask(other)).read_bytes == 0
        leader.may.set()
        assert (await leader.last()).done
        while not (answer := await leader.reading.ask(other)).done:
            assert answer.reads
        assert answer.read_bytes > 0

    asyncio.run(work())


def test_two_backups_are_not_read_into_one_partition_at_once(own: Path) -> None:
    async def work() -> None:
        leader = Leader(own / "b", wait_ms=1)
        await leader.ask()
        other = await leader.reading.ask(replace(leader.request, manifest_sha256="other"))
        assert (other.error, other.reads) == (ErrorCode.REQUEST_TIMED_OUT, False)
        assert "to be finished first" in other.error_message
        leader.reading.close()
        assert (await leader.ask()).error is ErrorCode.NOT_LEADER_OR_FOLLOWER, "the node stops"

    asyncio.run(work())
