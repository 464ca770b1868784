"""Graph: a computation as it is recorded, before any of it runs."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from trainband.compat.tf1.graphs.device_spec import DeviceSpec, resolve
from trainband.compat.tf1.graphs.operation import Operation as Operation
from trainband.compat.tf1.graphs.operation import Region as Region
from trainband.compat.tf1.graphs.operation import Stored as Stored
from trainband.compat.tf1.graphs.operation import Tensor as Tensor
from trainband.compat.tf1.graphs.where import user_line

_INNER_NAME = re.compile(r"[\w.\\/>-]*")
_NAME = re.compile(r"[A-Za-z0-9.][A-Za-z0-9_.\\/>-]*")


class _Open(threading.local):
    """The scopes that a thread has opened in a graph."""

    def __init__(self) -> None:
        self.scope = ""
        self.devices: list[Any] = []
        self.control: list[list[Operation]] = []
        self.region: Region | None = None
        self.variable_scope: Any = None
        self.overrides: dict[str, str] = {}


GRADIENTS: dict[str, Callable[[Operation], Operation]] = {}
"""Of each derivative that a script has registered: what gives it to an operation."""


class Graph:
    """A recorded computation. Each thread that records into it has its own scopes."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self._by_name: dict[str, Operation] = {}
        self._names: dict[str, int] = {}
        self._collections: dict[Any, list[Any]] = {}
        self._finalized = False
        self._open = _Open()
        self._recording = threading.RLock()
        self.seed: int | None = None
        """Set by `tf.set_random_seed`."""
        self.variables: dict[str, Any] = {}
        """All of them, by name."""
        self._unfeedable: set[Any] = set()
        self._unfetchable: set[Any] = set()
        self.shared: dict[str, Any] = {}
        """Variables of `get_variable`, by name."""
        self.here = DeviceSpec()
        """The job and task that run it, in a cluster."""

    @property
    def region(self) -> Region | None:
        """The region to which operations are recorded now."""
        return self._open.region

    @region.setter
    def region(self, region: Region | None) -> None:
        self._open.region = region

    @property
    def variable_scope(self) -> Any:
        """The open variable scope; `variable_scope` keeps it here."""
        return self._open.variable_scope

    @variable_scope.setter
    def variable_scope(self, scope: Any) -> None:
        self._open.variable_scope = scope

    # --- recording

    def add(self, op: Operation) -> None:
        """Adds an operation.

        Raises:
          RuntimeError: the graph is finalized.
          ValueError: an input is of another graph.
        """
        if self._finalized:
            raise RuntimeError(f"Graph is finalized and cannot be modified. ({op.type} {op.name} at {op.where})")
        for tensor in op.inputs:
            if tensor.graph is not self:
                raise ValueError(f"{tensor} must be from the same graph as {op.name} (defined at {op.where}).")
        for i, region in enumerate(op.attributes.get("regions", ())):
            region.label = region.label or f"{op.name}:{i}"
        op.region = self.region
        if self.region is not None:
            self.region.operations.append(op)
        with self._recording:
            op.number = len(self.operations)
            self.operations.append(op)
            self._by_name[op.name] = op

    def place(self, op: Operation) -> None:
        """Sets an operation's device from the open scopes."""
        if self._open.devices:
            try:
                op.device = resolve(self._open.devices, op)
            except ValueError as exc:
                raise ValueError(f"{exc} ({op.type} {op.name} at {op.where})") from exc

    def control_inputs(self) -> list[Operation]:
        """Return what must run before an operation that is recorded now."""
        return list(dict.fromkeys(op for group in self._open.control for op in group))

    def unique_name(self, name: str, mark_as_used: bool = True) -> str:
        """A name in the open scope that no other operation has."""
        with self._recording:
            full = f"{self._open.scope}{name}"
            key = full.lower()
            count = self._names.get(key, 0)
            if mark_as_used:
                self._names[key] = count + 1
            if count == 0:
                return full
            while f"{key}_{count}" in self._names:
                count += 1
            unique = f"{full}_{count}"
            if mark_as_used:
                self._names[key] = count + 1
                self._names[unique.lower()] = 1
            return unique

    def exact_name(self, name: str) -> str:
        """Return a name that ends with `/` without the slash, independently of the open scope, and reserve it."""
        exact = name.rstrip("/")
        if exact in self._by_name:
            return self.unique_name(exact)
        self._names.setdefault(exact.lower(), 1)
        return exact

    @property
    def finalized(self) -> bool:
        """Whether nothing more can be recorded."""
        return self._finalized

    def finalize(self) -> None:
        """Forbids further recording."""
        self._finalized = True

    def unfinalize(self) -> None:
        """Allows recording again."""
        self._finalized = False

    _unsafe_unfinalize = unfinalize  # the name that scripts use

    # --- scopes

    @contextmanager
    def as_default(self) -> Iterator[Graph]:
        """Makes this the default graph."""
        stack = _defaults.stack
        stack.append(self)
        try:
            yield self
        finally:
            del stack[len(stack) - 1 - stack[::-1].index(self)]

    @contextmanager
    def name_scope(self, name: str | None) -> Iterator[str]:
        """Names made inside begin with this one. One that ends with `/` is taken as it is.

        Raises:
          ValueError: the name is not valid.
        """
        if (
            name
            and not _NAME.fullmatch(name.rstrip("/"))
            and not (self._open.scope and re.fullmatch(r"[\w.\\/>-]*", name))
        ):
            raise ValueError(f"'{name}' is not a valid scope name")
        before = self._open.scope
        if not name:
            self._open.scope = ""
        elif name.endswith("/"):
            self._open.scope = name
        else:
            self._open.scope = self.unique_name(name) + "/"
        try:
            yield self._open.scope
        finally:
            self._open.scope = before

    def get_name_scope(self) -> str:
        """The open scope, without the last `/`."""
        return self._open.scope.rstrip("/")

    @contextmanager
    def device(self, name_or_function: Any) -> Iterator[None]:
        """Sets the device of operations made inside. `None` ignores the outer scopes.

        Raises:
          ValueError: the string is no device.
        """
        before = self._open.devices
        if name_or_function is None:
            self._open.devices = []
        else:
            wanted = name_or_function
            if isinstance(wanted, DeviceSpec):
                wanted = wanted.to_string()
            if not callable(wanted):
                try:
                    DeviceSpec.from_string(str(wanted))
                except ValueError as exc:
                    raise ValueError(f"{exc} (tf.device at {user_line()})") from exc
                wanted = str(wanted)
            self._open.devices = [*before, wanted]
        try:
            yield
        finally:
            self._open.devices = before

    @contextmanager
    def control_dependencies(self, control_inputs: Any) -> Iterator[None]:
        """Makes operations inside run after these. `None` ignores the outer scopes."""
        before = self._open.control
        if control_inputs is None:
            self._open.control = []
        else:
            self._open.control = [*before, [one for item in control_inputs for one in _operations_in(item)]]
        try:
            yield
        finally:
            self._open.control = before

    @contextmanager
    def gradient_override_map(self, op_type_map: dict[str, str] | None) -> Iterator[None]:
        """Operations of these types that are made inside have derivatives of these names. `None` ends all overrides.

        Raises:
          TypeError: it is no dictionary of strings.
        """
        if not all(isinstance(one, str) for pair in (op_type_map or {}).items() for one in pair):
            raise TypeError("op_type_map must be a dictionary mapping strings to strings")
        before = self._open.overrides
        self._open.overrides = {} if op_type_map is None else {**before, **op_type_map}
        try:
            yield
        finally:
            self._open.overrides = before

    def override_of(self, type_: str) -> Callable[[Operation], Operation] | None:
        """Return what gives operations of a type their overridden derivative, if there is one.

        Raises:
          LookupError: no such derivative is registered.
        """
        name = self._open.overrides.get(type_)
        if name is None:
            return None
        if name not in GRADIENTS:
            raise LookupError(f"gradient registry has no entry for: {name}")
        return GRADIENTS[name]

    @contextmanager
    def colocate_with(self, op: Any, ignore_existing: bool = False) -> Iterator[None]:  # noqa: ARG002
        """Gives operations made inside the device of another."""
        with self.device(getattr(op, "device", "") or None):
            yield

    @contextmanager
    def container(self, container_name: str) -> Iterator[str]:
        """Changes nothing: there are no containers."""
        yield container_name

    @contextmanager
    def recording(self, region: Region) -> Iterator[None]:
        """What is recorded inside belongs to a region."""
        before, control = self.region, self._open.control
        self.region, self._open.control = region, []
        try:
            yield
        finally:
            self.region, self._open.control = before, control

    @contextmanager
    def outside_scopes(self) -> Iterator[None]:
        """Ignores the open name scopes for operations made inside."""
        before, self._open.scope = self._open.scope, ""
        try:
            yield
        finally:
            self._open.scope = before

    # --- finding

    def get_operations(self) -> list[Operation]:
        """All operations, in the order in which they were recorded."""
        return list(self.operations)

    def get_operation_by_name(self, name: str) -> Operation:
        """The operation of that name.

        Raises:
          KeyError: there is none.
        """
        if not isinstance(name, str):
            raise TypeError(f"Operation names are strings (or similar), not {type(name).__name__}.")
        if ":" in name:
            raise ValueError(f"Name '{name}' appears to refer to a Tensor, not a Operation.")
        if name not in self._by_name:
            raise KeyError(f"The name '{name}' refers to an Operation not in the graph.")
        return self._by_name[name]

    def get_tensor_by_name(self, name: str) -> Tensor:
        """The tensor of that name, `operation:0`.

        Raises:
          KeyError: there is none.
          ValueError: it names no tensor.
        """
        if not isinstance(name, str):
            raise TypeError(f"Tensor names are strings (or similar), not {type(name).__name__}.")
        operation, colon, index = name.partition(":")
        if not colon:
            raise ValueError(
                f"The name '{name}' refers to an Operation, not a Tensor. Tensor names must be of the form "
                '"<op_name>:<output_index>".'
            )
        if not index.isdigit():
            raise ValueError(f"The name '{name}' is not the name of a Tensor, which is \"<op_name>:<output_index>\".")
        absent = f"The name '{name}' refers to a Tensor which does not exist. The operation, '{operation}', "
        if operation not in self._by_name:
            raise KeyError(f"{absent}does not exist in the graph.")
        outputs = self._by_name[operation].outputs
        if int(index) >= len(outputs):
            raise KeyError(f"{absent}exists but only has {len(outputs)} outputs.")
        return outputs[int(index)]

    def as_graph_element(self, obj: Any, allow_tensor: bool = True, allow_operation: bool = True) -> Any:
        """The tensor or operation that something is or names.

        Raises:
          TypeError, ValueError, KeyError: it is none, or is of another graph.
        """
        if isinstance(obj, str):
            return self.get_tensor_by_name(obj) if ":" in obj else self.get_operation_by_name(obj)
        if hasattr(obj, "fetched"):
            obj = obj.fetched()
        if (isinstance(obj, Tensor) and allow_tensor) or (isinstance(obj, Operation) and allow_operation):
            if obj.graph is not self:
                raise ValueError(f"Tensor {obj} is not an element of this graph.")
            return obj
        raise TypeError(f"Can not convert a {type(obj).__name__} into a Tensor or Operation.")

    # --- collections

    def add_to_collection(self, name: Any, value: Any) -> None:
        """Puts something into a collection."""
        if self._finalized:
            raise RuntimeError("Graph is finalized and cannot be modified.")
        self._collections.setdefault(name, []).append(value)

    def get_collection_ref(self, name: Any) -> list[Any]:
        """The collection itself, to change."""
        return self._collections.setdefault(name, [])

    def get_collection(self, name: Any, scope: str | None = None) -> list[Any]:
        """Return the contents of a collection; with `scope`, only items whose names begin with it."""
        found = self._collections.get(name, [])
        if scope is None:
            return list(found)
        return [one for one in found if hasattr(one, "name") and re.match(scope, one.name)]

    def add_to_collections(self, names: Any, value: Any) -> None:
        """Puts something into several collections, or into one."""
        for name in {names: None} if isinstance(names, str) else dict.fromkeys(names):
            self.add_to_collection(name, value)

    def clear_collection(self, name: Any) -> None:
        """Empties a collection."""
        self._collections.pop(name, None)

    @property
    def collections(self) -> list[Any]:
        """The names of the collections."""
        return list(self._collections)

    def get_all_collection_keys(self) -> list[Any]:
        """The names of the collections that are not empty."""
        return [name for name, contents in self._collections.items() if contents and isinstance(name, str)]

    # --- what sessions may do with it

    def prevent_feeding(self, tensor: Tensor) -> None:
        """Forbids feeding a tensor."""
        self._unfeedable.add(tensor)

    def is_feedable(self, tensor: Any) -> bool:
        """Whether a tensor may be fed."""
        return tensor not in self._unfeedable

    def prevent_fetching(self, op: Operation) -> None:
        """Forbids fetching an operation and its outputs."""
        self._unfetchable.add(op)

    def is_fetchable(self, tensor_or_op: Any) -> bool:
        """Whether a tensor or an operation may be fetched."""
        return tensor_or_op.op not in self._unfetchable

    @property
    def version(self) -> int:
        """How many operations there are: it grows with each."""
        return len(self.operations)

    @property
    def building_function(self) -> bool:
        """No: there are no functions."""
        return False

    def as_graph_def(self, from_version: int | None = None, add_shapes: bool = False) -> Any:
        """The operations as a `GraphDef`."""
        from trainband.compat.tf1.graphs.graph_def import graph_def

        return graph_def(self.operations[from_version or 0 :], add_shapes)


class _Defaults(threading.local):
    """A thread's graphs: those that are open, and the one that it records into otherwise."""

    def __init__(self) -> None:
        self.stack: list[Graph] = []
        self.otherwise = Graph()


_defaults = _Defaults()


def get_default_graph() -> Graph:
    """The graph that this thread records into now."""
    return _defaults.stack[-1] if _defaults.stack else _defaults.otherwise


def reset_default_graph() -> None:
    """Forgets what was recorded.

    Raises:
      AssertionError: inside of `with graph.as_default()`.
    """
    if _defaults.stack:
        raise AssertionError("Do not use tf.reset_default_graph() to clear nested graphs.")
    _defaults.otherwise = Graph()


def _operations_in(item: Any) -> list[Operation]:
    if isinstance(item, list | tuple):
        return [one for part in item for one in _operations_in(part)]
    if hasattr(item, "control_operations"):
        return list(item.control_operations())
    if isinstance(item, Operation):
        return [item]
    if isinstance(item, Tensor):
        return [item.op]
    element = getattr(item, "op", None)
    if isinstance(element, Operation):
        return [element]
    raise TypeError(f"Control input must be an Operation, a Tensor or a Variable, got {item!r}.")
