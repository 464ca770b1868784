"""What must be true of every job of workers that compute in lockstep, whatever goes wrong."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

from tests.simulation.faults import Cut, Pause
from tests.simulation.history import Violation
from tests.simulation.in_step.job import Agreed, Ended, Happened, Outcome, Said, Trained, Waited
from tests.simulation.in_step.scenario import (
    CHIEF,
    TIMEOUT_S,
    Crowds,
    Evaluates,
    Fault,
    Hangs,
    Restarts,
    Strays,
)
from tests.simulation.network import CALM
from trainband.runtime.waiting import FIRST_NOTICE_S, NOTICE_EVERY_S
from trainband.spmd.failure_detector import ALARMED_S, BEAT_S, COME_OUT_S, LINGER_S

ENDS = "a process does not end"
NAMED = "an error names a task other than the one that has failed"
SILENT = "a process waits and does not report for which task"
WAITED = "a process names a task other than the one that it waits for"
TOGETHER = "processes end at different steps, or have different answers"
BROKEN = "something has happened that must not"

STALE_S = 4.0
"""How long after an outage of the network or a process the heartbeats may be old."""

ACCUSED = re.compile(
    r"(worker:\d+) (?:at \S+ (?:is gone|is stuck|has left)|has failed|did not come up)"
    r"|(?<=but )(worker:\d+), though alive"
)
MISSING = re.compile(r"for (worker:\d+(?:, worker:\d+)*)(?: at \S+)? to (?:come up;|answer)")
ALL_LIVE = "all workers are alive and have waited for one another"


def violations(outcome: Outcome) -> list[Violation]:
    """Every promise that a job has broken, in the order of time."""
    found = [*_ends(outcome), *_names(outcome), *_Waits(outcome).violations(), *_together(outcome)]
    return sorted(found, key=lambda violation: violation.at)


def faults_of(outcome: Outcome) -> list[tuple[float, Fault]]:
    """Returns the faults that have happened, and when."""
    found = [(one.at, one.what) for one in outcome.history if isinstance(one, Happened)]
    return [(at, what) for at, what in found if not isinstance(what, str)]


def is_harmful(fault: Fault) -> bool:
    """Whether the job cannot continue."""
    if isinstance(fault, Pause | Cut):
        return fault.length_s > TIMEOUT_S
    return not isinstance(fault, Evaluates | Restarts | Crowds)


def _ends(outcome: Outcome) -> Iterator[Violation]:
    hung = {fault.task for _, fault in faults_of(outcome) if isinstance(fault, Hangs)}
    for index in outcome.unfinished:
        if f"worker:{index}" not in hung:
            yield Violation(outcome.history[-1].at, ENDS, f"worker:{index} is not at its end")


def _names(outcome: Outcome) -> Iterator[Violation]:
    harmful = [fault for _, fault in faults_of(outcome) if is_harmful(fault)]
    ended: set[str] = set()
    for one in outcome.history:
        if isinstance(one, Ended):
            ended.add(f"worker:{one.worker}")
        if isinstance(one, Ended) and one.why not in ("well", "killed"):
            who = f"worker:{one.worker}"
            # If the network is slow, the chief does not stay long enough for all to read why.
            is_cut_short = outcome.scenario.weather is not CALM and f"{CHIEF} at worker-0:2222 is gone" in one.why
            missing = MISSING.search(one.why)
            # Those that have waited for another may have given up before this one. The chief would say so.
            have_given_up = harmful and missing and ended - {CHIEF} >= set(missing[1].split(", "))
            if not (have_given_up or any(is_cut_short or _is_right(one.why, who, fault) for fault in harmful)):
                yield Violation(one.at, NAMED, f"{who} ends: {one.why}")


def _is_right(why: str, who: str, fault: Fault) -> bool:
    """Whether a process may end for this reason because of this fault."""
    accused = ACCUSED.search(why)
    named = None if accused is None else accused[1] or accused[2]
    ends = {fault.source, fault.target or CHIEF} if isinstance(fault, Cut) else {fault.task}
    if missing := MISSING.search(why):
        names = missing[1].split(", ")
        named = next((name for name in names if name in ends), names[0])
    if isinstance(fault, Cut):
        if CHIEF not in ends:  # those two do not know it, and no other process can
            return named in ends or ALL_LIVE in why
        if who not in ends:
            return named in ends - ({CHIEF} if fault.target or fault.source != CHIEF else set())
        if who == CHIEF and not fault.target:
            return named is not None
        return named in ends - {who}
    if who == fault.task:
        return True  # it knows of itself, or the others had gone when it continued
    if isinstance(fault, Strays):
        return fault.task in why
    if "is stuck" in why and not isinstance(fault, Hangs):
        return False
    return named == fault.task


def _together(outcome: Outcome) -> Iterator[Violation]:
    answers: dict[str, tuple[int, str]] = {}
    trained: dict[int, Trained] = {}
    for one in outcome.history:
        if isinstance(one, Agreed):
            first, values = answers.setdefault(one.key, (one.worker, one.values))
            if values != one.values:
                text = f"{one.key}: {values} for worker:{first}, {one.values} for worker:{one.worker}"
                yield Violation(one.at, TOGETHER, text)
        elif isinstance(one, Trained):
            before = trained.setdefault(one.training, one)
            # If none was made, several may have ended it, each for its own reason.
            compared = slice(3, 6 if one.step == one.begun else None)
            if before[compared] != one[compared] or one.step != one.applied:
                yield Violation(one.at, TOGETHER, f"{before} and {one}")
        elif isinstance(one, Happened) and isinstance(one.what, str):
            yield Violation(one.at, BROKEN, f"worker:{one.worker}: {one.what}")


class _Waits:
    """Compares what processes report of their waits with what they waited for."""

    def __init__(self, outcome: Outcome) -> None:
        self._outcome = outcome
        self._slack_s = 1.0 if outcome.scenario.weather is CALM else 8.0
        self._said = defaultdict(list)
        self._died: dict[int, float] = {}
        self._known_at: dict[int, float] = {}
        """When each process that a failure ended from outside, in C++, knew of it."""
        for one in outcome.history:
            if isinstance(one, Said) and one.text.startswith("waiting for "):
                self._said[one.worker].append(one)
            elif isinstance(one, Said) and one.text.startswith("ERROR"):
                self._known_at[one.worker] = one.at - COME_OUT_S - BEAT_S
            elif isinstance(one, Ended) and one.why not in ("well", "killed"):
                self._known_at.setdefault(one.worker, one.at - COME_OUT_S - BEAT_S - LINGER_S * (not one.worker))
            if isinstance(one, Ended):
                self._died[one.worker] = one.at

    def violations(self) -> Iterator[Violation]:
        """Yields all reports that were wrong or missing."""
        for wait in self._outcome.history:
            if isinstance(wait, Waited) and wait.exchange not in self._outcome.first_calls:  # all are compiling then
                yield from self._of(wait)

    def _of(self, wait: Waited) -> Iterator[Violation]:
        if any(self._is_frozen(wait.worker, at) for at in (wait.at, wait.until)) or self._freezes_in(wait):
            return
        if wait.exchange is not None and self._is_cut_elsewhere(wait):
            return  # all live and wait, as in a step that takes long
        lines = [line for line in self._said[wait.worker] if wait.at <= line.at <= wait.until]
        due = wait.at + FIRST_NOTICE_S
        for at in [*(line.at for line in lines), min(wait.until, self._known_at.get(wait.worker, wait.until))]:
            # If the chief is silent, a process knows that later.
            is_silent = any(self._is_silent(wait.worker, 0, when) for when in (wait.at, due, min(at, due + ALARMED_S)))
            if at > due + self._slack_s + ALARMED_S * is_silent:
                yield Violation(due, SILENT, f"worker:{wait.worker} until {at:.1f} s, {wait}")
                break
            due = at + NOTICE_EVERY_S
        for line in lines:
            if fault := self._wrong(wait, line, set(re.findall(r"worker:\d+", line.text))):
                yield Violation(line.at, WAITED, f"worker:{line.worker} says '{line.text}', but {fault}; {wait}")

    def _wrong(self, wait: Waited, line: Said, named: set[str]) -> str:
        is_slow = self._outcome.scenario.weather is not CALM  # the store may not answer for a while
        if named == {CHIEF} and (is_slow or self._is_silent(wait.worker, 0, line.at)):
            return ""
        others = [index for index in range(self._outcome.scenario.workers) if index != wait.worker or not wait.exchange]
        missing = {f"worker:{i}" for i in others if not self._has_come(wait, i, line.at)}
        stale = self._is_stale(line.at)
        before = line.at - self._slack_s - STALE_S * stale
        late = {
            f"worker:{index}"
            for index in others
            if not self._has_come(wait, index, before)
            or self._is_silent(wait.worker, index, line.at)
            or self._is_silent(0, index, line.at)
            or not any(line.at - ALARMED_S < at < line.at - BEAT_S for at in self._outcome.beats[index])
            or self._evaluates(index, line.at)  # in a call before, it has said what it brings to this exchange
        }
        if not named <= late:
            return f"{', '.join(sorted(named - late))} has come"
        if wait.exchange is None and not missing <= named:
            return f"{', '.join(sorted(missing - named))} has not come"
        if stale:
            return ""  # it knows less of the others
        missing = {name for name in missing if not self._waits_too(int(name[7:]), line.at)}
        if missing and not named & missing:
            return f"{', '.join(sorted(missing))} has not come"
        return ""

    def _has_come(self, wait: Waited, index: int, at: float) -> bool:
        if wait.exchange is not None:
            sent = self._outcome.exchanges[index]
            return len(sent) > wait.exchange and sent[wait.exchange] <= at
        sent_at = self._outcome.sent
        if wait.key in sent_at:  # the chief's alone
            return index > 0 or sent_at[wait.key] <= at
        return sent_at.get(f"{wait.key}/{index}", at + 1.0) <= at

    def _is_silent(self, index: int, other: int, at: float) -> bool:
        """Whether nothing from another process reaches this one."""
        names = {f"worker:{index}", f"worker:{other}"}
        cuts = [
            fault
            for since, fault in faults_of(self._outcome)
            if isinstance(fault, Cut) and since <= at <= since + 2 * fault.length_s
        ]
        is_cut = any(fault.source in names and (not fault.target or fault.target in names) for fault in cuts)
        return is_cut or self._is_frozen(other, at) or self._died.get(other, at + 1.0) <= at

    def _is_frozen(self, index: int, at: float) -> bool:
        return any(since <= at <= until + self._slack_s for since, until in self._pauses(index))

    def _is_stale(self, at: float) -> bool:
        """Whether heartbeats may be late."""
        lengths = [
            (since, fault.length_s) for since, fault in faults_of(self._outcome) if isinstance(fault, Cut | Pause)
        ]
        return any(since <= at <= since + 2 * length_s + STALE_S for since, length_s in lengths)

    def _evaluates(self, index: int, at: float) -> bool:
        return any(
            isinstance(fault, Evaluates)
            and fault.task == f"worker:{index}"
            and since <= at <= since + fault.length_s + 1
            for since, fault in faults_of(self._outcome)
        )

    def _waits_too(self, index: int, at: float) -> bool:
        """Whether a process that has not come waits for others itself."""
        waits = (one for one in self._outcome.history if isinstance(one, Waited) and one.worker == index)
        return any(one.at <= at <= one.until for one in waits)

    def _is_cut_elsewhere(self, wait: Waited) -> bool:
        return any(
            isinstance(fault, Cut)
            and CHIEF not in (fault.source, fault.target or CHIEF)
            and since <= wait.until
            and wait.at <= since + 2 * fault.length_s
            for since, fault in faults_of(self._outcome)
        )

    def _freezes_in(self, wait: Waited) -> bool:
        return any(wait.at <= since <= wait.until for since, _ in self._pauses(wait.worker))

    def _pauses(self, index: int) -> list[tuple[float, float]]:
        return [
            (at, at + fault.length_s)
            for at, fault in faults_of(self._outcome)
            if isinstance(fault, Pause) and fault.task == f"worker:{index}"
        ]
