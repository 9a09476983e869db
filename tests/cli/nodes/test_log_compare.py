"""``tidelog log compare`` on the files of a cluster, and on replicas that differ."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.cli.in_process import until
from tidelog.cli.root import run
from tidelog.storage.log.recovery import SPARSE_MARK
from tidelog.testing.cluster import Cluster

from .test_log_verify import batch, flip

BATCHES = ((0, 3), (3, 2), (5, 4))


def compare(capsys: pytest.CaptureFixture[str], *directories: Path) -> tuple[int, list[dict[str, Any]]]:
    code = run(["log", "compare", "--json", *map(str, directories)])
    return code, json.loads(capsys.readouterr().out)


def refused(capsys: pytest.CaptureFixture[str], *directories: Path) -> str:
    assert run(["log", "compare", *map(str, directories)]) == 1
    return capsys.readouterr().err


def replica(directory: Path, batches: list[bytearray], *, high_watermark: int = 9) -> Path:
    """A log directory with one replica of ``flights-0``."""
    partition = directory / "flights-0"
    partition.mkdir(parents=True)
    (partition / f"{0:020d}.log").write_bytes(b"".join(batches))
    (directory / "replication-offset-checkpoint").write_text(f"0\n1\nflights 0 {high_watermark}\n")
    return directory


def batches() -> list[bytearray]:
    return [batch(base, count) for base, count in BATCHES]


def test_replicas_of_a_running_cluster_are_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = {"replica.high.watermark.checkpoint.interval.ms": "100"}
    with Cluster(nodes=3, directory=tmp_path, config=config) as cluster:
        cluster.create_topic("orders", partitions=2, replication_factor=3)
        with cluster.producer() as producer:
            for number in range(300):
                producer.send("orders", b"%d" % number, b"k%d" % number)

        def all_compared() -> bool:
            directories = [path.parent for path in sorted(tmp_path.glob("**/orders-0"))]
            code, told = compare(capsys, *directories)
            assert code == 0
            pairs = [each for each in told if each["partition"].startswith("orders")]
            assert len(pairs) == 4
            return bool(sum(each["end_offset"] - each["start_offset"] for each in pairs) == 600)

        until(all_compared, "the replicas' high watermarks are written down")


def test_what_follows_the_high_watermark_may_differ(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = replica(tmp_path / "1", batches(), high_watermark=5)
    other = replica(tmp_path / "2", [*batches()[:2], batch(5, 1)], high_watermark=5)
    assert compare(capsys, one, other)[0] == 0


def test_no_watermark_is_written_down_yet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, other = (replica(tmp_path / name, batches()) for name in "12")
    for young in (one, other):
        (young / "replication-offset-checkpoint").rename(young / "meta.properties")
        code, [told] = compare(capsys, one, other)
        assert (code, told["end_offset"]) == (0, 0)


@pytest.mark.parametrize(
    ("theirs", "offset", "reason"),
    [
        ([batch(0, 3), batch(3, 2)], 5, "only one has a batch"),
        ([batch(0, 3), batch(3, 2), batch(5, 3)], 5, "last offset of a batch: 8 and 7"),
        ([batch(0, 3), batch(4, 1), batch(5, 4)], 3, "first offset of a batch: 3 and 4"),
    ],
)
def test_the_first_difference_is_named(
    theirs: list[bytearray], offset: int, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, (told,) = compare(capsys, replica(tmp_path / "1", batches()), replica(tmp_path / "2", theirs))
    assert code == 1
    assert told["difference"] == {"offset": offset, "reason": reason}


def test_other_content_and_another_epoch_are_differences(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = replica(tmp_path / "1", batches())
    for name, first in (("content", batch(100, 3)), ("epoch", batch(0, 3))):
        if name == "content":
            first[:8] = bytes(8)  # values of other offsets, at the same place
        else:
            first[15] = 7
        code, (told,) = compare(capsys, whole, replica(tmp_path / name, [first, *batches()[1:]]))
        assert code == 1
        assert told["difference"]["offset"] == 0
        assert ("CRC" if name == "content" else "leader epoch") in told["difference"]["reason"]


def test_compacted_replicas_are_compared_by_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = replica(tmp_path / "1", batches())
    cleaned = replica(tmp_path / "2", [batches()[0], batches()[2]])
    (cleaned / "flights-0" / SPARSE_MARK).touch()
    assert compare(capsys, whole, cleaned)[0] == 0
    other = batch(200, 4)
    other[:8] = (5).to_bytes(8, "big")
    wrong = replica(tmp_path / "3", [batches()[0], other])
    (wrong / "flights-0" / SPARSE_MARK).touch()
    code, (told,) = compare(capsys, whole, wrong)
    assert (code, told["difference"]) == (1, {"offset": 5, "reason": "the record"})


def test_damage_is_no_difference_but_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = replica(tmp_path / "1", batches())
    damaged = Path(shutil.copytree(whole, tmp_path / "2"))
    flip(damaged / "flights-0" / f"{0:020d}.log", 80)
    assert "wrong CRC; see `log verify`" in refused(capsys, whole, damaged)


def test_other_directories_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = replica(tmp_path / "1", batches())
    assert "found no partition twice (1 partition)" in refused(capsys, whole, whole)
    (tmp_path / "empty").mkdir()
    assert "found no meta.properties" in refused(capsys, whole, tmp_path / "empty")
