"""All names of the TensorFlow 2 front end and where each is.

The operations come from the table of `compat.ops`. The rest is listed here, as in the first version's table: a line of
a namespace is `file: name name=its_name_there ...`, of files in `compat.tf2.eager`, or in `compat` where it begins with
a dot.
"""

from __future__ import annotations

from trainband.compat.ops.catalogue import v1_names
from trainband.compat.tf1.names import FLAGS as _FLAGS
from trainband.compat.tf1.names import OPS, read

_TABLE: dict[str, str] = {
    "tf": """
        tensor: Tensor
        variable: Variable
        tape: GradientTape UnconnectedGradients
        tensor_array: TensorArray
        function: function TensorSpec TypeSpec
        module: Module
        making: constant convert_to_tensor is_tensor zeros_initializer ones_initializer random_normal_initializer
        making: random_uniform_initializer constant_initializer
        control: cond while_loop case switch_case map_fn group no_op control_dependencies name_scope device
        control: custom_gradient recompute_grad
        scripts: print __version__=VERSION executing_eagerly init_scope get_logger py_function numpy_function
        aggregation: VariableAggregation VariableSynchronization
        shapes: TensorShape
        .ops.dtypes: DType as_dtype float16 bfloat16 float32 float64 int8 int16 int32 int64 uint8 uint16 uint32 uint64
        .ops.dtypes: bool=bool_ complex64 complex128 string half=float16 double=float64 qint8 quint8 qint16 quint16
        .ops.dtypes: qint32
        clipping: clip_by_global_norm
        .tf2.operations.sparse: SparseTensor
        .tf2.data.sparse_tensor: SparseTensorSpec
        .tf2.data.hosted: as_string=operations.strings.as_string edit_distance=input.sparse.edit_distance
        .tf2.operations.checks: Assert assert_equal assert_less assert_greater assert_rank
        .tf2.operations.selecting: boolean_mask dynamic_partition gather_nd foldl foldr scan vectorized_map
        .tf2.operations.selecting: grad_pass_through tuple=tuple_
        .tf2.operations.slices: IndexedSlices
        .tf2.operations.ragged: RaggedTensor RaggedTensorSpec
        .tf2.operations.decompositions: eig eigvals matrix_square_root=sqrtm
        .tf2.operations.draws: random_index_shuffle
        .tf2.settings.graphs: gradients hessians Graph Operation get_static_value is_symbolic_tensor inside_function
        .tf2.settings.graphs: timestamp get_current_name_scope variable_creator_scope no_gradient load_library
        .tf2.settings.graphs: load_op_library broadcast_static_shape type_spec_from_value
        .tf1.graphs.device_spec: DeviceSpec
        .tf1.scripts.choices: AggregationMethod
        .tf1.scripts.history: newaxis
        ops: where=tf.where_v2 space_to_batch=tf.space_to_batch_nd batch_to_space=tf.batch_to_space_nd
        ops: histogram_fixed_width=tf.histogram_fixed_width histogram_fixed_width_bins=tf.histogram_fixed_width_bins
        ops: realdiv=tf.realdiv
        .tf1.scripts.values: make_ndarray make_tensor_proto
    """,
    "tf.dtypes": """
        .ops.dtypes: DType as_dtype float16 bfloat16 float32 float64 int8 int16 int32 int64 uint8 uint16 uint32 uint64
        .ops.dtypes: bool=bool_ complex64 complex128 string half=float16 double=float64 qint8 quint8 qint16 quint16
        .ops.dtypes: qint32
        ops: cast=tf.cast saturate_cast=tf.saturate_cast complex=tf.complex
    """,
    "tf.linalg": """
        clipping: global_norm
        .tf2.operations.decompositions: pinv matrix_rank lu lu_reconstruct lu_solve lu_matrix_inverse sqrtm
        .tf2.operations.decompositions: tridiagonal_solve diag diag_part set_diag eig eigvals normalize
        ops: matrix_transpose=tf.matrix_transpose l2_normalize=tf.math.l2_normalize
    """,
    "tf.math": """
        .tf2.operations.elementwise: erfinv erfcinv ndtri reciprocal_no_nan nextafter
        .tf2.operations.checks: is_non_decreasing is_strictly_increasing
        .tf2.settings.graphs: truediv
        ops: logical_xor=tf.math.logical_xor mod=tf.math.floormod
    """,
    "tf.nn": """
        networks: softmax_cross_entropy_with_logits dropout embedding_lookup
        .tf2.distribute.losses: compute_average_loss scale_regularization_loss
        .tf2.operations.nets: weighted_cross_entropy_with_logits log_poisson_loss log_uniform_candidate_sampler
        .tf2.operations.nets: uniform_candidate_sampler nce_loss sampled_softmax_loss
        .tf2.operations.nets: batch_norm_with_global_normalization conv_transpose ctc_loss collapse_repeated
        .tf2.operations.embeddings: embedding_lookup_sparse safe_embedding_lookup_sparse
        .tf2.operations.elementwise: gelu
        .tf2.data.hosted: ctc_greedy_decoder=operations.ctc.ctc_greedy_decoder
        .tf2.data.hosted: ctc_beam_search_decoder=operations.ctc.ctc_beam_search_decoder_v2
        ops: max_pool2d=tf.nn.max_pool avg_pool2d=tf.nn.avg_pool space_to_batch=tf.space_to_batch_nd
    """,
    "tf.random": """
        making: set_seed
        .tf2.operations.draws: Generator get_global_generator categorical gamma poisson stateless_normal
        .tf2.operations.draws: stateless_truncated_normal stateless_uniform stateless_categorical stateless_gamma
        .tf2.operations.draws: stateless_poisson stateless_binomial split fold_in Algorithm set_global_generator
        .tf2.operations.draws: create_rng_state
        .tf2.operations.nets: log_uniform_candidate_sampler uniform_candidate_sampler
    """,
    "tf.errors": """
        .tf1.graphs.errors: OpError InvalidArgumentError NotFoundError OutOfRangeError FailedPreconditionError
        .tf1.graphs.errors: AbortedError UnavailableError UnimplementedError CancelledError DeadlineExceededError
        .tf1.graphs.errors: ResourceExhaustedError InternalError UnknownError PermissionDeniedError DataLossError
        .tf1.graphs.errors: AlreadyExistsError UnauthenticatedError OK CANCELLED UNKNOWN INVALID_ARGUMENT
        .tf1.graphs.errors: DEADLINE_EXCEEDED NOT_FOUND ALREADY_EXISTS PERMISSION_DENIED UNAUTHENTICATED
        .tf1.graphs.errors: RESOURCE_EXHAUSTED FAILED_PRECONDITION ABORTED OUT_OF_RANGE UNIMPLEMENTED INTERNAL
        .tf1.graphs.errors: UNAVAILABLE DATA_LOSS
    """,
    "tf.config": """
        .tf2.settings.devices: list_physical_devices list_logical_devices set_soft_device_placement PhysicalDevice
        .tf2.settings.devices: LogicalDevice LogicalDeviceConfiguration get_visible_devices set_visible_devices
        .tf2.settings.devices: set_logical_device_configuration get_logical_device_configuration
        .tf2.settings.devices: get_soft_device_placement experimental_connect_to_cluster experimental_connect_to_host
        function: run_functions_eagerly functions_run_eagerly experimental_run_functions_eagerly=run_functions_eagerly
        function: experimental_functions_run_eagerly=functions_run_eagerly
    """,
    "tf.config.experimental": """
        .tf2.settings.devices: list_physical_devices list_logical_devices set_memory_growth ClusterDeviceFilters
        .tf2.settings.devices: VirtualDeviceConfiguration=LogicalDeviceConfiguration get_visible_devices
        .tf2.settings.devices: set_visible_devices set_virtual_device_configuration=set_logical_device_configuration
        .tf2.settings.devices: get_virtual_device_configuration=get_logical_device_configuration get_memory_growth
        .tf2.settings.devices: get_memory_info get_device_details reset_memory_stats enable_op_determinism
        .tf2.settings.devices: enable_tensor_float_32_execution tensor_float_32_execution_enabled
        .tf2.settings.devices: get_synchronous_execution set_synchronous_execution get_device_policy set_device_policy
        .tf2.settings.devices: enable_mlir_bridge disable_mlir_bridge
    """,
    "tf.debugging": """
        scripts: set_log_device_placement
        .tf2.operations.checks: assert_equal assert_none_equal assert_less assert_less_equal assert_greater
        .tf2.operations.checks: assert_greater_equal assert_positive assert_negative assert_non_negative
        .tf2.operations.checks: assert_non_positive assert_near Assert assert_all_finite check_numerics assert_type
        .tf2.operations.checks: assert_integer assert_same_float_dtype assert_proper_iterable is_numeric_tensor
        .tf2.operations.checks: assert_rank assert_rank_at_least assert_rank_in assert_scalar assert_shapes
        .tf2.operations.checks: enable_check_numerics disable_check_numerics enable_traceback_filtering
        .tf2.operations.checks: disable_traceback_filtering is_traceback_filtering_enabled get_log_device_placement
    """,
    "tf.data": """
        .tf2.data.dataset: Dataset AUTOTUNE INFINITE_CARDINALITY UNKNOWN_CARDINALITY
        .tf2.data.files: TFRecordDataset TextLineDataset FixedLengthRecordDataset
        .tf2.data.options: Options
        .tf2.data.iterator: Iterator NumpyIterator
        .tf2.data.specs: DatasetSpec
    """,
    "tf.data.experimental": """
        .tf2.data.dataset: AUTOTUNE INFINITE_CARDINALITY UNKNOWN_CARDINALITY
        .tf2.data.files: CsvDataset
        .tf2.data.options: AutoShardPolicy ExternalStatePolicy SHARD_HINT DistributeOptions OptimizationOptions=Group
        .tf2.data.options: ThreadingOptions=Group
        .tf2.data.optional: Optional
        .tf2.data.experimental: unbatch unique scan take_while enumerate_dataset group_by_window
        .tf2.data.experimental: bucket_by_sequence_length ignore_errors snapshot shuffle_and_repeat map_and_batch
        .tf2.data.experimental: rejection_resample
        .tf2.data.experimental: parallel_interleave prefetch_to_device copy_to_device Counter RandomDataset cardinality
        .tf2.data.experimental: assert_cardinality get_single_element choose_from_datasets sample_from_datasets save
        .tf2.data.experimental: load get_structure enable_debug_mode TFRecordWriter
    """,
    "tf.io": """
        .tf1.input.record_files: TFRecordWriter TFRecordOptions
        .tf1.input.features: FixedLenFeature VarLenFeature FixedLenSequenceFeature SparseFeature
        .tf2.data.contents: read_file write_file matching_files
        .tf2.data.hosted: parse_example=input.parsing.parse_example
        .tf2.data.hosted: parse_single_example=input.parsing.parse_single_example
        .tf2.data.hosted: parse_single_sequence_example=input.parsing.parse_single_sequence_example
        .tf2.data.hosted: decode_raw=input.decoding.decode_raw decode_csv=input.decoding.decode_csv
        .tf2.data.hosted: decode_base64=operations.strings.decode_base64 encode_base64=operations.strings.encode_base64
        .tf2.data.hosted: decode_compressed=operations.strings.decode_compressed
        .tf2.data.hosted: parse_tensor=input.sparse_parts.parse_tensor
        .tf2.data.hosted: serialize_tensor=input.sparse_parts.serialize_tensor decode_png=input.images.decode_png
        .tf2.data.hosted: decode_jpeg=input.images.decode_jpeg decode_bmp=input.images.decode_bmp
        .tf2.data.hosted: decode_gif=input.images.decode_gif decode_image=input.images.decode_image
        .tf2.data.hosted: encode_png=input.images.encode_png encode_jpeg=input.images.encode_jpeg
    """,
    "tf.io.gfile": """
        .tf1.scripts.files: exists isdir listdir makedirs mkdir remove rmtree stat glob=glob_ rename copy walk GFile
    """,
    "tf.image": """
        .tf2.data.hosted: decode_png=input.images.decode_png decode_jpeg=input.images.decode_jpeg
        .tf2.data.hosted: decode_bmp=input.images.decode_bmp decode_gif=input.images.decode_gif
        .tf2.data.hosted: decode_image=input.images.decode_image
        .tf2.operations.pictures: ResizeMethod resize resize_with_pad extract_patches crop_and_resize
        .tf2.operations.pictures: draw_bounding_boxes random_brightness stateless_random_brightness random_contrast
        .tf2.operations.pictures: stateless_random_contrast random_saturation stateless_random_saturation random_hue
        .tf2.operations.pictures: stateless_random_hue random_flip_left_right random_flip_up_down
        .tf2.operations.pictures: stateless_random_flip_left_right stateless_random_flip_up_down random_crop
        .tf2.operations.pictures: stateless_random_crop non_max_suppression
        ops: convert_image_dtype=tf.image.convert_image_dtype adjust_brightness=tf.image.adjust_brightness
        ops: adjust_contrast=tf.image.adjust_contrast adjust_gamma=tf.image.adjust_gamma adjust_hue=tf.image.adjust_hue
        ops: adjust_saturation=tf.image.adjust_saturation per_image_standardization=tf.image.per_image_standardization
        ops: crop_to_bounding_box=tf.image.crop_to_bounding_box pad_to_bounding_box=tf.image.pad_to_bounding_box
        ops: resize_with_crop_or_pad=tf.image.resize_with_crop_or_pad central_crop=tf.image.central_crop
        ops: flip_left_right=tf.image.flip_left_right flip_up_down=tf.image.flip_up_down transpose=tf.image.transpose
        ops: rot90=tf.image.rot90 image_gradients=tf.image.image_gradients sobel_edges=tf.image.sobel_edges
    """,
    "tf.strings": """
        .tf2.data.hosted: join=operations.strings.join substr=operations.strings.substr
        .tf2.data.hosted: regex_replace=operations.strings.regex_replace
        .tf2.data.hosted: regex_full_match=operations.strings.regex_full_match strip=operations.strings.strip
        .tf2.data.hosted: length=operations.strings.length lower=operations.strings.lower upper=operations.strings.upper
        .tf2.data.hosted: reduce_join=operations.strings.reduce_join as_string=operations.strings.as_string
        .tf2.data.hosted: format=operations.strings.format_ to_hash_bucket=input.text.string_to_hash_bucket
        .tf2.data.hosted: to_hash_bucket_fast=input.text.string_to_hash_bucket_fast
        .tf2.data.hosted: to_hash_bucket_strong=input.text.string_to_hash_bucket_strong
        .tf2.data.contents: split to_number bytes_split unicode_decode unicode_encode unicode_split
    """,
    "tf.lookup": """
        .tf2.data.tables: KeyValueTensorInitializer TextFileInitializer TextFileIndex StaticHashTable
        .tf2.data.tables: StaticVocabularyTable
    """,
    "tf.lookup.experimental": """
        .tf2.data.tables: MutableHashTable
    """,
    "tf.sparse": """
        .tf2.operations.sparse: SparseTensor from_dense to_dense reorder sparse_dense_matmul reduce_sum reduce_max add
        .tf2.operations.sparse: concat retain reshape transpose expand_dims slice softmax eye map_values to_indicator
        .tf2.operations.sparse: mask
        .tf2.data.hosted: fill_empty_rows=input.sparse.sparse_fill_empty_rows
    """,
    "tf.sets": """
        .tf2.data.hosted: size=input.sets.set_size intersection=input.sets.set_intersection
        .tf2.data.hosted: difference=input.sets.set_difference union=input.sets.set_union
    """,
    "tf.train": """
        .tf1.protos.example: Example Feature Features BytesList FloatList Int64List FeatureList FeatureLists
        .tf1.protos.example: SequenceExample
        .tf1.sessions.cluster_spec: ClusterSpec
        .tf2.saving.checkpoint: Checkpoint CheckpointOptions
        .tf2.saving.manager: CheckpointManager checkpoints_iterator
        .checkpoints.files: latest_checkpoint get_checkpoint_state CheckpointState
        .checkpoints.reader: list_variables load_variable load_checkpoint
        .tf2.saving.averages: ExponentialMovingAverage
        .tf1.training.coordinator: Coordinator
    """,
    "tf.nest": """
        structure: flatten map_structure pack_sequence_as=pack assert_same_structure is_nested
    """,
    "tf.distribute": """
        .tf2.distribute.context: get_strategy has_strategy get_replica_context in_cross_replica_context ReplicaContext
        .tf2.distribute.context: experimental_set_strategy
        .tf2.distribute.strategy: Strategy
        .tf2.distribute.extended: StrategyExtended=Extended
        .tf2.distribute.one_process: MirroredStrategy OneDeviceStrategy
        .tf2.distribute.tpu: TPUStrategy
        .tf2.distribute.multi_worker: MultiWorkerMirroredStrategy
        .tf2.distribute.reduce_op: ReduceOp
        .tf2.coordinator.strategy: ParameterServerStrategy
        .tf2.coordinator.server: Server
        .tf2.distribute.values: DistributedValues
        .tf2.distribute.input: InputContext InputOptions DistributedDataset DistributedIterator
        .tf2.distribute.cross_device: CrossDeviceOps HierarchicalCopyAllReduce NcclAllReduce ReductionToOneDevice
    """,
    "tf.distribute.experimental": """
        .tf2.distribute.one_process: CentralStorageStrategy
        .tf2.distribute.tpu: TPUStrategy
        .tf2.distribute.multi_worker: MultiWorkerMirroredStrategy CommunicationOptions CommunicationImplementation
        .tf2.distribute.multi_worker: CollectiveCommunication=CommunicationImplementation
        .tf2.distribute.multi_worker: CollectiveHints=CommunicationOptions
        .tf2.distribute.input: ValueContext
        .tf2.coordinator.strategy: ParameterServerStrategy
    """,
    "tf.distribute.coordinator": """
        .tf2.coordinator.coordinator: ClusterCoordinator
        .tf2.coordinator.remote_value: RemoteValue PerWorkerValues
        .tf2.coordinator.current_worker: experimental_get_current_worker_index
    """,
    "tf.distribute.experimental.coordinator": """
        .tf2.coordinator.coordinator: ClusterCoordinator
        .tf2.coordinator.remote_value: RemoteValue PerWorkerValues
    """,
    "tf.distribute.experimental.partitioners": """
        .tf2.coordinator.partitioners: Partitioner FixedShardsPartitioner MinSizePartitioner MaxSizePartitioner
    """,
    "tf.distribute.cluster_resolver": """
        .tf2.distribute.resolvers: ClusterResolver SimpleClusterResolver TFConfigClusterResolver SlurmClusterResolver
        .tf2.distribute.resolvers: UnionResolver
        .tf2.distribute.tpu: TPUClusterResolver
    """,
    "tf.tpu": "",
    "tf.tpu.experimental": """
        .tf2.distribute.tpu: initialize_tpu_system shutdown_tpu_system
    """,
    "tf.autograph": """
        scripts: set_verbosity
        .tf2.settings.graphs: to_code to_graph trace
    """,
    "tf.train.experimental": """
        .tf2.saving.trackable: PythonState
    """,
    "tf.summary": """
        .tf2.summaries.kinds: scalar histogram image text audio write
        .tf2.summaries.writer: SummaryWriter create_file_writer create_noop_writer flush record_if
        .tf2.summaries.writer: should_record_summaries trace_on trace_off trace_export graph
    """,
    "tf.summary.experimental": """
        .tf2.summaries.writer: get_step set_step summary_scope write_raw_pb
    """,
    "tf.compat": """
        .text: as_bytes as_str as_text as_str_any path_to_str forward_compatible dimension_value
    """,
    "tf.compat.v1": """
        .tf2.settings.version1: enable_v2_behavior enable_eager_execution enable_resource_variables
        .tf2.settings.version1: enable_v2_tensorshape disable_eager_execution disable_v2_behavior Session
        .tf2.settings.version1: InteractiveSession
        .tf1.graphs.config: ConfigProto GPUOptions
        scripts: executing_eagerly
        making: set_random_seed=set_seed
    """,
    "tf.compat.v1.app": """
        .tf1.scripts.flags: run
    """,
    "tf.compat.v1.logging": """
        .tf1.scripts.logging: DEBUG INFO WARN ERROR FATAL set_verbosity get_verbosity log debug info warning warn error
        .tf1.scripts.logging: fatal log_every_n log_first_n log_if vlog flush get_logger
    """,
    "tf.compat.v1.gfile": """
        .tf1.scripts.files: Exists MakeDirs MkDir DeleteRecursively Remove IsDirectory ListDirectory Glob GFile
        .tf1.scripts.files: Open=GFile FastGFile=GFile Rename Copy Stat Walk
    """,
    "tf.compat.v1.test": """
        .tf1.scripts.machine: is_gpu_available gpu_device_name is_built_with_cuda get_temp_dir
    """,
    "tf.autograph.experimental": """
        scripts: do_not_convert
        .tf2.settings.graphs: set_loop_options
    """,
    "tf.compat.v1.flags": _FLAGS,
    "tf.math.special": """
        .tf2.operations.elementwise: bessel_i0 bessel_i0e bessel_i1 bessel_i1e expint spence
    """,
    "tf.random.experimental": """
        .tf2.operations.draws: Algorithm Generator get_global_generator set_global_generator create_rng_state
        .tf2.operations.draws: stateless_shuffle stateless_split=split stateless_fold_in=fold_in
        .tf2.operations.draws: index_shuffle=random_index_shuffle
    """,
    "tf.config.optimizer": """
        .tf2.settings.devices: get_experimental_options set_experimental_options get_jit set_jit
    """,
    "tf.config.threading": """
        .tf2.settings.devices: get_inter_op_parallelism_threads set_inter_op_parallelism_threads
        .tf2.settings.devices: get_intra_op_parallelism_threads set_intra_op_parallelism_threads
    """,
    "tf.debugging.experimental": """
        .tf2.operations.checks: enable_dump_debug_info=change_nothing disable_dump_debug_info=change_nothing
    """,
    "tf.profiler": "",
    "tf.profiler.experimental": """
        .tf2.settings.profiling: ProfilerOptions start stop Profile Trace
    """,
    "tf.signal": """
        .tf2.operations.waves: fftshift ifftshift hann_window hamming_window vorbis_window kaiser_window frame
        .tf2.operations.waves: overlap_and_add stft inverse_stft inverse_stft_window_fn dct idct
        .tf2.operations.waves: mfccs_from_log_mel_spectrograms linear_to_mel_weight_matrix
    """,
    "tf.ragged": """
        .tf2.operations.ragged: constant stack range=range_ map_flat_values boolean_mask
    """,
    "tf.test": """
        .tf1.scripts.machine: is_gpu_available gpu_device_name is_built_with_cuda is_built_with_gpu_support
        .tf1.scripts.machine: is_built_with_rocm is_built_with_xla
        .tf1.scripts.test_case: main
        .tf2.settings.testing: TestCase Benchmark
    """,
    "tf.sysconfig": """
        .tf1.scripts.machine: get_include get_lib=get_include get_compile_flags=get_include get_link_flags=get_include
        .tf2.settings.testing: get_build_info
    """,
    "tf.version": """
        scripts: VERSION
        .tf1.protos.version: GIT_VERSION
        .tf1.scripts.history: COMPILER_VERSION GRAPH_DEF_VERSION GRAPH_DEF_VERSION_MIN_CONSUMER
        .tf1.scripts.history: GRAPH_DEF_VERSION_MIN_PRODUCER
    """,
    "tf.saved_model": """
        .tf2.saving.saved_model: save load SaveOptions LoadOptions contains_saved_model
        .tf2.saving.saved_model: DEFAULT_SERVING_SIGNATURE_DEF_KEY=DEFAULT
    """,
    "tf.types.experimental": """
        .tf2.eager.function: ConcreteFunction GenericFunction=Function PolymorphicFunction=Function
        .tf2.settings.graphs: TensorLike
    """,
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
