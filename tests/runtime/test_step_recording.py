"""Recording steps, moment by moment."""

from __future__ import annotations

from trainband.runtime.step_recording import LONGEST_S, PushTimes, StepRecorder
from trainband.runtime.step_times import StepTimes


class Ticks:
    """A clock that is set by hand."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_whole_steps_are_recorded_and_then_no_more() -> None:
    clock = Ticks()
    times = StepTimes()
    recorder = times.recorder = StepRecorder(2, clock)

    def step(number: int) -> None:
        times.record("compute", clock.now, clock.now + 1.0)
        if times.recorder is not None:
            times.recorder.push(PushTimes("ps:0", 8, 8, clock.now, clock.now, clock.now))
        clock.now += 1.5
        times.end_step(number)

    for number in range(1, 5):  # the first is under way already, and the last comes too late
        step(number)
    assert recorder.is_over
    recording = recorder.recording("worker:0", "here", 7)
    assert [(span.name, span.begin, span.end, span.global_step) for span in recording.spans] == [
        ("compute", 1.5, 2.5, 0),
        ("step", 1.5, 3.0, 2),
        ("compute", 3.0, 4.0, 0),
        ("step", 3.0, 4.5, 3),
    ]
    assert [push.begin for push in recording.pushes] == [1.5, 3.0]
    assert times.compute == 4.0


def test_it_ends_after_a_minute_with_what_it_has() -> None:
    clock = Ticks()
    recorder = StepRecorder(10, clock)
    recorder.start_step()
    over = []
    for now in (LONGEST_S / 2, LONGEST_S + 1):
        clock.now = now
        over.append(recorder.is_over)
        recorder.end_step(1)
    assert over == [False, True]
    assert len(recorder.recording("worker:0", "here", 7).spans) == 2
