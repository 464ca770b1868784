"""The names of `tf.keras`, in the form of the table of all names."""

from __future__ import annotations

_LAYERS = """
    models.layer: Layer
    networks.layer: InputSpec
    models.network: Input InputLayer
    models.core_layers: Dense Flatten Dropout SpatialDropout1D SpatialDropout2D GaussianNoise GaussianDropout Activation
    models.core_layers: ReLU LeakyReLU ThresholdedReLU ELU PReLU Softmax Reshape Permute RepeatVector Lambda
    models.core_layers: ActivityRegularization Masking Embedding BatchNormalization LayerNormalization TimeDistributed
    models.image_layers: Conv1D Conv2D Conv3D Conv2DTranspose Conv3DTranspose SeparableConv1D SeparableConv2D
    models.image_layers: DepthwiseConv2D MaxPooling1D MaxPooling2D MaxPooling3D AveragePooling1D AveragePooling2D
    models.image_layers: AveragePooling3D GlobalAveragePooling1D GlobalAveragePooling2D GlobalAveragePooling3D
    models.image_layers: GlobalMaxPooling1D GlobalMaxPooling2D GlobalMaxPooling3D ZeroPadding1D ZeroPadding2D
    models.image_layers: ZeroPadding3D Cropping1D Cropping2D Cropping3D UpSampling1D UpSampling2D UpSampling3D
    models.image_layers: Convolution1D=Conv1D Convolution2D=Conv2D Convolution3D=Conv3D
    models.image_layers: Convolution2DTranspose=Conv2DTranspose Convolution3DTranspose=Conv3DTranspose
    models.image_layers: SeparableConvolution1D=SeparableConv1D SeparableConvolution2D=SeparableConv2D
    models.image_layers: MaxPool1D=MaxPooling1D MaxPool2D=MaxPooling2D MaxPool3D=MaxPooling3D
    models.image_layers: AvgPool1D=AveragePooling1D AvgPool2D=AveragePooling2D AvgPool3D=AveragePooling3D
    models.image_layers: GlobalAvgPool1D=GlobalAveragePooling1D GlobalAvgPool2D=GlobalAveragePooling2D
    models.image_layers: GlobalAvgPool3D=GlobalAveragePooling3D GlobalMaxPool1D=GlobalMaxPooling1D
    models.image_layers: GlobalMaxPool2D=GlobalMaxPooling2D GlobalMaxPool3D=GlobalMaxPooling3D
    models.merging: Add Subtract Multiply Average Maximum Minimum Concatenate Dot add subtract multiply average maximum
    models.merging: minimum concatenate dot
    models.recurrent: SimpleRNN GRU LSTM CuDNNLSTM Bidirectional
"""
_MODELS = "models.model: Model Sequential"

KERAS: dict[str, str] = {
    "tf.keras": f"""
        {_MODELS}
        models.network: Input
        scripts.history: __version__=VERSION
    """,
    "tf.keras.layers": _LAYERS,
    "tf.keras.models": f"""
        {_MODELS} clone_model
        models.weight_files: load_model save_model
        models.architecture: model_from_json=from_json
    """,
    "tf.keras.activations": """
        models.named: linear hard_sigmoid relu elu softmax selu softplus softsign swish tanh sigmoid exponential
        models.named: get=activation_of
    """,
    "tf.keras.initializers": """
        operations.initializers: Initializer Zeros Ones Constant RandomUniform VarianceScaling Orthogonal Identity
        operations.initializers: zeros=Zeros ones=Ones constant=Constant random_uniform=RandomUniform
        operations.initializers: uniform=RandomUniform orthogonal=Orthogonal identity=Identity he_normal he_uniform
        operations.initializers: lecun_normal lecun_uniform glorot_uniform=GlorotUniform glorot_normal=GlorotNormal
        operations.initializers: GlorotUniform GlorotNormal
        models.named: RandomNormal TruncatedNormal random_normal=RandomNormal normal=RandomNormal get=initializer_of
        models.named: truncated_normal=TruncatedNormal
    """,
    "tf.keras.regularizers": """
        models.named: L1L2 Regularizer=L1L2 l1 l2 l1_l2 get=regularizer_of
    """,
    "tf.keras.constraints": """
        models.named: MaxNorm UnitNorm MinMaxNorm NonNeg max_norm=MaxNorm unit_norm=UnitNorm min_max_norm=MinMaxNorm
        models.named: non_neg=NonNeg get=constraint_of
    """,
    "tf.keras.losses": """
        models.losses: Loss MeanSquaredError MeanAbsoluteError MeanAbsolutePercentageError MeanSquaredLogarithmicError
        models.losses: BinaryCrossentropy CategoricalCrossentropy SparseCategoricalCrossentropy Hinge SquaredHinge
        models.losses: CategoricalHinge Poisson LogCosh KLDivergence CosineSimilarity Huber Reduction get
        models.losses: categorical_crossentropy sparse_categorical_crossentropy binary_crossentropy
    """,
    "tf.keras.metrics": """
        models.metrics: Metric Mean Sum MeanMetricWrapper Accuracy BinaryAccuracy CategoricalAccuracy
        models.metrics: SparseCategoricalAccuracy TopKCategoricalAccuracy SparseTopKCategoricalAccuracy MeanSquaredError
        models.metrics: RootMeanSquaredError MeanAbsoluteError MeanAbsolutePercentageError BinaryCrossentropy
        models.metrics: CategoricalCrossentropy SparseCategoricalCrossentropy Hinge KLDivergence Poisson Precision
        models.metrics: Recall TruePositives TrueNegatives FalsePositives FalseNegatives AUC MeanIoU get
        models.losses: categorical_crossentropy sparse_categorical_crossentropy binary_crossentropy
    """,
    "tf.keras.optimizers": """
        models.optimizers: Optimizer SGD RMSprop Adagrad Adadelta Adam Adamax Ftrl get
    """,
    "tf.keras.optimizers.schedules": """
        models.optimizers: LearningRateSchedule ExponentialDecay PiecewiseConstantDecay
    """,
    "tf.keras.callbacks": """
        models.callbacks: Callback History BaseLogger ProgbarLogger LambdaCallback EarlyStopping ModelCheckpoint
        models.callbacks: LearningRateScheduler ReduceLROnPlateau TerminateOnNaN CSVLogger TensorBoard
    """,
    "tf.keras.backend": """
        models.phase: learning_phase set_learning_phase learning_phase_scope get_session set_session clear_session
        models.phase: get_uid reset_uids manual_variable_initialization image_data_format set_image_data_format
        models.backend: backend floatx set_floatx epsilon set_epsilon cast_to_floatx variable constant placeholder
        models.backend: is_keras_tensor is_placeholder int_shape ndim dtype get_value eval=get_value batch_get_value
        models.backend: set_value batch_set_value function gradients update update_add update_sub moving_average_update
        models.backend: name_scope sum=sum_ mean max=max_ min=min_ prod logsumexp any=any_ all=all_ var std argmax
        models.backend: argmin clip sqrt pow=pow_ dot concatenate reshape permute_dimensions expand_dims squeeze flatten
        models.backend: batch_flatten gather cast zeros ones random_normal random_uniform dropout l2_normalize bias_add
        models.backend: categorical_crossentropy binary_crossentropy in_train_phase in_test_phase switch count_params
        models.losses: sparse_categorical_crossentropy
        models.named: relu elu softmax softplus softsign tanh sigmoid hard_sigmoid
    """,
    "tf.keras.utils": """
        models.data: to_categorical normalize get_file Sequence=Sequence_
        models.named: get_custom_objects
        models.estimator: custom_object_scope CustomObjectScope=custom_object_scope multi_gpu_model
    """,
    "tf.keras.datasets": "",
    "tf.keras.datasets.mnist": "models.data: load_data=load_mnist",
    "tf.keras.datasets.fashion_mnist": "models.data: load_data=load_fashion_mnist",
    "tf.keras.datasets.cifar10": "models.data: load_data=load_cifar10",
    "tf.keras.datasets.cifar100": "models.data: load_data=load_cifar100",
    "tf.keras.preprocessing": "",
    "tf.keras.preprocessing.image": "models.data: ImageDataGenerator load_img img_to_array",
    "tf.keras.preprocessing.sequence": "models.data: pad_sequences",
    "tf.keras.preprocessing.text": "models.data: Tokenizer text_to_word_sequence",
    "tf.keras.estimator": "models.estimator: model_to_estimator",
}
"""Namespaces and their names."""

_OPERATIONS = """
    abs square exp log sign round maximum minimum equal not_equal greater greater_equal less less_equal cos sin shape
    transpose stack tile reverse one_hot stop_gradient identity eye zeros_like ones_like
"""
SAME_AS_TF: dict[str, str] = {name: f"tf.{name}" for name in _OPERATIONS.split()}
"""Names of `tf.keras.backend` that are operations of `tf`."""
