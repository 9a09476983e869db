"""Generates the blocking clients, and the blocking cluster for tests, from the asyncio ones.

``./dev generate`` runs this, ``./dev check`` compares.

Each public method of an asyncio client becomes a plain method with its signature and docstring, in one of two ways:

- *handed on*: it runs the asyncio client's method on the background loop;
- *carried over*: it has the same body without ``await``. Methods that such a body calls on ``self`` are generated too,
  or handwritten in the base; awaited calls of ``self._io_loop.run`` or ``Form.on_loop`` run on the background loop; an
  awaited future blocks the caller's thread.

Other differences are handwritten in the generated class's base: how a client is created and closed, and what waits in
the caller's thread. Sources are read, never imported.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from dev.preflight import ROOT


@dataclass(frozen=True, slots=True)
class Form:
    """A blocking class. Module names are relative to ``tidelog``; ``path`` is the generated file."""

    name: str
    module: str
    source: str
    """The asyncio client, as ``module:Class``."""
    base: str
    """The handwritten base, as ``module:Class``; its docstring is the client's."""
    carried: frozenset[str] | None = frozenset()
    """The methods to carry over; ``None``: all public ones, and those of ``private``."""
    private: frozenset[str] = frozenset()
    on_loop: tuple[str, ...] = ()
    """Calls with this prefix stay asyncio."""
    decorated: tuple[tuple[str, str], ...] = ()
    """Methods and their decorators, as ``module:function``."""
    calls: frozenset[str] = frozenset()
    """Plain methods that run on the background loop, because they touch the loop's state."""

    @property
    def path(self) -> Path:
        return _path(self.module)


FORMS: Final = (
    Form("Admin", "client.admin.blocking", "client.admin.admin:AsyncAdmin", "client.admin.blocking_base:BlockingAdmin"),
    Form(
        "Consumer",
        "client.consumer.blocking",
        "client.consumer.consumer:AsyncConsumer",
        "client.consumer.blocking_base:BlockingConsumer",
        carried=frozenset(
            {
                "close",
                "unsubscribe",
                "commit",
                "resume",
                "position",
                "poll",
                "poll_batches",
                "poll_values",
                "__aiter__",
                "__aexit__",
                "_api_timeout_ms",
            }
        ),
    ),
    Form(
        "Producer",
        "client.producer.blocking",
        "client.producer.producer:AsyncProducer",
        "client.producer.blocking_base:BlockingProducer",
        carried=None,
        private=frozenset({"_append_chunk"}),
        on_loop=("self._core.", "core.learn", "sending.learn", "transactions.send_offsets"),
        decorated=(("send", "client.fast_path:fast_send"),),
    ),
    Form(
        "SinkLedger",
        "client.sink.blocking_ledger",
        "client.sink.ledger:AsyncSinkLedger",
        "client.sink.blocking_base:BlockingSinkLedger",
        carried=None,
    ),
    Form(
        "SinkWriter",
        "client.sink.blocking_writer",
        "client.sink.writer:AsyncSinkWriter",
        "client.sink.blocking_base:BlockingSinkWriter",
        carried=None,
        on_loop=("self._work.",),
    ),
    Form(
        "Workers",
        "client.workers.workers",
        "client.workers.asynchronous:AsyncWorkers",
        "client.workers.blocking_base:BlockingWorkers",
        carried=None,
        private=frozenset({"_read", "_commit", "_bury", "_give_back", "_disown", "_own", "_work", "_next", "_wake"}),
    ),
    Form(
        "Cluster",
        "testing.cluster",
        "testing.async_cluster:AsyncCluster",
        "testing.blocking_base:BlockingCluster",
        calls=frozenset(
            {"break_log_dir", "partition", "isolate", "heal", "image", "leader_of", "isr_of", "controller"}
        ),
    ),
)

_RENAMED: Final = {
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "__aiter__": "__iter__",
    "AsyncIterator": "Iterator",
}
_NEVER: Final = frozenset({"start"})
"""Methods that are never generated: a blocking client has started once it is created."""

Method = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Module:
    """One of our source files."""

    name: str
    text: bytes
    tree: ast.Module

    def import_of(self, name: str) -> str | None:
        """Return the import statement that gives ``name`` the same meaning elsewhere."""
        for node in self.tree.body:
            match node:
                case ast.ImportFrom(module=str(source), names=names):
                    for one in names:
                        if (one.asname or one.name) in (name, *_renamed_to(name)):
                            alias = f" as {one.asname}" if one.asname else ""
                            return f"from {source} import {_RENAMED.get(one.name, one.name)}{alias}"
                case ast.Import(names=names):
                    if any((one.asname or one.name) == name for one in names):
                        return ast.unparse(node)
                case (
                    ast.ClassDef(name=made)
                    | ast.Assign(targets=[ast.Name(id=made)])
                    | ast.AnnAssign(target=ast.Name(id=made))
                ) if made == name:
                    return f"from tidelog.{self.name} import {name}"
        return None

    def class_of(self, name: str) -> ast.ClassDef:
        (found,) = (node for node in self.tree.body if isinstance(node, ast.ClassDef) and node.name == name)
        return found

    def place(self, line: int, column: int) -> int:
        """Return a node's position in ``text``."""
        return sum(len(one) for one in self.text.splitlines(keepends=True)[: line - 1]) + column


def module_text(form: Form) -> str:
    """Return the generated module, not yet formatted."""
    base_module, base_class = form.base.split(":")
    base = _module(base_module)
    by_hand = {node.name for node in base.class_of(base_class).body if isinstance(node, Method)}
    lineage = list(_lineage(*form.source.split(":")))
    methods: list[str] = []
    seen: set[str] = set()
    for module, cls in lineage:
        found = [node for node in cls.body if isinstance(node, Method) and _wanted(node, form, by_hand | seen)]
        overloaded = {node.name for node in found if _is_overload(node)}
        methods += [_method(module, node, form, node.name in overloaded) for node in found]
        seen |= {node.name for node in found}
    docstring = ast.get_docstring(base.class_of(base_class), clean=False)
    body = f'class {form.name}({base_class}):\n    """{docstring}"""\n\n' + "\n\n".join(methods) + "\n"
    names = {node.id: None for node in ast.walk(ast.parse(body)) if isinstance(node, ast.Name)}
    sources = [base, *(module for module, _ in lineage)]
    imports = [line for name in names if (line := next(filter(None, (s.import_of(name) for s in sources)), None))]
    imports += ["from tidelog.{} import {}".format(*decorator.split(":")) for _, decorator in form.decorated]
    origin, client = form.source.split(":")
    return (
        f"# Generated by ./dev generate from tidelog.{origin} and tidelog.{base_module}.\n"
        f'"""``{form.name}``: :class:`tidelog.{origin}.{client}` in plain blocking form."""\n\n'
        "from __future__ import annotations\n\n" + "\n".join(sorted(imports)) + "\n\n\n" + body
    )


def _wanted(node: Method, form: Form, known: set[str]) -> bool:
    name = _RENAMED.get(node.name, node.name)
    if node.name in _NEVER or name in known:
        return False
    if not node.name.startswith("_"):
        return True
    return node.name in (form.private | {"__aexit__", "__aiter__"} if form.carried is None else form.carried)


def _lineage(module_name: str, class_name: str) -> Iterator[tuple[Module, ast.ClassDef]]:
    """Return a class and our own bases of it, each once, a base after all its subclasses."""
    module = _module(module_name)
    cls = module.class_of(class_name)
    yield module, cls
    found: dict[str, tuple[Module, ast.ClassDef]] = {}
    for base in cls.bases:
        source = module.import_of(ast.unparse(base)) or ""
        if (ours := re.fullmatch(r"from tidelog\.(\S+) import (\w+)", source)) is not None:
            for one in _lineage(*ours.groups()):
                found.pop(one[1].name, None)
                found[one[1].name] = one
    yield from found.values()


def _method(module: Module, node: Method, form: Form, implements: bool) -> str:
    """Return the text of a blocking method; ``implements``: it has overloads, or is one."""
    carried = form.carried is None or node.name in form.carried
    stub = _is_overload(node)
    first = min([node, *node.decorator_list], key=lambda one: one.lineno)
    last = node.body[-1 if carried or stub else 0]
    assert carried or stub or ast.get_docstring(node) is not None, f"{node.name}: expected a docstring"
    line_start = module.place(first.lineno, 0)
    edits = sorted(edit for part in ast.walk(node) for edit in _edits(module, part, node, form))
    text, at = b"", line_start
    end = module.place(last.end_lineno or 0, last.end_col_offset or 0)
    for start, stop, new in edits:
        if at <= start and stop <= end:  # not within an earlier replacement
            text += module.text[at:start] + new
            at = stop
    text += module.text[at:end]
    for name, decorator in form.decorated:
        text = f"    @{decorator.split(':')[1]}\n".encode() * (name == node.name) + text
    return text.decode() + ("" if carried or stub else f"\n        {_delegating(node, form, implements)}")


def _edits(module: Module, part: ast.AST, method: Method, form: Form) -> Iterator[tuple[int, int, bytes]]:
    """Yield the replacements for one node, with their positions."""

    def at(node: ast.expr | ast.stmt) -> int:
        return module.place(node.lineno, node.col_offset)

    def end(node: ast.expr | ast.stmt) -> int:
        return module.place(node.end_lineno or 0, node.end_col_offset or 0)

    match part:
        case ast.AsyncFunctionDef(name=name):
            yield at(part), at(part) + len(f"async def {name}"), f"def {_RENAMED.get(name, name)}".encode()
        case ast.AsyncFor() | ast.AsyncWith():
            yield at(part), at(part) + len("async "), b""
        case ast.Await(value=ast.Call(func=ast.Attribute() as run)) if ast.unparse(run) == "self._io_loop.run":
            yield at(part), end(run), b"self._run"
        case ast.Await(value=ast.Name(id=future)):
            yield at(part), end(part), f"{future}.result()".encode()
        case ast.Await(value=value):
            stays = isinstance(value, ast.Call) and ast.unparse(value.func).startswith(form.on_loop or ("\0",))
            yield at(part), at(value), b"self._run(" if stays else b""
            if stays:
                yield end(part), end(part), b")"
        case ast.Name(id=name) if name in _RENAMED:
            yield at(part), end(part), _RENAMED[name].encode()
        case ast.Expr(value=ast.Constant(value=str())) if part is method.body[0]:
            said = module.text[at(part) : end(part)]
            yield at(part), end(part), re.sub(rb"``async (with|for)\b|``await ", rb"``\1", said)
        case ast.Expr() if re.fullmatch(r"(await )?self[\w.]*\.(start|_check_started)\(\)", ast.unparse(part)):
            yield module.place(part.lineno, 0), module.place(part.lineno + 1, 0), b""
        case _:
            pass


def _delegating(node: Method, form: Form, implements: bool) -> str:
    """Return the statements that call the asyncio client."""
    arguments = [one.arg for one in node.args.args[1:]]
    arguments += [f"*{node.args.vararg.arg}"] if node.args.vararg else []
    arguments += [f"{one.arg}={one.arg}" for one in node.args.kwonlyargs]
    returns = ast.unparse(node.returns) if node.returns else "object"
    asked, before = f"self._inner.{node.name}", ""
    if implements:  # mypy tries the overloads for one union only, and there may be two
        before = f"ask: Callable[..., Coroutine[Any, Any, {returns}]] = {asked}\n        "
        asked = "ask"
    is_property = any(ast.unparse(one) == "property" for one in node.decorator_list)
    call = asked if is_property else f"{asked}({', '.join(arguments)})"
    if node.name in form.calls:
        call = f"self._call(lambda: {call})"
    if isinstance(node, ast.AsyncFunctionDef):
        call = f"self._run({call})"
    return before + (call if returns == "None" else f"return {call}")


def _is_overload(node: Method) -> bool:
    return any(ast.unparse(one) == "overload" for one in node.decorator_list)


def _renamed_to(name: str) -> list[str]:
    return [old for old, new in _RENAMED.items() if new == name]


@cache
def _module(name: str) -> Module:
    text = (ROOT / _path(name)).read_bytes()
    return Module(name, text, ast.parse(text))


def _path(module: str) -> Path:
    return Path(*module.split(".")).with_suffix(".py")
