"""Predictors: a checkpoint's tensors become the params of a function, or it is said why not."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import trainband
from trainband.errors import DataError, ModelError, ModelMismatch
from trainband.model.signature import TensorSpec
from trainband.model.variables import path_name

ONES = np.ones((3, 2), np.float32)


def total(params: Any, batch: Any) -> Any:
    return batch @ jax.tree.leaves(params)[0]


def test_params_are_nested_dicts_and_lists_as_a_checkpoint_names_them() -> None:
    seen: dict[str, Any] = {}

    def spy(params: Any, state: Any, batch: Any) -> Any:
        seen.update(params=jax.tree.structure(params), state=jax.tree.structure(state))
        return batch

    weights = {"params/layers/0/w": ONES, "params/layers/1/w": ONES, "params/10": ONES, "model_state/mean": ONES}
    trainband.Predictor(spy).program(weights, example=ONES)
    assert seen["params"] == jax.tree.structure({"10": 0, "layers": [{"w": 0}, {"w": 0}]})
    assert seen["state"] == jax.tree.structure({"mean": 0})


def test_a_bare_array_is_params() -> None:
    program = trainband.Predictor(lambda params, batch: batch @ params).program({"params/params": ONES}, example=ONES.T)
    np.testing.assert_array_equal(program.compiled()({"input": ONES.T})["output"], ONES.T @ ONES)


@partial(jax.tree_util.register_dataclass, data_fields=("kernel",), meta_fields=())
@dataclass
class Kernel:
    """A node of a pytree of the user's own."""

    kernel: Any


def of_kernel(_: jax.Array) -> Kernel:
    return Kernel(jnp.zeros((3, 2)))


def test_init_gives_the_structure() -> None:
    program = trainband.Predictor(lambda params, batch: batch @ params.kernel, init=of_kernel).program(
        {"params/kernel": ONES}, example=ONES.T
    )
    np.testing.assert_array_equal(program.compiled()({"input": ONES.T})["output"], ONES.T @ ONES)


def test_a_module_is_in_its_mode_for_evaluations() -> None:
    module = nnx.Sequential(nnx.Linear(3, 2, rngs=nnx.Rngs(0)), nnx.Dropout(0.5, rngs=nnx.Rngs(1)))
    trainer = trainband.Trainer.from_nnx(module, lambda model, batch: model(batch).mean(), optimizer=optax.sgd(0.1))
    weights = {
        "params/layers/0/kernel": np.asarray(trainer.params["layers"][0]["kernel"]),
        "params/layers/0/bias": np.zeros(2, np.float32),
        **{
            f"model_state/{path_name(path)}": leaf
            for path, leaf in jax.tree_util.tree_flatten_with_path(trainer.model_state)[0]
        },
    }
    program = trainband.Predictor(lambda model, batch: model(batch), module=module).program(weights, example=ONES.T)
    np.testing.assert_allclose(
        program.compiled()({"input": ONES.T})["output"], ONES.T @ weights["params/layers/0/kernel"], rtol=1e-6
    )


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        (
            {"params/kernel": np.ones((3, 1), np.float32)},
            r"needs kernel float32\[3,2\], but params/kernel is .*\[3,1\]",
        ),
        ({"params/kern": ONES}, "but params/kernel is missing"),
        ({"params/kernel": ONES, "params/bias": ONES}, "it has params/bias, which of_batch does not have"),
    ],
)
def test_a_checkpoint_of_another_model_is_refused(weights: dict[str, Any], words: str) -> None:
    def of_batch(params: Any, batch: Any) -> Any:
        return batch @ params.kernel

    with pytest.raises(ModelMismatch, match=f"runs/a is of another model: .*{words}"):
        trainband.Predictor(of_batch, init=of_kernel).program(weights, example=ONES.T, source="runs/a")


def test_what_cannot_be_traced_is_named_with_its_line() -> None:
    def counts(_: Any, batch: Any) -> Any:
        return batch.reshape(len(batch), -1)

    with pytest.raises(ModelError, match=r"counts cannot be traced \(test_predictor\.py:\d+\).*fix the number"):
        trainband.Predictor(counts).program({"params/w": ONES}, example=ONES)
    assert trainband.Predictor(counts).program({"params/w": ONES}, example=ONES, batch=3).signature.inputs == (
        TensorSpec("input", "float32", (3, 2)),
    )

    def wrong(params: Any, batch: Any) -> Any:
        return batch @ params["kernel"]

    with pytest.raises(ModelError, match=r"KeyError: 'kernel'.*as the checkpoint names them.*init="):
        trainband.Predictor(wrong).program({"params/w": ONES}, example=ONES)


def test_an_example_or_its_shapes_must_be_given() -> None:
    predictor = trainband.Predictor(lambda _, batch: batch["x"])
    with pytest.raises(DataError, match="has no example"):
        predictor.program({"params/w": ONES})
    with pytest.raises(DataError, match="equally many examples"):
        predictor.program({"params/w": ONES}, example={"x": ONES, "y": ONES[:2]})
    specs = tuple(TensorSpec.parsed(text, "input") for text in ("x:f32[batch,length]", "y:int32[batch]"))
    program = predictor.program({"params/w": ONES}, inputs=specs)
    assert program.signature.outputs == (TensorSpec("output", "float32", ("batch", "length")),)


@pytest.mark.parametrize("text", ["float32", "x:y[batch]", "x:float33[batch]", "x:f32[batch,-1]", "x:f32[a b]]"])
def test_what_is_no_tensor_is_refused(text: str) -> None:
    with pytest.raises(DataError, match=r"does not describe a tensor; expected name:dtype\[shape\]"):
        TensorSpec.parsed(text, "input")


def test_a_named_input_of_a_function_that_takes_an_array_is_explained() -> None:
    weights = {"params/w": np.ones((3, 2), np.float32)}
    spec = TensorSpec.parsed("images:float32[batch,3]", "input")
    predictor = trainband.Predictor(lambda params, batch: batch @ params["w"])
    words = r"takes an array, but an input with a name makes the batch a dict, \{'images': array\}; leave the name out "
    with pytest.raises(ModelError, match=words + r"\(--input float32\[batch,3\]\), .* batch\['images'\]"):
        predictor.program(weights, inputs=(spec,))
    trainband.Predictor(lambda params, batch: batch["images"] @ params["w"]).program(weights, inputs=(spec,))
    predictor.program(weights, inputs=(TensorSpec.parsed("float32[batch,3]", "input"),))
    other = trainband.Predictor(lambda params, batch: batch["image"] @ params["w"])
    with pytest.raises(ModelError, match="KeyError"):  # which is no question of the dict
        other.program(weights, inputs=(spec,))
