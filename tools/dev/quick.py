"""``./dev test --quick``: the test files that a change affects, nearest first, for a budget of three minutes.

Near means few imports away. A test file is also near a page, a schema or a module that it names in a string.
:func:`select` decides; the rest reads the tree, git and the recorded durations.
"""

from __future__ import annotations

import ast
import json
import subprocess
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterator, Mapping, Set
from pathlib import Path, PurePosixPath
from typing import Final, NamedTuple

from dev.preflight import ROOT

WORKERS: Final = 4
"""Processes that share the tests, in ``./dev test`` too: ``tests/workers.py``. Three left two cores idle for a third of
the time."""
BUDGET_S: Final = 82.0
"""Seconds of tests for each worker. Pytest's start and collection take up to half a minute more."""
TOGETHER: Final = ("tests/spark/",)
"""Folders with files that share one Spark session and one cluster, and so one worker: two would start two of each."""
UNMEASURED_S: Final = 5.0
"""Assumed time of a test file without a measurement."""
STEPS_MAX: Final = 3
"""How many imports away a test file may be. Beyond that, almost everything reaches almost everything."""
ALWAYS: Final = ("tests/house/", "tests/model/", "tests/docs/")
"""Folders with fast files that always run: they keep the tree, the settings and the pages consistent."""
ALWAYS_MAX_S: Final = 3.0
DURATIONS: Final = ROOT / "tools" / "dev" / "durations.json"


class Selection(NamedTuple):
    files: list[str]
    """Test files to run, nearest first."""
    left_out: list[str]
    """Test files that the change may affect but the budget excludes, nearest first."""
    seconds: float
    """The files' expected time."""


def select(
    changed: Set[str], imports: Mapping[str, Set[str]], durations: Mapping[str, float], budget_s: float
) -> Selection:
    """Choose test files for the changed files; all paths as git names them.

    ``imports`` holds every Python file and the files that it needs. Among equally near test files, those in the folder
    with the change's name come first, then the fastest. Without a change, all test files are equally near, and the
    fastest are chosen. ``budget_s`` is the time of each worker, and the limit of one group.
    """
    tests = {path for path in imports if path.startswith("tests/") and PurePosixPath(path).match("test_*.py")}
    took = {path: durations.get(path, UNMEASURED_S) for path in tests}
    steps = _steps(changed, imports) if changed else dict.fromkeys(tests, 0)
    always = {path for path in tests if path.startswith(ALWAYS) and took[path] <= ALWAYS_MAX_S}
    chosen, left_out, in_group = set(always), [], dict.fromkeys(map(group_of, tests), 0.0)
    left_s = budget_s * WORKERS - sum(took[path] for path in always)
    rooms = {path.split("/")[0] for path in changed}
    order = {path: (steps[path], path.split("/")[1] not in rooms, took[path], path) for path in tests & steps.keys()}
    wanted = sorted(order, key=order.__getitem__)
    for path in wanted:
        if path in always:
            continue
        if took[path] <= min(left_s, budget_s - in_group[group_of(path)]):
            chosen.add(path)
            left_s -= took[path]
            in_group[group_of(path)] += took[path]
        else:
            left_out.append(path)
    files = [path for path in wanted if path in chosen] + sorted(always - steps.keys())
    return Selection(files, left_out, budget_s * WORKERS - left_s)


def group_of(path: str) -> str:
    """Return the folder of :data:`TOGETHER` that a test file belongs to, or the file."""
    return next((folder for folder in TOGETHER if path.startswith(folder)), path)


def _steps(changed: Set[str], imports: Mapping[str, Set[str]]) -> dict[str, int]:
    """Return how many imports each file is away from the nearest changed one, up to :data:`STEPS_MAX`."""
    importers: dict[str, list[str]] = {}
    for path, needed in imports.items():
        for name in needed:
            importers.setdefault(name, []).append(path)
    found = dict.fromkeys(changed, 0)
    frontier = list(changed)
    for step in range(1, STEPS_MAX + 1):
        frontier = [path for name in frontier for path in importers.get(name, ())]
        frontier = [path for path in dict.fromkeys(frontier) if path not in found]
        found.update(dict.fromkeys(frontier, step))
    return found


def read_imports(root: Path = ROOT) -> dict[str, set[str]]:
    """Return what each Python file of the tree needs: files that it imports or names, and the ``conftest.py`` of its
    folders."""
    listed = _git(root, "ls-files", "--cached", "--others", "--exclude-standard") or []
    paths = [path for path in listed if (root / path).is_file()]
    modules = {_module(path): path for path in paths if path.endswith((".py", ".pyx"))}
    names = {PurePosixPath(path).name: path for path in paths}
    twice = Counter(PurePosixPath(path).name for path in paths)
    read = {path: _read(path, (root / path).read_bytes()) for path in paths if path.endswith(".py")}
    found: dict[str, set[str]] = {}
    for path, (imported, _, texts) in read.items():
        needed = {_home(module, name, modules, read) for module, name in imported}
        for text in texts:
            if twice[name := text.rpartition("/")[2]] == 1:
                needed.add(names[name])
            needed.add(modules.get(text))
        needed |= {place for up in PurePosixPath(path).parents if (place := f"{up}/conftest.py") in read}
        found[path] = {other for other in needed if other not in (None, path)}
    return found


class _Read(NamedTuple):
    """One file's references to others."""

    imported: set[tuple[str, str]]
    """Imported modules, each with the name taken from it, if any."""
    handed_on: dict[str, str]
    """Names imported only for annotations, and their modules: those that ``tidelog`` re-exports lazily."""
    texts: set[str]


def _read(path: str, source: bytes) -> _Read:
    tree = ast.parse(source)
    package = _module(path).split(".")
    if not path.endswith("/__init__.py"):
        package.pop()
    typed = {
        node
        for part in tree.body
        if isinstance(part, ast.If) and isinstance(part.test, ast.Name) and part.test.id == "TYPE_CHECKING"
        for node in part.body
    }
    found = _Read(set(), {}, set())
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str(text)) if len(text) < 100:
                found.texts.add(text)
            case ast.Import():
                found.imported.update((alias.name, "") for alias in node.names)
            case ast.ImportFrom():
                base = package[: len(package) - node.level + 1] if node.level else []
                module = ".".join([*base, *filter(None, [node.module])])
                if node in typed:
                    found.handed_on.update((alias.name, module) for alias in node.names)
                else:
                    found.imported.update((module, alias.name) for alias in node.names)
    return found


def _module(path: str) -> str:
    parts = PurePosixPath(path.removeprefix("src/").removeprefix("tools/")).with_suffix("").parts
    top = () if path.startswith(("src/", "tools/", "tests/", "examples/")) else ("tidelog",)
    return ".".join((*top, *parts)).removesuffix(".__init__")


def _home(module: str, name: str, modules: Mapping[str, str], read: Mapping[str, _Read]) -> str | None:
    """Return the file that an imported name comes from, following packages that only re-export it."""
    path = modules.get(f"{module}.{name}") or modules.get(module)
    if path in ("src/tidelog/__init__.py", "src/tidelog/aio.py") and name in read[path].handed_on:
        return _home(read[path].handed_on[name], name, modules, read)
    return path


def _git(root: Path, *arguments: str) -> list[str] | None:
    done = subprocess.run(["git", *arguments, "-z"], cwd=root, capture_output=True, text=True)
    return [path for path in done.stdout.split("\0") if path] if done.returncode == 0 else None


def changed_files(root: Path = ROOT) -> set[str]:
    """Return the files that differ from the branch's base on ``main``, committed or not, and untracked files."""
    for main in ("main", "origin/main", "HEAD"):
        if (differing := _git(root, "diff", "--name-only", "--no-renames", "--merge-base", main)) is not None:
            break
    return {*(differing or ()), *(_git(root, "ls-files", "--others", "--exclude-standard") or ())}


def choose(budget_s: float = BUDGET_S) -> list[str]:
    """Choose for the current tree, and print the choice."""
    changed = changed_files()
    durations = json.loads(DURATIONS.read_text())
    found = select(changed, read_imports(), durations, budget_s)
    what = f"{len(changed)} changed files" if changed else "nothing changed"
    print(f"quick: {what}; {len(found.files)} test files, about {found.seconds / WORKERS:.0f} s")
    if found.left_out:
        seconds = sum(durations.get(path, UNMEASURED_S) for path in found.left_out)
        some = "" if len(found.left_out) <= 5 else f" … and {len(found.left_out) - 5} more; all: ./dev test"
        print(f"quick: no time for {len(found.left_out)} more, about {seconds:.0f} s; ", end="")
        print(f"run the nearest: ./dev test {' '.join(found.left_out[:5])}{some}")
    return found.files


def _cases(report: Path) -> Iterator[ET.Element]:
    return ET.parse(report).iter("testcase")


def keep_durations(report: Path) -> None:
    """Copy the seconds of each test file from pytest's report to the committed file; drop deleted files."""
    took: dict[str, float] = {}
    for case in _cases(report):
        path = _file_of(case)
        took[path] = took.get(path, 0.0) + float(case.attrib["time"])
    kept = json.loads(DURATIONS.read_text()) if DURATIONS.exists() else {}
    merged = {path: round(s, 1) for path, s in {**kept, **took}.items() if (ROOT / path).exists()}
    DURATIONS.write_text(json.dumps(dict(sorted(merged.items())), indent=0) + "\n")


def _file_of(case: ET.Element) -> str:
    """Return the path of a test's module: for a decorated test, pytest's own ``file`` is the decorator's."""
    parts = case.attrib["classname"].split(".")
    while len(parts) > 1 and not (ROOT / f"{'/'.join(parts)}.py").exists():
        parts.pop()  # a class
    return f"{'/'.join(parts)}.py"


def passed(report: Path) -> int:
    """Return how many tests passed, by pytest's report."""
    other = ("failure", "error", "skipped")
    return sum(all(case.find(outcome) is None for outcome in other) for case in _cases(report))
