"""The demo's source data."""

from __future__ import annotations

import json
from importlib import metadata

import pytest

from tidelog.demo.log import flights


def test_every_flight_is_there_once_in_the_order_of_departure() -> None:
    rows = list(flights.read_flights())
    assert len(rows) == flights.FLIGHTS
    assert [flight.row for flight in rows] == list(range(flights.FLIGHTS))
    first = json.loads(rows[0].value)
    assert rows[0].key == b"UA1545"
    assert (first["origin"], first["dest"], first["dep_time"], first["airline"]) == (
        "EWR", "IAH", 517, "United Air Lines Inc.",
    )  # fmt: skip
    assert first["weather"]["temp"] == 39.02
    hours = [json.loads(flight.value)["time_hour"] for flight in rows]
    assert hours == sorted(hours)
    assert (hours[0], hours[-1]) == ("2013-01-01T10:00:00Z", "2014-01-01T04:00:00Z")


def test_the_package_is_not_imported() -> None:
    import sys

    next(flights.read_flights())
    assert flights.PACKAGE not in sys.modules


def test_missing_data_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "files", nothing)
    with pytest.raises(flights.FlightsMissing, match="pip install"):
        next(flights.read_flights())
