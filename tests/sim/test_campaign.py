"""Campaigns: sums, verdicts, replay lines, runs that hang or die, budgets, interrupts, the same seed twice."""

from __future__ import annotations

import io
import shlex
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tidelog.chaos.simulated.runner import campaign
from tidelog.chaos.simulated.runner.campaign import Verdict, counts_text, jobs_of, run_campaign, verdict_text
from tidelog.chaos.simulated.runner.command import kept, main, seed_range
from tidelog.chaos.simulated.runner.pool import Job, Pool
from tidelog.chaos.simulated.scenarios.registry import Registry, ScenarioError, load_file
from tidelog.chaos.simulated.world.scenario import Scenario
from tidelog.cli.local.process import stat_of

FILE = Path(__file__).with_name("counting_scenario.py")
BAD, ENDLESS, RAISING, DYING, GREEDY = 1000, 2000, 3000, 4000, 5000
MINE = ["--file", str(FILE), "--scenario", "counting"]


@pytest.fixture(scope="module")
def counting() -> Scenario:
    return Registry(FILE).get("counting")


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with Pool(["counting"], 2, file=FILE, run_s_max=1.0) as pool:
        yield pool


def run(pool: Pool, counting: Scenario, *seeds: int, **more: Any) -> tuple[Verdict, str]:
    out = io.StringIO()
    failures_max = int(more.pop("failures_max", 5))
    verdict = run_campaign(
        pool, [counting], jobs_of([counting], seeds), out=out, failures_max=failures_max, file=FILE, **more
    )
    return verdict, out.getvalue()


def test_a_campaign_that_holds_sums_up(pool: Pool, counting: Scenario) -> None:
    verdict, out = run(pool, counting, *range(2001, 2300), 9000)
    assert (verdict.runs, verdict.exit_code, out) == (300, 0, "")
    tally = verdict.tallies["counting"]
    assert (tally.operations, tally.virtual_s, tally.faults["tick"]) == (6000, 6000.0, 6000)
    assert (tally.events["odd"], tally.events["thousandth"]) == (150, 1)
    text = verdict_text(verdict)
    assert "counting: 300 runs, 6,000 operations, 6,000 s of virtual time" in text
    assert "faults: tick 6,000\n      events: odd 150, thousandth 1\n" in text
    assert text.splitlines()[-1].startswith("ok    300 runs held, ")
    assert text.endswith("runs a minute")


def test_what_never_showed_fails_a_campaign_that_is_long_enough(pool: Pool, counting: Scenario) -> None:
    verdict, _ = run(pool, counting, *range(1, 201))
    assert verdict.exit_code == 1
    assert "FAIL  counting: in 200 runs never showed: event thousandth\n" in verdict_text(verdict)
    assert "did not test what they are there to test" in verdict_text(verdict).splitlines()[-1]


def test_a_short_campaign_says_that_it_is_too_short_to_judge_that(pool: Pool, counting: Scenario) -> None:
    verdict, _ = run(pool, counting, *range(1, 200))
    assert verdict.exit_code == 0
    said = " ".join(verdict_text(verdict).split())
    assert "199 runs are too few to judge what never showed, which takes 200 (so far missing: event thousandth)" in said


def test_no_run_at_all_is_no_success(pool: Pool, counting: Scenario) -> None:
    verdict, _ = run(pool, counting)
    assert verdict.exit_code == 1
    assert verdict_text(verdict).endswith("FAIL  no run was finished")


def test_a_failing_seed_prints_the_line_that_runs_it_again(
    pool: Pool, counting: Scenario, capsys: pytest.CaptureFixture[str]
) -> None:
    verdict, out = run(pool, counting, 999, BAD, 1001)
    assert verdict.exit_code == 1
    assert out.startswith(f"FAIL  counting, seed {BAD}: 3 and 7 both happened\n")
    words = shlex.split(out.splitlines()[1].removeprefix("      again: "))
    assert words[:2] == ["./dev", "sim"]
    assert main(words[2:]) == 1
    assert "3 and 7 both happened" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("seed", "words"),
    [
        (ENDLESS, "did not end within 1 s of wall clock, in counting_scenario.py:"),
        (RAISING, "run raised KeyError: 'lost' (at "),
        (DYING, "the process that ran it ended with code 7\n      these are its last words\n"),
        (GREEDY, "run raised MemoryError"),
    ],
)
def test_a_run_that_does_not_come_back_is_a_violation_of_its_seed_alone(
    pool: Pool, counting: Scenario, seed: int, words: str
) -> None:
    verdict, out = run(pool, counting, *range(seed - 3, seed + 4))
    assert verdict.runs == 7
    assert [failure.job.seed for failure in verdict.failures] == [seed]
    assert words in out


def test_a_budget_ends_a_campaign_without_an_end(pool: Pool, counting: Scenario) -> None:
    started = time.monotonic()
    verdict, _ = run(pool, counting, *range(10_001, 10_000_000), budget_s=0.3)
    assert 0 < verdict.runs < 1_000_000
    assert time.monotonic() - started < 10
    assert verdict.exit_code in (0, 1)


def test_a_campaign_takes_up_no_more_after_enough_failures(pool: Pool, counting: Scenario) -> None:
    verdict, _ = run(pool, counting, *[BAD] * 50, failures_max=3)
    assert 3 <= len(verdict.failures) <= 4  # one per process may be under way
    assert verdict.runs < 10


def test_every_scenario_gets_its_turn_with_each_seed(counting: Scenario) -> None:
    other = Registry(FILE).get("hash-order")
    assert [tuple(job[:2]) for job in jobs_of([counting, other], [1, 2])] == [
        ("counting", 1), ("hash-order", 1), ("counting", 2), ("hash-order", 2),
    ]  # fmt: skip


def test_progress_is_shown_while_it_runs(pool: Pool, counting: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(campaign, "_PROGRESS_S", 0.05)
    _, out = run(pool, counting, *range(10_001, 10_000_000), budget_s=0.6)
    assert "0 failed, " in out.splitlines()[0]
    assert out.splitlines()[0].endswith(" of 1 s")


def test_a_fresh_process_takes_over_after_so_many_runs(counting: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelog.chaos.simulated.runner.pool.RUNS_PER_WORKER_MAX", 3)
    with Pool(["counting"], 1, file=FILE) as pool:
        verdict, _ = run(pool, counting, *range(1, 8))
    assert verdict.runs == 7


def _children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _gone(pid: int) -> bool:
    stat = stat_of(pid)
    return stat is None or stat[0] == "Z"


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="wants /proc, which Linux has")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_no_worker_outlives_its_campaign(
    number: signal.Signals, code: int, interruptible: Callable[[Sequence[str]], list[str]]
) -> None:
    """Interrupted it says how far it came; killed, its workers end by themselves, amid an endless run."""
    command = [sys.executable, "-P", "-m", "tidelog.chaos.simulated", *MINE, "--seeds", f"{ENDLESS - 1}-{ENDLESS}"]
    process = subprocess.Popen(interruptible(command), stdout=subprocess.PIPE, text=True)
    try:
        until = time.monotonic() + 20
        while len(workers := _children(process.pid)) < 2 and time.monotonic() < until:
            time.sleep(0.02)
        assert len(workers) == 2
        process.send_signal(number)
        out, _ = process.communicate(timeout=240)
        assert process.returncode == code
        assert ("interrupted after" in out) == (number == signal.SIGINT)
        while not all(map(_gone, workers)) and time.monotonic() < until:
            time.sleep(0.02)
        assert all(map(_gone, workers))
    finally:
        process.kill()
        process.communicate()


def test_the_same_seed_gives_the_same_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*MINE, "--check-determinism", "30"]) == 0
    assert "ok    30 runs were the same twice, 0 were not" in capsys.readouterr().out


def test_a_run_that_hangs_on_the_order_of_a_set_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--file", str(FILE), "--scenario", "hash-order", "--check-determinism", "2"]) == 1
    out = capsys.readouterr().out
    assert "FAIL  hash-order, seed 1: digest " in out
    assert "the traces part at line 2: name " in out


def test_a_run_that_hangs_on_those_before_it_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--file", str(FILE), "--scenario", "leaves-behind", "--workers", "1", "--check-determinism", "4"]
    assert main(arguments) == 1
    assert "FAIL  leaves-behind, seed 4: digest " in capsys.readouterr().out


def test_the_list_has_a_line_for_each(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--file", str(FILE), "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "counting         Counts its faults; one seed breaks if the faults 3 and 7 both happen."
    assert [line.split()[0] for line in lines[:3]] == ["counting", "hash-order", "leaves-behind"]


def test_a_trace_is_the_run_line_by_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*MINE, "--seed", "1000", "--trace", "--keep", "7,3"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[:4] == ["sim   counting, seed 1000: 2 of 20 faults", "seed 1000", "3.000 tick 3", "7.000 tick 7"]
    assert lines[-1] == "FAIL  3 and 7 both happened"


def test_kept_faults_are_those_that_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*MINE, "--seed", "1000", "--keep", "3,6"]) == 0
    assert main([*MINE, "--seed", "1000", "--keep", "none"]) == 0
    assert main([*MINE, "--seed", "1000", "--keep", "3,7"]) == 1
    assert "--seed 1000 --keep 3,7" in capsys.readouterr().out


def test_fresh_seeds_are_others_each_time_and_printed(capsys: pytest.CaptureFixture[str]) -> None:
    said = set()
    for _ in range(2):
        assert main([*MINE, "--fresh", "--seeds", "5"]) == 0
        first, _, last = capsys.readouterr().out.splitlines()[0].split("seeds ")[1].split(",")[0].partition("-")
        assert int(last) - int(first) == 4
        said.add(first)
    assert len(said) == 2
    assert main([*MINE, "--seeds", f"{first}-{last}"]) == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--scenario", "counted"], "no scenario 'counted'. There are: counting, hash-order, leaves-behind"),
        (["--seeds", "9-3"], "--seeds 9-3: expected at least one seed, and a range that rises"),
        (["--seeds", "many"], "expected how many (2000) or a range (1-2000)"),
        (["--keep", "1"], "--keep: expected --seed"),
        (["--trace"], "--trace: expected --seed"),
        (["--seed", "3"], "--seed: expected one --scenario with it: counting, hash-order"),
        (["--seed", "-3"], "--seed -3: expected 0 or more"),
        (["--seed", "3", "--seeds", "4"], "expected neither --seeds"),
        ([*MINE, "--seed", "3", "--keep", "2,44"], "fault 44 is not in the schedule, which has 0 to 19"),
        ([*MINE, "--seed", "3", "--keep", "a"], "expected places in the schedule"),
        (["--seconds", "0"], "expected more than 0"),
        (["--workers", "0"], "expected at least 1"),
        (["--fresh", "--seeds", "3-5"], "--fresh: expected a number of --seeds"),
        (["--mutants", "nobody"], "--mutants: no nobody. There are: "),
        (["--check-determinism", "0"], "expected at least 1 seed"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_in_one_line(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--file", str(FILE), *arguments]) == 2
    said = capsys.readouterr().err
    assert said.startswith("./dev sim: ")
    assert said.count("\n") == 1
    assert words in said


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("import nothing_of_the_kind", "failed as it was loaded:\n.*nothing_of_the_kind"),
        ("x = 1", "defines no scenario: expected an object with name"),
        (FILE.read_text() + "\nanother = Counting()", "two scenarios with the name 'counting'"),
    ],
)
def test_a_file_without_a_sound_scenario_is_refused(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "mine.py"
    file.write_text(text)
    with pytest.raises(ScenarioError, match=f"(?s){words}"):
        load_file(file)
    with pytest.raises(ScenarioError, match="no file"):
        load_file(tmp_path / "nowhere.py")


def test_long_counts_are_folded_between_kinds() -> None:
    counts = Counter({f"kind-{number}": 1234 for number in range(40)})
    lines = campaign._folded(f"faults: {counts_text(counts, frozenset())}").splitlines()
    assert len(lines) > 3
    assert all(len(line) <= 118 and line.rstrip(",").endswith(" 1,234") for line in lines)
    assert all(line.startswith(" " * 14) for line in lines[1:])


def test_ranges_and_places() -> None:
    assert seed_range("3") == range(1, 4)
    assert seed_range("7-7") == range(7, 8)
    assert kept("7,3,3") == (3, 7)
    assert kept("none") == ()


def test_a_job_names_what_a_worker_needs() -> None:
    assert Job("counting", 3)._asdict() == {"scenario": "counting", "seed": 3, "keep": None, "trace_path": ""}
