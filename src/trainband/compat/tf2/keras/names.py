"""What `tf.keras` has of our own, and where: Keras 3 has the rest.

A line of a namespace is `file: name name=its_name_there ...`, of files in `compat.tf2.keras`.
"""

from __future__ import annotations

_DATASETS = "mnist fashion_mnist cifar10 cifar100 imdb reuters boston_housing california_housing".split()

_TABLE: dict[str, str] = {
    "": "",
    "layers": """
        lookup: StringLookup IntegerLookup
        text: TextVectorization
        normalization: Normalization
        others: CuDNNLSTM CuDNNGRU AbstractRNNCell
    """,
    "layers.experimental": "others: SyncBatchNormalization",
    "layers.experimental.preprocessing": "",
    "losses": "reductions: Reduction",
    "metrics": "",
    "activations": "",
    "optimizers": "",
    "optimizers.legacy": "",
    "optimizers.experimental": "",
    "callbacks": "callbacks: ModelCheckpoint BackupAndRestore TensorBoard",
    "callbacks.experimental": "",
    "mixed_precision": "precision: set_global_policy global_policy Policy LossScaleOptimizer",
    "mixed_precision.experimental": """
        precision: set_policy global_policy Policy LossScaleOptimizer=LossScaleOptimizerV1
    """,
    "utils": "",
    "utils.experimental": "sources: DatasetCreator",
    "models": "saving: load_model save_model",
    "saving": "saving: load_model save_model",
    "experimental": "others: CosineDecay CosineDecayRestarts",
    "datasets": "",
    **{f"datasets.{name}": f"datasets: load_data={name}" for name in _DATASETS},
    "backend": """
        backend: abs all any argmax argmin arange cast clip concatenate cos cumprod cumsum dot elu equal exp expand_dims
        backend: eye greater greater_equal hard_sigmoid less less_equal log logsumexp max maximum mean min minimum
        backend: not_equal one_hot ones_like prod reshape round sigmoid sign sin softmax softplus softsign sqrt square
        backend: squeeze stack std stop_gradient sum tanh tile transpose var zeros_like repeat pow permute_dimensions
        backend: binary_crossentropy categorical_crossentropy sparse_categorical_crossentropy reverse repeat_elements
        backend: relu flatten batch_flatten gather l2_normalize batch_dot int_shape shape ndim dtype cast_to_floatx
        backend: constant variable zeros ones get_value eval set_value batch_get_value batch_set_value update update_add
        backend: update_sub moving_average_update switch random_normal random_uniform dropout in_train_phase
        backend: learning_phase set_learning_phase function gradients name_scope count_params is_keras_tensor
        backend: manual_variable_initialization get_session set_session
        backend_layers: conv1d conv2d conv3d pool2d pool3d bias_add spatial_2d_padding temporal_padding resize_images
        backend_layers: in_top_k ctc_batch_cost truncated_normal random_bernoulli in_test_phase learning_phase_scope
        backend_layers: print_tensor to_dense map_fn
    """,
}

FROM = {
    "layers.experimental": "layers",
    "layers.experimental.preprocessing": "layers",
    "optimizers.legacy": "optimizers",
    "optimizers.experimental": "optimizers",
    "callbacks.experimental": "callbacks",
    "mixed_precision.experimental": "mixed_precision",
    "utils.experimental": "utils",
    "experimental": "others: CosineDecay CosineDecayRestarts",
    "datasets": "",
    **{f"datasets.{name}": f"datasets: load_data={name}" for name in _DATASETS},
}
"""Namespaces of Keras 2 whose names another one has now."""

LIFTED = ("losses", "metrics", "activations", "ops", "ops.nn", "ops.numpy", "ops.image", "ops.linalg")
"""Namespaces whose functions compute on tensors."""


def _read(table: str) -> dict[str, tuple[str, str]]:
    found: dict[str, tuple[str, str]] = {}
    for line in filter(None, map(str.strip, table.splitlines())):
        file, _, names = line.partition(":")
        for name in names.split():
            shown, _, own = name.partition("=")
            found[shown] = (file, own or shown)
    return found


OWN: dict[str, dict[str, tuple[str, str]]] = {space: _read(table) for space, table in _TABLE.items()}
"""Of each namespace its own names: which file each is in, and what it is called there."""
