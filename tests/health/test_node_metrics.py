"""Nodes' metrics pages are read as Prometheus's own parser reads them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Gauge, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from tidelog.broker import metrics as m
from tidelog.cli.work.node_metrics import PageUnread, parse

TEXTS = st.text(st.characters(codec="utf-8"), max_size=12)
NUMBERS = st.one_of(st.floats(), st.integers(-(2**53), 2**53))


@settings(deadline=None, max_examples=40)
@given(st.dictionaries(st.tuples(TEXTS, TEXTS), NUMBERS, max_size=5), NUMBERS)
def test_a_page_is_read_as_prometheus_reads_it(by_labels: dict[tuple[str, str], float], alone: float) -> None:
    registry = CollectorRegistry()
    labelled = Gauge("some_thing", "With\nlabels.", ["b", "a"], registry=registry)
    for (b, a), value in by_labels.items():
        labelled.labels(b, a).set(value)
    Gauge("alone", "Without.", registry=registry).set(alone)
    Histogram("took", "In buckets.", registry=registry).observe(3)
    text = generate_latest(registry).decode()
    expected: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if not sample.name.endswith("_bucket"):
                order = sorted(sample.labels)
                expected.setdefault(sample.name, {})[tuple(sample.labels[one] for one in order)] = sample.value
    found = parse(text, "page")
    assert repr(found) == repr(expected)  # repr, because no number equals nan
    assert ("some_thing" in found) is bool(by_labels)


def test_labels_come_in_the_order_of_the_metric() -> None:
    first, second = m.TRANSACTIONS.labels[0], "another"
    assert parse(f'{m.TRANSACTIONS.exported}{{{second}="x",{first}="Prepared"}} 2', "page") == {
        m.TRANSACTIONS.exported: {("Prepared",): 2.0}
    }
    assert parse("x +Inf\n\n# HELP x y\n", "page") == {"x": {(): math.inf}}


@pytest.mark.parametrize("text", ["<html>", "x", "x one", 'x{a="b} 1', "x{a=b} 1", "x 1 \n y"])
def test_what_is_no_page_is_refused(text: str) -> None:
    with pytest.raises(PageUnread, match="page: expected Prometheus's text format, found"):
        parse(text, "page")
