"""The basic training loop: a supervisor, and a function that makes a step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trainband.compat.tf1.graphs.errors import AbortedError
from trainband.compat.tf1.training.supervisor import Supervisor


def basic_train_loop(
    supervisor: Supervisor,
    train_step_fn: Callable[..., Any],
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    master: str = "",
) -> None:
    """Calls a function of a session until the supervisor says to stop; a session that is aborted is made anew."""
    while not supervisor.should_stop():
        try:
            with supervisor.managed_session(master) as session:
                while not supervisor.should_stop():
                    train_step_fn(session, *(args or ()), **(kwargs or {}))
        except AbortedError:
            supervisor.coord.clear_stop()
