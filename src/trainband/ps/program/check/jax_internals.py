"""The private parts of JAX that checking a program needs: MLIR, and the parts of an `Exported`.

JAX has public ways to serialise and run a program, but none to read its operations. All of this is the same in JAX
0.10 to 0.12; a test checks the installed version.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

from jax import export, stages
from jax._src import core, xla_bridge
from jax._src.interpreters import mlir
from jax._src.lib import _jax  # type: ignore[attr-defined]
from jaxlib.mlir import ir, passmanager
from jaxlib.mlir.dialects import stablehlo

NAMES: dict[str, tuple[str, ...]] = {
    "jax._src.core.ShapedArray": (),
    "jax._src.interpreters.mlir.make_ir_context": (),
    "jax._src.lib._jax.mlir.deserialize_portable_artifact": (),
    "jax._src.lib._jax.mlir.serialize_portable_artifact": (),
    "jax._src.xla_bridge.backends_are_initialized": (),
    "jax.stages.Compiled.memory_analysis": (),
    "jax.export.Exported": ("_in_named_shardings", "_out_named_shardings", "_get_vjp", "calling_convention_version"),
    "jaxlib.mlir.dialects.stablehlo.DotDimensionNumbers": (),
    "jaxlib.mlir.dialects.stablehlo.get_current_version": (),
    "jaxlib.mlir.ir.DenseElementsAttr": (),
    "jaxlib.mlir.ir.DenseIntElementsAttr": (),
    "jaxlib.mlir.ir.RankedTensorType": (),
    "jaxlib.mlir.passmanager.PassManager.parse": (),
}
"""Every private name that this file needs, and the keywords that it must take."""

Operation: TypeAlias = ir.Operation
Value: TypeAlias = "ir.Value[Any]"
Block: TypeAlias = ir.Block
Attribute: TypeAlias = Any
"""Each kind has its own class, which the stubs describe only in part."""


def backends_have_started() -> bool:
    """Whether JAX already holds its devices."""
    return bool(xla_bridge.backends_are_initialized())


class Unreadable(Exception):
    """The bytes are not an exported function for this version of JAX."""


@contextmanager
def module_of(exported: export.Exported) -> Iterator[Any]:
    """The MLIR module of an exported function, verified by MLIR, within its context."""
    with mlir.make_ir_context():
        try:
            module = _jax.mlir.deserialize_portable_artifact(exported.mlir_module_serialized)
            module.operation.verify()
        except Exception as exc:
            raise Unreadable(str(exc) or type(exc).__name__) from exc
        yield module


def call_instead(operation: Operation, function: str) -> None:
    """Replaces a composite operation by a call of a function of the module, with the same operands and results."""
    call = ir.Operation.create(
        "func.call",
        results=[result.type for result in operation.results],
        operands=list(operation.operands),
        attributes={"callee": ir.FlatSymbolRefAttr.get(function)},
        ip=ir.InsertionPoint(operation),
        loc=operation.location,
    )
    for old, new in zip(operation.results, call.results, strict=True):
        old.replace_all_uses_with(new)
    operation.erase()


def canonical(exported: export.Exported, module: Any, name: str) -> bytes:
    """The bytes of a function with this module and only the arrays of `exported`."""
    passmanager.PassManager.parse("builtin.module(strip-debuginfo)").run(module.operation)
    module.operation.verify()
    data = _jax.mlir.serialize_portable_artifact(module, stablehlo.get_current_version(), False)
    fields: dict[str, Any] = {
        "fun_name": name,
        "in_avals": _plain(exported.in_avals),
        "out_avals": _plain(exported.out_avals),
        "_in_named_shardings": (None,) * len(exported.in_avals),
        "_out_named_shardings": (None,) * len(exported.out_avals),
        "in_shardings_hlo": (None,) * len(exported.in_avals),
        "out_shardings_hlo": (None,) * len(exported.out_avals),
        "disabled_safety_checks": (),
        "mlir_module_serialized": data,
        "_get_vjp": None,
    }
    known = {field.name for field in dataclasses.fields(export.Exported)}
    return bytes(
        dataclasses.replace(exported, **{key: value for key, value in fields.items() if key in known}).serialize()
    )


def memory_of(compiled: stages.Compiled) -> int:
    """Bytes that a run needs by XLA's plan: arguments, results and temporary arrays, shared memory counted once.

    It leaves out LAPACK's work space, a few times the matrices counted.
    """
    plan: Any = compiled.memory_analysis()
    needs = plan.argument_size_in_bytes + plan.output_size_in_bytes + plan.temp_size_in_bytes
    return int(needs - plan.alias_size_in_bytes)


def _plain(avals: Any) -> tuple[Any, ...]:
    return tuple(core.ShapedArray(aval.shape, aval.dtype) for aval in avals)


def integer(attribute: Attribute) -> int | None:
    """The value of a constant attribute that is one integer, or the same one in all elements."""
    if not isinstance(attribute, ir.DenseIntElementsAttr):
        return None
    if len(attribute) != 1 and not attribute.is_splat:
        return None
    return int(attribute[0])


def integers(attribute: Attribute) -> list[int]:
    """The elements of an attribute of integers."""
    return [int(value) for value in attribute]


def is_dense(constant: Operation) -> bool:
    """Whether the elements of a constant are in the module itself, not in a separate resource."""
    try:
        return isinstance(constant.attributes["value"], ir.DenseElementsAttr)
    except TypeError:  # complex numbers, for which MLIR has no class in Python
        return "stablehlo.constant dense<" in str(constant)


def contracted(attribute: Attribute) -> list[int]:
    """The dimensions of the left operand over which a `dot_general` sums."""
    return [int(i) for i in stablehlo.DotDimensionNumbers(attribute).lhs_contracting_dimensions]


def defining(value: Value) -> Operation | None:
    """The operation whose result this is; `None` for an argument of a block."""
    owner: Any = value.owner
    return None if isinstance(owner, ir.Block) else getattr(owner, "operation", owner)


def tensor(kind: ir.Type) -> tuple[tuple[int, ...], str] | None:
    """Shape and element type of a tensor whose shape is fixed; `None` for any other type."""
    if not isinstance(kind, ir.RankedTensorType):
        return None
    if not kind.has_static_shape or kind.encoding is not None:
        return None
    return tuple(kind.shape), str(kind.element_type)
