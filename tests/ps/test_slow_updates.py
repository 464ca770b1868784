"""SlowUpdates: when it names the definer of a program."""

from __future__ import annotations

from trainband.ps.program.slow_updates import SlowUpdates


def test_updates_much_slower_than_the_check_name_the_definer_once_a_minute() -> None:
    said: list[str] = []
    now = [0.0]
    slow = SlowUpdates("worker:3", 2.0, said.append, lambda: now[0])
    for took_s in (0.1, 2.0, 9.9):
        slow.record(took_s)
    assert said == []
    slow.record(22.0)
    assert said[0].startswith(
        "WARNING: an update took 22.0 s; 2 s in the check of its program. worker:3 has defined the program"
    )
    now[0] = 59.0
    slow.record(22.0)
    assert len(said) == 1
    now[0] = 60.0
    slow.record(22.0)
    assert len(said) == 2


def test_what_takes_less_than_a_second_is_not_said() -> None:
    said: list[str] = []
    SlowUpdates("worker:3", 0.001, said.append).record(0.9)
    assert said == []


def test_an_update_that_no_check_has_run_is_compared_with_the_quickest() -> None:
    said: list[str] = []
    now = [0.0]
    slow = SlowUpdates("worker:3", None, said.append, lambda: now[0])
    slow.record(49.0)  # the first may take long: so long do large shards take on slow machines
    slow.record(2.0)
    slow.record(9.9)
    assert said == []
    slow.record(22.0)
    assert said[0].startswith("WARNING: an update took 22.0 s; 2 s is usual. worker:3 has defined the program")


def test_a_program_that_was_always_slow_names_its_definer_too() -> None:
    said: list[str] = []
    SlowUpdates("worker:3", None, said.append).record(70.0)
    assert said[0].startswith("WARNING: an update took 70.0 s; 10 s is usual.")
