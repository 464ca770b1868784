"""What checking a program needs of JAX that JAX does not promise to keep: MLIR, and the parts of an `Exported`.

JAX has public ways to serialise and to run a program, and none to look at its operations. All of this is the same in
JAX 0.10 to 0.12; a test says so for the version that is installed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

from jax import export
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
"""Each kind has a class of its own, of which the stubs do not say everything."""


def backends_have_started() -> bool:
    """Whether JAX holds its devices already."""
    return bool(xla_bridge.backends_are_initialized())


class Unreadable(Exception):
    """The bytes are not what this version of JAX reads as an exported function."""


@contextmanager
def module_of(exported: export.Exported) -> Iterator[Any]:
    """The MLIR module of an exported function, verified by MLIR, within its context."""
    with mlir.make_ir_context():
        try:
            module = _jax.mlir.deserialize_portable_artifact(exported.mlir_module_serialized)
            module.operation.verify()
        except Exception as exc:
            raise Unreadable(str(exc)) from exc
        yield module


def custom_calls(module: Any) -> set[str]:
    """The targets of the custom calls in a module."""
    found: set[str] = set()

    def note(operation: Operation) -> ir.WalkResult:
        if operation.name == "stablehlo.custom_call":
            found.add(str(operation.attributes["call_target_name"]).strip('"'))
        return ir.WalkResult.ADVANCE

    module.operation.walk(note)
    return found


def canonical(exported: export.Exported, module: Any, name: str) -> bytes:
    """The bytes of a function that has this module and the arrays of `exported`, and nothing else of it."""
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


def _plain(avals: Any) -> tuple[Any, ...]:
    return tuple(core.ShapedArray(aval.shape, aval.dtype) for aval in avals)


def integer(attribute: Attribute) -> int | None:
    """What a constant attribute of one integer, or of one for all its elements, stands for."""
    if not isinstance(attribute, ir.DenseIntElementsAttr):
        return None
    if len(attribute) != 1 and not attribute.is_splat:
        return None
    return int(attribute[0])


def integers(attribute: Attribute) -> list[int]:
    """The elements of an attribute of integers."""
    return [int(value) for value in attribute]


def is_dense(constant: Operation) -> bool:
    """Whether the elements of a constant are in the module itself, and not in a resource beside it."""
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
