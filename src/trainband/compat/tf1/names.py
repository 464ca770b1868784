"""All names of the TensorFlow 1 front end and where each is: the list behind attributes, `--check` and the docs.

The operations come from the table of `compat.ops`. The rest is listed here: a line of a namespace is
`package.file: name name=its_name_there ...`, of files in `compat.tf1`, or in `compat` where it begins with a dot. A
name that is listed here takes precedence over one of the table.
"""

from __future__ import annotations

from trainband.compat.ops.catalogue import v1_names

_TABLE: dict[str, str] = {
    "tf": """
        graphs.graph: Graph Operation Tensor get_default_graph reset_default_graph
        graphs.graph_keys: GraphKeys
        .ops.shapes: TensorShape Dimension
        graphs.slices: IndexedSlices
        .ops.dtypes: DType as_dtype float16 bfloat16 float32 float64 int8 int16 int32 int64 uint8 uint16 uint32
        .ops.dtypes: uint64 bool=bool_ complex64 complex128 string half=float16 double=float64
        sessions.session: Session InteractiveSession
        graphs.default_session: get_default_session
        graphs.config: ConfigProto GPUOptions GraphOptions OptimizerOptions RunOptions RunMetadata
        graphs.device_spec: DeviceSpec
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
        operations.array: constant convert_to_tensor placeholder placeholder_with_default reshape concat split
        operations.array: boolean_mask
        operations.random: set_random_seed get_seed
        operations.image: random_crop
        operations.clip: clip_by_global_norm global_norm
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
        input.producers: matching_files
        input.readers: ReaderBase TextLineReader TFRecordReader WholeFileReader FixedLengthRecordReader IdentityReader
        input.readers: read_file write_file
        input.features: FixedLenFeature VarLenFeature FixedLenSequenceFeature SparseFeature
        input.parsing: parse_example parse_single_example parse_single_sequence_example
        input.decoding: decode_raw decode_csv string_to_number
        graphs.sparse: SparseTensor SparseTensorValue
        input.sparse: sparse_placeholder sparse_reorder sparse_tensor_to_dense sparse_to_dense sparse_to_indicator
        input.sparse: sparse_concat sparse_reduce_sum sparse_reduce_max sparse_retain sparse_slice sparse_softmax
        input.sparse: sparse_fill_empty_rows sparse_reset_shape sparse_reshape sparse_transpose sparse_add sparse_merge
        input.sparse: sparse_mask edit_distance
        input.sparse_products: sparse_tensor_dense_matmul
        input.text: string_join substr regex_replace string_split string_strip string_length string_lower string_upper
        input.text: reduce_join as_string string_to_hash_bucket string_to_hash_bucket_fast encode_base64 decode_base64
        input.queues: QueueBase FIFOQueue RandomShuffleQueue PaddingFIFOQueue PriorityQueue
        scripts.history: newaxis __version__=VERSION VERSION GIT_VERSION COMPILER_VERSION merge_all_summaries
        scripts.history: merge_summary scalar_summary histogram_summary image_summary
    """,
    "tf.nn": """
        operations.embedding: embedding_lookup
        input.sparse_products: embedding_lookup_sparse safe_embedding_lookup_sparse
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
        training.optimizer: Optimizer
        training.optimizers: GradientDescentOptimizer MomentumOptimizer AdamOptimizer AdagradOptimizer
        training.optimizers: AdadeltaOptimizer RMSPropOptimizer FtrlOptimizer
        training.sync_replicas: SyncReplicasOptimizer SyncReplicasOptimizerV2=SyncReplicasOptimizer
        training.moving_average: ExponentialMovingAverage
        training.global_step: get_global_step create_global_step get_or_create_global_step global_step
        training.global_step: assert_global_step
        training.saver: Saver
        training.checkpoint_files: latest_checkpoint checkpoint_exists get_checkpoint_state
        training.checkpoint_files: update_checkpoint_state CheckpointState list_variables load_variable
        sessions.server: ClusterSpec Server
        graphs.device: replica_device_setter
        training.supervisor: Supervisor
        training.scaffold: Scaffold ChiefSessionCreator WorkerSessionCreator SessionCreator SessionManager
        training.monitored: MonitoredTrainingSession MonitoredSession SingularMonitoredSession
        training.session_run_hook: SessionRunHook SessionRunArgs SessionRunContext SessionRunValues
        training.timer: SecondOrStepTimer
        training.hooks: StopAtStepHook LoggingTensorHook NanTensorHook NanLossDuringTrainingError FinalOpsHook
        training.hooks: FeedFnHook GlobalStepWaiterHook
        training.checkpoint_hook: CheckpointSaverHook CheckpointSaverListener
        training.summary_hooks: StepCounterHook SummarySaverHook
        training.coordinator: Coordinator
        input.producers: match_filenames_once limit_epochs input_producer string_input_producer range_input_producer
        input.producers: slice_input_producer
        input.batching: batch batch_join maybe_batch maybe_batch_join shuffle_batch shuffle_batch_join
        input.batching: maybe_shuffle_batch maybe_shuffle_batch_join
        training.queue_runner: QueueRunner start_queue_runners add_queue_runner
        operations.summary: SummaryWriter=FileWriter
        scripts.files: write_graph
        protos.example: BytesList FloatList Int64List Feature Features Example FeatureList FeatureLists
        protos.example: SequenceExample
        training.looper_thread: LooperThread
    """,
    "tf.sparse": """
        graphs.sparse: SparseTensor
        input.sparse: placeholder=sparse_placeholder reorder=sparse_reorder to_dense=sparse_tensor_to_dense
        input.sparse: to_indicator=sparse_to_indicator concat=sparse_concat reduce_sum=sparse_reduce_sum
        input.sparse: reduce_max=sparse_reduce_max retain=sparse_retain slice=sparse_slice softmax=sparse_softmax
        input.sparse: fill_empty_rows=sparse_fill_empty_rows reset_shape=sparse_reset_shape reshape=sparse_reshape
        input.sparse: transpose=sparse_transpose add=sparse_add merge=sparse_merge mask=sparse_mask
        input.sparse_products: matmul=sparse_tensor_dense_matmul
    """,
    "tf.strings": """
        input.text: join=string_join substr regex_replace regex_full_match strip=string_strip length=string_length
        input.text: lower=string_lower upper=string_upper reduce_join as_string to_hash_bucket=string_to_hash_bucket
        input.text: to_hash_bucket_fast=string_to_hash_bucket_fast
        input.decoding: to_number=string_to_number
    """,
    "tf.image": """
        input.images: decode_png decode_jpeg decode_bmp decode_gif decode_image encode_png encode_jpeg
        .ops.resizing: ResizeMethod
        operations.image: random_flip_left_right random_flip_up_down random_brightness random_contrast random_hue
        operations.image: random_saturation sample_distorted_bounding_box non_max_suppression random_crop
    """,
    "tf.lookup": """
        input.tables: KeyValueTensorInitializer TextFileInitializer TextFileIndex StaticHashTable=HashTable
        input.tables: StaticVocabularyTable=IdTableWithHashBuckets
    """,
    "tf.contrib.lookup": """
        input.tables: KeyValueTensorInitializer TextFileInitializer TextFileIndex TextFileStringTableInitializer
        input.tables: TextFileIdTableInitializer LookupInterface HashTable IdTableWithHashBuckets MutableHashTable
        input.tables: index_table_from_file index_table_from_tensor index_to_string_table_from_file
        input.tables: index_to_string_table_from_tensor index_to_string string_to_index
    """,
    "tf.sets": """
        input.sets: set_size set_intersection set_difference set_union size=set_size intersection=set_intersection
        input.sets: difference=set_difference union=set_union
    """,
    "tf.python_io": """
        input.record_files: TFRecordWriter TFRecordOptions TFRecordCompressionType tf_record_iterator
    """,
    "tf.io": """
        input.producers: matching_files match_filenames_once
        input.readers: read_file write_file
        input.record_files: TFRecordWriter TFRecordOptions TFRecordCompressionType tf_record_iterator
        input.features: FixedLenFeature VarLenFeature FixedLenSequenceFeature SparseFeature
        input.parsing: parse_example parse_single_example parse_single_sequence_example
        input.decoding: decode_raw decode_csv
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
    "tf.math": "",
    "tf.random": """
        operations.random: set_random_seed
    """,
    "tf.linalg": "",
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
    "tf.data": """
        datasets.dataset: Dataset get_output_types=types_of get_output_shapes=shapes_of get_output_classes=classes_of
        datasets.iterator: make_one_shot_iterator make_initializable_iterator
        datasets.iterator: Iterator
        datasets.options: Options
        datasets.files: TextLineDataset FixedLengthRecordDataset TFRecordDataset
        datasets.dataset: AUTOTUNE
    """,
    "tf.data.experimental": """
        datasets.dataset: AUTOTUNE
        datasets.files: CsvDataset
        datasets.transformations: shuffle_and_repeat map_and_batch parallel_interleave unbatch enumerate_dataset
        datasets.transformations: ignore_errors prefetch_to_device copy_to_device scan take_while unique
        datasets.transformations: group_by_window bucket_by_sequence_length dense_to_sparse_batch
        datasets.transformations: sample_from_datasets choose_from_datasets Counter get_single_element
        datasets.options: OptimizationOptions=Options ThreadingOptions=Options
    """,
    "tf.contrib.data": """
        datasets.dataset: Dataset AUTOTUNE
        datasets.iterator: Iterator
        datasets.files: CsvDataset TextLineDataset FixedLengthRecordDataset TFRecordDataset
        datasets.transformations: shuffle_and_repeat map_and_batch parallel_interleave unbatch enumerate_dataset
        datasets.transformations: ignore_errors prefetch_to_device copy_to_device scan unique
        datasets.transformations: group_by_window bucket_by_sequence_length dense_to_sparse_batch
        datasets.transformations: sample_from_datasets choose_from_datasets Counter get_single_element
        datasets.transformations: batch_and_drop_remainder padded_batch_and_drop_remainder assert_element_shape
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


OPS = "ops"
"""In place of a file: the name comes from the table of operations."""


def _all() -> dict[str, dict[str, tuple[str, str]]]:
    found = {space: _read(table) for space, table in _TABLE.items()}
    for space, ops in v1_names().items():
        for name in ops:
            found[space].setdefault(name, (OPS, f"{space}.{name}"))
    return found


NAMES: dict[str, dict[str, tuple[str, str]]] = _all()
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

    Attributes of a name that exists are not checked.
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
