"""The audit log: which events it records, and how many. Pure but for the clock.

Each line is a JSON object in the Open Cybersecurity Schema Framework (OCSF 1.3): class 3002 for logins, 6003 for
requests, 1008 for lost events.
Equal events within a second share a line with a count. Each kind has its own limit per second, so that neither a
misconfigured nor a hostile client fills memory or disk, or crowds out the other kinds.

Lines contain only names (of resources, principals, settings) and error codes. They never contain a setting's value, a
record, a header, a password, a key, or an error's text, which may quote one of them.
"""

from __future__ import annotations

import enum
import json
from collections import Counter
from collections.abc import Callable, Collection
from typing import Any, Final, NamedTuple

from tidelog.model.clock import Clock

TEXT_MAX: Final = 256
"""Maximum characters of a name; the rest is cut off."""
TOUCHED_MAX: Final = 100
"""Maximum resources listed per event; further ones are only counted."""
_SCHEMA: Final = "1.3.0"
_PRODUCT: Final = {"name": "Tidelog", "vendor_name": "Tidelog"}
_AUTHENTICATION, _API_ACTIVITY = (3002, "Authentication", 3), (6003, "API Activity", 6)
_LOG_ACTIVITY: Final = (1008, "Event Log Activity", 1)
_CREATE, _READ, _UPDATE, _DELETE, _OTHER = 1, 2, 3, 4, 99
_LOGON: Final = 1
_ACTIVITIES: Final = {
    "create": _CREATE,
    "read": _READ,
    "describe": _READ,
    "describe_configs": _READ,
    "write": _UPDATE,
    "alter": _UPDATE,
    "alter_configs": _UPDATE,
    "delete": _DELETE,
}


class AuditKind(enum.StrEnum):
    """The kinds of events; ``audit.kinds`` selects which a node records."""

    __hash__ = str.__hash__  # an enum's own hash costs more than a look-up

    AUTHENTICATION = "authentication"
    DENIED = "denied"
    ALLOWED = "allowed"
    CHANGE = "change"


class Touched(NamedTuple):
    """A resource that a request touched: what was done to it, and the name of the error."""

    kind: str
    name: str
    change: str = ""
    error: str = ""


class AuditEvent(NamedTuple):
    """Who did what from where. ``done``: whether it was allowed or took effect. ``forwarded_by``: the node that
    forwarded the request and reports this, if one did."""

    kind: AuditKind
    principal: str
    host: str
    listener: str
    done: bool
    request: str
    operation: str = ""
    touched: tuple[Touched, ...] = ()
    forwarded_by: str = ""


class AuditLine(NamedTuple):
    """A line with its line break, and how many events it covers. ``counted``: already counted as dropped."""

    text: bytes
    events: int
    counted: bool = False


class _Folded:
    """Equal events since the last :meth:`Audit.take`."""

    __slots__ = ("at_ms", "count", "reason")

    def __init__(self, at_ms: int, reason: str) -> None:
        self.at_ms = at_ms
        self.count = 1
        self.reason = reason


class Audit:
    """Takes events in, at any rate; gives lines out, at most ``most`` of a kind at a time, when they are taken.

    ``most``: events of one kind, resources counted, that are kept between two calls of :meth:`take`. ``refuses``:
    whether a change is only made if there is room to tell of it (``audit.on.full``).
    """

    def __init__(
        self, kinds: Collection[AuditKind], most: int, clock: Clock, node_id: int, *, refuses: bool = False
    ) -> None:
        self._wanted = {kind: kind in kinds for kind in AuditKind}
        self._most = most
        self._clock = clock
        self._node_id = node_id
        self._folded: dict[AuditEvent, _Folded] = {}
        self._kept: Counter[AuditKind] = Counter()
        self._crowded_out = 0
        """Events beyond the limit since the last :meth:`take`."""
        self.refuses = refuses and self._wanted[AuditKind.CHANGE]
        self._reserved = 0
        """Room for changes that are under way."""
        self.full_places: list[Callable[[], bool]] = []
        """Each says whether lines are written to a place that has no room left."""
        self.refused = 0
        """Changes for which there was no room."""
        self._started_ms = clock.now_ms()
        self._lines = 0
        self.on_first: Callable[[], None] = lambda: None
        """Called when there is something to take again."""
        self.noted: Counter[AuditKind] = Counter()
        """Events by kind, including dropped ones."""
        self.dropped = 0
        """Events that appear in no line because there were too many."""

    def wants(self, kind: AuditKind) -> bool:
        return self._wanted[kind]

    def reserve(self, touched: int) -> int:
        """Keep room for a change of so many resources. Returns what to give to :meth:`release`; 0: there is none."""
        weight, used = _weight(touched), self._kept[AuditKind.CHANGE] + self._reserved
        if (used and used + weight > self._most) or any(full() for full in self.full_places):
            self.refused += 1
            return 0
        self._reserved += weight
        return weight

    def has_room(self) -> bool:
        """Whether a change that touches one resource may be made, and is recorded immediately."""
        room = self.reserve(1) if self.refuses else 0
        self.release(room)
        return room > 0 or not self.refuses

    def release(self, weight: int) -> None:
        """The change was recorded, or was none."""
        self._reserved -= weight

    def note(self, event: AuditEvent, reason: Callable[[], str] | None = None, *, reserved: bool = False) -> None:
        """Take an event in. ``reason`` is asked where it is the first of its sort. ``reserved``: there is room."""
        kind = event.kind
        if not self._wanted[kind]:
            return
        self.noted[kind] += 1
        folded = self._folded.get(event)
        if folded is not None:
            folded.count += 1
            return
        weight = _weight(len(event.touched))
        if self._kept[kind] + weight > self._most and self._kept[kind] and not reserved:
            self.dropped += 1
            self._crowded_out += 1
            return
        self._kept[kind] += weight
        self._folded[event] = _Folded(self._clock.now_ms(), "" if reason is None else reason())
        if len(self._folded) == 1:
            self.on_first()

    def take(self) -> list[AuditLine]:
        """Return the lines for events since the last call. The last line says how many events were left out."""
        folded, self._folded = self._folded, {}
        self._kept.clear()
        lines = [AuditLine(self._text(_line(event, found)), found.count) for event, found in folded.items()]
        if self._crowded_out:
            lines.append(self.loss(self._crowded_out, "more than audit.events.max"))
            self._crowded_out = 0
        return lines

    def loss(self, events: int, reason: str) -> AuditLine:
        """Return a line that replaces lost events. If that line is lost too, it still accounts for them."""
        line = {
            "time": self._clock.now_ms(),
            "class_uid": _LOG_ACTIVITY[0],
            "class_name": _LOG_ACTIVITY[1],
            "category_uid": _LOG_ACTIVITY[2],
            "activity_id": _OTHER,
            "activity_name": "Drop",
            "type_uid": _LOG_ACTIVITY[0] * 100 + _OTHER,
            "severity_id": 3,
            "status": "Failure",
            "status_id": 2,
            "count": events,
            "message": reason,
            "metadata": _metadata("dropped"),
            "unmapped": {},
        }
        return AuditLine(self._text(line), events, counted=True)

    def _text(self, line: dict[str, Any]) -> bytes:
        """Number the lines since the node's start, so that a reader elsewhere can detect gaps and duplicates."""
        self._lines += 1
        line["metadata"]["uid"] = f"{self._node_id}-{self._started_ms}-{self._lines}"
        line["unmapped"]["node"] = self._node_id
        return json.dumps(line, separators=(",", ":")).encode() + b"\n"


def _weight(touched: int) -> int:
    return 1 + min(touched, TOUCHED_MAX)


def _line(event: AuditEvent, folded: _Folded) -> dict[str, Any]:
    login = event.kind is AuditKind.AUTHENTICATION
    number, name, category = _AUTHENTICATION if login else _API_ACTIVITY
    activity = _LOGON if login else _activity(event)
    user = {"name": _cut(event.principal), "type": "User"}
    found: dict[str, Any] = {
        "time": folded.at_ms,
        "class_uid": number,
        "class_name": name,
        "category_uid": category,
        "activity_id": activity,
        "type_uid": number * 100 + activity,
        "severity_id": 1 if event.done else 3,
        "status": "Success" if event.done else "Failure",
        "status_id": 1 if event.done else 2,
        "count": folded.count,
        "src_endpoint": {"ip": _cut(event.host)},
        "metadata": _metadata(event.kind.value),
        "unmapped": {"listener": event.listener},
    }
    if event.forwarded_by:
        found["unmapped"]["forwarded_by"] = _cut(event.forwarded_by)
    if folded.reason:
        found["message"] = _cut(folded.reason)
    if login:
        found["user"] = user
        found["auth_protocol"] = event.request
    else:
        found["actor"] = {"user": user}
        found["api"] = {"operation": event.request}
        found["resources"] = [_resource(each) for each in event.touched[:TOUCHED_MAX]]
        if event.operation:
            policy = {"name": event.operation, "desc": _cut(folded.reason)}
            found["actor"]["authorizations"] = [{"decision": "ALLOW" if event.done else "DENY", "policy": policy}]
        if len(event.touched) > TOUCHED_MAX:
            found["unmapped"]["resources_left_off"] = len(event.touched) - TOUCHED_MAX
    return found


def _metadata(log_name: str) -> dict[str, Any]:
    return {"version": _SCHEMA, "product": _PRODUCT, "log_name": log_name}


def _resource(touched: Touched) -> dict[str, Any]:
    found: dict[str, Any] = {"type": touched.kind, "name": _cut(touched.name)}
    said = {"change": _cut(touched.change), "error": touched.error}
    if data := {name: text for name, text in said.items() if text}:
        found["data"] = data
    return found


def _activity(event: AuditEvent) -> int:
    if event.operation:
        return _ACTIVITIES.get(event.operation, _OTHER)
    if event.request.startswith("Create"):
        return _CREATE
    return _DELETE if "Delete" in event.request else _UPDATE


def _cut(text: str) -> str:
    return text if len(text) <= TEXT_MAX else text[:TEXT_MAX] + "…"
