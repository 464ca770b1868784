"""TensorFlow's own tree of modules, from which scripts import although it was never public: `tensorflow.python` etc.

A module here has no names of its own but those of public namespaces, which are searched in turn, and the few of
`_PRIVATE`.
"""

from __future__ import annotations

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
    tf.summary: python.summary.writer python.summary.writer.writer
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
    tf: client.session python.client.session core.protobuf.config_pb2 core.protobuf.meta_graph_pb2
    tf: core.framework.graph_pb2 core.framework.node_def_pb2 core.framework.attr_value_pb2 core.framework.types_pb2
    tf: core.framework.tensor_pb2 core.framework.tensor_shape_pb2 core.framework.summary_pb2 core.util.event_pb2
    tf.layers: python.layers.core python.layers.layers python.layers.convolutional python.layers.pooling
    tf.layers: python.layers.normalization python.layers.base
    tf.estimator: python.estimator.estimator python.estimator.model_fn python.estimator.run_config
    tf.data tf: python.data.ops python.data.ops.dataset_ops python.data.ops.iterator_ops
    tf.saved_model: python.saved_model.builder python.saved_model.loader python.saved_model.tag_constants
    tf.saved_model: python.saved_model.signature_constants python.saved_model.signature_def_utils
    tf tf.contrib.framework: python.util.nest
    tf.contrib.learn.datasets: contrib.learn.python.learn.datasets
    tf.contrib.learn.datasets.mnist: contrib.learn.python.learn.datasets.mnist
    tf tf.linalg: python.ops.gen_linalg_ops python.ops.gen_logging_ops
    tf.linalg tf: python.ops.linalg python.ops.linalg.linalg python.ops.linalg.linalg_impl python.ops.linalg_impl
    tf tf.contrib.framework: python.ops.confusion_matrix
    tf.contrib.framework.nest tf tf.contrib.framework: python.util.nest
    tf tf.spectral tf.signal: python.ops.spectral_ops python.ops.gen_spectral_ops
    tf.contrib.learn.datasets.base: contrib.learn.python.learn.datasets.base
"""
"""`namespace ...: module ...`: the modules, after `tensorflow.`, and what they have."""

_PRIVATE = {
    "python.framework.ops": "scripts.private: add_to_collections init_scope convert_n_to_tensor",
    "python.framework.tensor_shape": """
        scripts.history: dimension_value dimension_at_index
        .ops.shapes: unknown_shape
    """,
    "python.framework.function": "operations.defun: Defun",
    "python.ops.data_flow_ops": "input.barriers: Barrier",
    "python.ops.math_ops": "ops: _bucketize=tf.raw_ops.Bucketize",
    "python.ops.array_ops": "ops: inplace_add=tf.raw_ops.InplaceAdd inplace_update=tf.raw_ops.InplaceUpdate",
    "python.ops.inplace_ops": """
        ops: inplace_update=tf.raw_ops.InplaceUpdate inplace_add=tf.raw_ops.InplaceAdd
        ops: inplace_sub=tf.raw_ops.InplaceSub alias_inplace_update=tf.raw_ops.InplaceUpdate
        ops: alias_inplace_add=tf.raw_ops.InplaceAdd alias_inplace_sub=tf.raw_ops.InplaceSub
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
    """,
    "python.ops.gen_logging_ops": "operations.printing: _assert=assert_",
    "python.ops.gen_linalg_ops": "ops: log_matrix_determinant=tf.linalg.slogdet",
    "python.ops.functional_ops": """
        operations.defun: If While For Gradient symbolic_gradient=Gradient remote_call partitioned_call
    """,
    "python.ops.control_flow_ops": """
        scripts.private: with_dependencies
        operations.switching: switch merge
    """,
    "python.ops.variables": "graphs.variable: VariableV1=Variable RefVariable=Variable",
    "python.ops.resource_variable_ops": """
        scripts.private: is_resource_variable
        graphs.variable: ResourceVariable=Variable
    """,
    "python.training.moving_averages": "training.debiased_average: assign_moving_average",
    "python.util.deprecation": "scripts.private: _PRINT_DEPRECATION_WARNINGS",
    "python.client.device_lib": "scripts.machine: list_local_devices",
    "python.client.timeline": "scripts.profiling: Timeline",
    "python.framework.tensor_util": "scripts.values: constant_value make_tensor_proto make_ndarray",
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
"""What else it has: of each name the file, and what it is called there."""


def spaces_of(module: str) -> tuple[str, ...] | None:
    """The namespaces that stand for a module such as `tf.python.ops.math_ops`; `None` if it is not known.

    `tf.contrib.layers.python.layers` and all within is `tf.contrib.layers`.
    """
    if module in NAMES:
        return (module,)
    if module in MODULES:
        return MODULES[module]
    space, private, _ = module.partition(".python")
    return (space,) if private and space.startswith("tf.contrib.") and space in NAMES else None


def child(module: str, name: str) -> str | None:
    """The module or namespace of a name within another; `None` if it is not one."""
    if name in inside(module):
        return inside(module)[name]
    if spaces_of(f"{module}.{name}") is not None:
        return f"{module}.{name}"
    return next((inside(space)[name] for space in spaces_of(module) or () if name in inside(space)), None)


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
    module, *rest = path.split(".")
    for part in rest:
        inner = child(module, part)
        if inner is None:
            return None if locate(module, part) else f"{module}.{part}"
        module = inner
    return None
