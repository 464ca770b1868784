"""All names of the TensorFlow 1 face, and where each is: the one list that attributes, `--check` and the docs go by.

A line of a namespace is `package.file: name name=its_name_there ...`. Nothing is loaded before it is used.
"""

from __future__ import annotations

_TABLE: dict[str, str] = {
    "tf": """
        graphs.graph: Graph GraphKeys Operation Tensor get_default_graph reset_default_graph
        graphs.shapes: TensorShape Dimension
        graphs.slices: IndexedSlices
        graphs.dtypes: DType as_dtype float16 bfloat16 float32 float64 int8 int16 int32 int64 uint8 uint16 uint32
        graphs.dtypes: uint64 bool=bool_ complex64 complex128 string half=float16 double=float64
        sessions.session: Session InteractiveSession get_default_session
        graphs.config: ConfigProto GPUOptions GraphOptions OptimizerOptions RunOptions RunMetadata
        graphs.device: DeviceSpec
        graphs.scopes: device name_scope op_scope control_dependencies add_to_collection get_collection
        graphs.scopes: get_collection_ref colocate_with container disable_v2_behavior disable_eager_execution
        graphs.scopes: enable_eager_execution executing_eagerly disable_resource_variables enable_resource_variables
        graphs.scopes: disable_v2_tensorshape enable_v2_behavior
        graphs.variable: Variable
        operations.variable_scope: variable_scope get_variable get_variable_scope get_local_variable VariableScope
        operations.variable_scope: AUTO_REUSE variable_op_scope=variable_scope
        operations.partitioners: fixed_size_partitioner variable_axis_size_partitioner min_max_variable_partitioner
        operations.state: assign assign_add assign_sub scatter_update scatter_add scatter_sub count_up_to
        operations.state: global_variables local_variables trainable_variables model_variables
        operations.state: moving_average_variables all_variables=global_variables global_variables_initializer
        operations.state: local_variables_initializer initialize_all_variables=global_variables_initializer
        operations.state: variables_initializer initialize_local_variables=local_variables_initializer
        operations.state: initialize_variables=variables_initializer tables_initializer
        operations.state: initialize_all_tables=tables_initializer is_variable_initialized
        operations.state: report_uninitialized_variables assert_variables_initialized
        operations.array: constant convert_to_tensor placeholder placeholder_with_default identity shape=shape_of rank
        operations.array: size reshape transpose expand_dims squeeze concat stack pack=stack unstack unpack=unstack
        operations.array: split tile pad fill zeros ones zeros_like ones_like range=range_ linspace lin_space=linspace
        operations.array: reverse reverse_v2=reverse broadcast_to diag eye
        operations.indexing: gather gather_nd scatter_nd one_hot where select=where slice=slice_ strided_slice
        operations.indexing: sequence_mask boolean_mask segment_sum unsorted_segment_sum=segment_sum
        operations.arithmetic: add subtract multiply divide div truediv=divide realdiv=divide floordiv
        operations.arithmetic: floor_div=floordiv truncatediv mod=floormod floormod pow=pow_ sub=subtract mul=multiply
        operations.arithmetic: div_no_nan maximum minimum squared_difference atan2 equal not_equal less less_equal
        operations.arithmetic: greater greater_equal logical_and logical_or logical_xor logical_not negative
        operations.arithmetic: neg=negative abs=abs_ square sqrt rsqrt exp expm1 log log1p sin cos tan asin acos atan
        operations.arithmetic: sinh cosh tanh erf lgamma digamma sigmoid sign floor ceil round=round_ reciprocal
        operations.arithmetic: is_nan is_inf is_finite stop_gradient cast to_float to_int32 to_int64 to_double matmul
        operations.arithmetic: batch_matmul=matmul tensordot einsum add_n accumulate_n cumsum trace norm reduce_sum
        operations.arithmetic: reduce_mean reduce_max reduce_min reduce_prod reduce_all reduce_any reduce_logsumexp
        operations.arithmetic: argmax argmin arg_max=argmax arg_min=argmin matrix_inverse matrix_determinant cholesky
        operations.arithmetic: diag_part matrix_solve matrix_transpose
        operations.random: set_random_seed random_normal truncated_normal random_uniform random_shuffle multinomial
        operations.random: get_seed
        operations.clip: clip_by_value clip_by_norm clip_by_global_norm global_norm
        operations.gradients: gradients hessians
        operations.control_flow: no_op group tuple=tuple_ cond case while_loop
        operations.printing: Print=print_ print=print_v2 py_func Assert=assert_ assert_equal check_numerics
        operations.printing: add_check_numerics_ops
        operations.initializers: zeros_initializer=Zeros ones_initializer=Ones constant_initializer=Constant
        operations.initializers: random_normal_initializer=RandomNormal truncated_normal_initializer=TruncatedNormal
        operations.initializers: random_uniform_initializer=RandomUniform variance_scaling_initializer=VarianceScaling
        operations.initializers: uniform_unit_scaling_initializer=UniformUnitScaling
        operations.initializers: glorot_uniform_initializer=GlorotUniform glorot_normal_initializer=GlorotNormal
        operations.initializers: orthogonal_initializer=Orthogonal
        scripts.history: newaxis __version__=VERSION VERSION GIT_VERSION COMPILER_VERSION merge_all_summaries
        scripts.history: merge_summary scalar_summary histogram_summary image_summary
    """,
    "tf.nn": """
        operations.nn: relu relu6 elu selu crelu leaky_relu softplus softsign log_sigmoid swish sigmoid tanh softmax
        operations.nn: log_softmax xw_plus_b relu_layer bias_add l2_loss l2_normalize conv2d conv1d conv2d_transpose
        operations.nn: depthwise_conv2d max_pool avg_pool max_pool2d=max_pool avg_pool2d=avg_pool lrn
        operations.nn: local_response_normalization dropout moments batch_normalization fused_batch_norm zero_fraction
        operations.embedding: embedding_lookup
        operations.cross_entropy: softmax_cross_entropy_with_logits softmax_cross_entropy_with_logits_v2
        operations.cross_entropy: sparse_softmax_cross_entropy_with_logits sigmoid_cross_entropy_with_logits
        operations.cross_entropy: weighted_cross_entropy_with_logits log_poisson_loss
        operations.indexing: in_top_k top_k
    """,
    "tf.layers": """
        operations.layers: dense conv2d conv2d_transpose max_pooling2d average_pooling2d flatten dropout
        operations.layers: batch_normalization
    """,
    "tf.losses": """
        operations.losses: Reduction compute_weighted_loss mean_squared_error absolute_difference huber_loss log_loss
        operations.losses: hinge_loss cosine_distance softmax_cross_entropy sparse_softmax_cross_entropy
        operations.losses: sigmoid_cross_entropy add_loss get_losses get_regularization_losses get_regularization_loss
        operations.losses: get_total_loss
    """,
    "tf.metrics": """
        operations.metrics: mean accuracy precision recall mean_squared_error mean_absolute_error
        operations.metrics: root_mean_squared_error
    """,
    "tf.summary": """
        operations.summary: scalar histogram image merge merge_all FileWriter FileWriterCache Summary SessionLog Event
    """,
    "tf.train": """
        training.optimizer: Optimizer GradientDescentOptimizer MomentumOptimizer AdamOptimizer AdagradOptimizer
        training.optimizer: AdadeltaOptimizer RMSPropOptimizer FtrlOptimizer
        training.sync_replicas: SyncReplicasOptimizer SyncReplicasOptimizerV2=SyncReplicasOptimizer
        training.decay: exponential_decay natural_exp_decay inverse_time_decay polynomial_decay cosine_decay
        training.decay: piecewise_constant
        training.moving_average: ExponentialMovingAverage
        training.global_step: get_global_step create_global_step get_or_create_global_step global_step
        training.global_step: assert_global_step
        training.saver: Saver latest_checkpoint checkpoint_exists get_checkpoint_state update_checkpoint_state
        training.saver: CheckpointState list_variables load_variable
        sessions.server: ClusterSpec Server
        graphs.device: replica_device_setter
        training.supervisor: Supervisor
        training.scaffold: Scaffold ChiefSessionCreator WorkerSessionCreator SessionCreator SessionManager
        training.monitored: MonitoredTrainingSession MonitoredSession SingularMonitoredSession
        training.hooks: SessionRunHook SessionRunArgs SessionRunContext SessionRunValues SecondOrStepTimer
        training.hooks: StopAtStepHook LoggingTensorHook NanTensorHook NanLossDuringTrainingError CheckpointSaverHook
        training.hooks: CheckpointSaverListener StepCounterHook SummarySaverHook FinalOpsHook FeedFnHook
        training.hooks: GlobalStepWaiterHook
        training.coordinator: Coordinator QueueRunner start_queue_runners add_queue_runner
        operations.summary: SummaryWriter=FileWriter
        scripts.files: write_graph
    """,
    "tf.errors": """
        graphs.errors: OpError CancelledError InvalidArgumentError DeadlineExceededError NotFoundError
        graphs.errors: AlreadyExistsError ResourceExhaustedError FailedPreconditionError AbortedError OutOfRangeError
        graphs.errors: UnimplementedError InternalError UnavailableError DataLossError
    """,
    "tf.logging": """
        scripts.logging: DEBUG INFO WARN ERROR FATAL set_verbosity get_verbosity log debug info warning warn error
        scripts.logging: fatal log_every_n log_first_n log_if vlog flush get_logger TaskLevelStatusMessage
    """,
    "tf.app": """
        scripts.flags: run
    """,
    "tf.flags": """
        scripts.flags: FLAGS DEFINE_string DEFINE_integer DEFINE_float DEFINE_bool DEFINE_boolean DEFINE_list
        scripts.flags: DEFINE_enum mark_flag_as_required mark_flags_as_required validator
    """,
    "tf.gfile": """
        scripts.files: Exists MakeDirs MkDir DeleteRecursively Remove IsDirectory ListDirectory Glob GFile Open=GFile
        scripts.files: FastGFile=GFile Rename Copy
    """,
    "tf.initializers": """
        operations.initializers: zeros=Zeros ones=Ones constant=Constant random_normal=RandomNormal
        operations.initializers: truncated_normal=TruncatedNormal random_uniform=RandomUniform
        operations.initializers: variance_scaling=VarianceScaling glorot_uniform=GlorotUniform
        operations.initializers: glorot_normal=GlorotNormal orthogonal=Orthogonal identity=Identity he_normal
        operations.initializers: he_uniform lecun_normal lecun_uniform
        operations.state: global_variables=global_variables_initializer local_variables=local_variables_initializer
        operations.state: variables=variables_initializer
    """,
    "tf.math": """
        operations.arithmetic: add subtract multiply divide floordiv floormod pow=pow_ maximum minimum
        operations.arithmetic: squared_difference atan2 equal not_equal less less_equal greater greater_equal
        operations.arithmetic: logical_and logical_or logical_not negative abs=abs_ square sqrt rsqrt exp expm1 log
        operations.arithmetic: log1p sin cos tan asin acos atan sinh cosh tanh erf lgamma digamma sigmoid sign floor
        operations.arithmetic: ceil round=round_ reciprocal is_nan is_inf is_finite add_n cumsum reduce_sum
        operations.arithmetic: reduce_mean reduce_max reduce_min reduce_prod reduce_all reduce_any reduce_logsumexp
        operations.arithmetic: argmax argmin div_no_nan accumulate_n
        operations.nn: softplus log_softmax softmax l2_normalize
        operations.indexing: top_k in_top_k segment_sum unsorted_segment_sum=segment_sum
    """,
    "tf.random": """
        operations.random: set_random_seed normal=random_normal truncated_normal uniform=random_uniform
        operations.random: shuffle=random_shuffle multinomial
    """,
    "tf.linalg": """
        operations.arithmetic: matmul inv=matrix_inverse det=matrix_determinant cholesky solve=matrix_solve trace
        operations.arithmetic: einsum tensordot norm transpose=matrix_transpose diag_part
        operations.array: diag eye
    """,
    "tf.compat": """
        scripts.history: as_bytes as_text as_str as_str_any
    """,
    "tf.contrib": "",
    "tf.contrib.training": """
        graphs.device: GreedyLoadBalancingStrategy byte_size_load_fn
    """,
    "tf.contrib.layers": """
        scripts.contrib: xavier_initializer variance_scaling_initializer l1_regularizer l2_regularizer
        operations.layers: flatten
    """,
    "tf.contrib.framework": """
        training.global_step: get_global_step create_global_step get_or_create_global_step
    """,
    "tf.test": """
        scripts.files: is_gpu_available gpu_device_name is_built_with_cuda get_temp_dir
    """,
}

_INSIDE = {"tf.app": {"flags": "tf.flags"}, "tf.compat": {"v1": "tf"}}
"""Namespaces that are found in others under another name."""


def _read(table: str) -> dict[str, tuple[str, str]]:
    found = {}
    for line in filter(None, map(str.strip, table.splitlines())):
        file, _, names = line.partition(":")
        for name in names.split():
            public, _, own = name.partition("=")
            found[public] = file, own or public
    return found


NAMES: dict[str, dict[str, tuple[str, str]]] = {space: _read(table) for space, table in _TABLE.items()}
"""Of each namespace its names: which file each is in, and what it is called there."""


def inside(space: str) -> dict[str, str]:
    """The namespaces within a namespace, by the last part of their names."""
    found = {name.rpartition(".")[2]: name for name in NAMES if name.rpartition(".")[0] == space}
    return found | _INSIDE.get(space, {})


def everything() -> list[str]:
    """All names, as `tf.nn.relu`."""
    return [f"{space}.{name}" for space, names in NAMES.items() for name in names]


def look_up(path: str) -> str | None:
    """The first part of a dotted name such as `tf.nn.relu6` that is not there, as far as it; `None` if all is.

    What comes behind a name that is there, an attribute of it, is not looked at.
    """
    space, *rest = path.split(".")
    for part in rest:
        if part in inside(space):
            space = inside(space)[part]
        elif part in NAMES[space]:
            return None
        else:
            return f"{space}.{part}"
    return None
