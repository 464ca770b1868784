"""Layer: what owns the variables of a part of a model, and computes with them."""

from __future__ import annotations

import ast
import copy
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

from trainband.compat.ops import array, math
from trainband.compat.ops.dtypes import as_dtype, float32
from trainband.compat.ops.shapes import TensorShape
from trainband.compat.tf1.graphs.graph import Graph, get_default_graph
from trainband.compat.tf1.graphs.graph_keys import GraphKeys
from trainband.compat.tf1.graphs.nest import flatten
from trainband.compat.tf1.graphs.record import convert
from trainband.compat.tf1.graphs.where import user_line
from trainband.compat.tf1.networks.arguments import normalized
from trainband.compat.tf1.operations.initializers import Ones, Zeros
from trainband.compat.tf1.operations.recorder import recorded
from trainband.compat.tf1.operations.variable_scope import VariableScope, get_variable, variable_scope

Parameter = inspect.Parameter
_names: WeakKeyDictionary[Graph, dict[str, int]] = WeakKeyDictionary()


class InputSpec:
    """What a layer takes: the rank and the sizes of some axes."""

    def __init__(
        self,
        dtype: Any = None,
        shape: Any = None,
        ndim: int | None = None,
        max_ndim: int | None = None,
        min_ndim: int | None = None,
        axes: Mapping[int, int] | None = None,
    ) -> None:
        self.dtype, self.shape = dtype, shape
        self.ndim = ndim if shape is None else len(shape)
        self.max_ndim, self.min_ndim, self.axes = max_ndim, min_ndim, dict(axes or {})

    def check(self, tensor: Any, layer: str, number: int = 0) -> None:
        """Refuses other inputs.

        Raises:
          ValueError: the rank, a size or the dtype is wrong.
        """
        wrong = self._wrong(tensor)
        if wrong:
            raise ValueError(
                f"Input {number} of layer {layer} is incompatible with the layer: {wrong}. Full shape received: "
                f"{tensor.shape} (at {user_line()})"
            )

    def _wrong(self, tensor: Any) -> str | None:
        sizes = tensor.shape.sizes
        rank = None if sizes is None else len(sizes)
        wanted = {"ndim": self.ndim, "max_ndim": self.max_ndim, "min_ndim": self.min_ndim}
        for name, limit in wanted.items():
            if limit is None:
                continue
            if rank is None:
                return "its rank is undefined, but the layer requires a defined rank"
            if {"ndim": rank != limit, "max_ndim": rank > limit, "min_ndim": rank < limit}[name]:
                return f"expected {name}={limit}, found ndim={rank}"
        if self.dtype is not None and tensor.dtype != as_dtype(self.dtype):
            return f"expected dtype={as_dtype(self.dtype).name}, found dtype={tensor.dtype.name}"
        if sizes is None:
            return None
        for axis, size in self.axes.items():
            if size is not None and sizes[int(axis)] not in (None, size):
                return f"expected axis {axis} of input shape to have value {size}"
        if self.shape is not None and not TensorShape(self.shape).is_compatible_with(tensor.shape):
            return f"expected shape={TensorShape(self.shape)}"
        return None


class Layer:
    """A part of a model. Subclasses create variables in `build` by `add_weight`, and compute in `call`.

    Args:
      trainable: whether its variables are trained by default.
      name: the scope of its variables; by default, its class's name, made unique.
      dtype: of its variables; by default, that of the first inputs.
      more: `activity_regularizer`; and `_scope` and `_reuse`, which the functions of `tf.layers` pass.
    """

    def __init__(self, trainable: bool = True, name: str | None = None, dtype: Any = None, **more: Any) -> None:
        self.trainable = trainable
        self.dtype: Any = None if dtype is None else as_dtype(dtype)
        self.built = False
        self.input_spec: Any = None
        self.activity_regularizer = more.get("activity_regularizer")
        self.losses: list[Any] = []
        """Losses that its regularizers added."""
        self.updates: list[Any] = []
        """The operations that update its variables while training."""
        self._reuse = more.get("_reuse")
        self._renamed: Mapping[str, str] = more.get("_names") or {}
        self._collections: Callable[[str], list[str]] | None = more.get("_collections")
        self._updates_to: str | None = more.get("_updates_to", GraphKeys.UPDATE_OPS)
        self._weights: list[tuple[Any, bool]] = []
        self._base_name = name or _snake_case(type(self).__name__)
        self._name = name or _unique_name(self._base_name)
        self._scope: VariableScope | None = None
        self._graph: Graph | None = None
        self._is_inside = False
        """Whether its scope is open."""
        self._of_inputs: set[int] = set()
        """Which of its losses and updates depend on its inputs, by id."""
        scope = more.get("_scope")
        if scope:
            with variable_scope(scope) as captured:
                self._scope = captured

    # --- for subclasses

    def build(self, input_shape: Any) -> None:
        """Creates the variables."""
        del input_shape
        self.built = True

    def call(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Return the outputs."""
        del args, kwargs
        return inputs

    def add_weight(
        self,
        name: str,
        shape: Any = None,
        dtype: Any = None,
        initializer: Any = None,
        regularizer: Any = None,
        trainable: bool | None = None,
        constraint: Any = None,
        use_resource: Any = None,  # noqa: ARG002
        synchronization: Any = None,  # noqa: ARG002
        aggregation: Any = None,  # noqa: ARG002
        partitioner: Any = None,
        **more: Any,
    ) -> Any:
        """Create a variable, or share the one of this name, in the layer's scope."""
        del more
        trained = (True if trainable is None else trainable) and self.trainable
        if not self._is_inside:
            with self._inside(self._opened(None)):
                return self.add_weight(
                    name, shape, dtype, initializer, regularizer, trainable, constraint, partitioner=partitioner
                )
        graph = get_default_graph()
        before = len(graph.get_collection(GraphKeys.REGULARIZATION_LOSSES))
        known = self._renamed.get(name, name)
        made = get_variable(
            known,
            shape,
            dtype or self.dtype or float32,
            initializer,
            regularizer,
            trained,
            None if self._collections is None else self._collections(known),
            constraint=constraint,
            partitioner=partitioner,
        )
        self.losses += graph.get_collection(GraphKeys.REGULARIZATION_LOSSES)[before:]
        if all(made is not one for one, _ in self._weights):
            self._weights.append((made, trained))
        return made

    def add_variable(self, *args: Any, **kwargs: Any) -> Any:
        """Create a variable, or share the one of this name."""
        return self.add_weight(*args, **kwargs)

    def add_loss(self, losses: Any, inputs: Any = None) -> None:
        """Adds something to the regularization losses; with `inputs`, it depends on them."""
        for loss in losses if isinstance(losses, list | tuple) else [losses]:
            self.losses.append(loss)
            self._of_inputs |= set() if inputs is None else {id(loss)}
            get_default_graph().add_to_collection(GraphKeys.REGULARIZATION_LOSSES, loss)

    def add_update(self, updates: Any, inputs: Any = None) -> None:
        """Adds operations that update variables while training; with `inputs`, they depend on them."""
        for update in updates if isinstance(updates, list | tuple) else [updates]:
            self.updates.append(update)
            self._of_inputs |= set() if inputs is None else {id(update)}
            if self._updates_to is not None:
                get_default_graph().add_to_collection(self._updates_to, update)

    def compute_output_shape(self, input_shape: Any) -> Any:
        """Return the outputs' shape."""
        return TensorShape(input_shape)

    # --- for scripts

    def __call__(self, inputs: Any, *args: Any, scope: Any = None, **kwargs: Any) -> Any:
        """Return the outputs; the first call creates the variables."""
        tensors = _as_tensors(inputs)
        for one in flatten(tensors):
            self._in_graph(getattr(one, "graph", None))
        with self._inside(self._opened(scope)):
            self._prepared(tensors)
            outputs = self.call(tensors, *args, **kwargs)
            if self.activity_regularizer is not None:
                for output in flatten(outputs):
                    examples = recorded(math.cast)(recorded(array.shape)(output)[0], output.dtype)
                    self.add_loss(self.activity_regularizer(output) / examples, inputs)
        return outputs

    def apply(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Return the outputs."""
        return self(inputs, *args, **kwargs)

    def _opened(self, scope: Any) -> VariableScope:
        if self._scope is None:
            name = (scope or self._base_name) if self._reuse else scope
            with variable_scope(name, default_name=self._base_name) as captured:
                self._scope = captured
        return self._scope

    @contextmanager
    def _inside(self, opened: VariableScope) -> Iterator[None]:
        reuse = True if self.built else self._reuse
        before, self._is_inside = self._is_inside, True
        try:
            with (
                variable_scope(opened, reuse=reuse, auxiliary_name_scope=False),
                get_default_graph().name_scope(opened.original_name_scope or None),
            ):
                yield
        finally:
            self._is_inside = before

    def _in_graph(self, graph: Graph | None) -> None:
        if graph is None:
            return
        if self._graph is None:
            self._graph = graph
        if graph is not self._graph:
            raise ValueError(f"Input graph and Layer graph are not the same: of layer {self.name}. (at {user_line()})")

    def _prepared(self, tensors: Any) -> None:
        leaves = [one for one in flatten(tensors) if hasattr(one, "dtype")]
        if self.dtype is None and leaves:
            self.dtype = leaves[0].dtype
        self._check(tensors)
        if self.built:
            return
        several = isinstance(tensors, list | tuple)
        self.build([one.shape for one in tensors] if several else getattr(tensors, "shape", None))
        self.built = True
        self._check(tensors)

    def _check(self, tensors: Any) -> None:
        if self.input_spec is None:
            return
        specs = self.input_spec if isinstance(self.input_spec, list | tuple) else [self.input_spec]
        leaves = flatten(tensors)
        if len(leaves) != len(specs):
            raise ValueError(
                f"Layer {self.name} expects {len(specs)} inputs, but it received {len(leaves)} input tensors. "
                f"(at {user_line()})"
            )
        for number, (spec, tensor) in enumerate(zip(specs, leaves, strict=True)):
            if spec is not None and hasattr(tensor, "shape"):
                spec.check(tensor, self.name, number)

    @property
    def name(self) -> str:
        """Its name."""
        return self._name

    @property
    def scope_name(self) -> str:
        """The scope of its variables.

        Raises:
          ValueError: it has not been called yet.
        """
        if self._scope is None:
            raise ValueError(
                f"No name available for layer scope because the layer {self.name!r} has not been used yet."
            )
        return self._scope.name

    @property
    def graph(self) -> Graph:
        """The graph in which it is used."""
        return get_default_graph() if self._graph is None else self._graph

    @property
    def trainable_weights(self) -> list[Any]:
        """The variables that are trained."""
        return [one for one, trained in self._weights if trained and self.trainable]

    @property
    def non_trainable_weights(self) -> list[Any]:
        """The variables that are not trained."""
        return [one for one, trained in self._weights if not (trained and self.trainable)]

    @property
    def weights(self) -> list[Any]:
        """All variables, those that are trained first."""
        return [*self.trainable_weights, *self.non_trainable_weights]

    trainable_variables = trainable_weights
    non_trainable_variables = non_trainable_weights
    variables = weights

    def get_losses_for(self, inputs: Any = None) -> list[Any]:
        """What it added to the loss because of some inputs; for `None`, of no inputs."""
        return self._because_of(inputs, self.losses)

    def get_updates_for(self, inputs: Any = None) -> list[Any]:
        """What updates its variables because of some inputs; for `None`, of no inputs."""
        return self._because_of(inputs, self.updates)

    def _because_of(self, inputs: Any, among: list[Any]) -> list[Any]:
        if inputs is None:
            return [one for one in among if id(one) not in self._of_inputs]
        reached = reached_from([getattr(one, "op", one) for one in flatten(inputs)])
        return [one for one in among if id(one) in self._of_inputs and getattr(one, "op", one) in reached]

    def count_params(self) -> int:
        """How many numbers its variables have.

        Raises:
          ValueError: it has none yet.
        """
        if not self.built:
            raise ValueError(f"count_params was called on layer {self.name}, which is not built yet.")
        return sum(one.shape.num_elements() or 0 for one in self.weights)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """A layer like this one, over the same tensors and in the same scope."""
        found = memo[id(self)] = object.__new__(type(self))
        for name, value in self.__dict__.items():
            if name == "_scope":
                found.__dict__[name] = copy.copy(value)
            elif isinstance(value, Graph) or any(hasattr(one, "graph") for one in flatten(value)):
                found.__dict__[name] = value
            else:
                found.__dict__[name] = copy.deepcopy(value, memo)
        return found


def reached_from(sources: list[Any]) -> set[Any]:
    """The operations that depend on some, and these themselves."""
    reached = set(sources)
    for graph in {op.graph for op in sources}:
        for op in graph.operations:  # each comes after what it takes
            if any(tensor.op in reached for tensor in op.inputs):
                reached.add(op)
    return reached


class Configured(Layer):
    """A layer whose parameters are listed as text, as `listed` reads it; each becomes an attribute."""

    settings: ClassVar[inspect.Signature]
    axes: ClassVar[int] = 0
    """How many axes its windows move along."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        try:
            bound = self.settings.bind(*args, **kwargs)
        except TypeError as exc:
            raise TypeError(f"{type(self).__name__}(): {exc}") from None
        bound.apply_defaults()
        values = dict(bound.arguments)
        own = {name: values.pop(name) for name in ("trainable", "name", "activity_regularizer") if name in values}
        super().__init__(**own, **values.pop("more"))
        self.__dict__.update(self._in_one_form(values))

    def _in_one_form(self, values: dict[str, Any]) -> dict[str, Any]:
        return normalized(values, self.axes) if self.axes else values

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")


_VALUES = {"zeros": Zeros(), "ones": Ones()}


def listed(text: str) -> inspect.Signature:
    """Read a list of parameters, such as `units use_bias=True bias_initializer=zeros`; more may be given by name."""
    found = []
    for word in text.split():
        name, equals, default = word.partition("=")
        value = Parameter.empty if not equals else _VALUES[default] if default in _VALUES else ast.literal_eval(default)
        found.append(Parameter(name, Parameter.POSITIONAL_OR_KEYWORD, default=value))
    return inspect.Signature([*found, Parameter("more", Parameter.VAR_KEYWORD)])


def function_of(layer: type[Configured], parameters: str = "", at_call: str = "") -> Callable[..., Any]:
    """Return the function of `tf.layers` that makes a layer and calls it.

    Args:
      parameters: the function's, if they differ from the layer's.
      at_call: those that are passed to the call.
    """
    own = listed(parameters) if parameters else layer.settings
    names = list(own.parameters.values())
    first = Parameter("inputs", Parameter.POSITIONAL_OR_KEYWORD)
    more = [] if "reuse" in own.parameters else [Parameter("reuse", Parameter.POSITIONAL_OR_KEYWORD, default=None)]
    shown = inspect.Signature([first, *names[:-1], *more])

    def call(*args: Any, **kwargs: Any) -> Any:
        given = dict(shown.bind(*args, **kwargs).arguments)
        inputs, reuse = given.pop("inputs"), given.pop("reuse", None)
        passed = {name: given.pop(name) for name in at_call.split() if name in given}
        made = layer(**given, _reuse=reuse, _scope=given.get("name"))
        return made.apply(inputs, **passed)

    call.__name__ = call.__qualname__ = _snake_case(layer.__name__)
    call.__doc__ = layer.__doc__
    call.__signature__ = shown  # type: ignore[attr-defined]
    return call


def _as_tensors(inputs: Any) -> Any:
    if isinstance(inputs, list | tuple):
        return type(inputs)(convert(one) for one in inputs) if not hasattr(inputs, "_fields") else inputs
    if inputs is None or isinstance(inputs, Mapping) or hasattr(inputs, "_nest_flatten"):
        return inputs
    return convert(inputs)


def _snake_case(name: str) -> str:
    spaced = re.sub(r"(.)([A-Z][a-z0-9]+)", r"\1_\2", name)
    found = re.sub(r"([a-z])([A-Z])", r"\1_\2", spaced).lower()
    return f"private{found}" if found.startswith("_") else found


def _unique_name(base: str) -> str:
    counts = _names.setdefault(get_default_graph(), {})
    count = counts.get(base, 0)
    counts[base] = count + 1
    return base if count == 0 else f"{base}_{count}"
