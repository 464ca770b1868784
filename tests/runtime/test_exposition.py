"""The text format of Prometheus, as its own reader in Python reads it."""

from __future__ import annotations

import math

import pytest
from prometheus_client.parser import text_string_to_metric_families

from trainband.runtime.exposition import Family, exposition, number
from trainband.runtime.process_metrics import process_families

HOSTILE = (
    'quote " in it',
    "line\none",
    r"back\slash, and \n that is no newline",
    "<script>alert(1)</script>",
    'x"} 1\nup{job="forged"} 0',
    "ünïcödé ✓",
    "",
)


def test_any_text_can_be_a_label_and_comes_back_as_it_was() -> None:
    family = Family("gauge", "some_info", "A metric.\nSecond line, with \\ in it.")
    for text in HOSTILE:
        family.set(1.0, ("text", text))
    (found,) = text_string_to_metric_families(exposition([family], (("task", "ps:0"),)))
    assert [sample.labels for sample in found.samples] == [{"task": "ps:0", "text": text} for text in HOSTILE]
    assert found.documentation == "A metric.\nSecond line, with \\ in it."


def test_what_no_utf8_can_hold_and_nul_are_replaced() -> None:
    family = Family("gauge", "some_info", "A metric.", {(("text", "a\ud800b\0c"),): 1.0})
    text = exposition([family])
    text.encode()
    assert "\0" not in text
    assert "a\ufffd" in text
    assert "b\ufffdc" in text


def test_families_of_one_name_become_one_without_samples_that_are_there_twice() -> None:
    first = Family("counter", "steps_total", "Steps.", {(("task", "a"),): 1, (("task", "b"),): 2})
    other = Family("gauge", "loss", "Loss.", {(): 0.5})
    later = Family("counter", "steps_total", "Steps.", {(("task", "a"),): 3})
    assert exposition([first, other, later, Family("gauge", "unknown", "Never known.")]) == (
        "# HELP steps_total Steps.\n# TYPE steps_total counter\n"
        'steps_total{task="a"} 3\nsteps_total{task="b"} 2\n'
        "# HELP loss Loss.\n# TYPE loss gauge\nloss 0.5\n"
    )
    with pytest.raises(ValueError, match="the metric loss is a gauge and a counter"):
        exposition([other, Family("counter", "loss", "Loss.", {(): 1})])


@pytest.mark.parametrize(
    ("value", "text"),
    [(3.0, "3"), (0.1, "0.1"), (1e300, "1e+300"), (math.inf, "+Inf"), (-math.inf, "-Inf"), (math.nan, "NaN")],
)
def test_numbers(value: float, text: str) -> None:
    assert number(value) == text


def test_a_process_tells_what_it_has_used() -> None:
    text = exposition(process_families("ps:0"))
    values = {one.name: one.samples[0].value for one in text_string_to_metric_families(text)}
    assert values["process_cpu_seconds"] > 0
    assert 1e6 < values["process_resident_memory_bytes"] <= values["process_virtual_memory_bytes"]
    assert 3 <= values["process_open_fds"] <= values["process_max_fds"]
    assert values["process_start_time_seconds"] > 1.5e9
