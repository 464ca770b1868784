"""`tf.function`: a function of tensors that is one computation.

The first call with arguments of a kind runs as it stands, and tells which variables the function reads and assigns. The
second traces it; from then on, no line of it runs. A function that JAX cannot trace, because it decides by the value of
a tensor, say, runs as it stands each time, which gives the same results.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from trainband.compat.ops.dtypes import as_dtype
from trainband.compat.ops.shapes import TensorShape
from trainband.compat.tf2.eager.captured import Capture, NotCaptured, Trace, capturing, is_tracing
from trainband.compat.tf2.eager.deferred import DEFERRED
from trainband.compat.tf2.eager.execute import compute, convert, frozen
from trainband.compat.tf2.eager.tensor import Tensor

_log = logging.getLogger(__name__)
_UNTRACEABLE = (
    NotCaptured,
    NotImplementedError,
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
    jax.errors.UnexpectedTracerError,
)


def _is_leaf(value: Any) -> bool:
    return isinstance(value, Tensor) or hasattr(value, "__trainband_tensor__")


class _Plan:
    """What is known of calls with arguments of one kind."""

    def __init__(self) -> None:
        self.capture: Capture | None = None
        self.runs_as_it_stands = False
        self.jaxpr: Any = None
        self.structure: Any = None
        self.fixed: list[Any] = []
        self.reads: list[Any] = []
        self.writes: list[Any] = []


class Function:
    """A function that is traced; see the module."""

    def __init__(self, python_function: Callable[..., Any], input_signature: Sequence[Any] | None = None) -> None:
        self.python_function = python_function
        self.input_signature = None if input_signature is None else tuple(input_signature)
        self._plans: dict[Any, _Plan] = {}
        functools.update_wrapper(self, python_function)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        if instance is None:
            return self
        name = f"_function_{id(self)}"
        found = instance.__dict__.get(name)
        if found is None:
            bound = self.python_function.__get__(instance, owner)
            found = Function(bound, self.input_signature)
            object.__setattr__(instance, name, found)
        return found

    @property
    def experimental_get_tracing_count(self) -> Callable[[], int]:
        """How often it has been traced."""
        return lambda: sum(plan.jaxpr is not None for plan in self._plans.values())

    def get_concrete_function(self, *args: Any, **kwargs: Any) -> Function:
        """Itself: it is traced when it is called."""
        del args, kwargs
        return self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if is_tracing():
            return self.python_function(*args, **kwargs)
        if self.input_signature is not None:
            args = self._checked(args)
        leaves, structure = jax.tree.flatten((args, kwargs), is_leaf=_is_leaf)
        places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor | np.ndarray | jax.Array)]
        inputs = [convert(leaves[i]) for i in places]
        fixed = [None if i in set(places) else leaf for i, leaf in enumerate(leaves)]
        key = (str(structure), frozen([_identity(one) for one in fixed]), tuple(one.aval for one in inputs))
        plan = self._plans.setdefault(key, _Plan())
        if plan.jaxpr is None and not plan.runs_as_it_stands and plan.capture is not None:
            self._trace(plan, structure, places, fixed, inputs)
        if plan.jaxpr is None:
            capture = Capture()
            with capturing(capture):
                result = self.python_function(*args, **kwargs)
            plan.capture = capture
            return result
        return self._run(plan, inputs)

    def _checked(self, args: Sequence[Any]) -> tuple[Any, ...]:
        signature = self.input_signature or ()
        if len(args) != len(signature):
            raise TypeError(f"{self.python_function.__name__} takes {len(signature)} arguments, got {len(args)}.")
        found = []
        for value, spec in zip(args, signature, strict=True):
            if isinstance(spec, TensorSpec):
                tensor = convert(value, spec.dtype if not _is_leaf(value) else None)
                if not spec.is_compatible_with(tensor):
                    raise TypeError(f"Can not cast {tensor!r} to {spec}")
                value = tensor
            found.append(value)
        return tuple(found)

    def _trace(self, plan: _Plan, structure: Any, places: list[int], fixed: list[Any], inputs: list[Tensor]) -> None:
        assert plan.capture is not None
        known = {**plan.capture.read, **plan.capture.written}
        plan.reads = list(known.values())

        def run(*arrays: Any) -> list[Any]:
            held = arrays[: len(plan.reads)]
            trace = Trace({id(v): Tensor(array) for v, array in zip(plan.reads, held, strict=True)})
            leaves = list(fixed)
            for place, array in zip(places, arrays[len(plan.reads) :], strict=True):
                leaves[place] = Tensor(array)
            args, kwargs = jax.tree.unflatten(structure, leaves)
            with capturing(trace):
                result = self.python_function(*args, **kwargs)
            found, plan.structure = jax.tree.flatten(result, is_leaf=_is_leaf)
            plan.fixed = [None if _is_computed(one) else one for one in found]
            plan.writes = list(trace.written.values())
            results = [convert(one).array for one in found if _is_computed(one)]
            return [*results, *(trace.values[id(variable)].array for variable in plan.writes)]

        try:
            held = [_own(variable) for variable in plan.reads]
            with jax.enable_x64(True):
                plan.jaxpr = jax.make_jaxpr(run)(*(jax.ShapeDtypeStruct(*one.aval) for one in [*held, *inputs]))
        except _UNTRACEABLE as exc:
            _log.debug("%s runs as it stands: %s", self.python_function, exc)
            plan.runs_as_it_stands = True

    def _run(self, plan: _Plan, inputs: list[Tensor]) -> Any:
        from trainband.compat.tf2.eager.recording import variable_was_read

        jaxpr = plan.jaxpr
        held = [_own(variable) for variable in plan.reads]
        for variable, tensor in zip(plan.reads, held, strict=True):
            variable_was_read(variable, tensor)
        results = compute(
            ("function", id(jaxpr)),
            lambda *arrays: jax.core.eval_jaxpr(jaxpr.jaxpr, jaxpr.consts, *arrays),
            [*held, *inputs],
        )
        count = len(results) - len(plan.writes)
        for variable, tensor in zip(plan.writes, results[count:], strict=True):
            _give(variable, tensor)
        if plan.writes:
            DEFERRED.run()  # else a loop that looks at nothing would become one long program
        rest = iter(results[:count])
        leaves = [next(rest) if one is None else one for one in plan.fixed]
        return jax.tree.unflatten(plan.structure, leaves)


def _is_computed(value: Any) -> bool:
    return _is_leaf(value) or isinstance(value, jax.Array | jax.core.Tracer)


def _identity(value: Any) -> Any:
    try:
        hash(value)
    except TypeError:
        return id(value)
    return value


def _own(variable: Any) -> Tensor:
    tensor: Tensor = variable.read_for(None)
    return tensor


def _give(variable: Any, tensor: Tensor) -> None:
    variable.give(tensor)


class TensorSpec:
    """The shape and dtype of a tensor that is passed."""

    def __init__(self, shape: Any = None, dtype: Any = "float32", name: str | None = None) -> None:
        self.shape = TensorShape(shape)
        self.dtype = as_dtype(dtype)
        self.name = name

    def is_compatible_with(self, tensor: Any) -> bool:
        """Whether a tensor is of this shape and dtype."""
        return self.dtype is tensor.dtype and self.shape.is_compatible_with(tensor.shape)

    @classmethod
    def from_tensor(cls, tensor: Any, name: str | None = None) -> TensorSpec:
        """That of a tensor."""
        return cls(tensor.shape, tensor.dtype, name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TensorSpec) and self.shape == other.shape and self.dtype is other.dtype

    def __hash__(self) -> int:
        return hash((self.shape, self.dtype))

    def __repr__(self) -> str:
        return f"TensorSpec(shape={self.shape}, dtype={self.dtype!r}, name={self.name!r})"


def function(func: Any = None, input_signature: Any = None, **options: Any) -> Any:
    """Trace a function: a decorator, with or without arguments."""
    del options  # autograph, jit_compile, reduce_retracing: results are the same
    if func is None:
        return lambda one: Function(one, input_signature)
    return Function(func, input_signature)
