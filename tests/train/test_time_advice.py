"""What is said of where the time went."""

from __future__ import annotations

from dataclasses import replace

import pytest

from trainband.runtime.step_times import TimeSpent
from trainband.train.time_advice import advice, table


def spent(waited_for: dict[str, float] | None = None, **seconds: float) -> TimeSpent:
    return TimeSpent(100, {"compute": 1.0, **seconds}, waited_for or {})


def test_the_table_has_a_line_for_each_part_that_took_time() -> None:
    assert table(spent(data=0.0, network=3.0)) == [
        " 25.0%    10.000 ms  computing",
        " 75.0%    30.000 ms  on the network",
    ]


def test_the_bytes_of_a_step_are_those_that_travelled() -> None:
    (*_, line) = table(replace(spent(network=3.0), sent_bytes=159_000 * 100, received_bytes=318_000 * 100))
    assert line.endswith("on the network: 159.0 kB sent and 318.0 kB received a step")


def test_what_is_narrow_already_is_not_advised() -> None:
    for of in (spent(network=3.0), spent(send=3.0)):
        assert "wire_dtype='bfloat16'" in advice(of)[0]
        assert "wire_dtype" not in advice(replace(of, narrow=True))[0]


def test_checkpoints_are_told_from_hooks() -> None:
    (_, line) = table(replace(spent(other=1.0), saving=0.4))
    assert line.endswith("on the rest: hooks, checkpoints, the loop; of this, 40% for checkpoints")


@pytest.mark.parametrize(
    ("of", "words"),
    [
        (spent(data=3.0), "75% of the time is spent waiting for data: prepare batches faster"),
        (spent(ps=3.0), "at the ps: under Sync, workers wait for the slowest: use balance='speed'"),
        (spent({"ps:0": 0.1, "ps:1": 2.9}, ps=3.0), "at the ps: ps:1 is busiest"),
        (spent({"ps:0": 1.5, "ps:1": 1.5}, network=3.0), "on the network: use larger batches"),
        (spent(other=3.0), "make hooks and the loop's own work rarer"),
        (replace(spent(other=3.0), saving=2.0), "most of it saving checkpoints: save less often"),
    ],
)
def test_the_largest_part_comes_with_what_to_do(of: TimeSpent, words: str) -> None:
    (line,) = advice(of)
    assert words in line


def test_a_training_that_computes_needs_none() -> None:
    assert advice(spent(data=0.1, network=0.1, ps=0.1)) == []
