"""Functions as programs in files: JAX's export, with the variables that they read and assign, by their names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import jax
import numpy as np
from jax import export

from trainband.compat.ops.checks import noting
from trainband.compat.tf2.eager.captured import Capture, Trace, capturing
from trainband.compat.tf2.eager.execute import compute, convert
from trainband.compat.tf2.eager.function import ConcreteFunction, TensorSpec, fitting
from trainband.compat.tf2.eager.recording import variable_was_read
from trainband.compat.tf2.eager.seeds import Draws, drawing, numbers
from trainband.compat.tf2.eager.structure import flatten, map_structure, pack
from trainband.compat.tf2.eager.tensor import Tensor

_PLATFORMS = ("cpu", "cuda", "tpu")
_SIZE = 2
"""The size in place of one that is not known, for the call that tells what a function reads."""


@dataclass(frozen=True, slots=True)
class Record:
    """What a file says of a function.

    Attributes:
      names, shapes, dtypes: of the tensors that it takes.
      reads, writes: the names of variables in the checkpoint.
      outputs: the structure of what it gives; a number in place of each tensor.
    """

    names: list[str]
    shapes: list[list[int | None] | None]
    dtypes: list[str]
    reads: list[str]
    writes: list[str]
    outputs: Any

    def as_json(self) -> dict[str, Any]:
        """The record as JSON."""
        return asdict(self)


def exported(concrete: ConcreteFunction, keys: Mapping[int, str]) -> tuple[Record, bytes]:
    """A function as a program.

    Args:
      keys: the names of variables in the checkpoint, by identity.

    Raises:
      ValueError: it uses a variable that is not in the object that is saved, or gives what is no tensor.
    """
    specs = concrete.inputs
    traced = _traced(concrete, specs)
    for variable in [*traced.reads, *traced.writes]:
        if id(variable) not in keys:
            raise ValueError(
                f"Tried to export a function which references an 'untracked' resource: {variable!r}. Variables that "
                f"{concrete.name} uses must be in attributes of the object that is saved."
            )
    record = Record(
        names=concrete.names,
        shapes=[None if spec.shape.sizes is None else list(spec.shape.sizes) for spec in specs],
        dtypes=[spec.dtype.name for spec in specs],
        reads=[keys[id(one)] for one in traced.reads],
        writes=[keys[id(one)] for one in traced.writes],
        outputs=_described(traced.result),
    )
    return record, bytes(traced.program.serialize(vjp_order=1))


class NotExported(ValueError):
    """A function cannot be a program."""


class _Trial(Capture):
    """Notes what a call reads and assigns, and keeps what is assigned to itself."""

    def __init__(self) -> None:
        super().__init__()
        self.values: dict[int, Tensor] = {}

    def value(self, variable: Any, own: Tensor) -> Tensor | None:
        super().value(variable, own)
        return self.values.get(id(variable))

    def assigned(self, variable: Any, tensor: Tensor) -> bool:
        super().assigned(variable, tensor)
        self.values[id(variable)] = tensor
        return True


class _Call:
    """A function of (the first number of operations that draw, values of variables, tensors), for an export."""

    def __init__(self, concrete: ConcreteFunction, reads: Sequence[Any]) -> None:
        self._concrete = concrete
        self._reads = reads
        self.writes: list[Any] = []
        self.result: Any = None

    def __call__(self, first: Any, held: Sequence[Any], inputs: Sequence[Any]) -> tuple[Any, ...]:
        trace = Trace({id(one): Tensor(array) for one, array in zip(self._reads, held, strict=True)})
        with capturing(trace), noting(None), drawing(Draws(first)):
            result = self._concrete.call_python([Tensor(array) for array in inputs])
        self.writes = list(trace.written.values())
        self.result = map_structure(lambda _: 0, result)
        flat = [convert(one).array for one in flatten(result) if one is not None]
        return (*flat, *(trace.values[id(variable)].array for variable in self.writes))


def _traced(concrete: ConcreteFunction, specs: Sequence[TensorSpec]) -> _Traced:
    trial = _Trial()
    examples = [Tensor(np.ones([one or _SIZE for one in _known(spec)], spec.dtype.numpy)) for spec in specs]
    with capturing(trial):
        concrete.call_python(examples)
    variables = [*{**trial.read, **trial.written}.values()]
    call = _Call(concrete, variables)
    scope = export.SymbolicScope()
    inputs = [
        jax.ShapeDtypeStruct(_symbolic(spec, f"i{number}", scope), spec.dtype.numpy)
        for number, spec in enumerate(specs)
    ]
    held = [jax.ShapeDtypeStruct(*one.read_for(None).aval) for one in variables]
    first = jax.ShapeDtypeStruct((), np.uint32)
    try:
        with jax.enable_x64(True):
            program = export.export(jax.jit(call), platforms=_PLATFORMS)(first, held, inputs)
    except Exception as exc:  # of whatever operation there is
        lines = str(exc).strip().splitlines() or [type(exc).__name__]
        raise NotExported(
            f"{concrete.name} cannot be a program for {list(specs)}: {lines[0]} Its control flow must not "
            "depend on values or on unknown sizes; give its signature all sizes."
        ) from exc
    return _Traced(program, variables, call.writes, call.result)


@dataclass(frozen=True, slots=True)
class _Traced:
    program: export.Exported
    reads: list[Any]
    writes: list[Any]
    result: Any


def _known(spec: TensorSpec) -> list[int | None]:
    if spec.shape.sizes is None:
        raise ValueError(f"{spec} has no known rank: a function for any rank cannot be saved.")
    return list(spec.shape.sizes)


def _symbolic(spec: TensorSpec, prefix: str, scope: Any) -> Any:
    """A shape in which sizes that are not known have names; the first is the batch for all."""
    sizes = _known(spec)
    words = [
        str(one) if one is not None else "batch" if axis == 0 else f"{prefix}_{axis}" for axis, one in enumerate(sizes)
    ]
    return export.symbolic_shape(", ".join(words), scope=scope) if None in sizes else tuple(sizes)


def _described(structure: Any) -> Any:
    """A structure as JSON that says which are tuples."""
    if isinstance(structure, Mapping):
        return {"of": {name: _described(structure[name]) for name in structure}}
    if isinstance(structure, list | tuple):
        return {"tuple" if isinstance(structure, tuple) else "list": [_described(one) for one in structure]}
    return None if structure is None else 0


def _structured(text: Any) -> Any:
    if not isinstance(text, dict):
        return text
    if "of" in text:
        return {name: _structured(one) for name, one in text["of"].items()}
    parts = [_structured(one) for one in text["tuple" if "tuple" in text else "list"]]
    return tuple(parts) if "tuple" in text else parts


class LoadedFunction:
    """A program from a file, called with tensors.

    Args:
      variables: those that it reads, and those that it assigns.
      as_signature: whether it takes tensors by name alone, and gives a dictionary.
    """

    def __init__(
        self,
        record: Record,
        program: bytes,
        reads: Sequence[Any],
        writes: Sequence[Any],
        *,
        name: str,
        as_signature: bool = False,
    ) -> None:
        self._record = record
        self._exported = export.deserialize(bytearray(program))
        self._reads, self._writes = list(reads), list(writes)
        self._as_signature = as_signature
        self.name = name
        self.variables = tuple({id(one): one for one in [*self._reads, *self._writes]}.values())
        self.trainable_variables = tuple(one for one in self.variables if one.trainable)

    @property
    def inputs(self) -> list[TensorSpec]:
        """What it takes."""
        record = self._record
        return [
            TensorSpec(shape, dtype, name)
            for name, shape, dtype in zip(record.names, record.shapes, record.dtypes, strict=True)
        ]

    @property
    def structured_input_signature(self) -> tuple[Any, Any]:
        """What it takes, by place and by name."""
        named = {one.name: one for one in self.inputs}
        return ((), named) if self._as_signature else (tuple(self.inputs), {})

    @property
    def structured_outputs(self) -> Any:
        """What it gives."""
        specs = [TensorSpec(_sizes(one.shape), np.dtype(one.dtype)) for one in self._exported.out_avals]
        return pack(_structured(self._record.outputs), specs[: len(specs) - len(self._writes)])

    def fits(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Whether it takes these arguments."""
        try:
            self._bound(args, kwargs)
        except TypeError:
            return False
        return True

    def _bound(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Tensor]:
        names = self._record.names
        flat = flatten(tuple(args))
        given = dict(zip(names, flat, strict=False)) | dict(kwargs)
        if len(flat) > len(names) or set(given) != set(names):
            raise TypeError(f"{self.name} takes {self.inputs}, got {len(flat)} values and {sorted(kwargs)}.")
        return [fitting(given[name], spec) for name, spec in zip(names, self.inputs, strict=True)]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._as_signature and args and len(self._record.names) > 1:
            raise TypeError(f"signature_wrapper(*, {', '.join(self._record.names)}) takes its tensors by name.")
        inputs = self._bound(args, kwargs)
        held = [one.read_for(None) for one in self._reads]
        for variable, tensor in zip(self._reads, held, strict=True):
            variable_was_read(variable, tensor)
        count, program = len(held), self._exported

        def call(*arrays: Any) -> Sequence[Any]:
            return tuple(program.call(arrays[0], list(arrays[1 : 1 + count]), list(arrays[1 + count :])))

        results = compute(("exported", id(program)), call, [numbers(1000), *held, *inputs])
        ends = len(results) - len(self._writes)
        for variable, tensor in zip(self._writes, results[ends:], strict=True):
            variable.give(tensor)
        return pack(_structured(self._record.outputs), results[:ends])


def _sizes(shape: Sequence[Any]) -> list[int | None]:
    return [one if isinstance(one, int) else None for one in shape]


def as_signature(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that gives a dictionary, whatever the other gives."""

    def call(*args: Any, **kwargs: Any) -> Any:
        found = function(*args, **kwargs)
        if isinstance(found, Mapping):
            return dict(found)
        several = list(found) if isinstance(found, list | tuple) else [found]
        return {f"output_{number}": one for number, one in enumerate(several)}

    return call
