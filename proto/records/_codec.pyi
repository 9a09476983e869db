from collections.abc import Iterable, Sequence
from typing import Any, TypeVar, overload

from tidelog.model.buffer import Buffer

VERSION: int

class RecordBuffer:
    size: int
    count: int
    base_timestamp: int
    max_timestamp: int
    def __init__(self, bytes_max: int | None = None) -> None: ...
    def append(
        self,
        timestamp: int,
        key: Buffer | None,
        value: Buffer | None,
        headers: Iterable[tuple[str, Buffer | None]] = (),
    ) -> int: ...
    def taken(self) -> bytearray: ...

T = TypeVar("T", bound=tuple[Any, ...])

def values_body(values: list[bytes]) -> bytearray | None: ...
@overload
def decode(
    body: bytes,
    base_offset: int,
    base_timestamp: int,
    fixed_timestamp: int | None,
    count: int,
    last_delta: int,
    kind: None,
) -> list[bytes | None] | None: ...
@overload
def decode(
    body: bytes,
    base_offset: int,
    base_timestamp: int,
    fixed_timestamp: int | None,
    count: int,
    last_delta: int,
    kind: type[T],
    tail: tuple[Any, ...] = (),
) -> list[T] | None: ...
def spans(
    body: bytes,
    base_offset: int,
    base_timestamp: int,
    fixed_timestamp: int | None,
    count: int,
    last_delta: int,
) -> list[tuple[int, int, bytes | None, bool, int, int]] | None: ...
def keyless(body: bytes, count: int, last_delta: int) -> int | None: ...
def probe(table: Buffer, slots: int, digest: bytes) -> int | None: ...

class ColumnBuffer:
    count: int
    size: int
    def __init__(self, *, headers: bool = False) -> None: ...
    def add(
        self,
        body: bytes,
        base_offset: int,
        base_timestamp: int,
        fixed_timestamp: int | None,
        count: int,
        last_delta: int,
        first: int,
        end: int,
    ) -> bool: ...
    def append(
        self,
        offset: int,
        timestamp: int,
        kind: int,
        key: bytes | None,
        value: bytes | None,
        headers: tuple[tuple[str, bytes | None], ...],
    ) -> None: ...
    def take(self) -> Any: ...

class RowWriter:
    def __init__(self, rows: int, values: Any, keys: Any, headers: Any, partitions: Any, timestamps: Any) -> None: ...
    def plan(self, partition_count: int, partition: int, ignore_keys: bool, size_max: int) -> tuple[int, int, int]: ...
    def group(self, picks: Sequence[int], step: int) -> list[tuple[int, int, int]]: ...
    def write(self, start: int, stop: int, bytes_max: int, now_ms: int) -> tuple[bytearray, int, int, int]: ...
