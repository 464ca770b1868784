"""What a scrape of /metrics answers: the text format, and the numbers in it."""

from __future__ import annotations

import re

from tests.serve.served import ask, program, served
from trainband.runtime.exposition import Family, exposition, quoted
from trainband.serve import ServedModel
from trainband.serve.histogram import Histogram

SAMPLE = re.compile(r'(?P<name>[a-z_]+)\{(?P<labels>(?:[a-z]+="(?:[^"\\\n]|\\.)*",?)+)\} (?P<value>\S+)')


def families(text: str) -> dict[str, str]:
    """The kind of every family; checks the text as `promtool check metrics` does."""
    assert text.endswith("\n")
    kinds: dict[str, str] = {}
    seen: set[tuple[str, str]] = set()
    helped = family = ""
    for line in text.splitlines():
        if line.startswith("# HELP "):
            helped = line.split(" ", 3)[2]
            assert line.endswith(".")
        elif line.startswith("# TYPE "):
            _, _, family, kind = line.split(" ")
            assert family == helped
            assert family not in kinds
            assert (kind == "counter") == family.endswith("_total")
            kinds[family] = kind
        else:
            found = SAMPLE.fullmatch(line)
            assert found, line
            suffixes = ("_bucket", "_sum", "_count") if kinds[family] == "histogram" else ("",)
            assert found["name"] in {family + suffix for suffix in suffixes}
            float(found["value"])
            assert (found["name"], found["labels"]) not in seen
            seen.add((found["name"], found["labels"]))
    return kinds


def test_a_scrape() -> None:
    model = ServedModel.of(program(), made_at=100.0)
    with served(model) as app:
        for rows in ([[1, 2]], [[1, 2]] * 3, [[1]]):
            ask(app, "POST", "/v1/models/scaled:predict", json={"instances": rows})
        model.swap({"params/factor": model.current.weights["params/factor"]}, 8, made_at=None)
        answer = ask(app, "GET", "/metrics")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    kinds = families(answer.text)
    assert {name for name, kind in kinds.items() if kind == "histogram"} == {
        "trainband_serve_request_duration_seconds",
        "trainband_serve_batch_size",
        "trainband_serve_batch_duration_seconds",
    }
    for line in (
        'trainband_serve_requests_total{model="scaled",protocol="tensorflow",code="200"} 2',
        'trainband_serve_requests_total{model="scaled",protocol="tensorflow",code="400"} 1',
        'trainband_serve_request_duration_seconds_count{model="scaled",protocol="tensorflow"} 3',
        'trainband_serve_examples_total{model="scaled"} 4',
        'trainband_serve_padding_examples_total{model="scaled"} 1',
        'trainband_serve_batch_size_bucket{model="scaled",le="2"} 1',
        'trainband_serve_batch_size_bucket{model="scaled",le="+Inf"} 2',
        'trainband_serve_version{model="scaled"} 8',
        'trainband_serve_version_swaps_total{model="scaled"} 1',
        'trainband_serve_source_state{model="scaled",state="fixed"} 1',
        'trainband_serve_queue_depth{model="scaled"} 0',
        'trainband_serve_ready{model="scaled"} 1',
    ):
        assert f"{line}\n" in answer.text
    assert "version_age" not in answer.text  # it is not known of this version


def test_the_text_format() -> None:
    counter, histogram = Family("counter", "a_total", "As."), Histogram("b_seconds", "Bs.", (0.5, 1.0))
    counter.add(2, ("kind", 'x"\\\n'))
    for value in (0.5, 0.75, 3):
        histogram.observe(value)
    assert exposition([counter, histogram], (("m", "n"),)) == (
        "# HELP a_total As.\n# TYPE a_total counter\n"
        r'a_total{m="n",kind="x\"\\\n"} 2' + "\n"
        "# HELP b_seconds Bs.\n# TYPE b_seconds histogram\n"
        'b_seconds_bucket{m="n",le="0.5"} 1\nb_seconds_bucket{m="n",le="1"} 2\nb_seconds_bucket{m="n",le="+Inf"} 3\n'
        'b_seconds_sum{m="n"} 4.25\nb_seconds_count{m="n"} 3\n'
    )
    assert quoted("é") == '"é"'
