"""``tidelog plan`` and ``tidelog plan calibrate`` as users run them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidelog.cli.commands.administration import plan as module
from tidelog.cli.root import run
from tidelog.cli.work.planner import measuring
from tidelog.cli.work.planner.measuring import Load, Seen, campaign
from tidelog.cli.work.planner.shipped import SHIPPED
from tidelog.model.settings.broker_config import NodeConfig

from .test_coefficients import POINTS

BILLION = ("--records-a-day", "1G", "--copies", "2", "--readers", "3")


def test_a_billion_records_a_day_for_people_and_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", *BILLION, "--what-if", "--price", "100"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("10 nodes; disk binds: ")
    assert "59,259 records/s, 59.9 MB/s" in text
    assert "1,000.00 a month" in text
    assert "retention-hours: 9 nodes with a fifth less, 12 nodes with a fifth more" in text
    assert "load: x1 10 nodes, x2 " in text
    assert run(["plan", *BILLION, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["nodes"], found["binds"], found["coefficients"]["source"]) == (10, "disk", SHIPPED.source)
    assert found["uses"]["disk"]["away_share"] <= found["uses"]["disk"]["limit_share"]


def test_the_settings_that_it_prints_are_settings(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", *BILLION, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["settings"]
    config = NodeConfig.parse({"node.id": "1", **found})
    assert config.num_partitions == int(found["num.partitions"]) > 0
    assert config.min_insync_replicas == 1


def test_units_and_a_curve(capsys: pytest.CaptureFixture[str]) -> None:
    hours = ",".join(["10e6"] * 21 + ["100e6"] * 3)
    assert run(["plan", "--curve", hours, "--disk-bytes", "4TB", "--memory-bytes", "32GiB", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["demand"]["records_a_day"] == 510e6
    assert found["demand"]["peak_factor"] == pytest.approx(100 * 24 / 510)
    assert (found["machine"]["disk_bytes"], found["machine"]["memory_bytes"]) == (4e12, 32 * 2**30)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), "expected --records-a-day or --curve, found neither"),
        (("--records-a-day", "lots"), "expected a number, such as 1e9, 1G or 16GiB, found 'lots'"),
        (("--records-a-day", "-1"), "found '-1'"),
        (("--records-a-day", "1e999"), "expected a finite number"),
        (("--records-a-day", "1e9", "--copies", "2.5"), "expected a whole number, found '2.5'"),
        (("--records-a-day", "1e9", "--retention-hours", "0"), "--retention-hours: expected 0.1 to 1e+06, found 0"),
        (("--records-a-day", "1e9", "--curve", "1"), "expected either --curve or --records-a-day"),
        (("--curve", "1,2"), "expected 24 numbers of records"),
        (("--records-a-day", "1e14"), "10,000 nodes are too few"),
    ],
)
def test_absurd_inputs_are_refused_in_one_line(
    words: tuple[str, ...], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["plan", *words]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert expected in err


def test_a_load_is_run_and_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "WARM_UP_S", 1.0)
    ((given, seen),) = campaign(tmp_path, (Load(40, 5_000, 3, readers=1, tls=True),), 3.0)
    assert given.batches == 40
    assert 0 < seen.batches < 100
    assert seen.append_mb > 0 < seen.read_mb
    assert (seen.replicated_mb > 0, seen.copies, seen.readers) == (True, 3, 1)
    assert 0 < seen.cores < 4
    assert 30e6 < seen.memory_bytes < 400e6


def test_calibration_writes_a_file_that_a_plan_reads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def recorded(root: Path, loads: tuple[Load, ...], seconds: float) -> Iterator[tuple[Load, Seen]]:
        assert seconds == 3
        yield from POINTS  # what real runs gave; another takes three minutes

    monkeypatch.setattr(module, "campaign", recorded)
    path = tmp_path / "mine.json"
    assert run(["plan", "calibrate", "--seconds", "3", "--output", str(path)]) == 0
    assert f"written to {path}" in capsys.readouterr().out
    assert run(["plan", *BILLION, "--coefficients", str(path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["coefficients"]["source"] == "measured into mine.json"
    assert found["uses"]["processor"]["now"] == pytest.approx(0.12, abs=0.1)
    path.write_text("{}")
    assert run(["plan", *BILLION, "--coefficients", str(path)]) == 1
    assert "mine.json: expected append_mb_s" in capsys.readouterr().err
