"""Rules about nodes: disks, damage, processor, clocks, certificates."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Final

from tidelog.broker import metrics as m
from tidelog.broker.health.facts import Facts, NodeMetrics
from tidelog.broker.health.rule import Alert, Found, Rule, Severity, counted, named, only_alerts
from tidelog.broker.metrics import MetricName

DISK_WARNING: Final = 0.15
DISK_CRITICAL: Final = 0.05
"""Shares of free disk space. A node stops when its last log directory is full."""
BUSY_WARNING: Final = 0.7
BUSY_CRITICAL: Final = 0.9
"""Shares of time; Kafka's usual alert is ``RequestHandlerAvgIdlePercent`` < 0.3."""
CLOCK_WARNING_S: Final = 1.0
CERTIFICATE_WARNING_DAYS: Final = 14
CERTIFICATE_CRITICAL_DAYS: Final = 3
FILES_WARNING: Final = 0.8
DAY_S: Final = 24 * 3600

_CRITICAL, _WARNING, _NOTE = Severity.CRITICAL, Severity.WARNING, Severity.NOTE
OPEN_FILES: Final = "process_open_fds"
FILES_MAX: Final = "process_max_fds"


def _nodes(facts: Facts) -> list[NodeMetrics]:
    return [found for _, found in sorted((facts.nodes or {}).items())]


def _failed_directories(facts: Facts) -> Iterator[Found]:
    subjects = tuple(f"node {one.node} {one.path}" for one in facts.directories or () if one.failed)
    if subjects:
        yield Found(_CRITICAL, f"{counted(len(subjects), 'log directory')} failed: {named(subjects)}", subjects)


def _disks(facts: Facts) -> Iterator[Found]:
    for one in facts.directories or ():
        if one.failed or one.total_bytes <= 0:
            continue
        free = one.free_bytes / one.total_bytes
        if free < DISK_WARNING:
            text = (
                f"node {one.node}: {100 * free:.1f} % free ({one.free_bytes / 1e9:,.1f} GB) on the disk of {one.path}"
            )
            severity = _CRITICAL if free < DISK_CRITICAL else _WARNING
            yield Found(severity, text, (f"node {one.node} {one.path}",))


def _counted_metric(
    metric: MetricName, severity: Severity, text: Callable[[int], str]
) -> Callable[[Facts], Iterator[Found]]:
    """Report one finding for each node on which ``metric`` is not 0."""

    def look(facts: Facts) -> Iterator[Found]:
        for node in _nodes(facts):
            if count := int(node.total(metric)):
                yield Found(severity, f"node {node.node}: {text(count)}", (f"node {node.node}",))

    return look


def _damaged(facts: Facts) -> Iterator[Found]:
    for node in _nodes(facts):
        topics = tuple(labels[0] for labels, count in node.each(m.DAMAGED) if count)
        if topics:
            text = f"node {node.node}: {counted(int(node.total(m.DAMAGED)), 'damaged range')} in {named(topics)}"
            yield Found(_CRITICAL, text, topics)


def _cleaner(facts: Facts) -> Iterator[Found]:
    for node in _nodes(facts):
        if node.total(m.CLEANER_DEAD):
            yield Found(_CRITICAL, f"node {node.node}: the log cleaner has stopped, or hangs", (f"node {node.node}",))
        if count := int(node.total(m.CLEANER_UNCLEANABLE)):
            text = f"node {node.node}: the cleaner skips {counted(count, 'log')} after a failure"
            yield Found(_WARNING, text, (f"node {node.node}",))


def _busy(facts: Facts) -> Iterator[Found]:
    for node in _nodes(facts):
        if node.busy is not None and node.busy > BUSY_WARNING:
            text = f"node {node.node}: the event loop is busy {100 * node.busy:.0f} % of the time"
            yield Found(_CRITICAL if node.busy > BUSY_CRITICAL else _WARNING, text, (f"node {node.node}",))


def _clocks(facts: Facts) -> Iterator[Found]:
    """Compare nodes' clocks with each other: the observer's own clock does not count."""
    known = [
        (node.clock_ahead_s, node.clock_error_s, node.node) for node in _nodes(facts) if node.clock_ahead_s is not None
    ]
    if len(known) < 2:
        return
    middle = sorted(ahead for ahead, _, _ in known)[len(known) // 2]
    for ahead, error, node in known:
        apart = ahead - middle
        if abs(apart) - error > CLOCK_WARNING_S:
            text = f"node {node}: its clock is {abs(apart):.1f} s {'ahead of' if apart > 0 else 'behind'} the others"
            yield Found(_WARNING, text, (f"node {node}",))


def _certificates(facts: Facts) -> Iterator[Found]:
    for node in _nodes(facts):
        left_s = min((value for _, value in node.each(m.TLS_EXPIRY)), default=math.inf)
        days = left_s / DAY_S
        if days < CERTIFICATE_WARNING_DAYS:
            ends = f"expires in {days:.1f} days" if left_s > 0 else f"expired {-days:.1f} days ago"
            severity = _CRITICAL if days < CERTIFICATE_CRITICAL_DAYS else _WARNING
            yield Found(severity, f"node {node.node}: a certificate {ends}", (f"node {node.node}",))


def _files(facts: Facts) -> Iterator[Found]:
    for node in _nodes(facts):
        used, most = (sum(node.values.get(name, {}).values()) for name in (OPEN_FILES, FILES_MAX))
        if most > 0 and used > FILES_WARNING * most:
            text = f"node {node.node}: {used:,.0f} of at most {most:,.0f} files are open"
            yield Found(_WARNING, text, (f"node {node.node}",))


_P99 = (
    f'histogram_quantile(0.99, sum by (le) (rate({m.TOTAL_TIME.exported}_bucket{{request="Produce"}}[10m]{{offset}})))'
)

RULES: Final = (
    Rule(
        "log-directories-failed",
        ("directories",),
        "its replicas are out of service; a node stops with its last directory",
        "replace the disk and start the node again; its replicas copy everything from their leaders",
        _failed_directories,
        (
            Alert(
                "TidelogLogDirectoryOffline",
                _CRITICAL,
                f"{m.OFFLINE_DIRS.exported} > 0",
                "0s",
                "{{ $labels.instance }}: {{ $value }} log directories have failed",
            ),
        ),
    ),
    Rule(
        "disk-space",
        ("directories",),
        "a full disk takes its log directory out of service",
        "shorten retention, move replicas (`tidelog log-dirs move`, `tidelog rebalance`), or add disks or nodes; "
        "`tidelog plan` says how many",
        _disks,
        (
            Alert(
                "TidelogDiskFillsUp",
                _WARNING,
                f"{m.DISK_FREE.exported} < {DISK_WARNING} * {m.DISK_TOTAL.exported} "
                f"or predict_linear({m.DISK_FREE.exported}[6h], 6 * 3600) < 0",
                "15m",
                "{{ $labels.instance }} {{ $labels.logdirectory }}: less than 15 % free, or full within 6 h",
            ),
            Alert(
                "TidelogDiskAlmostFull",
                _CRITICAL,
                f"{m.DISK_FREE.exported} < {DISK_CRITICAL} * {m.DISK_TOTAL.exported}",
                "1m",
                "{{ $labels.instance }} {{ $labels.logdirectory }}: {{ $value | humanize1024 }}B free",
            ),
        ),
    ),
    Rule(
        "damaged-records",
        ("nodes",),
        "a disk returns other bytes than were written; the node refuses to serve them",
        "check the disk. The node repairs them from an intact replica; `/health` lists them",
        _damaged,
        (
            Alert(
                "TidelogDamagedRecords",
                _CRITICAL,
                f"sum by (instance, topic) ({m.DAMAGED.exported}) > 0",
                "5m",
                "{{ $labels.instance }}: {{ $value }} damaged ranges in {{ $labels.topic }}",
            ),
        ),
    ),
    Rule(
        "cleaner",
        ("nodes",),
        "compacted topics, including committed offsets, grow without bound",
        "look at the node's log and at its disks, then restart the node",
        _cleaner,
        (
            Alert(
                "TidelogCleanerDead",
                _CRITICAL,
                f"{m.CLEANER_DEAD.exported} > 0",
                "1m",
                "{{ $labels.instance }}: the log cleaner has stopped, or hangs",
            ),
            Alert(
                "TidelogLogsUncleanable",
                _WARNING,
                f"sum by (instance) ({m.CLEANER_UNCLEANABLE.exported}) > 0",
                "5m",
                "{{ $labels.instance }}: the cleaner skips {{ $value }} logs",
            ),
        ),
    ),
    Rule(
        "loop-busy",
        ("nodes",),
        "one event loop serves everything on a node; near 100 % every request waits",
        "see that other programs leave the node a processor; add nodes and `tidelog rebalance`; "
        "`tidelog plan` says how many",
        _busy,
        (
            Alert(
                "TidelogLoopBusy",
                _WARNING,
                f"rate({m.LOOP_BUSY.exported}[5m]) > {BUSY_WARNING}",
                "15m",
                "{{ $labels.instance }}: the event loop is busy {{ $value | humanizePercentage }} of the time",
            ),
            Alert(
                "TidelogLoopSaturated",
                _CRITICAL,
                f"rate({m.LOOP_BUSY.exported}[5m]) > {BUSY_CRITICAL}",
                "5m",
                "{{ $labels.instance }}: the event loop is busy {{ $value | humanizePercentage }} of the time",
            ),
        ),
    ),
    Rule(
        "produce-latency",
        (),
        "producers wait",
        "check disks, the loop's busy share and `tidelog_request_waits_total`",
        only_alerts,
        (
            Alert(
                "TidelogProduceSlow",
                _WARNING,
                f"{_P99.replace('{offset}', '')} > 5 * {_P99.replace('{offset}', ' offset 1w')}",
                "10m",
                "99 % of produce requests take up to {{ $value | humanizeDuration }}: five times as long as a week ago",
            ),
        ),
    ),
    Rule(
        "clocks-apart",
        ("nodes",),
        "retention, time stamps and expiry of transactions and tokens follow the nodes' clocks",
        "run NTP (chrony) on every node",
        _clocks,
        (
            Alert(
                "TidelogClockApart",
                _WARNING,
                f"abs({m.CLOCK.exported} - timestamp({m.CLOCK.exported})) > {CLOCK_WARNING_S:g} + 1",
                "5m",
                "{{ $labels.instance }}: its clock and Prometheus's are {{ $value }} s apart",
            ),
        ),
    ),
    Rule(
        "certificates",
        ("nodes",),
        "with an expired certificate nobody can connect, not even other nodes",
        "replace the files: nodes load them without a restart",
        _certificates,
        (
            Alert(
                "TidelogCertificateExpires",
                _WARNING,
                f"{m.TLS_EXPIRY.exported} < {CERTIFICATE_WARNING_DAYS} * {DAY_S}",
                "5m",
                "{{ $labels.instance }}: a certificate expires in {{ $value | humanizeDuration }}",
            ),
            Alert(
                "TidelogCertificateExpiresSoon",
                _CRITICAL,
                f"{m.TLS_EXPIRY.exported} < {CERTIFICATE_CRITICAL_DAYS} * {DAY_S}",
                "5m",
                "{{ $labels.instance }}: a certificate expires in {{ $value | humanizeDuration }}",
            ),
        ),
    ),
    Rule(
        "certificates-refused",
        ("nodes",),
        "the listener keeps the old certificate until that expires",
        "the node's log says why: a key that does not match, other names, or a chain that its own roots do not accept",
        _counted_metric(
            m.TLS_RELOADS_REFUSED, _NOTE, lambda count: f"{counted(count, 'new certificate')} refused since its start"
        ),
        (
            Alert(
                "TidelogCertificateRefused",
                _WARNING,
                f"increase({m.TLS_RELOADS_REFUSED.exported}[15m]) > 0",
                "0s",
                "{{ $labels.instance }} refused a new certificate",
            ),
        ),
    ),
    Rule(
        "logins-refused",
        (),
        "somebody is guessing passwords, or a client has a wrong one",
        "the audit log names user and address",
        only_alerts,
        (
            Alert(
                "TidelogLoginsRefused",
                _WARNING,
                f"rate({m.FAILED_AUTHENTICATIONS.exported}[5m]) > 10",
                "5m",
                "{{ $labels.instance }}: {{ $value | humanize }} refused logins a second",
            ),
        ),
    ),
    Rule(
        "audit-gaps",
        ("nodes",),
        "the audit log is incomplete",
        "make room for it on disk, or raise audit.events.max",
        _counted_metric(m.AUDIT_DROPPED, _NOTE, lambda count: f"{counted(count, 'event')} missing from the audit log"),
        (
            Alert(
                "TidelogAuditGaps",
                _WARNING,
                f"increase({m.AUDIT_DROPPED.exported}[15m]) > 0",
                "0s",
                "{{ $labels.instance }}: {{ $value | humanize }} events are missing from the audit log",
            ),
        ),
    ),
    Rule(
        "open-files",
        ("nodes",),
        "without a free file a node can neither accept connections nor open segments",
        "raise the limit of open files (ulimit -n, LimitNOFILE=)",
        _files,
        (
            Alert(
                "TidelogOpenFiles",
                _WARNING,
                f"{OPEN_FILES} / {FILES_MAX} > {FILES_WARNING} and on (instance) {m.UPTIME.exported}",
                "5m",
                "{{ $labels.instance }}: {{ $value | humanizePercentage }} of its file limit is used",
            ),
        ),
    ),
)
