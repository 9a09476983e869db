"""Reports as files: for one history, or for many with a table that links to each."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from tidelog.chaos.laboratory.history.history_file import BadHistory, Recorded, read_history
from tidelog.chaos.laboratory.judge.judgement import Verdict, judge
from tidelog.chaos.laboratory.judge.run_summary import RunSummary, summary
from tidelog.chaos.laboratory.judge.timeline import timeline
from tidelog.chaos.laboratory.report.report import run_page
from tidelog.chaos.laboratory.report.report_summary import summary_json, summary_markdown, summary_page


def report_beside(history: Path) -> Path:
    """Return the default place of a history's report."""
    return history.with_suffix(".html")


def write_report(history: Path, out: Path) -> RunSummary:
    """Judge a history and write its page. Raises :class:`BadHistory` or ``OSError``."""
    recorded = read_history(history)
    return write_page(history, recorded, judge(recorded), out)


def write_page(history: Path, recorded: Recorded, verdict: Verdict, out: Path) -> RunSummary:
    """Write the page of a history that was read and judged already."""
    line = timeline(recorded)
    figures = summary(history, recorded, verdict, line)
    out.write_text(run_page(history, recorded, verdict, line, figures), encoding="utf-8")
    figures.report = out.name
    return figures


def reported(history: Path) -> RunSummary:
    """Write the page of a history beside it; a history that cannot be read is trouble, not an error."""
    try:
        return write_report(history, report_beside(history))
    except (BadHistory, OSError) as trouble:
        return RunSummary(history.name, -1, "", trouble=str(trouble))


def write_summary(runs: Sequence[RunSummary], directory: Path, name: str, command: str) -> tuple[Path, ...]:
    """Write the table of runs as page, Markdown and JSON beside their own pages; return the paths."""
    paths = tuple(directory / f"{name}{suffix}" for suffix in (".html", ".md", ".json"))
    texts = (
        summary_page(runs, command),
        summary_markdown(runs, command),
        json.dumps(summary_json(runs, command), indent=1) + "\n",
    )
    for path, text in zip(paths, texts, strict=True):
        path.write_text(text, encoding="utf-8")
    return paths
