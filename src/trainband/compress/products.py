"""Products: runs a traced program again, with each product of a weight computed by a handler.

The walk tracks weights, including those with only their axes moved or dtype changed, and finds every `dot_general` and
`conv_general_dilated` of one, also inside `jax.jit`, `jax.checkpoint` and custom derivatives. Loops and conditions are
computed unchanged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax.extend.core import Literal

from trainband.compress.encodings import Scaled
from trainband.model.analysis.walker import called

_SAME = frozenset("copy copy_p name optimization_barrier stop_gradient sharding_constraint".split())
_INLINED = frozenset("closed_call core_call jit pjit".split())
_CUSTOM = frozenset("custom_jvp_call custom_vjp_call".split())
_REMAT = frozenset("checkpoint remat remat2".split())


@dataclass(frozen=True, slots=True)
class Weight:
    """A weight on its way through a program.

    Attributes:
      name: of its tensor.
      values: the numbers, or their 8-bit integers with their scales.
      dtype: of the numbers.
      axes: for each axis, that of the tensor; `None` if it is none.
    """

    name: str
    values: Any
    dtype: Any
    axes: tuple[int | None, ...]

    @classmethod
    def of(cls, name: str, values: Any, dtype: Any) -> Weight:
        """Returns the weight as it enters the program."""
        return cls(name, values, jnp.dtype(dtype), tuple(range(_array(values).ndim)))

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the numbers."""
        shape: tuple[int, ...] = _array(self.values).shape
        return shape

    def floats(self) -> Any:
        """Returns the numbers."""
        return self.values.floats(self.dtype) if isinstance(self.values, Scaled) else self.values.astype(self.dtype)

    def transposed(self, permutation: Sequence[int]) -> Weight:
        """Returns it with its axes in another order."""
        axes = tuple(self.axes[i] for i in permutation)
        if isinstance(self.values, Scaled):
            values, scale, axis = self.values
            moved: Any = Scaled(jnp.transpose(values, permutation), scale, list(permutation).index(axis))
        else:
            moved = jnp.transpose(self.values, permutation)
        return replace(self, values=moved, axes=axes)

    def reshaped(self, shape: tuple[int, ...]) -> Weight | None:
        """Returns it in another shape; `None` if the axis of its scales would be lost."""
        places: dict[int, int] = {}
        for old, length in enumerate(self.shape):
            for new, other in enumerate(shape):
                if other == length and math.prod(self.shape[:old]) == math.prod(shape[:new]):
                    places.setdefault(new, old)
        axes = tuple(self.axes[places[new]] if new in places else None for new in range(len(shape)))
        if isinstance(self.values, Scaled):
            values, scale, axis = self.values
            found = next((new for new, old in places.items() if old == axis), None)
            if found is None:
                return None
            return replace(self, values=Scaled(values.reshape(shape), scale, found), axes=axes)
        return replace(self, values=self.values.reshape(shape), axes=axes)


@dataclass(frozen=True, slots=True)
class Site:
    """A product of a weight by something else.

    Attributes:
      name: of the weight's tensor; if it has several products, the second ends in `#2`.
      equation: of the traced program.
      weight: the weight.
      at: index of the weight among the two operands.
      other: the other operand.
    """

    name: str
    equation: Any
    weight: Weight
    at: int
    other: Any

    def computed(self, weight: Any, other: Any, dtype: Any = None) -> Any:
        """Computes the product of other values of the same shapes. `dtype`: of the result, if not the equation's."""
        params = dict(self.equation.params)
        if dtype is not None:
            params["preferred_element_type"] = jnp.dtype(dtype)
            params["precision"] = None
        operands = [weight, other] if self.at == 0 else [other, weight]
        return self.equation.primitive.bind(*operands, **params)

    @property
    def free(self) -> dict[int, int]:
        """Maps the weight's free axes to their place in the result."""
        params = self.equation.params
        numbers = params["dimension_numbers"]
        if self.equation.primitive.name == "conv_general_dilated":
            return {numbers.rhs_spec[0]: numbers.out_spec[1]} if self.at == 1 else {}
        contracting, batch = numbers
        own = [i for i in range(len(self.weight.shape)) if i not in contracting[self.at] and i not in batch[self.at]]
        others = self.other.ndim - len(contracting[1 - self.at]) - len(batch[0])
        first = len(batch[0]) + (others if self.at == 1 else 0)
        return {axis: first + i for i, axis in enumerate(own)}


class Hands(Protocol):
    """Handler of products."""

    def product(self, site: Site) -> Any:
        """Returns the result of a product."""
        ...

    def looked_up(self, weight: Weight) -> None:
        """Called when rows of a weight are looked up (`gather`)."""
        ...


class AsItIs:
    """Computes every product unchanged."""

    def product(self, site: Site) -> Any:
        return site.computed(site.weight.floats(), site.other)

    def looked_up(self, weight: Weight) -> None:
        """Does nothing."""


class Walk:
    """One walk through a program.

    Args:
      hands: computes the products.
      derivatives: whether the program will be differentiated: functions with custom derivatives then stay whole.
    """

    def __init__(self, hands: Hands, *, derivatives: bool = False) -> None:
        self._hands = hands
        self._derivatives = derivatives
        self._met: dict[str, int] = {}

    def outputs(self, program: Any, inputs: Sequence[Any]) -> list[Any]:
        """Returns the program's outputs; some of the inputs are a `Weight`."""
        return [_floats(value) for value in self._run(program, inputs)]

    def _run(self, program: Any, inputs: Sequence[Any]) -> list[Any]:
        jaxpr = getattr(program, "jaxpr", program)
        known: dict[Any, Any] = dict(zip(jaxpr.constvars, getattr(program, "consts", ()), strict=True))
        known.update(zip(jaxpr.invars, inputs, strict=True))

        def read(atom: Any) -> Any:
            return atom.val if isinstance(atom, Literal) else known[atom]

        for equation in jaxpr.eqns:
            with equation.ctx.manager:
                outputs = self._equation(equation, [read(atom) for atom in equation.invars])
            known.update(zip(equation.outvars, outputs, strict=True))
        return [read(atom) for atom in jaxpr.outvars]

    def _equation(self, equation: Any, values: list[Any]) -> list[Any]:
        name, params = equation.primitive.name, equation.params
        weights = [value for value in values if isinstance(value, Weight)]
        if name in _INLINED:
            return self._run(called(equation), values)
        if name in _CUSTOM and not self._derivatives:
            return self._run(called(equation), values)
        if name in _REMAT:
            return self._rematerialised(params, values)
        if weights and len(values) == 1:
            moved = self._moved(name, params, weights[0])
            if moved is not None:
                return [moved]
        if len(weights) == 1 and len(values) == 2 and name in ("dot_general", "conv_general_dilated"):
            weight = weights[0]
            at = 0 if values[0] is weight else 1
            return [self._hands.product(Site(self._site(weight), equation, weight, at, values[1 - at]))]
        if name == "gather" and isinstance(values[0], Weight):
            self._hands.looked_up(values[0])
        made = equation.primitive.bind(*map(_floats, values), **equation.primitive.get_bind_params(params))
        return list(made) if equation.primitive.multiple_results else [made]

    def _moved(self, name: str, params: Mapping[str, Any], weight: Weight) -> Weight | None:
        """Returns the weight after an equation of one input, if it remains one."""
        if name in _SAME:
            return weight
        if name == "convert_element_type" and jnp.issubdtype(params["new_dtype"], jnp.floating):
            return replace(weight, dtype=jnp.dtype(params["new_dtype"]))
        if name == "transpose":
            return weight.transposed(params["permutation"])
        if name == "reshape" and params.get("dimensions") is None:
            return weight.reshaped(tuple(params["new_sizes"]))
        if name == "squeeze":
            gone = {axis % len(weight.shape) for axis in params["dimensions"]}
            return weight.reshaped(tuple(n for axis, n in enumerate(weight.shape) if axis not in gone))
        return None

    def _rematerialised(self, params: Mapping[str, Any], values: list[Any]) -> list[Any]:
        """Runs a program wrapped by `jax.checkpoint`, wrapped again."""
        if not self._derivatives:
            return self._run(params["jaxpr"], values)
        plain = [i for i, value in enumerate(values) if not isinstance(value, Weight)]

        # Weights are numbers and names; only numbers may pass through JAX.
        def again(*arrays: Any) -> list[Any]:
            inner = list(values)
            for i, array in zip([*plain, *held], arrays, strict=True):
                inner[i] = array if i in plain else replace(values[i], values=array)
            return [_floats(value) for value in self._run(params["jaxpr"], inner)]

        held = [i for i in range(len(values)) if i not in plain]
        run = jax.checkpoint(again, policy=params["policy"], prevent_cse=params["prevent_cse"])
        made: list[Any] = run(*(values[i] for i in plain), *(values[i].values for i in held))
        return made

    def _site(self, weight: Weight) -> str:
        count = self._met[weight.name] = self._met.get(weight.name, 0) + 1
        return weight.name if count == 1 else f"{weight.name}#{count}"


@dataclass
class _Uses(AsItIs):
    """Records the axis of each tensor's output channels."""

    axes: dict[str, int]
    tables: set[str]

    def product(self, site: Site) -> Any:
        own = [site.weight.axes[axis] for axis in site.free]
        found = [axis for axis in own if axis is not None]
        if found:
            self.axes.setdefault(site.weight.name, found[-1])
        return super().product(site)

    def looked_up(self, weight: Weight) -> None:
        if weight.axes[:1] == (0,):
            self.tables.add(weight.name)


def channel_axes(function: Callable[..., Any], tensors: Mapping[str, Any], *args: Any) -> dict[str, int]:
    """Returns the axis of the output channels of each tensor that a function multiplies or looks up rows of.

    Args:
      function: `function(tensors, *args)`; traceable.
      tensors: by name; anything with a shape and a dtype.
      args: pytrees of the same.
    """
    uses = _Uses({}, set())
    jax.eval_shape(lambda held, *rest: walked(function, held, uses, *rest), dict(tensors), *args)
    return {**uses.axes, **dict.fromkeys(uses.tables, 0)}


def walked(
    function: Callable[..., Any],
    tensors: Mapping[str, Any],
    hands: Hands,
    *args: Any,
    dtypes: Mapping[str, Any] | None = None,
    derivatives: bool = False,
) -> Any:
    """Returns `function(tensors, *args)`, with its products computed by `hands`; traceable.

    Args:
      function: takes a dict of arrays by name.
      tensors: arrays, or `Scaled` ones, whose dtypes are in `dtypes`.
      hands: computes the products.
      args: pytrees of arrays.
      dtypes: of the tensors.
      derivatives: see `Walk`.
    """
    known = dtypes or {}
    weights = {
        name: Weight.of(name, value, known.get(name, _dtype(value)))
        if jnp.issubdtype(known.get(name, _dtype(value)), jnp.floating)
        else value
        for name, value in tensors.items()
    }
    structs = {name: jax.ShapeDtypeStruct(weight.shape, weight.dtype) for name, weight in weights.items()}
    names = list(structs)
    leaves, treedef = jax.tree.flatten(args)
    made: list[Any] = []

    def flat(values: Sequence[Any], rest: Sequence[Any]) -> list[Any]:
        returned = function(dict(zip(names, values, strict=True)), *jax.tree.unflatten(treedef, rest))
        outputs, structure = jax.tree.flatten(returned)
        made.append(structure)
        return outputs

    program = jax.make_jaxpr(flat)([structs[name] for name in names], leaves)
    outputs = Walk(hands, derivatives=derivatives).outputs(program, [*(weights[name] for name in names), *leaves])
    return jax.tree.unflatten(made[0], outputs)


def _array(values: Any) -> Any:
    return values.values if isinstance(values, Scaled) else values


def _floats(value: Any) -> Any:
    return value.floats() if isinstance(value, Weight) else value


def _dtype(value: Any) -> Any:
    return jnp.float32 if isinstance(value, Scaled) else value.dtype
