"""Sharding: which part of which variable is on which device of a mesh."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, PartitionSpec

from trainband.cluster import Task
from trainband.errors import ClusterError, ModelError
from trainband.model.mesh_context import DATA
from trainband.model.variables import PyTree, Variable, Variables

Spec = PartitionSpec | Sequence[str | Sequence[str] | None] | None
"""For each axis of a variable, the mesh axis that it is split over, several, or `None`; `None` alone: whole."""

Rule = tuple[str, Spec]
"""A regular expression to find in a variable's path, and the spec of the variables that match."""

Rules = Callable[[Sequence[Variable], Mesh], list[PartitionSpec]]
"""How each variable is split over a mesh."""

SMALL = 2**14
"""Elements below which `auto_fsdp` leaves a variable whole: gathering it would cost more than it saves."""


def mesh_of(shape: Mapping[str, int], devices: Sequence[jax.Device], tasks: Sequence[Task] = ()) -> Mesh:
    """Returns a mesh with these numbers of devices along its axes; one may be -1, for all that are left. `tasks`: see
    `names_of`.

    Raises:
      ClusterError: the devices are of several platforms.
      ModelError: the axes do not have as many places as there are devices.
    """
    require_one_platform(devices, tasks)
    sizes = dict(shape)
    unknown = [name for name, size in sizes.items() if size == -1]
    for name, size in sizes.items():
        if size < 1 and size != -1:
            raise ModelError(f"mesh: the axis {name!r} must have 1 device or more, or -1 for the rest, got {size}.")
    if len(unknown) > 1:
        raise ModelError(f"mesh: only one axis can be -1, for the devices that are left, got {' and '.join(unknown)}.")
    known = math.prod(size for size in sizes.values() if size != -1)
    if unknown:
        sizes[unknown[0]] = max(1, len(devices) // known)
    needed = math.prod(sizes.values())
    names = names_of(devices, tasks)
    found = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
    words = " x ".join(f"{name} {size}" for name, size in sizes.items())
    if needed > len(devices):
        raise ModelError(
            f"mesh: {words} needs {needed} devices, but there are {len(devices)}: {found}. Make an axis "
            "smaller, or start more workers."
        )
    if needed < len(devices):
        advice = f"which {known} does not divide" if unknown else f"such as {DATA}: -1"
        raise ModelError(
            f"mesh: {words} takes {needed} of the {len(devices)} devices ({found}); give the axes as "
            f"many places as there are devices, {advice}."
        )
    return Mesh(
        np.array(devices).reshape(tuple(sizes.values())), tuple(sizes), axis_types=(AxisType.Auto,) * len(sizes)
    )


def is_on_cpu(mesh: Mesh) -> bool:
    """Whether the devices are CPUs, on which different programs are fast."""
    return bool(mesh.devices.flat[0].platform == "cpu")


def whole(variables: Sequence[Variable], mesh: Mesh) -> list[PartitionSpec]:  # noqa: ARG001 - the form of `Rules`
    """Puts every variable on every device."""
    return [PartitionSpec() for _ in variables]


def by_rules(rules: Sequence[Rule]) -> Rules:
    """Splits each variable by the first rule whose pattern is found in its path; the others stay whole.

    The returned function raises `ModelError` if a pattern is found in no path, or an axis is not in the mesh or does
    not divide the variable's.
    """
    if not _are_rules(rules):
        raise ModelError(
            "ModelParallel: rules must be a list of (pattern, spec), such as [('kernel', (None, 'model'))], or made by "
            f"auto_fsdp(), got {rules!r}."
        )
    compiled = [(pattern, _compiled(pattern), _spec(pattern, spec)) for pattern, spec in rules]

    def specs(variables: Sequence[Variable], mesh: Mesh) -> list[PartitionSpec]:
        for pattern, expression, _ in compiled:
            if not any(expression.search(variable.name) for variable in variables):
                names = ", ".join(variable.name for variable in variables[:8])
                raise ModelError(
                    f"ModelParallel: the pattern {pattern!r} matches the path of no variable; they are {names}"
                    f"{', ...' if len(variables) > 8 else ''}."
                )
        found = []
        for variable in variables:
            spec = next((spec for _, expression, spec in compiled if expression.search(variable.name)), PartitionSpec())
            _check(variable, spec, mesh)
            found.append(spec)
        return found

    return specs


def auto_fsdp(axis: str = DATA, smallest: int = SMALL) -> Rules:
    """Splits every variable of `smallest` elements or more over a mesh axis, along its longest axis that divides.

    As in Zhao et al. 2023, "PyTorch FSDP" (arXiv:2304.11277), and Rajbhandari et al. 2020, "ZeRO" (arXiv:1910.02054):
    each device keeps its part of the variables and of the optimizer state, and gets the others' when it needs them.
    """

    def specs(variables: Sequence[Variable], mesh: Mesh) -> list[PartitionSpec]:
        if axis not in mesh.shape:
            raise ModelError(f"auto_fsdp: the mesh has no axis {axis!r}, only {', '.join(map(str, mesh.shape))}.")
        places = mesh.shape[axis]
        found = []
        for variable in variables:
            fitting = [i for i, size in enumerate(variable.shape) if size and size % places == 0]
            if variable.size < smallest or not fitting:
                found.append(PartitionSpec())
                continue
            longest = max(fitting, key=variable.shape.__getitem__)
            found.append(PartitionSpec(*([None] * longest), axis))
        return found

    return specs


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as exc:
        raise ModelError(f"ModelParallel: the pattern {pattern!r} is not a regular expression: {exc}.") from exc


def _are_rules(rules: Any) -> bool:
    return isinstance(rules, Sequence) and all(
        isinstance(rule, Sequence) and len(rule) == 2 and isinstance(rule[0], str | re.Pattern) for rule in rules
    )


def _spec(pattern: str, spec: Any) -> PartitionSpec:
    if spec is None:
        return PartitionSpec()
    if isinstance(spec, str) or not isinstance(spec, Iterable) or not all(map(_is_entry, spec)):
        axis = spec if isinstance(spec, str) else "model"
        raise ModelError(
            f"ModelParallel: the rule for {pattern!r} must name what each axis of a variable is split over, such as "
            f"({axis!r},) or (None, {axis!r}), or be None for a whole variable, got {spec!r}."
        )
    return PartitionSpec(*spec)


def _is_entry(entry: Any) -> bool:
    """Whether it names what one axis is split over."""
    if entry is None or isinstance(entry, str):
        return True
    return isinstance(entry, Sequence) and all(isinstance(axis, str) for axis in entry)


def axes_of(entry: Any) -> tuple[str, ...]:
    """Returns the mesh axes that one axis of a variable is split over."""
    if entry is None:
        return ()
    return (entry,) if isinstance(entry, str) else tuple(entry)


def pieces(spec: PartitionSpec, mesh: Mesh) -> int:
    """Returns how many pieces a variable is split into."""
    return math.prod(mesh.shape[axis] for entry in spec for axis in axes_of(entry))


def _check(variable: Variable, spec: PartitionSpec, mesh: Mesh) -> None:
    if len(spec) > len(variable.shape):
        raise ModelError(
            f"ModelParallel: {variable} has {len(variable.shape)} axes, but its rule has {len(spec)}: {_said(spec)}."
        )
    used: list[str] = []
    for number, (size, entry) in enumerate(zip(variable.shape, spec, strict=False)):
        for axis in axes_of(entry):
            if axis not in mesh.shape:
                raise ModelError(
                    f"ModelParallel: the rule of {variable} names the axis {axis!r}, which the mesh does not have; it "
                    f"has {', '.join(f'{name} ({count})' for name, count in mesh.shape.items())}."
                )
            if axis in used:
                raise ModelError(
                    f"ModelParallel: the rule of {variable} uses the mesh axis {axis!r} twice: {_said(spec)}."
                )
            used.append(axis)
        places = math.prod(mesh.shape[axis] for axis in axes_of(entry))
        if size % places:
            raise ModelError(
                f"ModelParallel: {variable} cannot be split: its axis {number} has {size} elements, which "
                f"{' x '.join(axes_of(entry))} with {places} devices does not divide. Change the rule, the mesh or the "
                "size."
            )


def _said(spec: PartitionSpec) -> str:
    return "(" + ", ".join("None" if not axes_of(entry) else " x ".join(axes_of(entry)) for entry in spec) + ")"


def require_one_platform(devices: Sequence[jax.Device], tasks: Sequence[Task] = ()) -> None:
    """Refuses devices of different platforms: no program can be compiled for them together.

    Raises:
      ClusterError: names the devices and their kinds.
    """
    if len({device.platform for device in devices}) > 1:
        named = zip(devices, names_of(devices, tasks), strict=True)
        shown = ", ".join(f"{name} ({device.platform}, {device.device_kind})" for device, name in named)
        raise ClusterError(
            "mesh: one program is compiled for all devices of a mesh, so they must be of one platform, but these are "
            f"of several: {shown}. Name devices of one platform; or give each platform its own worker under "
            "ParameterServer, whose workers may differ."
        )


def names_of(devices: Sequence[jax.Device], tasks: Sequence[Task] = ()) -> list[str]:
    """Names the devices for the user: JAX numbers them across processes, with gaps. `tasks`: their owners, by process,
    if there are several.
    """
    if not tasks:
        return [str(device) for device in devices]
    own: dict[int, list[int]] = {}
    for device in devices:
        own.setdefault(device.process_index, []).append(device.id)
    names = []
    for device in devices:
        place = sorted(own[device.process_index]).index(device.id)
        names.append(f"{str(device).partition(':')[0]}:{place} of {tasks[device.process_index]}")
    return names


def state_specs(state: PyTree, variables: Variables, specs: Sequence[PartitionSpec]) -> list[PartitionSpec]:
    """How each leaf of an optimizer state is split: as the variable that it belongs to, or not at all.

    Args:
      state: shapes as leaves.
      specs: of each trained variable.
    """
    by_path = dict(zip(variables.paths, zip(variables.trained, specs, strict=True), strict=True))
    found = []
    for path, leaf in jax.tree_util.tree_flatten_with_path(state)[0]:
        spec = PartitionSpec()
        for cut in range(len(path) + 1):  # the longest end of the path that is a variable's
            variable, own = by_path.get(path[cut:], (None, spec))
            if variable is not None:
                spec = own if variable.shape == tuple(leaf.shape) else spec
                break
        found.append(spec)
    return found
