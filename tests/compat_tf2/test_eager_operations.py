"""The operations that both versions of TensorFlow have, run eagerly: values, dtypes, gradients, errors."""

from __future__ import annotations

import functools
import re
from typing import Any

import numpy as np
import pytest
from tests.compat.conformance.cases import TABLES, Case, read
from tests.compat.test_conformance import close, golden

import trainband.compat.tf2 as tf

_NAME = re.compile(r"\btf(?:\.\w+)+")


_OLD = re.compile(
    r"\b(keep_dims|reduction_indices|dim|seq_dim|dilation_rate)=|softmax_cross_entropy_with_logits\(labels=y|embedding_lookup\(\[|tf\.keras"
    r"|tf\.where\(c|in_top_k|space_to_batch\(|batch_to_space\(|tf\.assert_|convolution\(x, y, \"|dilation2d|erosion2d"
    r"|nn\.pool\(|tf\.losses|sampled_softmax_loss\(\[|nn\.ctc_loss|ctc_beam_search_decoder\("
)
"""Parameters that only version 1 has, or has in another order, and what treats labels differently: as constants."""


@functools.cache
def _is_there(name: str) -> bool:
    found: Any = tf
    for part in name.split(".")[1:]:
        if not hasattr(found, part):
            return False
        found = getattr(found, part)
    return True


def _is_of_both(case: Case) -> bool:
    stateful = "metric(" in case.key or "train(" in case.key
    if stateful or case.differs or _OLD.search(case.expression):
        return False
    return all(map(_is_there, _NAME.findall(case.expression)))


CASES = [
    pytest.param(table, case, id=f"{table}:{case.operation}:{number}")
    for table in TABLES
    for number, case in enumerate(read(table))
    if _is_of_both(case)
]


def _flat(value: Any) -> list[Any]:
    return [leaf for one in value for leaf in _flat(one)] if isinstance(value, list | tuple) else [value]


def _weights(output: Any) -> Any:
    numbers = tf.reshape(tf.range(tf.size(output)), tf.shape(output))
    return 1 + tf.cast(tf.math.floormod(numbers, 5), output.dtype) / 4


@pytest.mark.parametrize(("table", "case"), CASES)
def test_a_case_gives_what_tensorflow_gives(table: str, case: Case) -> None:
    wanted = golden(table)[case.key]
    inputs = {name: tf.constant(value) for name, value in case.values().items()}
    floats = {name: one for name, one in inputs.items() if one.dtype.is_floating}

    def evaluate(tape: Any) -> list[Any]:
        tape.watch(list(floats.values()))
        outputs = [tf.convert_to_tensor(one) for one in _flat(eval(case.expression, {"tf": tf, "np": np}, inputs))]
        for one in outputs:
            one.numpy()
        return outputs

    with tf.GradientTape() as tape:
        if "error" in wanted:
            with pytest.raises((ValueError, TypeError, tf.errors.OpError)):
                evaluate(tape)
            return
        outputs = evaluate(tape)
    assert len(outputs) == len(wanted["outputs"])
    for one, other in zip(outputs, wanted["outputs"], strict=True):
        assert one.dtype.name == other["dtype"]
        close(one.numpy(), other["value"], "value")
    differentiable = [one for one in outputs if one.dtype.is_floating]
    if not wanted["gradients"] or not differentiable:
        return
    found = tape.gradient(differentiable, floats, [_weights(one) for one in differentiable])
    for name, gradient in wanted["gradients"].items():
        if gradient is None:
            assert found[name] is None or not np.any(found[name].numpy()), name
        elif name in floats:
            assert found[name] is not None, f"no gradient of {name}"
            close(found[name].numpy(), gradient["value"], f"gradient of {name}")


def test_several_results_have_names() -> None:
    best = tf.math.top_k([1.0, 3.0, 2.0], k=2)
    np.testing.assert_array_equal(best.indices.numpy(), [1, 2])
    np.testing.assert_array_equal(tf.unique([5, 7, 5]).idx.numpy(), [0, 1, 0])
    run = tf.function(lambda x: tf.math.top_k(x, k=1))
    for _ in range(3):
        assert float(run(tf.constant([1.0, 4.0])).values[0]) == 4.0
