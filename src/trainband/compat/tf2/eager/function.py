"""`tf.function`: a function of tensors that is one computation.

The first call with arguments of a kind runs as it stands, and tells which variables the function reads and assigns,
and how it decides where it asks for the value of a tensor. The second call traces it, with the same decisions; from
then on, no line of it runs, as long as it decides in the same way. Where it decides otherwise, it runs as it stands
again, and is traced in that way, too. A function that JAX cannot trace, or that decides in too many ways, runs as it
stands each time, which gives the same results.
"""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from trainband.compat.ops.arrays import ComputedError
from trainband.compat.ops.dtypes import as_dtype
from trainband.compat.tf2.eager.captured import (
    Capture,
    NotCaptured,
    NotSingleton,
    capturing,
    is_capturing,
    running_function,
)
from trainband.compat.tf2.eager.execute import convert, frozen
from trainband.compat.tf2.eager.logits import function_call
from trainband.compat.tf2.eager.path import Path, as_tensors, is_leaf
from trainband.compat.tf2.eager.shapes import TensorShape
from trainband.compat.tf2.eager.structure import flatten, pack
from trainband.compat.tf2.eager.tensor import Tensor

_log = logging.getLogger(__name__)
UNTRACEABLE = (
    NotCaptured,
    NotImplementedError,
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
    jax.errors.UnexpectedTracerError,
    ComputedError,
)
"""Errors of a function that cannot be traced."""
MOST_PATHS = 8
"""Ways of deciding that are kept for calls of one kind."""
MOST_DECISIONS = 200
"""Decisions in a call, beyond which its trace would be too long."""


class _Plan:
    """What is known of calls with arguments of one kind."""

    def __init__(self) -> None:
        self.capture: Capture | None = None
        self.runs_as_it_stands = False
        self.paths: list[Path] = []
        self.arguments: list[Any] = []
        """Its arguments other than tensors, kept so that no other object gets the identity of one."""


class _Settings:
    """What holds for all functions."""

    eagerly = False


def run_functions_eagerly(run_eagerly: bool) -> None:
    """Say whether functions run as they stand, each time."""
    _Settings.eagerly = bool(run_eagerly)


def functions_run_eagerly() -> bool:
    """Whether functions run as they stand, each time."""
    return _Settings.eagerly


class Function:
    """A function that is traced; see the module."""

    def __init__(self, python_function: Callable[..., Any], input_signature: Sequence[Any] | None = None) -> None:
        self.python_function = python_function
        self.input_signature = None if input_signature is None else tuple(input_signature)
        self._plans: dict[Any, _Plan] = {}
        self._called: dict[Any, Any] = {}
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
        return lambda: sum(len(plan.paths) for plan in self._plans.values())

    @property
    def function_spec(self) -> inspect.Signature:
        """Its parameters."""
        return inspect.signature(self.python_function)

    def get_concrete_function(self, *args: Any, **kwargs: Any) -> ConcreteFunction:
        """The function for arguments of these kinds: tensors, or what says their shapes and dtypes."""
        if not args and not kwargs and self.input_signature is not None:
            args = self.input_signature
        return ConcreteFunction(self, args, kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.input_signature is not None:
            args, kwargs = self._checked(args, kwargs), {}
        if is_capturing() or _Settings.eagerly:
            return self.python_function(*args, **kwargs)
        leaves, structure = jax.tree.flatten((args, kwargs), is_leaf=is_leaf)
        places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor | np.ndarray | jax.Array)]
        inputs = [convert(leaves[i]) for i in places]
        fixed = [None if i in set(places) else leaf for i, leaf in enumerate(leaves)]
        key = (str(structure), frozen([identity(one) for one in fixed]), tuple(one.aval for one in inputs))
        if any(map(_is_consumed, fixed)):
            return self._as_it_stands(args, kwargs)
        if key not in self._plans:
            specs = [TensorSpec(*one.aval) for one in inputs]
            for place, spec in zip(places, specs, strict=True):
                leaves[place] = spec
            self._called[key] = jax.tree.unflatten(structure, leaves)
        plan = self._plans.setdefault(key, _Plan())
        plan.arguments = fixed
        if plan.runs_as_it_stands:
            return self._as_it_stands(args, kwargs)

        def call(arrays: Sequence[Any]) -> Any:
            values = list(fixed)
            for place, array in zip(places, arrays, strict=True):
                values[place] = Tensor(array)
            positional, keywords = jax.tree.unflatten(structure, values)
            return self.python_function(*positional, **keywords)

        if plan.capture is not None:
            self._trace(plan, call, inputs)
        for path in plan.paths:
            agrees, result = path.run(inputs, is_only=len(plan.paths) == 1)
            if agrees:
                return result
        capture = Capture()
        with capturing(capture):
            result = self._as_it_stands(args, kwargs)
        plan.capture = capture
        if capture.is_kept_out or len(capture.decisions) > MOST_DECISIONS or len(plan.paths) == MOST_PATHS:
            plan.runs_as_it_stands = True
            plan.paths.clear()
        return result

    def _as_it_stands(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        with running_function(), function_call():
            return as_tensors(self.python_function(*args, **kwargs))

    def concrete_functions(self) -> list[ConcreteFunction]:
        """One for each kind of arguments that it was called with, as far as those were tensors and plain values."""
        return [ConcreteFunction(self, *kind) for kind in self._called.values()]

    def _checked(self, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        signature = self.input_signature or ()
        name = getattr(self.python_function, "__name__", "function")
        if kwargs:
            try:
                args = inspect.signature(self.python_function).bind(*args, **kwargs).args
            except TypeError as exc:
                raise TypeError(f"Binding inputs to tf.function failed due to `{exc}`.") from None
        if len(args) != len(signature):
            raise TypeError(f"{name} takes {len(signature)} arguments, by its input_signature, got {len(args)}.")
        return tuple(map(fitting, args, signature))

    def _trace(self, plan: _Plan, call: Callable[[Sequence[Any]], Any], inputs: Sequence[Tensor]) -> None:
        capture, plan.capture = plan.capture, None
        assert capture is not None
        path = Path([*{**capture.read, **capture.written}.values()], capture)
        try:
            path.trace(call, inputs)
        except NotSingleton:
            raise
        except Exception as exc:
            _log.debug("%s runs as it stands: %r", self.python_function, exc)
            plan.runs_as_it_stands = True
        else:
            plan.paths.append(path)


class ConcreteFunction:
    """A function for arguments of one kind: it is called with the tensors among them.

    Args:
      args, kwargs: tensors, what says their shapes and dtypes, and other values.
    """

    def __init__(self, function: Function, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        self.function = function
        self.name = getattr(function.python_function, "__name__", "function")
        self.structured_input_signature = (tuple(args), dict(kwargs))
        self._leaves = flatten((tuple(args), kwargs))
        self._places = [at for at, one in enumerate(self._leaves) if isinstance(one, TensorSpec) or is_leaf(one)]

    @property
    def inputs(self) -> list[TensorSpec]:
        """The shapes and dtypes of the tensors that it takes."""
        found = []
        for at in self._places:
            one = self._leaves[at]
            found.append(one if isinstance(one, TensorSpec) else TensorSpec.from_tensor(convert(one)))
        return found

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        names = self.names
        given = dict(zip(names, args, strict=False)) | kwargs
        if len(args) > len(names) or set(given) - set(names) or len(given) < len(names):
            raise TypeError(f"{self.name} takes the tensors {names}, got {len(args)} values and {sorted(kwargs)}.")
        tensors = [fitting(given[name], spec) for name, spec in zip(names, self.inputs, strict=True)]
        positional, keywords = self._filled(tensors)
        return self.function(*positional, **keywords)

    def call_python(self, tensors: Sequence[Any]) -> Any:
        """What the function gives for these tensors as it stands."""
        positional, keywords = self._filled(tensors)
        return self.function.python_function(*positional, **keywords)

    def _filled(self, tensors: Sequence[Any]) -> Any:
        leaves = list(self._leaves)
        for at, tensor in zip(self._places, tensors, strict=True):
            leaves[at] = tensor
        return pack(self.structured_input_signature, leaves)

    @property
    def names(self) -> list[str]:
        """What each tensor is called: by its spec, or else by the parameter."""
        args, kwargs = self.structured_input_signature
        parameters = [one.name for one in self.function.function_spec.parameters.values()]
        owners = [
            name for name, one in zip([*parameters, *map(str, range(99))], args, strict=False) for _ in flatten(one)
        ]
        owners += [name for name in sorted(kwargs) for _ in flatten(kwargs[name])]
        return [getattr(self._leaves[at], "name", None) or owners[at] for at in self._places]


def fitting(value: Any, spec: Any) -> Any:
    """A value as a tensor of a shape and dtype.

    Raises:
      TypeError: it has others.
    """
    if not isinstance(spec, TensorSpec):
        return value
    try:
        tensor = convert(value, spec.dtype if not is_leaf(value) else None)
    except (TypeError, ValueError) as exc:
        raise TypeError(f"Binding inputs to tf.function failed due to `Can not cast {value!r} to {spec}`.") from exc
    if not spec.is_compatible_with(tensor):
        shown = TensorSpec.from_tensor(tensor)
        raise TypeError(f"Binding inputs to tf.function failed due to `Can not cast {shown} to {spec}`.")
    return tensor


def _is_consumed(value: Any) -> bool:
    """Whether it gives something else each time, as iterators do, or is new each time, as replicas' values are."""
    return any(hasattr(value, name) for name in ("__next__", "element_spec", "__trainband_replicas__"))


def identity(value: Any) -> Any:
    """What tells an argument from others: itself, where that can be a key."""
    try:
        hash(value)
    except TypeError:
        return id(value)
    return value


class TypeSpec:
    """The base of what says which values are passed."""


class TensorSpec(TypeSpec):
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
        shape = str(self.shape).replace("?", "None")
        return f"TensorSpec(shape={shape}, dtype={self.dtype!r}, name={self.name!r})"


def function(func: Any = None, input_signature: Any = None, **options: Any) -> Any:
    """Trace a function: a decorator, with or without arguments."""
    del options  # autograph, jit_compile, reduce_retracing: results are the same
    if func is None:
        return lambda one: Function(one, input_signature)
    return Function(func, input_signature)
