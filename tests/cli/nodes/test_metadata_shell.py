"""``tidelog metadata-shell`` beside a running node, and on directories that are torn or damaged."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.in_process import Tidelog, as_json, runs_commands, until
from tidelog.client.admin.users import ScramCredentialInfo, UserScramCredentialUpsertion
from tidelog.metadata_quorum.metadata_directory import read_directory
from tidelog.metadata_quorum.raft.journal import JOURNAL_NAME
from tidelog.security.scram import ScramMechanism
from tidelog.storage.disk.files import SystemFiles
from tidelog.testing.cluster import Cluster

CONFIG = {"metadata.log.max.record.bytes.between.snapshots": "4000"}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The metadata directory of a node that runs, with a snapshot and entries after it."""
    logs = tmp_path_factory.mktemp("nodes")
    with Cluster(nodes=1, transport="grpc", directory=logs, config=CONFIG) as cluster:
        with cluster.admin() as admin:
            admin.alter_user_scram_credentials(
                [
                    UserScramCredentialUpsertion(
                        "alice/boss", "pencil", ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256)
                    )
                ]
            )
            for number in range(12):
                cluster.create_topic(f"topic-{number}", partitions=11, config={"retention.ms": "1000"})
            controller = cluster.node(1).controller
            assert controller is not None
            assert controller.quorum.snapshot_offset > 2
            admin.delete_topics(["topic-3"])
        (found,) = logs.glob("**/__cluster_metadata-0")
        until(lambda: all_committed(found, tmp_path_factory.mktemp("copy")), "the file says that all is committed")
        yield found


def all_committed(directory: Path, copy: Path) -> bool:
    shutil.copytree(directory, copy, dirs_exist_ok=True)
    read = read_directory(SystemFiles(), str(copy))
    return read.committed_offset == read.entries[-1].offset


@pytest.fixture
def shell(directory: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Tidelog:
    run = runs_commands("", capfd, monkeypatch)

    def call(*arguments: str, stdin: bytes = b"", at: Path = directory) -> tuple[int, str, str]:
        return run("metadata-shell", "--dir", str(at), *arguments, stdin=stdin)

    return call


def test_topics_partitions_and_settings_are_there(shell: Tidelog) -> None:
    names = shell("ls", "/image/topics/byName")[1].split()
    assert names == sorted(f"topic-{number}/" for number in range(12) if number != 3)
    numbers = [str(number) for number in range(11)]
    assert shell("ls", "/image/topics/byName/topic-5")[1].split() == [*numbers, "id", "name"]
    found = as_json(shell("cat", "image/topics/byName/topic-5/10"))
    assert (found["leader"], found["isr"], found["partition"]) == (1, [1], 10)
    assert shell("cat", "/image/configs/topic/topic-5/retention.ms")[1] == '"1000"\n'
    topic_id = as_json(shell("cat", "/image/topics/byName/topic-5/id"))
    assert as_json(shell("cat", f"/image/topics/byId/{topic_id}/name")) == "topic-5"


def test_a_snapshot_alone_is_walked_too(
    directory: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run = runs_commands("", capfd, monkeypatch)
    lone = tmp_path / "lone"
    shutil.copyfile(directory / "snapshot", lone)
    found = as_json(run("metadata-shell", "--snapshot", str(lone), "--json", "cat", "/quorum"))["/quorum"]
    beside = as_json(run("metadata-shell", "--dir", str(directory), "cat", "/quorum"))
    assert found["snapshot_offset"] == found["committed_offset"] == beside["snapshot_offset"] > 2
    assert (found["cluster_id"], found["voters"]) == (beside["cluster_id"], beside["voters"])
    assert run("metadata-shell", "--snapshot", str(lone), "ls", "/log") == (0, "", "")
    assert "topic-0/" in run("metadata-shell", "--snapshot", str(lone), "ls", "/image/topics/byName")[1].split()
    damaged = bytearray(lone.read_bytes())
    damaged[-1] ^= 1
    lone.write_bytes(damaged)
    code, _, err = run("metadata-shell", "--snapshot", str(lone), "ls")
    assert (code, f"{lone}: damaged after offset" in err) == (1, True)
    lone.write_bytes(b"something else")
    code, _, err = run("metadata-shell", "--snapshot", str(lone), "ls")
    assert (code, "expected a snapshot" in err) == (1, True)
    code, _, err = run("metadata-shell", "--snapshot", str(lone), "--dir", str(directory), "ls")
    assert (code, "expected either --dir or --snapshot" in err) == (2, True)


def test_programs_get_one_object(shell: Tidelog) -> None:
    assert as_json(shell("--json", "ls", "/image/topics/byName/topic-1", "/quorum")) == {
        "/image/topics/byName/topic-1": [*map(str, range(11)), "id", "name"],
        "/quorum": ["quorum"],
    }
    names = as_json(shell("--json", "cat", "/image/topics/byName/*/name"))
    assert names["/image/topics/byName/topic-5/name"] == "topic-5"
    tree = as_json(shell("--json", "tree", "/image/topics/byName/topic-5"))
    assert set(tree) == set(as_json(shell("--json", "find", "/image/topics/byName/topic-5"))[1:])
    assert tree["/image/topics/byName/topic-5/10"]["leader"] == 1
    assert as_json(shell("--json", "pwd")) == "/"
    code, _, err = shell("--json", stdin=b"ls")
    assert (code, "--json: expected a COMMAND" in err) == (2, True)


def test_it_is_walked_as_a_directory_is(shell: Tidelog) -> None:
    lines = (
        "cd image/topics",
        "cd byName/topic-1",
        "pwd",
        "cat ../topic-2/name",
        "cd ../../../..",
        "pwd",
        "exit",
        "pwd",
    )
    code, out, err = shell(stdin="\n".join(lines).encode())
    assert (code, err) == (0, "")
    assert out.split() == ["/image/topics/byName/topic-1", '"topic-2"', "/"]
    assert shell("cat", "/image/topics/byName/topic-1?/name")[1].split() == ['"topic-10"', '"topic-11"']


def test_the_log_has_what_the_snapshot_lacks(shell: Tidelog, directory: Path) -> None:
    quorum = as_json(shell("cat", "/quorum"))
    offsets = list(map(int, shell("ls", "/log")[1].replace("/", "").split()))
    assert offsets == list(range(quorum["snapshot_offset"] + 1, quorum["committed_offset"] + 1))
    entries = {at: as_json(shell("cat", f"/log/{at}")) for at in offsets}
    (removed,) = [at for at, entry in entries.items() if "RemoveTopicRecord" in {it["type"] for it in entry["records"]}]
    assert entries[removed]["committed"] is True
    before = shell("--at", str(removed - 1), "ls", "/image/topics/byName")[1].split()
    assert "topic-3/" in before
    code, _, err = shell("--at", "100000", "ls")
    assert code != 0
    assert f"to {quorum['committed_offset']} (the end), found 100000" in err


def test_no_secret_is_shown(shell: Tidelog, directory: Path, tmp_path: Path) -> None:
    shown = as_json(shell("cat", "/image/scram/SCRAM-SHA-256/alice%2Fboss"))
    assert shown["name"] == "alice/boss"
    assert {shown[name] for name in ("salt", "stored_key", "server_key")} == {"(hidden)"}
    copy = Path(shutil.copytree(directory, tmp_path / "copy"))
    found = read_directory(SystemFiles(), str(copy))
    image = found.image(found.committed_offset)
    (user,) = image.users.values()
    everything = shell("tree", "/")[1]
    assert "alice/boss" in everything
    for secret in (user.salt, user.stored_key, user.server_key, image.decoy_secret):
        assert secret.hex() not in everything


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (("cat", "/nope/x"), "/nope/x: expected an existing path, found no 'nope' in /"),
        (("cat", "/image"), "cat: expected a file, found the folder /image; `ls` shows it"),
        (("cat",), "cat: expected a path, found none"),
        (("cd", "/quorum"), "cd: expected one folder, found a file: /quorum"),
        (("rm", "/quorum"), "expected ls, cd, pwd, cat, find, tree, help or exit, found 'rm'"),
    ],
)
def test_a_mistake_is_one_line(shell: Tidelog, command: tuple[str, ...], said: str) -> None:
    assert shell(*command) == (2, "", f"Error: {said}\n")
    code, out, err = shell(stdin=f"{' '.join(command)}\npwd\n".encode())
    assert (code, out, err) == (0, "/\n", f"Error: {said}\n")


def test_a_torn_write_is_left_out_and_the_node_s_files_stay(shell: Tidelog, directory: Path, tmp_path: Path) -> None:
    torn = tmp_path / directory.name
    shutil.copytree(directory, torn)
    with (torn / JOURNAL_NAME).open("ab") as journal:
        journal.write(b"JQLT torn")
    before = (torn / JOURNAL_NAME).read_bytes()
    assert shell("cat", "/quorum", at=torn) == shell("cat", "/quorum")
    assert (torn / JOURNAL_NAME).read_bytes() == before
    found = read_directory(SystemFiles(), str(torn))
    assert json.loads(shell("cat", "/quorum")[1])["committed_offset"] == found.committed_offset


def test_damage_and_no_directory_are_told(shell: Tidelog, directory: Path, tmp_path: Path) -> None:
    damaged = tmp_path / directory.name
    shutil.copytree(directory, damaged)
    data = bytearray((damaged / "snapshot").read_bytes())
    data[-10] ^= 1
    (damaged / "snapshot").write_bytes(data)
    code, _, err = shell("ls", at=damaged)
    assert code == 1
    assert f"{damaged}/snapshot: damaged" in err
    (tmp_path / "empty").mkdir()
    code, _, err = shell("ls", at=tmp_path / "empty")
    assert code == 1
    assert "expected the metadata log of a controller, found none" in err
    assert "tidelog-metadata-" not in err
