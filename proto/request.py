"""What every call is made of: a request type that names the type of its answer."""

from __future__ import annotations

from typing import Generic, TypeVar


class Response:
    """Base of every answer."""

    __slots__ = ()


R_co = TypeVar("R_co", bound=Response, covariant=True)


class Request(Generic[R_co]):
    """Base of every request; the type argument is the type of its answer."""

    __slots__ = ()
