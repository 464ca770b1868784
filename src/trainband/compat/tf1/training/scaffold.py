"""Scaffold and session creators: they initialise or restore the variables of a session."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trainband.compat.tf1.graphs.config import ConfigProto
from trainband.compat.tf1.graphs.graph import Graph, get_default_graph
from trainband.compat.tf1.graphs.graph_keys import GraphKeys
from trainband.compat.tf1.operations.control_flow import group
from trainband.compat.tf1.operations.state import (
    global_variables,
    global_variables_initializer,
    local_variables_initializer,
    report_uninitialized_variables,
    tables_initializer,
)
from trainband.compat.tf1.sessions.job_store import JobSettings
from trainband.compat.tf1.sessions.session import Session
from trainband.compat.tf1.training.readiness import Readiness, begin
from trainband.compat.tf1.training.saver import Saver, default_saver
from trainband.compat.tf1.training.summary_hooks import default_summary
from trainband.runtime.overrides import override

_MEMBERS = (
    "init_op",
    "init_feed_dict",
    "ready_op",
    "ready_for_local_init_op",
    "local_init_op",
    "local_init_feed_dict",
    "summary_op",
    "saver",
)


class Scaffold:
    """What a session needs to start. What is not passed is created when the graph is finalized.

    Args:
      init_fn: called with the scaffold and the session, once `init_op` has run.
      ready_op, ready_for_local_init_op: give the names of what is not ready after, and before, `local_init_op` runs.
      copy_from_scaffold: supplies what is not passed.

    Raises:
      TypeError: `copy_from_scaffold` is no scaffold.
    """

    def __init__(
        self,
        init_op: Any = None,
        init_feed_dict: Any = None,
        init_fn: Callable[[Scaffold, Session], Any] | None = None,
        ready_op: Any = None,
        ready_for_local_init_op: Any = None,
        local_init_op: Any = None,
        summary_op: Any = None,
        saver: Saver | None = None,
        copy_from_scaffold: Scaffold | None = None,
        local_init_feed_dict: Any = None,
    ) -> None:
        if copy_from_scaffold is not None and not isinstance(copy_from_scaffold, Scaffold):
            raise TypeError("copy_from_scaffold is not a Scaffold instance.")
        self._given_init_fn = init_fn
        if init_fn is None and copy_from_scaffold is not None:
            self._given_init_fn = copy_from_scaffold._given_init_fn  # noqa: SLF001 - another of this class
        self.init_op, self.init_feed_dict = init_op, init_feed_dict
        self.ready_op, self.ready_for_local_init_op = ready_op, ready_for_local_init_op
        self.local_init_op, self.local_init_feed_dict = local_init_op, local_init_feed_dict
        self.summary_op, self.saver = summary_op, saver
        for name in _MEMBERS if copy_from_scaffold is not None else ():
            if getattr(self, name) is None:
                setattr(self, name, getattr(copy_from_scaffold, name))

    @property
    def init_fn(self) -> Callable[[Session], Any] | None:
        """Of a session: what is called once `init_op` has run."""
        given = self._given_init_fn
        return None if given is None else lambda session: given(self, session)

    def finalize(self) -> Scaffold:
        """Creates what was not passed, and finalizes the graph.

        Raises:
          RuntimeError: a collection lists several of what was not passed.
        """
        graph, find = get_default_graph(), self.get_or_default
        if self.init_op is None:
            self.init_op = find("init_op", GraphKeys.INIT_OP, lambda: group(global_variables_initializer()))
        if self.ready_op is None:
            self.ready_op = find("ready_op", GraphKeys.READY_OP, report_uninitialized_variables)
        if self.ready_for_local_init_op is None:
            self.ready_for_local_init_op = find(
                "ready_for_local_init_op", "ready_for_local_init_op", ready_for_local_init
            )
        if self.local_init_op is None:
            self.local_init_op = find("local_init_op", GraphKeys.LOCAL_INIT_OP, self.default_local_init_op)
        if self.summary_op is None:
            self.summary_op = default_summary(graph)
        if self.saver is None:
            self.saver = default_saver(graph)
        graph.finalize()
        return self

    @staticmethod
    def get_or_default(arg_name: str, collection_key: str, default_constructor: Callable[[], Any]) -> Any:
        """The only item of a collection, which is made and put there if there is none.

        Raises:
          RuntimeError: there are several.
        """
        graph = get_default_graph()
        found = graph.get_collection(collection_key)
        if len(found) > 1:
            raise RuntimeError(
                f'More than one item in the collection "{collection_key}". Please indicate which one to use by passing '
                f"it to the tf.Scaffold constructor as:  tf.Scaffold({arg_name}=item to use)"
            )
        if found:
            return found[0]
        made = default_constructor()
        if made is not None:
            graph.add_to_collection(collection_key, made)
        return made

    @staticmethod
    def default_local_init_op() -> Any:
        """What initialises local variables and tables."""
        return group(local_variables_initializer(), tables_initializer())


def ready_for_local_init() -> Any:
    """The names of shared variables that have no value."""
    return report_uninitialized_variables(global_variables(), "report_uninitialized_variables_1")


class SessionCreator:
    """Makes sessions."""

    def create_session(self) -> Session:
        """A session with values in all variables."""
        raise NotImplementedError


class ChiefSessionCreator(SessionCreator):
    """Makes a session whose variables it initialises or restores."""

    is_chief = True

    def __init__(
        self,
        scaffold: Scaffold | None = None,
        master: str = "",
        config: ConfigProto | None = None,
        checkpoint_dir: Any = None,
        checkpoint_filename_with_path: str | None = None,
        settings: JobSettings | None = None,
    ) -> None:
        self.scaffold = scaffold or Scaffold()
        self._master, self._config = master, config
        self._directory = None if checkpoint_dir is None else str(checkpoint_dir)
        self._path = checkpoint_filename_with_path
        self._settings = settings

    def end_at(self, last_step: int | None) -> None:
        """Has a job end at a global step, unless its settings were given."""
        self._settings = self._settings or JobSettings(checkpoint_dir=self._directory, last_step=last_step)

    @override
    def create_session(self) -> Session:
        scaffold = self.scaffold.finalize()
        graph: Graph = get_default_graph()
        session = Session(self._master, graph, self._config)
        begin(
            session,
            Readiness(
                scaffold.local_init_op,
                scaffold.local_init_feed_dict,
                scaffold.ready_op,
                scaffold.ready_for_local_init_op,
            ),
            is_chief=self.is_chief,
            init_op=scaffold.init_op,
            init_feed_dict=scaffold.init_feed_dict,
            init_fn=scaffold.init_fn,
            saver=scaffold.saver,
            checkpoint_dir=self._directory,
            checkpoint_path=self._path,
            settings=self._settings or JobSettings(checkpoint_dir=self._directory),
        )
        return session


class WorkerSessionCreator(ChiefSessionCreator):
    """Makes a session whose variables the chief initialises."""

    is_chief = False

    def __init__(
        self,
        scaffold: Scaffold | None = None,
        master: str = "",
        config: ConfigProto | None = None,
        max_wait_secs: float = 1800,  # noqa: ARG002 - trainband's Timeouts.start_s
        settings: JobSettings | None = None,
    ) -> None:
        super().__init__(scaffold, master, config, settings=settings)
