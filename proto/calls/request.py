"""The form of every call: a request type that names the type of its answer."""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar, runtime_checkable

from tidelog.model.errors import ErrorCode


class Response:
    """Base of every answer."""

    __slots__ = ()


@runtime_checkable
class Judged(Protocol):
    """An answer that has one outcome for the request as a whole."""

    @property
    def error(self) -> ErrorCode: ...


R_co = TypeVar("R_co", bound=Response, covariant=True)


class Request(Generic[R_co]):
    """Base of every request; the type argument is the type of its answer."""

    __slots__ = ()


class Change(Request[R_co]):
    """A request that changes the cluster's metadata. A broker answers it once its own image shows the change."""

    __slots__ = ()
