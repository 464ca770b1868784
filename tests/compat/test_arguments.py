"""Every function and class accepts the arguments that TensorFlow's has, by their names."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from trainband.compat.tf1.names import NAMES
from trainband.compat.tf1.namespace import find

GOLDEN = Path(__file__).parent / "golden" / "arguments.txt"
TENSORFLOW = {
    name: arguments.split()
    for name, _, arguments in (line.partition(":") for line in GOLDEN.read_text(encoding="utf-8").splitlines())
}

NEWER = set(
    "align allow_fast_lookup allow_last_axis_squeeze axis bad_indices_policy beta block_shape"
    " experimental_is_anonymous exponential_avg_factor grad_a grad_b index_type k layout num_cols num_rows output_type"
    " padding_value return_index_map sparse_gradient use_own_namescope_for_non_slot_vars value_index_offset var".split()
)
"""Arguments that came after TensorFlow 1.15. `axis` and `beta` are missing only where they are new."""
LEFT_OUT = {
    "tf.DType": "handle_data type_enum",
    "tf.QueueBase": "queue_ref",
    "tf.ReaderBase": "reader_ref supports_serialize",
    "tf.VariableScope": "caching_device name_scope use_resource",
    "tf.as_dtype": "type_value",
    "tf.data.FixedLengthRecordDataset": "name",
    "tf.data.Iterator": "iterator_resource output_classes output_shapes output_types",
    "tf.data.TFRecordDataset": "name",
    "tf.data.TextLineDataset": "name",
    "tf.data.get_output_classes": "dataset_or_iterator",
    "tf.data.get_output_shapes": "dataset_or_iterator",
    "tf.data.get_output_types": "dataset_or_iterator",
    "tf.dtypes.DType": "handle_data type_enum",
    "tf.dtypes.as_dtype": "type_value",
    "tf.eye": "batch_shape",
    "tf.gather": "batch_dims",
    "tf.gather_nd": "batch_dims",
    "tf.layers.InputSpec": "name optional",
    "tf.layers.batch_normalization": "adjustment renorm_clipping renorm_momentum virtual_batch_size",
    "tf.layers.conv2d_transpose": "activity_regularizer bias_constraint bias_regularizer data_format kernel_constraint"
    " kernel_regularizer",
    "tf.linalg.eye": "batch_shape",
    "tf.linalg.matvec": "a_is_sparse b_is_sparse",
    "tf.linalg.norm": "keep_dims",
    "tf.lookup.StaticVocabularyTable": "initializer lookup_key_dtype",
    "tf.nn.conv1d": "data_format dilations input use_cudnn_on_gpu",
    "tf.nn.conv2d_backprop_input": "filters",
    "tf.nn.conv2d_transpose": "dilations filters input",
    "tf.nn.depthwise_conv2d": "data_format dilations rate",
    "tf.nn.log_poisson_loss": "compute_full_loss",
    "tf.norm": "keep_dims",
    "tf.saved_model.build_signature_def": "defaults",
    "tf.saved_model.signature_def_utils.build_signature_def": "defaults",
    "tf.string_to_number": "input",
    "tf.strings.to_number": "input",
    "tf.train.QueueRunner": "cancel_op close_op enqueue_ops import_scope queue queue_closed_exception_types"
    " queue_runner_def",
    "tf.train.SessionManager": "local_init_feed_dict",
    "tf.train.update_checkpoint_state": "all_model_checkpoint_timestamps last_preserved_timestamp",
}
"""Arguments of constructors that scripts do not call, and a few that hardly any script passes."""


@pytest.mark.parametrize("space", NAMES)
def test_the_arguments_of_tensorflow_are_accepted(space: str) -> None:
    missing: dict[str, str] = {}
    for name in (f"{space}.{one}" for one in NAMES[space]):
        if name not in TENSORFLOW:
            continue
        try:
            own = inspect.signature(find(space, name.rpartition(".")[2])).parameters
        except (TypeError, ValueError):
            continue
        if any(one.kind is one.VAR_KEYWORD for one in own.values()):
            continue
        absent = set(TENSORFLOW[name]) - set(own) - NEWER - set(LEFT_OUT.get(name, "").split())
        if absent:
            missing[name] = " ".join(sorted(absent))
    assert missing == {}
