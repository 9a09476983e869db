"""Judges transactions: was anything visible too early, and are there dependency cycles?

The graph is Jepsen's: its nodes are transactions and single sends. ``ww`` leads from the writer of a value to the
writer of the next one in the same partition, ``wr`` from the writer of a value to the transaction that read it. There
are no edges for real time and process order; the only real-time cycle that a log can show by itself, a read before the
send began, is judged with the records.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from tidelog.chaos.checkers.anomalies.evidence import LogEvidence
from tidelog.chaos.checkers.anomalies.kinds import Anomaly, AnomalyKind
from tidelog.chaos.checkers.anomalies.records import shown
from tidelog.chaos.checkers.history import Sent, TransactionKey

_Node: TypeAlias = TransactionKey | bytes
"""A transaction, or the value of a send outside any."""
_Graph: TypeAlias = dict[_Node, dict[_Node, None]]


def transaction_anomalies(evidence: LogEvidence) -> Iterator[Anomaly]:
    """Find anomalies between transactions. Costs nothing without transactions."""
    if not evidence.transactions:
        return
    yield from _precommitted_reads(evidence)
    writes, committed_reads, reads = _write_graph(evidence), _read_graph(evidence, True), _read_graph(evidence, False)
    for cycle in _cycles(writes):
        yield Anomaly(AnomalyKind.WRITE_CYCLE, _told(cycle), "always")
    found: dict[_Node, None] = {}
    for cycle in _cycles(committed_reads):
        found.update(dict.fromkeys(cycle))
        yield Anomaly(AnomalyKind.CIRCULAR_INFORMATION_FLOW, _told(cycle))
    for cycle in _cycles(_joined(writes, reads)):
        through_reads = any(after in reads.get(node, ()) for node, after in _steps(cycle))
        if through_reads and not any(node in found for node in cycle):
            allowed = "the order of writes or reads at read_uncommitted close the circle"
            yield Anomaly(AnomalyKind.CIRCULAR_INFORMATION_FLOW, _told(cycle), allowed)


def _precommitted_reads(evidence: LogEvidence) -> Iterator[Anomaly]:
    for poll in evidence.polls:
        for offset, value in poll.records:
            sent = evidence.writer.get(value)
            if sent is None or sent.transaction is None:
                continue
            transaction = evidence.transactions.get(sent.transaction)
            if sent.transaction == poll.transaction:
                when = "in the transaction that sent it"
            elif transaction is not None and poll.ended_s < transaction.ending_s:
                when = "before the end of its transaction was asked for"
            else:
                continue
            allowed = "" if poll.read_committed else f"{poll.consumer} reads uncommitted"
            text = f"{poll.consumer} read {shown(value)} at {poll.partition} offset {offset} {when}"
            yield Anomaly(AnomalyKind.PRECOMMITTED_READ, text, allowed)


def _node(sent: Sent) -> _Node:
    return sent.value if sent.transaction is None else sent.transaction


def _write_graph(evidence: LogEvidence) -> _Graph:
    graph: _Graph = {}
    for partition, at in evidence.at.items():
        last: _Node | None = None
        for offset in evidence.offsets(partition):
            sent = evidence.writer.get(at[offset])
            if sent is None:
                continue
            node = _node(sent)
            if last is not None and last != node:
                graph.setdefault(last, {})[node] = None
            last = node
    return graph


def _read_graph(evidence: LogEvidence, committed_only: bool) -> _Graph:
    graph: _Graph = {}
    for poll in evidence.polls:
        reader = poll.transaction
        if reader is None or (committed_only and not poll.read_committed):
            continue
        for _, value in poll.records:
            sent = evidence.writer.get(value)
            if sent is not None and sent.transaction != reader:
                graph.setdefault(_node(sent), {})[reader] = None
    return graph


def _joined(one: _Graph, other: _Graph) -> _Graph:
    graph: _Graph = {node: dict(edges) for node, edges in one.items()}
    for node, edges in other.items():
        graph.setdefault(node, {}).update(edges)
    return graph


def _cycles(graph: _Graph) -> Iterator[list[_Node]]:
    """Yield one short cycle for each strongly connected component of more than one node."""
    for part in _strongly_connected(graph):
        if len(part) > 1:
            yield _shortest_cycle(graph, part)


def _shortest_cycle(graph: _Graph, part: list[_Node]) -> list[_Node]:
    """Return the shortest cycle through the first node of a strongly connected component."""
    inside = dict.fromkeys(part)
    start = part[0]
    came_from: dict[_Node, _Node] = {}
    row = [start]
    while row:
        following = []
        for node in row:
            for after in graph.get(node, ()):
                if after == start:
                    cycle = [node]
                    while cycle[-1] != start:
                        cycle.append(came_from[cycle[-1]])
                    return cycle[::-1]
                if after in inside and after not in came_from:
                    came_from[after] = node
                    following.append(after)
        row = following
    raise AssertionError("a strongly connected part has a cycle through each of its nodes")


def _strongly_connected(graph: _Graph) -> Iterator[list[_Node]]:
    """Yield the strongly connected components, by Tarjan's algorithm ("Depth-first search and linear graph algorithms",
    1972), without recursion."""
    index: dict[_Node, int] = {}
    low: dict[_Node, int] = {}
    on_stack: dict[_Node, None] = {}
    for root in graph:
        if root in index:
            continue
        index[root] = low[root] = len(index)
        on_stack[root] = None
        work = [(root, iter(graph.get(root, ())))]
        while work:
            node, edges = work[-1]
            for after in edges:
                if after not in index:
                    index[after] = low[after] = len(index)
                    on_stack[after] = None
                    work.append((after, iter(graph.get(after, ()))))
                    break
                if after in on_stack:
                    low[node] = min(low[node], index[after])
            else:
                work.pop()
                if work:
                    above = work[-1][0]
                    low[above] = min(low[above], low[node])
                if low[node] == index[node]:
                    part: list[_Node] = []
                    while not part or part[-1] != node:
                        part.append(on_stack.popitem()[0])
                    yield part[::-1]


def _steps(cycle: list[_Node]) -> Iterator[tuple[_Node, _Node]]:
    return zip(cycle, [*cycle[1:], cycle[0]], strict=True)


def _told(cycle: list[_Node]) -> str:
    names = [shown(node) if isinstance(node, bytes) else f"{node.producer}'s {node.number}" for node in cycle]
    return " → ".join([*names, names[0]])
