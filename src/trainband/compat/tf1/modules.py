"""TensorFlow's own tree of modules, from which scripts import although it was never public: `tensorflow.python` etc.

A module here has no names of its own but those of public namespaces, which are searched in turn, and the few of
`_PRIVATE`.
"""

from __future__ import annotations

from trainband.compat.missing import first_missing
from trainband.compat.tf1.names import NAMES, inside, read

_PUBLIC = """
    tf: python python.ops python.framework python.platform python.training python.client python.util python.lib
    tf: python.lib.io python.summary python.layers python.estimator python.data python.saved_model python.debug
    tf: python.eager python.tools python.user_ops python.eager.context
    tf: python.util.deprecation python.util.module_wrapper
    tf tf.train: python.pywrap_tensorflow
    tf: core core.framework core.protobuf core.util core.example examples examples.tutorials examples.tutorials.mnist
    tf tf.dtypes: python.framework.dtypes
    tf tf.errors: python.framework.errors python.framework.errors_impl
    tf tf.graph_util: python.framework.graph_util python.framework.graph_util_impl
    tf: python.framework.ops python.framework.constant_op python.framework.tensor_shape python.framework.random_seed
    tf: python.framework.importer python.framework.function python.framework.device python.framework.versions
    tf tf.contrib.util: python.framework.tensor_util
    tf tf.sparse: python.framework.sparse_tensor python.ops.sparse_ops
    tf tf.math tf.linalg: python.ops.math_ops python.ops.linalg_ops python.ops.gen_math_ops python.ops.special_math_ops
    tf tf.math tf.linalg: python.ops.array_ops python.ops.gen_array_ops python.ops.check_ops python.ops.clip_ops
    tf tf.math tf.random: python.ops.random_ops python.ops.gen_random_ops python.ops.standard_ops
    tf tf.nn tf.math: python.ops.nn python.ops.nn_ops python.ops.nn_impl python.ops.gen_nn_ops python.ops.embedding_ops
    tf tf.nn tf.math: python.ops.candidate_sampling_ops python.ops.rnn python.ops.ctc_ops python.ops.seq2seq
    tf.nn.rnn_cell tf.nn tf.contrib.rnn tf: python.ops.rnn_cell python.ops.rnn_cell_impl
    tf: python.ops.control_flow_ops python.ops.state_ops python.ops.gen_state_ops python.ops.variables
    tf: python.ops.variable_scope python.ops.partitioned_variables python.ops.resource_variable_ops
    tf: python.ops.gradients python.ops.gradients_impl python.ops.logging_ops python.ops.script_ops
    tf.bitwise tf: python.ops.bitwise_ops python.ops.gen_bitwise_ops
    tf tf.image: python.ops.gen_image_ops
    tf: python.ops.data_flow_ops python.ops.functional_ops python.ops.tensor_array_ops python.ops.template
    tf: python.ops.histogram_ops python.ops.confusion_matrix python.ops.session_ops python.ops.map_fn
    tf tf.initializers: python.ops.init_ops
    tf tf.io tf.strings: python.ops.io_ops python.ops.parsing_ops python.ops.string_ops
    tf tf.contrib.lookup: python.ops.lookup_ops
    tf tf.image: python.ops.image_ops python.ops.image_ops_impl
    tf.losses: python.ops.losses python.ops.losses.losses python.ops.losses.losses_impl python.ops.losses.util
    tf.metrics: python.ops.metrics python.ops.metrics_impl
    tf tf.distributions: python.ops.distributions python.ops.distributions.distributions
    tf.distributions: python.ops.distributions.normal python.ops.distributions.categorical
    tf.summary tf: python.ops.summary_ops python.summary.summary python.summary.summary_iterator
    tf.summary: python.summary.writer python.summary.writer.writer python.summary.writer.writer_cache
    tf.app: python.platform.app
    tf.flags: python.platform.flags
    tf.gfile tf.io.gfile: python.platform.gfile python.lib.io.file_io
    tf.logging: python.platform.tf_logging
    tf.test: python.platform.test python.platform.googletest python.framework.test_util
    tf.resource_loader: python.platform.resource_loader
    tf.sysconfig: python.platform.sysconfig
    tf.python_io tf.io: python.lib.io.python_io python.lib.io.tf_record
    tf.train tf: python.training.training python.training.saver python.training.optimizer python.training.adam
    tf.train tf: python.training.gradient_descent python.training.momentum python.training.adagrad
    tf.train tf: python.training.adadelta python.training.rmsprop python.training.ftrl python.training.training_util
    tf.train tf: python.training.moving_averages python.training.learning_rate_decay python.training.session_run_hook
    tf.train tf: python.training.basic_session_run_hooks python.training.monitored_session
    tf.train tf: python.training.session_manager python.training.supervisor python.training.coordinator
    tf.train tf: python.training.queue_runner python.training.queue_runner_impl python.training.input
    tf.train tf: python.training.server_lib python.training.device_setter python.training.sync_replicas_optimizer
    tf.train tf: python.training.checkpoint_utils python.training.checkpoint_management python.training.slot_creator
    tf.train tf: python.training.checkpoint_state_pb2 python.training.summary_io python.training.evaluation
    tf.train tf: core.example.example_pb2 core.example.feature_pb2 core.protobuf.cluster_pb2
    tf.train tf: core.protobuf.tensorflow_server_pb2 core.protobuf.saver_pb2
    tf.train tf: python.training.adagrad_da python.training.basic_loops python.training.proximal_adagrad
    tf.train tf: python.training.proximal_gradient_descent
    tf: python.ops.resources
    tf.estimator: python.estimator.canned.baseline python.estimator.canned.dnn python.estimator.canned.linear
    tf.estimator: python.estimator.canned.dnn_linear_combined python.estimator.exporter python.estimator.training
    tf.estimator: python.estimator.warm_starting_util python.estimator.canned
    tf.estimator.export: python.estimator.export.export_output python.estimator.export.export python.estimator.export
    tf.estimator.inputs: python.estimator.inputs.numpy_io python.estimator.inputs.pandas_io
    tf.estimator.inputs: python.estimator.inputs.inputs python.estimator.inputs
    tf.feature_column: python.feature_column python.feature_column.feature_column
    tf.feature_column: python.feature_column.feature_column_lib
    tf.train: python.training.warm_starting_util
    tf tf.data: python.data.util.sparse
    tf: client.session python.client.session core.protobuf.config_pb2 core.protobuf.meta_graph_pb2
    tf: core.framework.graph_pb2 core.framework.node_def_pb2 core.framework.attr_value_pb2 core.framework.types_pb2
    tf: core.framework.tensor_pb2 core.framework.tensor_shape_pb2 core.framework.summary_pb2 core.util.event_pb2
    tf.layers: python.layers.core python.layers.layers python.layers.convolutional python.layers.pooling
    tf.layers: python.layers.normalization python.layers.base
    tf.estimator: python.estimator.estimator python.estimator.model_fn python.estimator.run_config
    tf.data tf: python.data.ops python.data.ops.dataset_ops python.data.ops.iterator_ops
    tf.saved_model: python.saved_model.builder python.saved_model.loader python.saved_model.tag_constants
    tf.saved_model: python.saved_model.signature_constants python.saved_model.signature_def_utils
    tf.saved_model: python.saved_model.signature_def_utils_impl python.saved_model.simple_save
    tf.saved_model: python.saved_model.utils python.saved_model.utils_impl python.saved_model.constants
    tf.saved_model: python.saved_model.builder_impl python.saved_model.loader_impl
    tf.contrib.framework.nest tf: python.util.nest
    tf: python.keras._impl
    tf.keras.layers: python.keras.engine.base_layer python.keras.layers.core python.keras.engine.input_layer
    tf.keras.models tf.keras: python.keras.engine.training python.keras.engine.sequential python.keras.engine.network
    tf.contrib.learn.datasets: contrib.learn.python.learn.datasets
    tf.contrib.learn.learn_runner: contrib.learn.python.learn.learn_runner
    tf.contrib.learn.monitors: contrib.learn.python.learn.monitors
    tf.contrib.learn.datasets.mnist: contrib.learn.python.learn.datasets.mnist
    tf tf.linalg: python.ops.gen_linalg_ops python.ops.gen_logging_ops
    tf.linalg tf: python.ops.linalg python.ops.linalg.linalg python.ops.linalg.linalg_impl python.ops.linalg_impl
    tf tf.spectral tf.signal: python.ops.spectral_ops python.ops.gen_spectral_ops
    tf.contrib.learn.datasets.base: contrib.learn.python.learn.datasets.base
    tf: python.ops.manip_ops python.ops.numerics python.ops.gen_manip_ops python.ops.gen_data_flow_ops
    tf: python.ops.gen_control_flow_ops python.ops.gen_resource_variable_ops
    tf: python.ops.gen_script_ops python.ops.tensor_array_grad python.ops.weights_broadcast_ops
    tf tf.io tf.strings: python.ops.gen_io_ops python.ops.gen_parsing_ops python.ops.gen_string_ops
    tf tf.sparse: python.ops.gen_sparse_ops
"""
"""`namespace ...: module ...`: the modules, after `tensorflow.`, and what they have."""

_PRIVATE = {
    "python.framework.ops": "scripts.private: add_to_collections init_scope _USE_C_API convert_n_to_tensor",
    "python.lib.io.file_io": """
        scripts.files: FileIO=GFile create_dir=MkDir delete_file=Remove delete_recursively=DeleteRecursively
        scripts.files: file_exists=Exists get_matching_files=Glob is_directory=IsDirectory list_directory=ListDirectory
        scripts.files: recursive_create_dir=MakeDirs copy=Copy rename=Rename stat=Stat walk=Walk read_file_to_string
        scripts.files: write_string_to_file atomic_write_string_to_file
    """,
    "python.framework.smart_cond": "networks.contrib_parts: smart_cond smart_case smart_constant_value=constant_value",
    "python.framework.tensor_spec": "graphs.tensor_spec: TensorSpec BoundedTensorSpec",
    "python.framework.random_seed": "graphs.keys: DEFAULT_GRAPH_SEED",
    "python.ops.nn_ops": """
        ops: data_format_dim_map=tf.raw_ops.DataFormatDimMap data_format_vec_permute=tf.raw_ops.DataFormatVecPermute
        operations.unlisted: nth_element
    """,
    "core.framework.types_pb2": """
        protos.types: DataType DT_INVALID DT_FLOAT DT_DOUBLE DT_INT32 DT_UINT8 DT_INT16 DT_INT8 DT_STRING DT_COMPLEX64
        protos.types: DT_INT64 DT_BOOL DT_QINT8 DT_QUINT8 DT_QINT32 DT_BFLOAT16 DT_QINT16 DT_QUINT16 DT_UINT16
        protos.types: DT_COMPLEX128 DT_HALF DT_RESOURCE DT_VARIANT DT_UINT32 DT_UINT64 DT_FLOAT_REF DT_VARIANT_REF
        protos.types: DT_RESOURCE_REF
    """,
    "python.framework.tensor_shape": """
        .text: dimension_value
        scripts.history: dimension_at_index
        .ops.shapes: as_dimension as_shape unknown_shape scalar vector matrix
    """,
    "python.summary.summary_iterator": "scripts.events: summary_iterator",
    "python.ops.gen_state_ops": "operations.bare_variables: variable=variable_op variable_v2=variable_op_v2",
    "python.estimator.run_config": "estimators.run_config: TaskType",
    "python.estimator.model_fn": "estimators.spec: LOSS_METRIC_KEY AVERAGE_LOSS_METRIC_KEY",
    "python.framework.sparse_tensor": "graphs.sparse: is_sparse convert_to_tensor_or_sparse_tensor",
    "python.training.training_util": "training.global_step: _increment_global_step=increment_global_step",
    "python.ops.resources": "scripts.private: shared_resources local_resources=shared_resources initialize_resources",
    "python.layers.normalization": """
        networks.functions: batch_norm=batch_normalization
        networks.normalization: BatchNorm=BatchNormalization
    """,
    "python.layers.convolutional": """
        networks.convolution: Convolution1D=Conv1D Convolution2D=Conv2D Convolution3D=Conv3D
        networks.convolution: SeparableConvolution2D=SeparableConv2D Convolution2DTranspose=Conv2DTranspose
        networks.functions: convolution1d=conv1d convolution2d=conv2d convolution3d=conv3d
        networks.functions: separable_convolution2d=separable_conv2d convolution2d_transpose=conv2d_transpose
    """,
    "python.layers.core": """
        networks.core: FullyConnected=Dense
        networks.functions: fully_connected=dense
    """,
    "python.layers.pooling": """
        networks.pooling: MaxPool1D=MaxPooling1D MaxPool2D=MaxPooling2D MaxPool3D=MaxPooling3D
        networks.pooling: AvgPool1D=AveragePooling1D AvgPool2D=AveragePooling2D AvgPool3D=AveragePooling3D
        networks.functions: max_pool1d=max_pooling1d max_pool2d=max_pooling2d max_pool3d=max_pooling3d
        networks.functions: avg_pool1d=average_pooling1d avg_pool2d=average_pooling2d avg_pool3d=average_pooling3d
    """,
    "python.layers.utils": """
        networks.arguments: normalize_tuple normalize_data_format normalize_padding convert_data_format
        networks.arguments: conv_output_length conv_input_length deconv_output_length
        networks.contrib_parts: smart_cond constant_value
    """,
    "python.ops.control_flow_ops": """
        scripts.private: with_dependencies
        operations.switching: switch merge
    """,
    "python.framework.function": "operations.defun: Defun",
    "python.ops.data_flow_ops": """
        input.barriers: Barrier
        input.staging: StagingArea
    """,
    "python.ops.math_ops": """
        ops: _bucketize=tf.raw_ops.Bucketize
        operations.unlisted: sparse_segment_sum_with_num_segments sparse_segment_mean_with_num_segments
        operations.unlisted: sparse_segment_sqrt_n_with_num_segments
    """,
    "python.ops.array_ops": """
        ops: inplace_add=tf.raw_ops.InplaceAdd inplace_update=tf.raw_ops.InplaceUpdate
        operations.unlisted: scatter_nd_non_aliasing_add
    """,
    "python.ops.inplace_ops": """
        ops: inplace_update=tf.raw_ops.InplaceUpdate inplace_add=tf.raw_ops.InplaceAdd inplace_sub=tf.raw_ops.InplaceSub
        ops: alias_inplace_update=tf.raw_ops.InplaceUpdate alias_inplace_add=tf.raw_ops.InplaceAdd
        ops: alias_inplace_sub=tf.raw_ops.InplaceSub
    """,
    "python.ops.gen_array_ops": """
        ops: concat_offset=tf.raw_ops.ConcatOffset concat_v2=tf.concat broadcast_args=tf.broadcast_dynamic_shape
        ops: broadcast_gradient_args=tf.raw_ops.BroadcastGradientArgs snapshot=tf.identity ref_identity=tf.identity
    """,
    "python.ops.gen_math_ops": """
        ops: reciprocal_grad=tf.raw_ops.ReciprocalGrad rsqrt_grad=tf.raw_ops.RsqrtGrad
        ops: sigmoid_grad=tf.raw_ops.SigmoidGrad sqrt_grad=tf.raw_ops.SqrtGrad tanh_grad=tf.raw_ops.TanhGrad
    """,
    "python.ops.gen_nn_ops": """
        ops: max_pool_grad=tf.raw_ops.MaxPoolGrad avg_pool_grad=tf.raw_ops.AvgPoolGrad
        ops: fractional_max_pool_grad=tf.raw_ops.FractionalMaxPoolGrad
        ops: fractional_avg_pool_grad=tf.raw_ops.FractionalAvgPoolGrad
        operations.unlisted: nth_element max_pool_v2 softmax_cross_entropy_with_logits
        operations.unlisted: sparse_softmax_cross_entropy_with_logits
    """,
    "python.ops.gen_logging_ops": "operations.printing: _assert=assert_",
    "python.ops.gen_linalg_ops": "ops: log_matrix_determinant=tf.linalg.slogdet",
    "python.ops.functional_ops": """
        operations.defun: If While For Gradient symbolic_gradient=Gradient remote_call partitioned_call
    """,
    "python.ops.variables": "graphs.variable: VariableV1=Variable RefVariable=Variable",
    "python.ops.resource_variable_ops": """
        scripts.private: is_resource_variable
        operations.bare_variables: var_handle_op read_variable_op assign_variable_op assign_add_variable_op
        operations.bare_variables: assign_sub_variable_op var_is_initialized_op destroy_resource_op resource_gather
        operations.bare_variables: resource_scatter_add resource_scatter_sub resource_scatter_mul resource_scatter_div
        operations.bare_variables: resource_scatter_min resource_scatter_max resource_scatter_update
        graphs.variable: ResourceVariable=Variable
    """,
    "python.training.moving_averages": "training.debiased_average: assign_moving_average weighted_moving_average",
    "python.training.slot_creator": "training.slots: create_slot create_slot_with_initializer create_zeros_slot",
    "python.util.deprecation": "scripts.private: _PRINT_DEPRECATION_WARNINGS",
    "python.client.device_lib": "scripts.machine: list_local_devices",
    "python.client.timeline": "scripts.profiling: Timeline",
    "core.protobuf.meta_graph_pb2": """
        protos.graph: MetaGraphDef CollectionDef SignatureDef TensorInfo AssetFileDef OpList GraphDef SaverDef
    """,
    "core.protobuf.saved_model_pb2": "protos.graph: SavedModel",
    "core.framework.variable_pb2": "protos.graph: VariableDef SaveSliceInfoDef",
    "core.framework.op_def_pb2": "protos.graph: OpDef OpList",
    "core.framework.tensor_pb2": "protos.graph: TensorProto",
    "core.framework.tensor_shape_pb2": "protos.graph: TensorShapeProto",
    "core.framework.attr_value_pb2": "protos.graph: AttrValue NameAttrList",
    "core.framework.versions_pb2": "protos.graph: VersionDef",
    "python.tools.freeze_graph": "scripts.freeze_graph: freeze_graph",
    "python.framework.meta_graph": """
        training.meta_graph: create_meta_graph_def export_scoped_meta_graph import_scoped_meta_graph
        training.meta_graph: read_meta_graph_file
    """,
    "python.framework.tensor_util": """
        scripts.values: constant_value constant_value_as_shape make_tensor_proto make_ndarray MakeNdarray=make_ndarray
        scripts.values: ShapeEquals
    """,
    "python.ops.sparse_ops": """
        input.sparse_parts: _sparse_cross=sparse_cross _sparse_cross_hashed=sparse_cross_hashed deserialize_sparse
        input.sparse_parts: sparse_dense_cwise_add
        input.hashes: _DEFAULT_HASH_KEY=CROSSING_KEY
    """,
    "python.ops.script_ops": "sessions.python_function: eager_py_func=py_function",
    "python.ops.random_ops": "operations.unlisted: parameterized_truncated_normal",
    "python.ops.weights_broadcast_ops": "operations.weights_broadcast: assert_broadcastable broadcast_weights",
    "python.ops.partitioned_variables": "operations.variable_scope: create_partitioned_variables",
    "python.ops.state_ops": "operations.bare_variables: variable_op variable_op_v2",
    "python.ops.parsing_ops": "input.parsing_json: decode_json_example",
    "examples.tutorials.mnist.mnist": """
        scripts.mnist_model: inference loss training evaluation NUM_CLASSES IMAGE_SIZE IMAGE_PIXELS
    """,
    "examples.tutorials.mnist.input_data": "scripts.input_data: read_data_sets DataSet Datasets",
}
"""Names that only such a module has, as in the table of names."""


def _read() -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for line in filter(None, map(str.strip, _PUBLIC.splitlines())):
        spaces, _, modules = line.partition(":")
        there = tuple(space for space in spaces.split() if space in NAMES)
        if there:
            found |= {f"tf.{module}": there for module in modules.split()}
    return found | {f"tf.{module}": found.get(f"tf.{module}", ()) for module in _PRIVATE}


MODULES: dict[str, tuple[str, ...]] = _read()
"""The namespaces whose names a module has, in the order in which they are searched."""
PRIVATE: dict[str, dict[str, tuple[str, str]]] = {f"tf.{module}": read(table) for module, table in _PRIVATE.items()}
"""Its other names: for each, the file and the name there."""


def spaces_of(module: str) -> tuple[str, ...] | None:
    """The namespaces that stand for a module such as `tf.python.ops.math_ops`; `None` if it is not known.

    `tf.contrib.layers.python.layers` and all within is `tf.contrib.layers`.
    """
    if module in NAMES:
        return (module,)
    if module in MODULES:
        return MODULES[module]
    for tree in ("tf.python.keras._impl.keras", "tf.python.keras", "tf.contrib.keras"):
        if module.startswith(tree) and "tf.keras" + module.removeprefix(tree) in NAMES:
            return ("tf.keras" + module.removeprefix(tree),)
    space, private, _ = module.partition(".python")
    return (space,) if private and space.startswith("tf.contrib.") and space in NAMES else None


def child(module: str, name: str) -> str | None:
    """The module or namespace of a name within another; `None` if it is not one."""
    if name in inside(module):
        return inside(module)[name]
    inner = f"{module}.{name}"
    if inner in NAMES or inner in MODULES or (locate(module, name) is None and spaces_of(inner) is not None):
        return inner
    for space in spaces_of(module) or ():
        if name in NAMES[space]:
            return None  # `summary.image` is the function of `tf.summary`, which comes before `tf`
        if name in inside(space):
            return inside(space)[name]
    return None


def locate(module: str, name: str) -> tuple[str, str] | None:
    """The file of a name of a module or namespace, and what it is called there; `None` if it is not there."""
    if name in PRIVATE.get(module, {}):
        return PRIVATE[module][name]
    return next((NAMES[space][name] for space in spaces_of(module) or () if name in NAMES[space]), None)


def names_of(module: str) -> list[str]:
    """All names of a module or namespace."""
    spaces = spaces_of(module) or ()
    names = {*PRIVATE.get(module, {}), *inside(module)}
    return sorted(names.union(*(NAMES[space] for space in spaces), *(inside(space) for space in spaces)))


def look_up(path: str) -> str | None:
    """The first part of a dotted name such as `tf.nn.relu6` that is not there, as far as it; `None` if all is.

    Attributes of a name that exists are not checked.
    """
    return first_missing(path, child, locate)
