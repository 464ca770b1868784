"""Planted bugs: the shipped process group with one fault each, to show that the promises find it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any, NamedTuple
from unittest import mock

from tests.simulation.faults import Pause
from tests.simulation.in_step import connection, promises
from tests.simulation.in_step.scenario import TIMEOUT_S, Scenario
from tests.simulation.network import CALM
from tests.simulation.planted import instead, patched
from tests.simulation.run import Plant
from trainband.errors import AuthenticationError
from trainband.spmd import coordinator_proxy, failure_detector, rendezvous
from trainband.spmd.coordinator_proxy import CoordinatorProxy
from trainband.spmd.end_of_training import EndOfTraining
from trainband.spmd.failure_detector import FailureDetector
from trainband.spmd.peer_heartbeats import PeerHeartbeats
from trainband.spmd.pipeline import Pipeline
from trainband.spmd.process_activity import Activity
from trainband.spmd.process_group import ProcessGroup
from trainband.spmd.proof import Proof


def names_all(original: Any) -> Any:
    """A waiting process names all others, even those that have come."""

    def said(self: Activity, whom: str) -> None:
        original(self, whom and "worker:0, worker:1, worker:2, worker:3")

    return said


def one_call_less(original: Any) -> Any:
    """A process takes part in too few of the calls after the training's end."""
    return lambda self, until=0: original(self, until - 1 if until else 0)


def blames_the_messenger(original: Any) -> Any:
    """A process that finds another one gone publishes itself as the failure, without a reason."""
    return lambda self, *_: original(self, self._index, f"{self._task} has failed")


def from_the_beginning(original: Any) -> Any:
    """A process that was never heard counts as silent since time began."""

    def note(self: PeerHeartbeats, index: int, said: Any, now: float) -> None:
        is_new = index not in self
        original(self, index, said, now)
        if is_new:
            self[index].since = 0.0

    return note


def asks_in_turn(_: Any) -> Any:
    """The chief asks one caller for a proof after another."""
    return lambda self, caller: self._ask(caller)


def breaks_with_the_service(original: Any) -> Any:
    """The proxy closes the connection of JAX's client when that to the service has ended."""

    def connect(self: CoordinatorProxy, inner: Any) -> None:
        original(self, inner)
        coordinator_proxy.end(inner)

    return connect


def takes_gone_for_refused(original: Any) -> Any:
    """A caller takes a listener that hangs up for one that has refused it."""

    def give(*given: Any) -> None:
        try:
            original(*given)
        except ConnectionError:
            raise AuthenticationError("the other end does not know the secret.") from None

    return give


def keeps_its_reason(original: Any) -> Any:
    """A chief that gives up does not report why."""
    return lambda connection, message: None if message.startswith(rendezvous.GAVE_UP) else original(connection, message)


def bound(name: str, seconds: float) -> Plant:
    """One of the detector's time limits is changed."""
    return changed(failure_detector, name, seconds)


def changed(module: Any, name: str, value: Any) -> Plant:
    """A name of a module has another value."""
    return lambda: mock.patch.object(module, name, value)


def falls_silent_in_a_long_step(seed: int) -> Scenario:
    """A worker takes longer for a batch than others want to wait, and is stopped meanwhile."""
    return Scenario.of(seed)._replace(
        workers=2,
        per_call=1,
        limits=(None,),
        data=((20, 20),),
        stops=(None,),
        starts=(0.0, 0.5),
        step_s=(0.05, 5.0),
        weather=CALM,
        faults=(Pause(6.0 + 0.7 * seed, "worker:1", 3 * TIMEOUT_S),),
    )


def falls_silent_before_all_have_come(seed: int) -> Scenario:
    """The chief is stopped while another worker waits for the last one."""
    scenario = falls_silent_in_a_long_step(seed)
    return scenario._replace(
        workers=3,
        data=((20, 20, 20),),
        starts=(0.0, 0.1, 8.0),
        step_s=(0.05, 0.05, 0.05),
        faults=(Pause(2.0, "worker:0", 3 * TIMEOUT_S),),
    )


class Planted(NamedTuple):
    """A bug: its patch, the promise that it breaks, and the first seed and the jobs that must find it."""

    plant: Plant
    finds: str
    first: int = 0
    scenario: Callable[[int], Scenario] = Scenario.of


PLANTED: Mapping[str, Planted] = {
    "names-all": Planted(patched((Activity, "report_wait", names_all)), promises.WAITED),
    "says-nothing": Planted(patched((Activity, "report_wait", instead(lambda *_: None))), promises.SILENT),
    "keeps-refused": Planted(patched((Pipeline, "_revert", instead(lambda *_: None))), promises.TOGETHER),
    "one-call-less": Planted(patched((EndOfTraining, "reach", one_call_less)), promises.NAMED),
    "messenger": Planted(patched((FailureDetector, "accuse", blames_the_messenger)), promises.NAMED),
    "never-heard": Planted(patched((PeerHeartbeats, "record", from_the_beginning)), promises.NAMED),
    "hasty": Planted(bound("CROSSED_S", -10.0), promises.NAMED),
    "lives-on": Planted(bound("ALARMED_S", 1e9), promises.NAMED, scenario=falls_silent_in_a_long_step),
    "crosses-unseen": Planted(
        patched((FailureDetector, "_check_crossed_waits", instead(lambda _: None))), promises.NAMED, 286
    ),
    # As the code was before this was found.
    "asks-unseen": Planted(patched((ProcessGroup, "_asking", instead(lambda _: nullcontext()))), promises.ENDS, 20),
    "keeps-the-dead": Planted(changed(rendezvous, "has_ended", lambda _: False), promises.NAMED, 35),
    "asks-in-turn": Planted(patched((rendezvous._Callers, "ask", asks_in_turn)), promises.NAMED),  # noqa: SLF001
    "breaks": Planted(patched((CoordinatorProxy, "_connect", breaks_with_the_service)), promises.BROKEN),
    # As the code was before these were found.
    "close-only": Planted(changed(coordinator_proxy, "end", lambda _: None), promises.ENDS),
    "gone-is-refused": Planted(patched((Proof, "present", takes_gone_for_refused)), promises.BROKEN),
    "keeps-its-reason": Planted(changed(rendezvous, "_send", keeps_its_reason(rendezvous._send)), promises.NAMED),  # noqa: SLF001
    "believes-the-silent": Planted(
        changed(rendezvous, "SILENT_S", 1e9), promises.NAMED, scenario=falls_silent_before_all_have_come
    ),
    "waits-for-the-dead": Planted(changed(connection, "connecting", lambda *_: nullcontext()), promises.ENDS, 21),
}
"""Every planted bug by its name."""
