"""The common form of calls: a request type that names its answer type."""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar, runtime_checkable

from tidelog.model.classes.frozen import dataclass
from tidelog.model.errors import ErrorCode
from tidelog.proto.calls.forwarded import Forwarded


class Response:
    """Base of every answer."""

    __slots__ = ()


@runtime_checkable
class Judged(Protocol):
    """An answer with one outcome for the whole request."""

    @property
    def error(self) -> ErrorCode: ...


R_co = TypeVar("R_co", bound=Response, covariant=True)


class Request(Generic[R_co]):
    """Base of every request; the type argument is the type of its answer."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Change(Request[R_co]):
    """A request that changes the cluster's metadata. A broker answers it once its own image shows the change.

    ``forwarded``: the client on whose behalf a broker sends it to the controller; ``None`` for the sender itself. A
    broker overwrites what clients put there."""

    forwarded: Forwarded | None = None
