"""TensorFlow 2's tree of modules: public namespaces, and those of `tensorflow.python` from which scripts import.

`tf.keras` and all within is Keras's; a module of `tensorflow.python` has the names of public namespaces, which are
searched in turn.
"""

from __future__ import annotations

from trainband.compat.missing import first_missing
from trainband.compat.tf2.keras_names import ALIASES, at, is_keras, known, module_at, names_at
from trainband.compat.tf2.names import NAMES

_PUBLIC = """
    tf: python python.ops python.framework python.platform python.training python.client python.util python.eager
    tf: python.data python.distribute python.lib python.lib.io python.saved_model python.summary python.types core
    tf: python.data.ops core.framework core.protobuf core.util core.example
    tf: python.framework.ops python.framework.constant_op python.framework.tensor_shape python.framework.random_seed
    tf: python.framework.tensor_spec python.framework.tensor_util python.framework.tensor
    tf: python.framework.indexed_slices
    tf tf.dtypes: python.framework.dtypes
    tf tf.errors: python.framework.errors python.framework.errors_impl
    tf tf.config: python.framework.config
    tf tf.sparse: python.framework.sparse_tensor python.ops.sparse_ops
    tf tf.math tf.linalg: python.ops.math_ops python.ops.linalg_ops python.ops.gen_math_ops python.ops.special_math_ops
    tf tf.debugging: python.ops.array_ops python.ops.check_ops python.ops.clip_ops python.ops.gen_array_ops
    tf tf.random tf.math: python.ops.random_ops python.ops.standard_ops python.ops.stateless_random_ops
    tf.nn tf tf.math: python.ops.nn python.ops.nn_ops python.ops.nn_impl python.ops.gen_nn_ops python.ops.embedding_ops
    tf tf.autograph: python.autograph
    tf: python.ops.control_flow_ops python.ops.state_ops python.ops.variables python.ops.resource_variable_ops
    tf: python.ops.variable_scope python.ops.script_ops python.ops.custom_gradient python.ops.gradients
    tf: python.ops.tensor_array_ops python.ops.map_fn python.ops.functional_ops python.ops.control_flow_assert
    tf: python.ops.cond python.ops.while_loop python.ops.logging_ops python.ops.init_ops python.ops.init_ops_v2
    tf.image tf: python.ops.image_ops python.ops.image_ops_impl
    tf.bitwise: python.ops.bitwise_ops
    tf.lookup tf: python.ops.lookup_ops
    tf.strings tf.io tf: python.ops.string_ops python.ops.parsing_ops python.ops.io_ops
    tf.ragged tf: python.ops.ragged python.ops.ragged.ragged_tensor python.ops.ragged.ragged_factory_ops
    tf.summary: python.ops.summary_ops_v2
    tf.autodiff tf: python.eager.forwardprop
    tf: python.eager.backprop python.eager.def_function python.eager.context python.module.module python.module
    tf.nest: python.util.nest
    tf: python.util.tf_export python.util.deprecation python.util.compat
    tf.compat.v1.logging: python.platform.tf_logging
    tf.compat.v1.flags: python.platform.flags
    tf.compat.v1.app: python.platform.app
    tf.io.gfile: python.platform.gfile python.lib.io.file_io
    tf.io: python.lib.io.tf_record
    tf.test: python.platform.test
    tf.profiler.experimental: python.profiler python.profiler.profiler_v2
    tf.distribute: python.distribute.distribute_lib python.distribute.distribution_strategy_context
    tf.distribute: python.distribute.mirrored_strategy python.distribute.collective_all_reduce_strategy
    tf.distribute: python.distribute.multi_worker_util python.distribute.parameter_server_strategy_v2
    tf.distribute tf.distribute.coordinator: python.distribute.coordinator
    tf.distribute.coordinator: python.distribute.coordinator.cluster_coordinator
    tf.distribute.cluster_resolver: python.distribute.cluster_resolver
    tf.distribute.cluster_resolver: python.distribute.cluster_resolver.tfconfig_cluster_resolver
    tf.train tf: python.training.server_lib python.training.checkpoint_utils python.training.training
    tf.train: python.training.checkpoint_management python.training.tracking python.training.tracking.util
    tf.train: python.checkpoint python.checkpoint.checkpoint python.checkpoint.checkpoint_management
    tf.data: python.data.ops.dataset_ops python.data.ops.options
    tf.data.experimental: python.data.experimental
    tf.train: core.example.example_pb2 core.example.feature_pb2
    tf.client: python.client.device_lib
"""
"""Modules, and the namespaces in which their names are looked for."""


def _read() -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for line in filter(None, map(str.strip, _PUBLIC.splitlines())):
        spaces, _, modules = line.partition(":")
        there = tuple(space for space in spaces.split() if space in NAMES)
        if there:
            found |= {f"tf.{module}": there for module in modules.split()}
    return found


MODULES: dict[str, tuple[str, ...]] = _read()
"""The namespaces whose names a module has, in the order in which they are searched."""

_ELSEWHERE = {"tf.compat.v2": "tf", "tf.python.keras": "tf.keras", **ALIASES}
"""Namespaces that are others under another name."""


def own_name(path: str) -> str:
    """The path under which something is listed: `tf.keras.losses` for `tf.losses`."""
    for name, own in _ELSEWHERE.items():
        if path == name or path.startswith(f"{name}."):
            return own_name(own + path[len(name) :])
    return path


def spaces_of(module: str) -> tuple[str, ...] | None:
    """The namespaces that stand for a module; `None` if it is not there."""
    module = own_name(module)
    if is_keras(module):
        there = module == "tf.keras" or not known() or module_at(module) is not None
        return (module,) if there else None
    return (module,) if module in NAMES else MODULES.get(module)


def child(module: str, name: str) -> str | None:
    """The module or namespace of a name within another; `None` if it is not one."""
    inner = own_name(f"{own_name(module)}.{name}")
    if inner in NAMES or inner in MODULES or is_keras(inner):
        return inner if spaces_of(inner) is not None else None
    for space in spaces_of(module) or ():
        if name not in NAMES.get(space, {}) and name in inside(space):
            return inside(space)[name]
    return None


def inside(space: str) -> dict[str, str]:
    """The namespaces within a namespace, by the last part of their names."""
    found = {name.rpartition(".")[2]: name for name in NAMES if name.rpartition(".")[0] == space}
    return found | {
        name.rpartition(".")[2]: own for name, own in _ELSEWHERE.items() if name.rpartition(".")[0] == space
    }


def locate(module: str, name: str) -> tuple[str, str] | None:
    """The file of a name of a module or namespace, and what it is called there; `None` if it is not there."""
    for space in spaces_of(module) or ():
        if name in NAMES.get(space, {}):
            return NAMES[space][name]
        if is_keras(space) and _in_keras(space, name):
            return "keras", f"{space}.{name}"
    return None


def _in_keras(space: str, name: str) -> bool:
    if not known():
        return True  # nobody can say
    try:
        at(f"{space}.{name}")
    except AttributeError:
        return False
    return True


def names_of(module: str) -> list[str]:
    """All names of a module or namespace."""
    spaces = spaces_of(module) or ()
    found = {name for space in spaces for name in (*NAMES.get(space, {}), *inside(space))}
    found |= {name for space in spaces if is_keras(space) for name in names_at(space)}
    return sorted(found | ({"keras"} if "tf" in spaces else set()))


def look_up(path: str) -> str | None:
    """The first part of a dotted name such as `tf.nn.relu6` that is not there, as far as it; `None` if all is.

    Attributes of a name that exists are not checked.
    """
    return first_missing(path, child, locate)


def everything() -> list[str]:
    """All names, as `tf.nn.relu`; those of Keras are not among them."""
    return [f"{space}.{name}" for space, names in NAMES.items() for name in names]
