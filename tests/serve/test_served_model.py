"""Versions change between batches, never within one, and requests share batches without touching each other."""

from __future__ import annotations

import asyncio
import threading

import jax
import numpy as np
import pytest

from tests.serve.served import EXAMPLE, STATUS, Gated, ask, client, program, run, served
from trainband.errors import ModelMismatch
from trainband.model.predictor import Predictor
from trainband.serve import ServedModel, ServeOptions
from trainband.serve.app import App


def test_a_request_is_answered_by_one_version_whole() -> None:
    # `high` is always `low` + 1000 in a version, so an answer of two versions would show.
    predictor = Predictor(lambda params, batch: batch * 0 + params["low"] + params["high"], example=EXAMPLE)
    model = ServedModel.of(
        predictor.program({"params/low": np.array(0, np.float32), "params/high": np.array(1000, np.float32)}),
        name="pair",
    )
    ended = threading.Event()

    def swap() -> None:
        for number in range(1, 101):
            model.swap({"params/low": np.float32(number), "params/high": np.float32(1000 + number)}, number)
        ended.set()

    async def ask_on(app: App) -> list[tuple[int, int, float]]:
        found: list[tuple[int, int, float]] = []
        async with client(app) as http:
            while not ended.is_set() or not found:
                body = {"inputs": [{"name": "input", "shape": [20, 2], "datatype": "FP32", "data": [0.0] * 40}]}
                for answer in await asyncio.gather(*[http.post("/v2/models/pair/infer", json=body) for _ in range(4)]):
                    value = answer.json()
                    values = set(value["outputs"][0]["data"])
                    assert len(values) == 1
                    found.append((answer.status_code, int(value["model_version"]), values.pop()))
        return found

    with served(model) as app:  # of at most 8 examples, so that each request is computed in three parts
        thread = threading.Thread(target=swap)
        thread.start()
        found = run(ask_on(app))
        thread.join()
    assert {(code, total - 1000 - 2 * number) for code, number, total in found} == {(200, 0.0)}
    assert (model.current.number, model.swaps) == (100, 100)


def test_a_swap_compiles_nothing_and_may_name_only_what_changed() -> None:
    traced = []

    def counted(params: dict[str, jax.Array], batch: jax.Array) -> jax.Array:
        traced.append(batch.shape)
        return batch * params["a"] + params["b"]

    weights = {"params/a": np.array(2, np.float32), "params/b": np.ones(2, np.float32)}
    model = ServedModel.of(Predictor(counted, example=EXAMPLE).program(weights))
    with served(model) as app:
        before = len(traced)
        model.swap({"params/a": np.float32(3)}, 1)
        answer = ask(app, "POST", "/v1/models/counted:predict", json={"instances": [[1, 2]]})
        assert answer.json() == {"predictions": [[4.0, 7.0]]}
        weights["params/b"][:] = 9  # the caller's own, which was copied
        assert ask(app, "POST", "/v1/models/counted:predict", json={"instances": [[1, 2]]}).json() == answer.json()
        assert len(traced) == before


@pytest.mark.parametrize(
    ("weights", "found"),
    [
        ({"params/other": np.float32(1)}, "scaled has no params/other"),
        ({"params/factor": np.ones(2, np.float32)}, r"params/factor is float32\[2\], but float32\[\] in scaled"),
        ({"params/factor": np.float16(1)}, r"params/factor is float16\[\]"),
    ],
)
def test_another_models_weights_are_refused_and_the_version_stays(weights: dict[str, np.ndarray], found: str) -> None:
    model = ServedModel.of(program())
    with pytest.raises(ModelMismatch, match=found):
        model.swap(weights, 8, source="step 8")
    assert (model.current.number, model.swaps) == (7, 0)


def test_what_arrives_while_a_batch_is_computed_is_the_next_batch() -> None:
    gated = Gated()

    async def asked(app: App) -> list[object]:
        async with client(app) as http:

            def send(value: float, rows: int = 1) -> asyncio.Task[object]:
                return asyncio.ensure_future(
                    http.post("/v1/models/gated:predict", json={"instances": [[value, value]] * rows})
                )

            first = send(1)
            await asyncio.to_thread(gated.running.acquire, timeout=10)
            others = [send(value, rows) for value, rows in ((2, 1), (3, 2), (4, 2))]
            while app._executor.waiting < 3:  # type: ignore[union-attr] # noqa: SLF001
                await asyncio.sleep(0.001)
            gated.open.set()
            return [task.json() for task in await asyncio.gather(first, *others)]  # type: ignore[attr-defined]

    with served(gated.model()) as app:
        gated.open.clear()
        found = run(asked(app))
        statistics = app.metrics
    assert found == [{"predictions": [[2.0 * v, 2.0 * v]] * n} for v, n in ((1, 1), (2, 1), (3, 2), (4, 2))]
    assert gated.sizes == [1]
    assert (statistics.examples.total(), statistics.padding.total()) == (6, 3)  # a batch of 1, and one of 5 in 8


def test_examples_that_depend_on_each_other_are_not_batched() -> None:
    centred = Predictor(lambda params, batch: batch - batch.mean(0) + params["w"], example=EXAMPLE)
    said: list[str] = []
    app = App(ServeOptions(max_batch=8), lambda: STATUS, say=said.append)
    app.open(ServedModel.of(centred.program({"params/w": np.array(0, np.float32)}), "centred"))
    try:
        answer = ask(app, "POST", "/v1/models/centred:predict", json={"instances": [[1, 2], [3, 4], [5, 6]]})
    finally:
        app.close()
    assert answer.json() == {"predictions": [[-2.0, -2.0], [0.0, 0.0], [2.0, 2.0]]}
    assert "depends on the other examples of its batch" in said[0]


def test_a_fixed_batch_size_is_served_as_it_is() -> None:
    fixed = Predictor(lambda params, batch: batch * params["w"], example=EXAMPLE)
    model = ServedModel.of(fixed.program({"params/w": np.array(2, np.float32)}, batch=3), "fixed")
    with served(model) as app:
        assert ask(app, "POST", "/v1/models/fixed:predict", json={"instances": [[1, 1]] * 3}).status_code == 200
        answer = ask(app, "POST", "/v1/models/fixed:predict", json={"instances": [[1, 1]]})
    assert (answer.status_code, "expected input: float32[3, 2]" in answer.json()["error"]) == (400, True)
