"""`Any` where a type may be known: how often each folder says it. The counts may only fall."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.house.test_layout import ROOT, sources

ANY_MAX = {
    "bench": 9, "broker": 115, "chaos": 41, "cli": 20, "client": 36, "console": 32, "demo": 4, "groups": 2,
    "metadata_quorum": 6, "model": 11, "proto": 37, "security": 2, "spark_connector": 1, "testing": 2,
    "transactions": 1, "tests": 281,
}  # fmt: skip
"""What is left reads fields of Kafka's messages and of JSON, passes requests on to whoever knows them, takes a user's
values, or stands for a class of a package without types. Lower a number when you remove some; folders that are not
here have none."""


def untyped(tree: ast.Module) -> Iterator[int]:
    """The lines of parameters, results and variables whose whole type is `Any`, `Any | None` or `list[Any]`. Arguments
    that are passed on (`*args`, `**settings`) do not count."""
    for node in ast.walk(tree):
        found: list[ast.expr | None] = []
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            arguments = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
            found = [*(each.annotation for each in arguments), node.returns]
        elif isinstance(node, ast.AnnAssign):
            found = [node.annotation]
        yield from (each.lineno for each in found if each is not None and _is_any(each))


def _is_any(annotation: ast.expr) -> bool:
    match annotation:
        case (
            ast.Name("Any")
            | ast.BinOp(ast.Name("Any"), ast.BitOr(), ast.Constant(None))
            | ast.Subscript(ast.Name("list"), ast.Name("Any"))
        ):
            return True
    return False


def test_any_becomes_rarer() -> None:
    counts = Counter[str]()
    for path in sources():
        if "Any" in (text := path.read_text()):
            counts[path.relative_to(ROOT).parts[0]] += len(list(untyped(ast.parse(text))))
    more = {
        folder: f"{count}, at most {ANY_MAX.get(folder, 0)}"
        for folder, count in counts.items()
        if count > ANY_MAX.get(folder, 0)
    }
    assert more == {}, "name the types that you added, or write object where nothing is read"


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("def f(a: Any, *b: Any, c: list[Any] = [], **d: Any) -> Any: ...", 3),
        ("async def f(self, a: Any | None) -> None:\n    b: Any = a", 2),
        ("def f(a: dict[str, Any], b: object) -> Callable[[Any], int]: ...", 0),
        ("class C:\n    a: Any\n    b: int", 1),
    ],
)
def test_what_counts(text: str, count: int) -> None:
    assert len(list(untyped(ast.parse(text)))) == count
