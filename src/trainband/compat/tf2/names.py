"""All names of the TensorFlow 2 front end and where each is.

The operations come from the table of `compat.ops`. The rest is listed here, as in the first version's table: a line of
a namespace is `file: name name=its_name_there ...`, of files in `compat.tf2.eager`, or in `compat` where it begins with
a dot.
"""

from __future__ import annotations

from trainband.compat.ops.catalogue import v1_names
from trainband.compat.tf1.names import OPS, read

_TABLE: dict[str, str] = {
    "tf": """
        tensor: Tensor
        variable: Variable
        tape: GradientTape UnconnectedGradients
        function: function TensorSpec
        module: Module
        making: constant convert_to_tensor is_tensor zeros_initializer ones_initializer
        making: random_normal_initializer random_uniform_initializer constant_initializer
        control: cond while_loop case switch_case map_fn group no_op control_dependencies name_scope device
        control: custom_gradient recompute_grad
        scripts: print __version__=VERSION executing_eagerly init_scope get_logger py_function numpy_function
        aggregation: VariableAggregation VariableSynchronization
        .ops.shapes: TensorShape
        .ops.dtypes: DType as_dtype float16 bfloat16 float32 float64 int8 int16 int32 int64 uint8 uint16 uint32 uint64
        .ops.dtypes: bool=bool_ complex64 complex128 string half=float16 double=float64
        clipping: clip_by_global_norm
    """,
    "tf.dtypes": """
        .ops.dtypes: DType as_dtype float16 bfloat16 float32 float64 int8 int16 int32 int64 uint8 uint16 uint32 uint64
        .ops.dtypes: bool=bool_ complex64 complex128 string
    """,
    "tf.linalg": "clipping: global_norm",
    "tf.math": "",
    "tf.nn": """
        networks: softmax_cross_entropy_with_logits dropout embedding_lookup compute_average_loss
        networks: scale_regularization_loss
    """,
    "tf.random": "making: set_seed\n making: Generator get_global_generator",
    "tf.errors": """
        .tf1.graphs.errors: OpError InvalidArgumentError NotFoundError OutOfRangeError FailedPreconditionError
        .tf1.graphs.errors: AbortedError UnavailableError UnimplementedError CancelledError DeadlineExceededError
        .tf1.graphs.errors: ResourceExhaustedError InternalError UnknownError PermissionDeniedError DataLossError
        .tf1.graphs.errors: AlreadyExistsError UnauthenticatedError
    """,
    "tf.config": "scripts: list_physical_devices list_logical_devices run_functions_eagerly set_soft_device_placement",
    "tf.config.experimental": "scripts: list_physical_devices list_logical_devices set_memory_growth",
    "tf.debugging": "scripts: set_log_device_placement assert_equal",
    "tf.nest": "structure: flatten map_structure pack_sequence_as=pack",
    "tf.autograph": "scripts: set_verbosity",
    "tf.autograph.experimental": "scripts: do_not_convert",
}


def _all() -> dict[str, dict[str, tuple[str, str]]]:
    found = {space: read(table) for space, table in _TABLE.items()}
    for space, ops in v1_names().items():
        for name, op in ops.items():
            if f"{space}.{name}" in op.names:
                found.setdefault(space, {}).setdefault(name, (OPS, f"{space}.{name}"))
    return found


NAMES: dict[str, dict[str, tuple[str, str]]] = _all()
"""Of each namespace its names: which file each is in, and what it is called there."""
