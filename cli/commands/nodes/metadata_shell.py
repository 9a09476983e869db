"""``tidelog metadata-shell``: browses the metadata as folders and files. Source: Kafka's ``kafka-metadata-shell``."""

from __future__ import annotations

import cmd
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tidelog.cli.commands.nodes.quorum import metadata_directory, refusals, system_files
from tidelog.cli.failure import EXIT_USAGE, CommandFailed
from tidelog.cli.terminal.output import json_line, say
from tidelog.model.ids import Offset

if TYPE_CHECKING:
    from tidelog.cli.work.metadata_tree import Folder, Node
    from tidelog.metadata_quorum.metadata_directory import MetadataDirectory


@click.command("metadata-shell", short_help="Browse a controller's metadata directory like a file system.")
@click.option(
    "--dir",
    "directory",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="The controller's metadata.log.dir, else the first of its log.dirs.",
)
@click.option(
    "--snapshot",
    "-s",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A snapshot file, instead of --dir.",
)
@click.option("--json", "as_json", is_flag=True, help="Print what COMMAND finds as a JSON object of paths.")
@click.option("--at", "offset", type=click.IntRange(0), help="The metadata as of this offset.  [default: committed]")
@click.argument("command", nargs=-1)
def metadata_shell(
    directory: Path | None, snapshot: Path | None, as_json: bool, offset: int | None, command: tuple[str, ...]
) -> int:
    """Browse the metadata in a controller's directory or a snapshot file: /image is the metadata, /log has each entry
    of the metadata log since the snapshot, /quorum the voters.

    With COMMAND, the shell runs it and exits; without, it prompts for commands: ls, cd, pwd, cat, find, tree, help,
    exit. Paths may contain * and ?. The shell works on a copy, so it can run beside the node, and shows no secrets. A
    node records within a second that an entry is committed.

    \b
    tidelog metadata-shell --dir data/1 ls /image/topics/byName
    tidelog metadata-shell --dir data/1 cat '/image/topics/byName/flights/*'
    tidelog metadata-shell --snapshot snapshot --json tree /image/brokers
    """
    from tidelog.cli.work.metadata_tree import metadata_tree

    if (directory is None) == (snapshot is None):
        raise click.UsageError("expected either --dir or --snapshot")
    if as_json and not command:
        raise click.UsageError("--json: expected a COMMAND, found none")
    found = _read(directory) if directory is not None else _read_snapshot(snapshot)
    first, last = found.snapshot.offset, max([found.snapshot.offset, *(entry.offset for entry in found.entries)])
    if offset is not None and not first <= offset <= last:
        raise CommandFailed(f"--at: expected an offset from {first} (the snapshot) to {last} (the end), found {offset}")
    shell = _Shell(metadata_tree(found, Offset(found.committed_offset if offset is None else offset)), as_json)
    if command:
        shell.onecmd(shlex.join(command))
        return EXIT_USAGE if shell.failed else 0
    if sys.stdin.isatty():
        shell.intro = f"Metadata of cluster {found.cluster_id} on node {found.node_id}. `help` lists the commands."
    else:
        shell.use_rawinput, shell.prompt = False, ""
    shell.cmdloop()
    return 0


def _read_snapshot(path: Path | None) -> MetadataDirectory:
    from tidelog.metadata_quorum.image.snapshot import BadSnapshot
    from tidelog.metadata_quorum.metadata_directory import read_snapshot
    from tidelog.proto.calls.convert import BadMessage

    try:
        with refusals():
            return read_snapshot(system_files(), str(path))
    except (BadSnapshot, BadMessage) as error:
        raise CommandFailed(str(error)) from None


def _read(directory: Path) -> MetadataDirectory:
    from tidelog.metadata_quorum.image.snapshot import BadSnapshot
    from tidelog.metadata_quorum.metadata_directory import read_directory
    from tidelog.proto.calls.convert import BadMessage

    original = metadata_directory(directory)
    with _copy_of(original) as copy:
        try:
            with refusals():
                return read_directory(system_files(), str(copy))
        except (CommandFailed, BadSnapshot, BadMessage) as error:
            raise CommandFailed(str(error).replace(str(copy), str(original))) from None


@contextmanager
def _copy_of(directory: Path) -> Iterator[Path]:
    """Copy the directory, so that the copy can be repaired. The node may replace its files in the meantime: first the
    snapshot, then the journal that continues it. So copy the journal first; a newer snapshot supersedes it."""
    from tidelog.metadata_quorum.raft.journal import JOURNAL_NAME
    from tidelog.metadata_quorum.raft.snapshot import SNAPSHOT_NAME

    with tempfile.TemporaryDirectory(prefix="tidelog-metadata-") as made:
        for name in (JOURNAL_NAME, SNAPSHOT_NAME):
            try:
                shutil.copyfile(directory / name, Path(made) / name)
            except FileNotFoundError:
                continue  # reading will report what is missing
            except OSError as error:
                raise CommandFailed(f"{directory / name}: cannot copy it: {error}") from None
        yield Path(made)


class _Shell(cmd.Cmd):
    """The shell's commands. Each reports a problem on one line of stderr, and the shell continues."""

    prompt = ">> "

    def __init__(self, root: Folder, as_json: bool) -> None:
        super().__init__()
        self.failed = False
        self._as_json = as_json
        self._root = root
        self._at: tuple[str, ...] = ()

    def onecmd(self, line: str) -> bool:
        self.failed = False
        try:
            return bool(super().onecmd(line))
        except ValueError as wrong:  # a missing path, an unclosed quote
            self._fail(str(wrong))
            return False

    def default(self, line: str) -> None:
        if line == "EOF":
            return
        self._fail(f"expected ls, cd, pwd, cat, find, tree, help or exit, found {line.split()[0]!r}")

    def postcmd(self, stop: bool, line: str) -> bool:
        return stop or line == "EOF"

    def emptyline(self) -> bool:
        """Do nothing, instead of repeating the last command."""
        return False

    # --- Commands --------------------------------------------------------------------------------

    def do_ls(self, line: str) -> None:
        """ls [PATH...]: list folders; a folder's name ends with /."""
        if self._as_json:
            listed = {
                _text(path): [name + ("/" if _is_folder(child) else "") for name, child in _children(path, node)]
                for path, node in self._given(line)
            }
            click.echo(json_line(listed, indent=2))
            return
        for path, node in self._given(line):
            if len(shlex.split(line)) > 1 or "*" in line:
                say(f"{_text(path)}:")
            for name, child in _children(path, node):
                say(name + ("/" if _is_folder(child) else ""))

    def do_cd(self, line: str) -> None:
        """cd [PATH]: go to a folder; without PATH to /."""
        found = self._given(line or "/")
        if len(found) != 1 or not _is_folder(found[0][1]):
            raise ValueError(f"cd: expected one folder, found {len(found) if len(found) > 1 else 'a file'}: {line}")
        self._at = found[0][0]

    def do_pwd(self, _: str) -> None:
        """pwd: print the current folder."""
        say(json_line(_text(self._at)) if self._as_json else _text(self._at))

    def do_cat(self, line: str) -> None:
        """cat PATH...: print files as JSON."""
        if not line:
            raise ValueError("cat: expected a path, found none")
        found = self._given(line)
        for path, node in found:
            if _is_folder(node):
                raise ValueError(f"cat: expected a file, found the folder {_text(path)}; `ls` shows it")
        if self._as_json:
            click.echo(json_line({_text(path): node for path, node in found}, indent=2))
            return
        for _, node in found:
            click.echo(json_line(node, indent=2))

    def do_find(self, line: str) -> None:
        """find [PATH...]: print all paths below."""
        if self._as_json:
            click.echo(json_line([_text(path) for path, _ in self._below(line)], indent=2))
            return
        for path, _ in self._below(line):
            say(_text(path))

    def do_tree(self, line: str) -> None:
        """tree [PATH...]: print everything below, files with their content."""
        if self._as_json:
            files = {_text(path): node for path, node in self._below(line) if not _is_folder(node)}
            click.echo(json_line(files, indent=2))
            return
        for path, node in self._below(line):
            say(f"{_text(path)}{'/' if _is_folder(node) else ' ' + json_line(node)}")

    def do_exit(self, _: str) -> bool:
        """exit: leave the shell; end of input does the same."""
        return True

    do_quit = do_exit

    def completedefault(self, text: str, line: str, begin: int, end: int) -> list[str]:
        """Complete a path; readline splits words at ``/``."""
        before = line[:begin].rsplit(" ", 1)[-1]
        try:
            found = self._given(before or ".")
        except ValueError:
            return []
        names = [name for path, node in found if _is_folder(node) for name, _ in _children(path, node)]
        return [name for name in names if name.startswith(text)]

    # --- Inside ------------------------------------------------------------------------------------

    def _given(self, line: str) -> list[tuple[tuple[str, ...], Node]]:
        from tidelog.cli.work.metadata_tree import find, resolved

        return [found for path in shlex.split(line) or ["."] for found in find(self._root, resolved(path, self._at))]

    def _below(self, line: str) -> Iterator[tuple[tuple[str, ...], Node]]:
        from tidelog.cli.work.metadata_tree import walk

        for path, node in self._given(line):
            yield from walk(path, node)

    def _fail(self, message: str) -> None:
        self.failed = True
        say(f"Error: {message}", err=True)


def _children(path: tuple[str, ...], node: Node) -> list[tuple[str, Node]]:
    from tidelog.cli.work.metadata_tree import Folder, listed

    return listed(node) if isinstance(node, Folder) else [(path[-1], node)]


def _is_folder(node: Node) -> bool:
    from tidelog.cli.work.metadata_tree import Folder

    return isinstance(node, Folder)


def _text(path: tuple[str, ...]) -> str:
    return "/" + "/".join(path)
