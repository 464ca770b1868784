"""Session: runs parts of a graph; each set of fetches is one compiled function."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import NoneType, TracebackType
from typing import Any

import numpy as np

from trainband.compat.ops.dtypes import DType, array_of, string
from trainband.compat.tf1.graphs import default_session
from trainband.compat.tf1.graphs.config import ConfigProto, RunOptions
from trainband.compat.tf1.graphs.deadline import within
from trainband.compat.tf1.graphs.errors import UnimplementedError
from trainband.compat.tf1.graphs.graph import Graph, Operation, Tensor, get_default_graph
from trainband.compat.tf1.graphs.hosted import Resources, is_hosted
from trainband.compat.tf1.graphs.lowering import Computation
from trainband.compat.tf1.graphs.slices import IndexedSlices, IndexedSlicesValue
from trainband.compat.tf1.graphs.sparse import SparseTensor, SparseTensorValue, fed_parts
from trainband.compat.tf1.graphs.variable import Variable
from trainband.compat.tf1.graphs.where import user_line
from trainband.compat.tf1.protos.run_metadata import note_run
from trainband.compat.tf1.sessions.fetches import Fetches
from trainband.compat.tf1.sessions.host_stage import HostStage
from trainband.compat.tf1.sessions.one_element import fetched
from trainband.compat.tf1.sessions.partial_run import PartialRun
from trainband.compat.tf1.sessions.split_run import Found, SplitRun
from trainband.compat.tf1.sessions.store import Store, Turn
from trainband.compat.tf1.sessions.targets import store_for


@dataclass(frozen=True, eq=False, slots=True)
class Prepared:
    """A set of fetches and fed tensors, ready to run.

    Attributes:
      stage: the part that Python computes before.
      computation: the part that is compiled; `None` where there is nothing to compute.
      build: makes what the script gets from the values of tensors and variables.
      asked: tensors whose values the session itself supplies.
    """

    stage: HostStage
    computation: SplitRun | None
    build: Callable[[Sequence[Any], Sequence[Any], Sequence[Any]], Any]
    asked: tuple[Tensor, ...]
    fed: tuple[Tensor, ...]


class Session:
    """Runs a graph.

    Args:
      target: a server's `target`, for a session whose variables live on its cluster's ps; empty: in this process.
      graph: what is run; the default graph if none is given.
      config: see `ConfigProto`.

    Raises:
      UnimplementedError: the target is a server of another process.
    """

    def __init__(self, target: str = "", graph: Graph | None = None, config: ConfigProto | None = None) -> None:
        self._graph = graph or get_default_graph()
        self._config = config or ConfigProto()
        self._target = str(target or "")
        self._store: Store = store_for(self._target, self._graph, self._config)
        self._prepared: dict[Any, Prepared] = {}
        self._closed = False
        self._entered: list[Any] = []
        self._resources = Resources()
        self._lock = threading.Lock()
        self._parts: dict[str, PartialRun] = {}

    @property
    def graph(self) -> Graph:
        """What is run."""
        return self._graph

    @property
    def graph_def(self) -> Any:
        """The graph as a list of its operations."""
        return self._graph.as_graph_def()

    @property
    def sess_str(self) -> str:
        """The target."""
        return self._target

    @property
    def store(self) -> Store:
        """Where the variables are."""
        return self._store

    @property
    def _sess(self) -> Session:  # scripts go down by this name from a monitored session
        return self

    @property
    def closed(self) -> bool:
        """Whether it is closed."""
        return self._closed

    def run(self, fetches: Any, feed_dict: Any = None, options: Any = None, run_metadata: Any = None) -> Any:
        """Return the values of the fetches, in their structure; `None` for an operation.

        Args:
          options: `timeout_in_ms` limits what it waits for, such as elements of queues.
          run_metadata: gets how long the run has taken, where `options` ask for a trace.

        Raises:
          DeadlineExceededError: what it waits for is not there in time.
          RuntimeError: it is closed, or the graph is empty.
          TypeError, ValueError: something cannot be fetched, or fed.
          InvalidArgumentError: a placeholder is not fed, or a device is not there.
          FailedPreconditionError: a variable has no value yet.
        """
        set_here = {**vars(self._config), **vars(options or RunOptions())}
        limit = set_here.get("timeout_in_ms") or set_here.get("operation_timeout_in_ms") or 0
        begin = time.time()
        with within(int(limit)):
            found = self._run(fetches, feed_dict)
        if run_metadata is not None and set_here.get("trace_level"):
            note_run(run_metadata, self._store.devices.names()[0], begin, time.time())
        return found

    def _run(self, fetches: Any, feed_dict: Any) -> Any:
        if self._closed:
            raise RuntimeError("Attempted to use a closed Session.")
        if not self._graph.operations:
            raise RuntimeError("The Session graph is empty. Add operations to the graph before calling run().")
        feeds = {self._fed(key): (key, value) for key, value in _single_feeds(feed_dict)} if feed_dict else {}
        form = Fetches(fetches)
        key = (form.key, tuple(feeds))
        prepared = self._prepared.get(key)
        if prepared is None:
            prepared = self._prepared[key] = self._prepare(form, tuple(feeds))
        given = {tensor: _as_fed(tensor, value) for tensor, (_, value) in feeds.items()}
        if prepared.stage:
            given = prepared.stage.run(given, self._resources, self._run_compiled)
        answers = [given[tensor] if tensor in given else self._answer(tensor) for tensor in prepared.asked]
        if prepared.computation is None:
            return prepared.build((), (), answers)
        with self._lock:
            values, late = prepared.computation.run(given, self._store.run)
        return prepared.build(values, late, answers)

    def _run_compiled(self, computation: Computation, feeds: Sequence[Any], turn: Turn) -> Found:
        if not computation.reads and not computation.writes:
            # Threads that prepare data do not wait for a training step.
            return self._store.run(computation, feeds, turn)
        with self._lock:
            return self._store.run(computation, feeds, turn)

    def partial_run_setup(self, fetches: Any, feeds: Any = None) -> str:
        """Announce what is fetched and fed in parts; returns a handle for `partial_run`."""
        handle = f"partial run {len(self._parts)}"
        elements = [self._element(leaf) for leaf in Fetches(fetches).leaves]
        self._parts[handle] = PartialRun(elements, [self._fed(one) for one in feeds or ()])
        return handle

    def partial_run(self, handle: str, fetches: Any, feed_dict: Any = None) -> Any:
        """Run a part of what was announced.

        Raises:
          InvalidArgumentError: it asks for, or feeds, what was not announced, or does so twice.
        """
        part, form = self._parts[handle], Fetches(fetches)
        elements = [self._element(leaf) for leaf in form.leaves]
        given = {self._fed(key): value for key, value in _single_feeds(feed_dict or {})}
        values = self.run(elements, part.feeds(elements, given))
        part.found(elements, values)
        return form.build(values)

    def make_callable(
        self, fetches: Any, feed_list: Sequence[Any] | None = None, accept_options: bool = False
    ) -> Callable[..., Any]:
        """A function of the values of `feed_list` that runs `fetches`; with `accept_options`, also of `run`'s options.

        Raises:
          TypeError: `feed_list` is not a list.
        """
        if feed_list is not None and not isinstance(feed_list, list | tuple):
            raise TypeError(f"Argument `feed_list` must be a list or tuple. Received: {feed_list!r}")
        keys = list(feed_list or ())

        def run(*values: Any) -> Any:
            return self.run(fetches, dict(zip(keys, values, strict=True)))

        def run_with_options(*values: Any, options: Any = None, run_metadata: Any = None) -> Any:
            return self.run(fetches, dict(zip(keys, values, strict=True)), options, run_metadata)

        return run_with_options if accept_options else run

    def list_devices(self) -> list[str]:
        """The devices that operations can be put on."""
        return self._store.devices.names()

    def _fed(self, key: Any) -> Tensor:
        try:
            element = self._graph.as_graph_element(key, allow_operation=False)
        except (KeyError, ValueError, TypeError) as exc:
            raise TypeError(f"Cannot interpret feed_dict key as Tensor: {exc} (at {user_line()})") from exc
        if not isinstance(element, Tensor):
            raise TypeError(f"Cannot interpret feed_dict key as Tensor: {key!r} (at {user_line()})")
        if not self._graph.is_feedable(element):
            raise ValueError(f"Tensor {element.name} may not be fed. (at {user_line()})")
        return element

    def _prepare(self, form: Fetches, fed: tuple[Tensor, ...]) -> Prepared:
        elements = [self._element(leaf) for leaf in form.leaves]
        for element in elements:
            if not self._graph.is_fetchable(element):
                raise ValueError(f"{element.name} has been marked as not fetchable. (at {user_line()})")
        tensors, late, asked, readers = (
            list[Tensor](),
            dict[str, Variable](),
            list[Tensor](),
            list[Callable[..., Any]](),
        )
        operations: list[Operation] = []
        for element in elements:
            readers.append(_reader(element, tensors, late, asked, operations, set(fed)))
        stage = HostStage([*operations, *tensors, *asked], fed)
        targets: list[Tensor | Operation] = [*(op for op in operations if not is_hosted(op)), *tensors]
        computation = None
        if targets or late:
            known = [*(t for t in fed if t.dtype != string), *stage.given]
            computation = Computation(targets, known, late=tuple(late), late_variables=late)
            if stage:  # sizes that only Python sees are none to compile for
                used = {*targets, *stage.used_by(computation.schedule.needed)}
                known = [t for t in known if t in used]
                computation = Computation(targets, known, late=tuple(late), late_variables=late)
            for op in computation.schedule.needed:
                self._store.devices.check(op)
            if self._config.log_device_placement:
                for op in computation.schedule.needed:
                    print(f"{op.name}: ({op.type}): {op.device or '/device:CPU:0'}")

        def build(values: Sequence[Any], states: Sequence[Any], answers: Sequence[Any]) -> Any:
            return form.build([reader(values, states, answers) for reader in readers])

        split = None if computation is None else SplitRun(computation)
        return Prepared(stage, split, build, tuple(asked), fed)

    def _element(self, leaf: Any) -> Any:
        if isinstance(leaf, IndexedSlices | SparseTensor):
            return leaf
        try:
            return self._graph.as_graph_element(leaf)
        except TypeError as exc:
            raise TypeError(
                f"Fetch argument {leaf!r} has invalid type {type(leaf).__name__}, must be a string or Tensor. ({exc}) "
                f"(at {user_line()})"
            ) from exc
        except KeyError as exc:
            raise ValueError(
                f"Fetch argument {leaf!r} cannot be interpreted as a Tensor. ({exc.args[0]}) (at {user_line()})"
            ) from exc
        except ValueError as exc:
            raise ValueError(
                f"Fetch argument {leaf!r} cannot be interpreted as a Tensor. ({exc}) (at {user_line()})"
            ) from exc

    def _answer(self, tensor: Tensor) -> Any:
        if tensor.op.type == "Const":
            return tensor.op.compute()[0]
        if "asks" not in tensor.op.attributes:
            raise UnimplementedError(None, tensor.op, "Strings that are chosen during a compiled run cannot be fetched")
        missing = self._store.missing(tensor.op.attributes["asks"])
        if tensor.op.type == "IsVariableInitialized":
            return np.bool_(not missing)
        return np.array([name.encode() for name in missing], dtype=object)

    # --- its life

    def close(self) -> None:
        """Releases everything. Idempotent."""
        if not self._closed:
            self._closed = True
            self._resources.close()
            self._store.close()

    def as_default(self) -> _Default:
        """A context in which this is the default session."""
        return _Default(self)

    def __enter__(self) -> Session:
        graph = self._graph.as_default()
        graph.__enter__()
        default = self.as_default()
        default.__enter__()
        self._entered += [graph, default]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._entered.pop().__exit__(None, None, None)
        self._entered.pop().__exit__(None, None, None)
        self._store.failing(exc)
        self.close()


class InteractiveSession(Session):
    """A session that is the default one from its creation until it is closed."""

    def __init__(self, target: str = "", graph: Graph | None = None, config: ConfigProto | None = None) -> None:
        super().__init__(target, graph, config)
        default_session.enter(self)

    def close(self) -> None:
        """Releases everything."""
        default_session.leave(self)
        super().close()


class _Default:
    """A context in which a session is the default one."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def __enter__(self) -> Session:
        default_session.enter(self._session)
        return self._session

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        default_session.leave(self._session)


def _single_feeds(feed_dict: Mapping[Any, Any]) -> Iterator[tuple[Any, Any]]:
    """Feeds of single tensors: rows are fed as the parts of their value."""
    for key, value in feed_dict.items():
        if isinstance(key, IndexedSlices):
            keys = [key.values, key.indices, key.dense_shape]
            yield from ((one, part) for one, part in zip(keys, value, strict=False) if isinstance(one, Tensor))
        elif isinstance(key, SparseTensor):
            yield from fed_parts(key, value)
        else:
            yield key, value


def _reader(
    element: Any,
    tensors: list[Tensor],
    late: dict[str, Variable],
    asked: list[Tensor],
    operations: list[Operation],
    fed: set[Tensor],
) -> Callable[..., Any]:
    """Record what a fetch needs, and return a function that finds its value in the results."""
    if isinstance(element, Operation):
        operations.append(element)
        return lambda *_: None
    if isinstance(element, IndexedSlices):
        given = (element.values, element.indices, element.dense_shape)
        parts = [_reader(t, tensors, late, asked, operations, fed) for t in given if isinstance(t, Tensor)]
        shape = element.dense_shape if isinstance(element.dense_shape, Tensor | NoneType) else element.shape.as_list()
        return lambda *found: IndexedSlicesValue(*(*(part(*found) for part in parts), shape)[:3])
    if isinstance(element, SparseTensor):
        pieces = [_reader(part, tensors, late, asked, operations, fed) for part in element.parts]
        return lambda *found: SparseTensorValue(*(piece(*found) for piece in pieces))
    variable = element.op.attributes.get("variable")
    if variable is not None and element is variable.handle and element not in fed:
        late[variable.op_name] = variable
        place = list(late).index(variable.op_name)
        return lambda _, states, __: _shown(states[place], element.dtype)
    host = element.op.attributes.get("host")
    if host is not None:
        parts = [_reader(one, tensors, late, asked, operations, fed) for one in element.op.inputs]
        operations.extend(element.op.control_inputs)
        return lambda *found: host(*(part(*found) for part in parts))
    if "asks" in element.op.attributes or element.dtype == string:
        asked.append(element)
        number = len(asked) - 1
        operations.extend(element.op.control_inputs)
        return lambda _, __, answers: _shown(answers[number], string) if element.dtype == string else answers[number]
    tensors.append(element)
    index = len(tensors) - 1
    return lambda values, _, __: _shown(values[index], element.dtype)


def _shown(value: Any, dtype: DType) -> Any:
    if dtype == string:
        return value[()] if isinstance(value, np.ndarray) else value
    array = np.asarray(value)
    if array.dtype != dtype.numpy:
        array = array.astype(dtype.numpy)
    return fetched(array)


def _as_fed(tensor: Tensor, value: Any) -> Any:
    """Convert a value that is fed.

    Raises:
      TypeError, ValueError: it is not of the tensor's dtype or shape.
    """
    if isinstance(value, Tensor | Variable):
        raise TypeError(
            "The value of a feed cannot be a tf.Tensor object. Acceptable feed values include Python scalars, strings, "
            f"lists, numpy ndarrays. ({tensor.name} at {user_line()})"
        )
    kind = tensor.dtype.numpy
    if isinstance(value, np.ndarray) and value.dtype == kind:
        array = value
    else:
        if isinstance(value, int) and not isinstance(value, bool) and tensor.dtype.is_integer:
            limits = np.iinfo(kind)
            if not limits.min <= value <= limits.max:
                raise TypeError(
                    f"Type of feed value {value} with type int is not compatible with Tensor type {kind}. Try "
                    f"explicitly setting the type of the feed tensor to a larger type. ({tensor.name} at {user_line()})"
                )
        try:
            array = array_of(value, string) if tensor.dtype == string else np.asarray(value, dtype=kind)
        except (TypeError, ValueError) as exc:
            raise type(exc)(
                f"Cannot feed a value of type {type(value).__name__} for Tensor '{tensor.name}' (defined at "
                f"{tensor.op.where}), which has dtype {tensor.dtype.name}: {exc} (at {user_line()})"
            ) from exc
    if not tensor.shape.is_compatible_with(array.shape):
        raise ValueError(
            f"Cannot feed value of shape {array.shape} for Tensor '{tensor.name}', which has shape '{tensor.shape}' "
            f"(defined at {tensor.op.where}; fed at {user_line()})"
        )
    return array
