"""Parts of the demo's second half that need no Spark: the division of work, the computation, the picture."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from PIL import Image

from tidelog.cli.failure import CommandFailed
from tidelog.cli.local.watch import WatchFailed
from tidelog.demo.delays.half import alone, read_expected
from tidelog.demo.delays.picture import HEIGHT, WIDTH, Mean, draw, means


def test_two_demos_do_not_share_a_place(tmp_path: Path) -> None:
    with alone(tmp_path / "out"), pytest.raises(CommandFailed, match="another demo"), alone(tmp_path / "out"):
        pass
    with alone(tmp_path / "out"):  # the first has ended
        pass


def test_what_was_computed_is_read_from_all_its_parts(tmp_path: Path) -> None:
    (tmp_path / "part-00000-x.json").write_text('{"key":"UA 1","value":"{}"}\n{"key":"UA 2","value":"a\\"é"}\n')
    (tmp_path / "part-00001-x.json").write_text('{"key":"AA 1","value":"b"}\n')
    (tmp_path / "_SUCCESS").touch()
    assert read_expected(tmp_path) == {"UA 1": "{}", "UA 2": 'a"é', "AA 1": "b"}


def test_a_row_computed_twice_is_no_yardstick(tmp_path: Path) -> None:
    (tmp_path / "part-00000-x.json").write_text('{"key":"UA 1","value":"{}"}\n' * 2)
    with pytest.raises(WatchFailed, match="computed UA 1 twice"):
        read_expected(tmp_path)


def row(hour: datetime, carrier: str, flights: int, cancelled: int, minutes: int | None) -> dict[str, object]:
    return {
        "hour": f"{hour:%Y-%m-%dT%H:%M:%SZ}",
        "carrier": carrier,
        "airline": None if carrier == "XX" else f"{carrier} Airlines",
        "local_hour": (hour - timedelta(hours=5)).hour,
        "flights": flights,
        "cancelled": cancelled,
        "delay_minutes": minutes,
    }


def test_means_weigh_by_departures_and_leave_out_what_never_left() -> None:
    start = datetime(2013, 1, 1, 12, tzinfo=UTC)
    rows = [row(start, "UA", 10, 2, 80), row(start, "AA", 2, 0, 20), row(start, "XX", 3, 3, None)]
    assert means(("all", one) for one in rows) == {"all": Mean(100, 10)}
    assert means((one["carrier"], one) for one in rows) == {"AA": Mean(20, 2), "UA": Mean(80, 8)}
    assert Mean(100, 10).value == 10.0


@pytest.mark.parametrize("killed", [True, False])
def test_the_picture_marks_the_kill(tmp_path: Path, killed: bool) -> None:
    start = datetime(2013, 1, 1, 10, tzinfo=UTC)
    hours = [start + timedelta(hours=6 * at) for at in range(400)]
    rows = [
        row(hour, carrier, 40, 1, 40 * (at % 37)) for at, hour in enumerate(hours) for carrier in ("UA", "AA", "XX")
    ]
    values = [json.dumps(one) for one in rows]
    draw(tmp_path / "made.png", values, values[300:420] if killed else [], 5, "as it should be")
    with Image.open(tmp_path / "made.png") as found:
        assert found.size == (WIDTH, HEIGHT)
        plot = found.convert("RGB").crop((100, 190, WIDTH - 60, 620))
    pixels = [pixel for pixel in plot.get_flattened_data() if isinstance(pixel, tuple)]
    red = sum(r > 180 and g < 80 and b < 80 for r, g, b in pixels)
    rose = sum(r > 240 and 210 < g < 235 and b < 230 for r, g, b in pixels)
    assert (red > 300, rose > 5_000) == (killed, killed)


def test_a_picture_of_one_hour_is_drawn(tmp_path: Path) -> None:
    draw(tmp_path / "made.png", [json.dumps(row(datetime(2013, 12, 31, 23, tzinfo=UTC), "UA", 1, 1, None))], [], 1, "")
    assert (tmp_path / "made.png").stat().st_size > 1_000
