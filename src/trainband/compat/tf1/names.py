"""All names of the TensorFlow 1 front end and where each is: the list behind attributes, `--check` and the docs.

The operations come from the table of `compat.ops`. The rest is listed here: a line of a namespace is
`package.file: name name=its_name_there ...`, of files in `compat.tf1`, or in `compat` where it begins with a dot. A
name that is listed here takes precedence over one of the table.
"""

from __future__ import annotations

from trainband.compat.ops.catalogue import v1_names
from trainband.compat.tf1.models.names import KERAS, SAME_AS_TF

FLAGS = """
    .tf1.scripts.flags: FLAGS DEFINE_string DEFINE_integer DEFINE_float DEFINE_bool DEFINE_boolean DEFINE_list
    .tf1.scripts.flags: DEFINE_enum mark_flag_as_required mark_flags_as_required validator DEFINE_spaceseplist
    .tf1.scripts.flags: DEFINE_enum_class DEFINE_multi DEFINE_multi_string DEFINE_multi_integer DEFINE_multi_float
    .tf1.scripts.flags: DEFINE_multi_enum DEFINE_alias register_validator multi_flags_validator
    .tf1.scripts.flags: register_multi_flags_validator mark_flags_as_mutual_exclusive
    .tf1.scripts.flags: mark_bool_flags_as_mutual_exclusive
    .tf1.scripts.flags: declare_key_flag adopt_module_key_flags disclaim_key_flags Error DuplicateFlagError
    .tf1.scripts.flags: IllegalFlagValueError UnparsedFlagAccessError UnrecognizedFlagError ValidationError FlagValues
"""
"""The names of `tf.flags`."""

_TABLE: dict[str, str] = {
    "tf": """
        graphs.graph: Graph Operation Tensor get_default_graph reset_default_graph
        graphs.graph_keys: GraphKeys
        .ops.shapes: TensorShape Dimension
        graphs.slices: IndexedSlices
        graphs.tensor_spec: TensorSpec
        .ops.dtypes: DType as_dtype float16 bfloat16 float32 float64 int8 int16 int32 int64 uint8 uint16 uint32 uint64
        .ops.dtypes: qint8 quint8 qint16 quint16 qint32 bool=bool_ complex64 complex128 string half=float16
        .ops.dtypes: double=float64
        sessions.session: Session InteractiveSession
        graphs.default_session: get_default_session
        graphs.config: ConfigProto GPUOptions GraphOptions OptimizerOptions RunOptions
        protos.run_metadata: RunMetadata
        graphs.device_spec: DeviceSpec
        graphs.scopes: device name_scope op_scope control_dependencies add_to_collection get_collection
        graphs.scopes: get_collection_ref colocate_with container disable_v2_behavior disable_eager_execution
        graphs.scopes: enable_eager_execution executing_eagerly disable_resource_variables enable_resource_variables
        graphs.scopes: disable_v2_tensorshape enable_v2_behavior disable_tensor_equality=disable_v2_behavior
        graphs.scopes: enable_v2_tensorshape=disable_v2_behavior disable_control_flow_v2=disable_v2_behavior
        graphs.scopes: enable_control_flow_v2=disable_v2_behavior
        graphs.variable: Variable
        operations.variable_scope: variable_scope get_variable get_variable_scope get_local_variable VariableScope
        operations.variable_scope: AUTO_REUSE create_partitioned_variables no_regularizer
        scripts.history: variable_op_scope newaxis __version__=VERSION VERSION GIT_VERSION COMPILER_VERSION
        scripts.history: merge_all_summaries merge_summary scalar_summary histogram_summary image_summary audio_summary
        scripts.history: __git_version__=GIT_VERSION __compiler_version__=COMPILER_VERSION CXX11_ABI_FLAG
        scripts.history: __cxx11_abi_flag__=CXX11_ABI_FLAG __monolithic_build__=MONOLITHIC_BUILD MONOLITHIC_BUILD
        scripts.history: GRAPH_DEF_VERSION GRAPH_DEF_VERSION_MIN_CONSUMER GRAPH_DEF_VERSION_MIN_PRODUCER
        scripts.history: QUANTIZED_DTYPES inv complex_abs batch_matmul reverse
        operations.partitioners: fixed_size_partitioner variable_axis_size_partitioner min_max_variable_partitioner
        operations.state: assign assign_add assign_sub scatter_update scatter_add scatter_sub count_up_to scatter_mul
        operations.state: scatter_div scatter_max scatter_min scatter_nd_update scatter_nd_add scatter_nd_sub
        operations.state: global_variables local_variables trainable_variables model_variables moving_average_variables
        operations.state: all_variables=global_variables global_variables_initializer local_variables_initializer
        operations.state: initialize_all_variables=global_variables_initializer variables_initializer
        operations.state: initialize_local_variables=local_variables_initializer
        operations.state: initialize_variables=variables_initializer tables_initializer
        operations.state: initialize_all_tables=tables_initializer is_variable_initialized
        operations.state: report_uninitialized_variables assert_variables_initialized
        operations.template: make_template
        input.parsing_json: decode_json_example
        input.text: string_to_hash_bucket_strong string_split string_to_hash_bucket string_to_hash_bucket_fast
        sessions.tensor_handle: get_session_handle get_session_tensor delete_session_tensor
        input.sparse_parts: sparse_split sparse_maximum sparse_minimum sparse_reduce_sum_sparse sparse_reduce_max_sparse
        input.sparse_parts: serialize_sparse serialize_many_sparse deserialize_many_sparse serialize_tensor parse_tensor
        operations.array: constant convert_to_tensor placeholder placeholder_with_default reshape concat split
        operations.array: boolean_mask dynamic_partition shape size rank
        operations.random: set_random_seed get_seed
        operations.clip: clip_by_global_norm global_norm
        operations.gradients: gradients hessians
        operations.control_flow: no_op group tuple=tuple_ cond
        operations.case: case switch_case
        operations.loops: while_loop
        operations.printing: Print=print_ print=print_v2 py_func Assert=assert_ check_numerics add_check_numerics_ops
        operations.printing: verify_tensor_all_finite
        sessions.python_function: py_function
        operations.assertions: assert_equal assert_none_equal assert_less assert_less_equal assert_greater
        operations.assertions: assert_greater_equal assert_positive assert_negative assert_non_negative
        operations.assertions: assert_non_positive assert_near assert_type assert_integer assert_same_float_dtype
        operations.assertions: assert_proper_iterable assert_rank assert_rank_at_least assert_rank_in assert_scalar
        operations.assertions: is_non_decreasing is_strictly_increasing is_numeric_tensor
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
        operations.strings: string_join=join substr regex_replace string_strip=strip reduce_join as_string encode_base64
        operations.strings: decode_base64 string_length=length string_lower=lower string_upper=upper decode_compressed
        input.queues: QueueBase FIFOQueue RandomShuffleQueue PaddingFIFOQueue PriorityQueue
        input.accumulators: ConditionalAccumulatorBase ConditionalAccumulator SparseConditionalAccumulator
        operations.image: random_crop
        operations.tensor_array: TensorArray
        scripts.choices: UnconnectedGradients AggregationMethod VariableSynchronization VariableAggregation
        graphs.custom_gradient: custom_gradient RegisterGradient NotDifferentiable NoGradient=NotDifferentiable
        protos.graph: GraphDef NodeDef AttrValue NameAttrList MetaGraphDef OpDef OpList SaverDef VariableDef
        operations.importing: import_graph_def
        operations.functional: map_fn scan foldl foldr
        scripts.values: make_tensor_proto make_ndarray TensorProto
        scripts.machine: load_op_library
        scripts.logging: get_logger
        operations.summary: Summary SummaryMetadata Event SessionLog HistogramProto
        graphs.errors: OpError
    """,
    "tf.nn": """
        operations.embedding: embedding_lookup
        input.sparse_products: embedding_lookup_sparse safe_embedding_lookup_sparse
        networks.recurrence: dynamic_rnn bidirectional_dynamic_rnn static_rnn static_bidirectional_rnn rnn=static_rnn
        networks.recurrence: bidirectional_rnn=static_bidirectional_rnn
        operations.candidates: nce_loss sampled_softmax_loss log_uniform_candidate_sampler uniform_candidate_sampler
        operations.candidates: fixed_unigram_candidate_sampler all_candidate_sampler compute_accidental_hits
        operations.fractional_pooling: fractional_max_pool fractional_avg_pool
        operations.ctc: ctc_loss ctc_greedy_decoder ctc_beam_search_decoder ctc_beam_search_decoder_v2
    """,
    "tf.layers": """
        networks.functions: dense conv2d conv2d_transpose max_pooling2d average_pooling2d flatten dropout
        networks.functions: batch_normalization conv1d conv3d conv3d_transpose separable_conv1d separable_conv2d
        networks.functions: max_pooling1d max_pooling3d average_pooling1d average_pooling3d
        networks.layer: Layer InputSpec
        networks.core: Dense Flatten Dropout
        networks.convolution: Conv1D Conv2D Conv3D Conv2DTranspose Conv3DTranspose SeparableConv1D SeparableConv2D
        networks.normalization: BatchNormalization
        networks.pooling: MaxPooling1D MaxPooling2D MaxPooling3D AveragePooling1D AveragePooling2D AveragePooling3D
    """,
    "tf.losses": """
        operations.losses: Reduction compute_weighted_loss mean_squared_error absolute_difference huber_loss log_loss
        operations.losses: hinge_loss cosine_distance softmax_cross_entropy sparse_softmax_cross_entropy
        operations.losses: sigmoid_cross_entropy add_loss get_losses get_regularization_losses get_regularization_loss
        operations.losses: get_total_loss mean_pairwise_squared_error
    """,
    "tf.metrics": """
        operations.metrics: mean accuracy precision recall mean_squared_error mean_absolute_error
        operations.metrics: root_mean_squared_error auc average_precision_at_k false_negatives
        operations.metrics: false_negatives_at_thresholds false_positives false_positives_at_thresholds
        operations.metrics: mean_cosine_distance mean_iou mean_per_class_accuracy mean_relative_error mean_tensor
        operations.metrics: percentage_below precision_at_k precision_at_thresholds precision_at_top_k recall_at_k
        operations.metrics: recall_at_thresholds recall_at_top_k sensitivity_at_specificity
        operations.metrics: sparse_average_precision_at_k sparse_precision_at_k specificity_at_sensitivity
        operations.metrics: true_negatives true_negatives_at_thresholds true_positives true_positives_at_thresholds
    """,
    "tf.summary": """
        operations.summary: scalar histogram image merge merge_all FileWriter FileWriterCache Summary SessionLog Event
        operations.summary: text audio tensor_summary SummaryDescription TaggedRunMetadata
        scripts.events: summary_iterator
    """,
    "tf.train": """
        protos.graph: SaverDef
        training.optimizer: Optimizer
        training.optimizers: GradientDescentOptimizer MomentumOptimizer AdamOptimizer AdagradOptimizer AdadeltaOptimizer
        training.optimizers: RMSPropOptimizer FtrlOptimizer ProximalGradientDescentOptimizer ProximalAdagradOptimizer
        training.optimizers: AdagradDAOptimizer
        training.sync_replicas: SyncReplicasOptimizer SyncReplicasOptimizerV2=SyncReplicasOptimizer
        training.moving_average: ExponentialMovingAverage
        training.global_step: get_global_step create_global_step get_or_create_global_step global_step
        training.global_step: assert_global_step
        training.saver: Saver import_meta_graph
        .checkpoints.files: latest_checkpoint checkpoint_exists get_checkpoint_state update_checkpoint_state
        .checkpoints.files: CheckpointState get_checkpoint_mtimes remove_checkpoint
        .checkpoints.reader: list_variables load_variable CheckpointReader NewCheckpointReader=CheckpointReader
        .checkpoints.reader: load_checkpoint
        training.checkpoint_start: init_from_checkpoint
        training.warm_start: warm_start VocabInfo
        sessions.cluster_spec: ClusterSpec ClusterDef JobDef ServerDef
        sessions.server: Server
        graphs.device: replica_device_setter
        training.supervisor: Supervisor
        training.scaffold: Scaffold ChiefSessionCreator WorkerSessionCreator SessionCreator
        training.session_manager: SessionManager
        training.monitored: MonitoredTrainingSession MonitoredSession SingularMonitoredSession
        training.session_run_hook: SessionRunHook SessionRunArgs SessionRunContext SessionRunValues
        training.timer: SecondOrStepTimer
        training.hooks: StopAtStepHook LoggingTensorHook NanTensorHook NanLossDuringTrainingError FinalOpsHook
        training.hooks: FeedFnHook GlobalStepWaiterHook ProfilerHook
        training.checkpoint_hook: CheckpointSaverHook CheckpointSaverListener
        training.summary_hooks: StepCounterHook SummarySaverHook
        training.coordinator: Coordinator
        input.producers: match_filenames_once limit_epochs input_producer string_input_producer range_input_producer
        input.producers: slice_input_producer
        input.batching: batch batch_join maybe_batch maybe_batch_join shuffle_batch shuffle_batch_join
        input.batching: maybe_shuffle_batch maybe_shuffle_batch_join
        training.queue_runner: QueueRunner start_queue_runners add_queue_runner
        operations.summary: SummaryWriter=FileWriter SummaryWriterCache=FileWriterCache
        scripts.events: summary_iterator
        scripts.files: write_graph
        protos.example: BytesList FloatList Int64List Feature Features Example FeatureList FeatureLists SequenceExample
        training.looper_thread: LooperThread
        training.basic_loops: basic_train_loop
        training.meta_graph: export_meta_graph
    """,
    "tf.sparse": """
        graphs.sparse: SparseTensor
        input.sparse: placeholder=sparse_placeholder reorder=sparse_reorder to_dense=sparse_tensor_to_dense
        input.sparse: to_indicator=sparse_to_indicator concat=sparse_concat reduce_sum=sparse_reduce_sum
        input.sparse: reduce_max=sparse_reduce_max retain=sparse_retain slice=sparse_slice softmax=sparse_softmax
        input.sparse: fill_empty_rows=sparse_fill_empty_rows reset_shape=sparse_reset_shape reshape=sparse_reshape
        input.sparse: transpose=sparse_transpose add=sparse_add merge=sparse_merge mask=sparse_mask
        input.sparse_products: matmul=sparse_tensor_dense_matmul
        input.sparse_parts: split=sparse_split maximum=sparse_maximum minimum=sparse_minimum
        input.sparse_parts: reduce_sum_sparse=sparse_reduce_sum_sparse reduce_max_sparse=sparse_reduce_max_sparse
    """,
    "tf.strings": """
        operations.strings: join substr regex_replace regex_full_match strip length lower upper reduce_join as_string
        operations.strings: format=format_
        input.text: to_hash_bucket=string_to_hash_bucket to_hash_bucket_fast=string_to_hash_bucket_fast
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
        input.tables: index_to_string_table_from_tensor index_to_string string_to_index HasherSpec FastHashSpec
        input.tables: StrongHashSpec
    """,
    "tf.sets": """
        input.sets: set_size set_intersection set_difference set_union size=set_size intersection=set_intersection
        input.sets: difference=set_difference union=set_union
    """,
    "tf.python_io": """
        input.record_files: TFRecordWriter TFRecordOptions TFRecordCompressionType tf_record_iterator
    """,
    "tf.io": """
        operations.strings: decode_compressed
        input.sparse_parts: serialize_sparse serialize_many_sparse deserialize_many_sparse serialize_tensor parse_tensor
        input.producers: matching_files match_filenames_once
        input.readers: read_file write_file
        input.record_files: TFRecordWriter TFRecordOptions TFRecordCompressionType tf_record_iterator
        input.features: FixedLenFeature VarLenFeature FixedLenSequenceFeature SparseFeature
        input.parsing: parse_example parse_single_example parse_single_sequence_example
        input.decoding: decode_raw decode_csv
        scripts.files: write_graph
    """,
    "tf.errors": """
        graphs.errors: OpError CancelledError InvalidArgumentError DeadlineExceededError NotFoundError
        graphs.errors: AlreadyExistsError ResourceExhaustedError FailedPreconditionError AbortedError OutOfRangeError
        graphs.errors: UnimplementedError InternalError UnavailableError DataLossError UnknownError
        graphs.errors: PermissionDeniedError UnauthenticatedError exception_type_from_error_code
        graphs.errors: error_code_from_exception_type raise_exception_on_not_ok_status OK CANCELLED UNKNOWN
        graphs.errors: INVALID_ARGUMENT DEADLINE_EXCEEDED NOT_FOUND ALREADY_EXISTS PERMISSION_DENIED RESOURCE_EXHAUSTED
        graphs.errors: FAILED_PRECONDITION ABORTED OUT_OF_RANGE UNIMPLEMENTED INTERNAL UNAVAILABLE DATA_LOSS
        graphs.errors: UNAUTHENTICATED
    """,
    "tf.logging": """
        scripts.logging: DEBUG INFO WARN ERROR FATAL set_verbosity get_verbosity log debug info warning warn error fatal
        scripts.logging: log_every_n log_first_n log_if vlog flush get_logger TaskLevelStatusMessage
    """,
    "tf.app": """
        scripts.flags: run
    """,
    "tf.flags": FLAGS,
    "tf.gfile": """
        scripts.files: Exists MakeDirs MkDir DeleteRecursively Remove IsDirectory ListDirectory Glob GFile Open=GFile
        scripts.files: FastGFile=GFile Rename Copy Stat Walk
    """,
    "tf.initializers": """
        operations.initializers: zeros=Zeros ones=Ones constant=Constant random_normal=RandomNormal
        operations.initializers: truncated_normal=TruncatedNormal random_uniform=RandomUniform
        operations.initializers: variance_scaling=VarianceScaling glorot_uniform=GlorotUniform
        operations.initializers: glorot_normal=GlorotNormal orthogonal=Orthogonal identity=Identity he_normal he_uniform
        operations.initializers: lecun_normal lecun_uniform
        operations.state: global_variables=global_variables_initializer local_variables=local_variables_initializer
        operations.state: variables=variables_initializer
    """,
    "tf.math": """
        operations.assertions: is_non_decreasing is_strictly_increasing
    """,
    "tf.random": """
        operations.random: set_random_seed
    """,
    "tf.linalg": "",
    "tf.compat": """
        .text: as_bytes as_text as_str as_str_any path_to_str forward_compatible dimension_value
        scripts.history: dimension_at_index bytes_or_text_types integral_types real_types complex_types
    """,
    "tf.contrib": "",
    "tf.contrib.training": """
        graphs.device: GreedyLoadBalancingStrategy byte_size_load_fn
        scripts.hparams: HParams
    """,
    "tf.contrib.layers": """
        scripts.contrib: xavier_initializer variance_scaling_initializer l1_regularizer l2_regularizer
        scripts.contrib: xavier_initializer_conv2d=xavier_initializer
        networks.contrib_layers: flatten convolution conv1d conv2d conv3d convolution1d=conv1d convolution2d=conv2d
        networks.contrib_layers: convolution3d=conv3d conv2d_transpose convolution2d_transpose=conv2d_transpose
        networks.contrib_layers: conv3d_transpose convolution3d_transpose=conv3d_transpose separable_conv2d
        networks.contrib_layers: separable_convolution2d=separable_conv2d fully_connected linear relu relu6 max_pool2d
        networks.contrib_layers: max_pool3d avg_pool2d avg_pool3d dropout bias_add one_hot_encoding softmax
        networks.contrib_layers: embed_sequence repeat stack unit_norm maxout
        networks.contrib_normalization: batch_norm layer_norm instance_norm group_norm
        networks.contrib_training: sum_regularizer l1_l2_regularizer apply_regularization optimize_loss
        networks.contrib_training: OPTIMIZER_CLS_NAMES OPTIMIZER_SUMMARIES summarize_tensor summarize_activation
        networks.contrib_training: summarize_tensors summarize_collection summarize_variables summarize_weights
        networks.contrib_training: summarize_biases summarize_activations
        learn.columns: real_valued_column sparse_column_with_hash_bucket sparse_column_with_integerized_feature
        learn.columns: sparse_column_with_keys sparse_column_with_vocabulary_file weighted_sparse_column one_hot_column
        learn.columns: embedding_column shared_embedding_columns crossed_column input_from_feature_columns
        learn.columns: weighted_sum_from_feature_columns parse_feature_columns_from_examples
        learn.columns: joint_weighted_sum_from_feature_columns=weighted_sum_from_feature_columns
        feature_columns.numeric: bucketized_column
        feature_columns.parsing: create_feature_spec_for_parsing=make_parse_example_spec
    """,
    "tf.contrib.framework": """
        training.global_step: get_global_step create_global_step get_or_create_global_step assert_global_step
        networks.arg_scope: arg_scope add_arg_scope has_arg_scope arg_scoped_arguments current_arg_scope
        networks.arg_scope: arg_scope_func_key
        networks.model_variables: variable model_variable local_variable global_variable add_model_variable
        networks.model_variables: get_variables get_model_variables get_local_variables get_trainable_variables
        networks.model_variables: get_variables_by_name get_variables_by_suffix get_unique_variable
        networks.model_variables: get_variable_full_name filter_variables get_variables_to_restore assign_from_values
        networks.model_variables: assign_from_values_fn assign_from_checkpoint assign_from_checkpoint_fn
        networks.model_variables: init_from_checkpoint
        .checkpoints.reader: list_variables load_variable load_checkpoint
        graphs.record: is_tensor
    """,
    "tf.test": """
        scripts.machine: is_gpu_available gpu_device_name is_built_with_cuda get_temp_dir is_built_with_gpu_support
        scripts.machine: is_built_with_rocm is_built_with_xla
        scripts.test_case: TestCase main test_src_dir_path
    """,
    "tf.data": """
        datasets.dataset: Dataset get_output_types=types_of get_output_shapes=shapes_of get_output_classes=classes_of
        datasets.dataset: AUTOTUNE
        datasets.iterator: make_one_shot_iterator make_initializable_iterator Iterator
        datasets.options: Options
        datasets.files: TextLineDataset FixedLengthRecordDataset TFRecordDataset
    """,
    "tf.data.experimental": """
        datasets.dataset: AUTOTUNE
        datasets.files: CsvDataset
        datasets.transformations: shuffle_and_repeat map_and_batch parallel_interleave unbatch enumerate_dataset
        datasets.transformations: ignore_errors prefetch_to_device copy_to_device scan take_while unique group_by_window
        datasets.transformations: bucket_by_sequence_length dense_to_sparse_batch sample_from_datasets
        datasets.transformations: choose_from_datasets Counter get_single_element
        datasets.options: OptimizationOptions=Options ThreadingOptions=Options
    """,
    "tf.contrib.data": """
        datasets.dataset: Dataset AUTOTUNE
        datasets.iterator: Iterator
        datasets.files: CsvDataset TextLineDataset FixedLengthRecordDataset TFRecordDataset
        datasets.transformations: shuffle_and_repeat map_and_batch parallel_interleave unbatch enumerate_dataset
        datasets.transformations: ignore_errors prefetch_to_device copy_to_device scan unique group_by_window
        datasets.transformations: bucket_by_sequence_length dense_to_sparse_batch sample_from_datasets
        datasets.transformations: choose_from_datasets Counter get_single_element batch_and_drop_remainder
        datasets.transformations: padded_batch_and_drop_remainder assert_element_shape
    """,
    "tf.nn.rnn_cell": """
        networks.cells: RNNCell BasicRNNCell BasicLSTMCell LSTMCell GRUCell MultiRNNCell LSTMStateTuple
        networks.cell_wrappers: DropoutWrapper ResidualWrapper DeviceWrapper InputProjectionWrapper
        networks.cell_wrappers: OutputProjectionWrapper EmbeddingWrapper
    """,
    "tf.contrib.seq2seq": """
        networks.seq2seq: sequence_loss
    """,
    "tf.contrib.legacy_seq2seq": """
        networks.seq2seq: sequence_loss_by_example sequence_loss=legacy_sequence_loss rnn_decoder basic_rnn_seq2seq
    """,
    "tf.contrib.rnn": """
        networks.cells: RNNCell BasicRNNCell BasicLSTMCell LSTMCell LSTMBlockCell GRUCell MultiRNNCell LSTMStateTuple
        networks.cells: GRUBlockCellV2=GRUCell
        networks.cell_wrappers: DropoutWrapper ResidualWrapper DeviceWrapper InputProjectionWrapper
        networks.cell_wrappers: OutputProjectionWrapper EmbeddingWrapper LayerNormBasicLSTMCell
        networks.recurrence: static_rnn static_bidirectional_rnn stack_bidirectional_dynamic_rnn
        input.sparse_products: embedding_lookup_sparse safe_embedding_lookup_sparse
    """,
    "tf.contrib.framework.nest": """
        operations.structures: flatten pack_sequence_as map_structure is_sequence assert_same_structure
    """,
    "tf.contrib.slim": "",
    "tf.contrib.slim.utils": """
        networks.contrib_parts: get_variable_collections collect_named_outputs convert_collection_to_dict smart_cond
        networks.contrib_parts: constant_value last_dimension
    """,
    "tf.contrib.slim.learning": """
        training.slim: create_train_op train train_step clip_gradient_norms multiply_gradients add_gradients_summaries
    """,
    "tf.contrib.slim.evaluation": """
        training.slim: evaluate_once evaluation_loop checkpoints_iterator
    """,
    "tf.contrib.slim.model_analyzer": """
        training.slim: analyze_vars
    """,
    "tf.contrib.losses": """
        operations.contrib_losses: absolute_difference mean_squared_error log_loss cosine_distance hinge_loss
        operations.contrib_losses: softmax_cross_entropy sparse_softmax_cross_entropy sigmoid_cross_entropy
        operations.losses: compute_weighted_loss add_loss get_losses get_regularization_losses get_total_loss
    """,
    "tf.contrib.metrics": """
        operations.contrib_losses: streaming_mean streaming_accuracy streaming_precision streaming_recall
        operations.contrib_losses: streaming_mean_squared_error streaming_mean_absolute_error
        operations.contrib_losses: streaming_root_mean_squared_error accuracy aggregate_metrics aggregate_metric_map
    """,
    "tf.io.gfile": """
        scripts.files: exists isdir listdir makedirs mkdir remove rmtree stat glob=glob_ rename copy walk GFile
    """,
    "tf.sysconfig": """
        scripts.machine: get_include get_lib=get_include get_compile_flags=get_include get_link_flags=get_include
    """,
    "tf.dtypes": """
        .ops.dtypes: DType as_dtype float16 bfloat16 float32 float64 int8 int16 int32 int64 uint8 uint16 uint32 uint64
        .ops.dtypes: bool=bool_ complex64 complex128 string half=float16 double=float64
    """,
    "tf.version": """
        scripts.history: VERSION GIT_VERSION COMPILER_VERSION GRAPH_DEF_VERSION GRAPH_DEF_VERSION_MIN_CONSUMER
        scripts.history: GRAPH_DEF_VERSION_MIN_PRODUCER
    """,
    "tf.resource_loader": """
        scripts.resources: get_data_files_path get_root_dir_with_all_resources get_path_to_datafile load_resource
        scripts.resources: readahead_file_path
    """,
    "tf.graph_util": """
        scripts.graph_util: convert_variables_to_constants extract_sub_graph remove_training_nodes must_run_on_cpu
        scripts.graph_util: tensor_shape_from_node_def_name
        operations.importing: import_graph_def
    """,
    "tf.saved_model": """
        saved_models.builder: Builder=SavedModelBuilder SavedModelBuilder simple_save
        saved_models.loader: load maybe_saved_model_directory contains_saved_model=maybe_saved_model_directory
        saved_models.signatures: build_signature_def build_tensor_info classification_signature_def is_valid_signature
        saved_models.signatures: predict_signature_def regression_signature_def get_tensor_from_tensor_info
        saved_models.constants: ASSETS_DIRECTORY ASSETS_KEY CLASSIFY_INPUTS CLASSIFY_METHOD_NAME CLASSIFY_OUTPUT_CLASSES
        saved_models.constants: CLASSIFY_OUTPUT_SCORES DEFAULT_SERVING_SIGNATURE_DEF_KEY EVAL GPU LEGACY_INIT_OP_KEY
        saved_models.constants: MAIN_OP_KEY PREDICT_INPUTS PREDICT_METHOD_NAME PREDICT_OUTPUTS REGRESS_INPUTS
        saved_models.constants: REGRESS_METHOD_NAME REGRESS_OUTPUTS SAVED_MODEL_FILENAME_PB SAVED_MODEL_FILENAME_PBTXT
        saved_models.constants: SAVED_MODEL_SCHEMA_VERSION SERVING TPU TRAINING VARIABLES_DIRECTORY VARIABLES_FILENAME
    """,
    "tf.profiler": """
        scripts.profiling: profile advise Profiler ProfileOptionBuilder
    """,
    "tf.contrib.util": """
        scripts.values: constant_value make_tensor_proto make_ndarray
    """,
    "tf.contrib.tensorboard": "",
    "tf.contrib.tensorboard.plugins": "",
    "tf.contrib.tensorboard.plugins.projector": """
        protos.projector: ProjectorConfig EmbeddingInfo SpriteMetadata visualize_embeddings
    """,
    "tf.contrib.learn": """
        estimators.spec: ModeKeys
        estimators.run_config: RunConfig TaskType
        learn.estimator: Estimator BaseEstimator=Estimator ModelFnOps MetricSpec SKCompat
        learn.canned: LinearClassifier LinearRegressor DNNClassifier DNNRegressor DNNLinearCombinedClassifier
        learn.canned: DNNLinearCombinedRegressor PredictionKey
        learn.columns: infer_real_valued_columns_from_input infer_real_valued_columns_from_input_fn
        learn.experiment: Experiment
    """,
    "tf.contrib.learn.learn_runner": """
        learn.experiment: run
    """,
    "tf.contrib.learn.monitors": """
        learn.monitors: ValidationMonitor PrintTensor replace_monitors_with_hooks
        training.hooks: StopAtStep=StopAtStepHook NanLoss=NanTensorHook
        training.checkpoint_hook: CheckpointSaver=CheckpointSaverHook
        training.session_run_hook: BaseMonitor=SessionRunHook
    """,
    "tf.contrib.learn.datasets": """
        scripts.datasets: load_dataset
    """,
    "tf.contrib.learn.datasets.base": """
        scripts.datasets: Dataset Datasets load_csv_with_header load_csv_without_header maybe_download
    """,
    "tf.contrib.learn.datasets.mnist": """
        scripts.input_data: read_data_sets DataSet
        scripts.datasets: load_mnist
    """,
    "tf.contrib.staging": """
        input.staging: StagingArea
    """,
    "tf.debugging": """
        operations.assertions: assert_equal assert_none_equal assert_less assert_less_equal assert_greater
        operations.assertions: assert_greater_equal assert_positive assert_negative assert_non_negative
        operations.assertions: assert_non_positive assert_near assert_type assert_integer assert_same_float_dtype
        operations.assertions: assert_proper_iterable assert_rank assert_rank_at_least assert_rank_in assert_scalar
        operations.assertions: is_non_decreasing is_strictly_increasing is_numeric_tensor
        operations.printing: Assert=assert_ check_numerics assert_all_finite=verify_tensor_all_finite
    """,
    "tf.estimator": """
        estimators.estimator: Estimator
        estimators.spec: EstimatorSpec ModeKeys
        estimators.run_config: RunConfig
        estimators.train_and_evaluate: TrainSpec EvalSpec train_and_evaluate
        estimators.warm_start: WarmStartSettings
        training.warm_start: VocabInfo
        estimators.canned: LinearClassifier LinearRegressor DNNClassifier DNNRegressor DNNLinearCombinedClassifier
        estimators.canned: DNNLinearCombinedRegressor BaselineClassifier BaselineRegressor
        estimators.exporters: Exporter LatestExporter FinalExporter BestExporter
        training.session_run_hook: SessionRunHook SessionRunArgs SessionRunContext SessionRunValues
        training.checkpoint_hook: CheckpointSaverHook CheckpointSaverListener
        training.hooks: LoggingTensorHook NanTensorHook NanLossDuringTrainingError StopAtStepHook FinalOpsHook
        training.hooks: FeedFnHook GlobalStepWaiterHook
        training.summary_hooks: StepCounterHook SummarySaverHook
        training.timer: SecondOrStepTimer
    """,
    "tf.estimator.inputs": """
        estimators.inputs: numpy_input_fn pandas_input_fn
    """,
    "tf.estimator.export": """
        estimators.exporters: ServingInputReceiver TensorServingInputReceiver ExportOutput PredictOutput
        estimators.exporters: ClassificationOutput RegressionOutput build_parsing_serving_input_receiver_fn
        estimators.exporters: build_raw_serving_input_receiver_fn
    """,
    "tf.saved_model.main_op": """
        saved_models.main_op: main_op
    """,
    "tf.contrib.session_bundle": "",
    "tf.contrib.session_bundle.exporter": """
        training.session_bundle: Exporter generic_signature classification_signature regression_signature
    """,
    "tf.train.queue_runner": """
        training.queue_runner: QueueRunner start_queue_runners add_queue_runner
    """,
    "tf.feature_column": """
        feature_columns.numeric: numeric_column bucketized_column
        feature_columns.categorical: categorical_column_with_identity categorical_column_with_hash_bucket
        feature_columns.categorical: categorical_column_with_vocabulary_list categorical_column_with_vocabulary_file
        feature_columns.categorical: weighted_categorical_column
        feature_columns.crossed: crossed_column
        feature_columns.embedding: indicator_column embedding_column shared_embedding_columns
        feature_columns.layers: input_layer linear_model
        feature_columns.parsing: make_parse_example_spec
    """,
}

_TABLE["tf.contrib.slim"] = _TABLE["tf.contrib.layers"] + _TABLE["tf.contrib.framework"]
_TABLE["tf.contrib.slim.losses"] = _TABLE["tf.contrib.losses"]
_TABLE["tf.contrib.slim.metrics"] = _TABLE["tf.contrib.metrics"]
for _part in "builder loader constants tag_constants signature_constants signature_def_utils utils".split():
    _TABLE[f"tf.saved_model.{_part}"] = _TABLE["tf.saved_model"]
_TABLE["tf.contrib.layers.utils"] = _TABLE["tf.contrib.slim.utils"]
_TABLE |= KERAS

_INSIDE = {"tf.app": {"flags": "tf.flags"}, "tf.compat": {"v1": "tf"}, "tf.contrib": {"keras": "tf.keras"}}

"""Namespaces that are found in others under another name."""


def read(table: str) -> dict[str, tuple[str, str]]:
    """Return the file and the own name of each name in a table."""
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
    found = {space: read(table) for space, table in _TABLE.items()}
    for space, ops in v1_names().items():
        for name in ops:
            found.setdefault(space, {}).setdefault(name, (OPS, f"{space}.{name}"))
    for name, there in SAME_AS_TF.items():
        found["tf.keras.backend"].setdefault(name, (OPS, there))
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
