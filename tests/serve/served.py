"""A model of one weight for tests, an app that serves it in this process, and requests to it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import httpx
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from trainband.model.inference import InferenceProgram
from trainband.model.predictor import Predictor
from trainband.model.signature import BATCH, Signature, TensorSpec
from trainband.serve import ServedModel, ServeOptions, SourceState, SourceStatus
from trainband.serve.app import App

T = TypeVar("T")

EXAMPLE = np.arange(6, dtype=np.float32).reshape(3, 2)
STATUS = SourceStatus(SourceState.FIXED, "given by a test", since=0.0)


def scaled(params: Any, batch: Any) -> Any:
    """A batch times the factor, and which element is the largest."""
    return {"scaled": batch * params["factor"], "largest": jnp.argmax(batch, -1)}


def program(factor: float = 2.0, step: int = 7) -> InferenceProgram:
    """Of `scaled`."""
    weights = {"params/factor": np.array(factor, np.float32)}
    return Predictor(scaled, example=EXAMPLE).program(weights, global_step=step)


def two_inputs() -> InferenceProgram:
    """Of two inputs, one of them integers, and one output."""
    predictor = Predictor(
        lambda params, batch: batch["x"] * params["w"] + batch["n"][:, None],
        example={"x": EXAMPLE, "n": np.array([1, 2, 3], np.int32)},
    )
    return predictor.program({"params/w": np.array(10, np.float32)})


class Gated:
    """A model whose batches wait for a gate: each run notes its batch's size, then waits to be let through."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.open.set()
        self.running = threading.Semaphore(0)
        self.sizes: list[int] = []

    def model(self) -> ServedModel:
        """To be served."""
        spec = TensorSpec("input", "float32", (BATCH, 2))
        return ServedModel.of_run(
            self._run, Signature((spec,), (TensorSpec("output", "float32", (BATCH, 2)),)), "gated"
        )

    def _run(self, inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        if not self.open.is_set():
            self.sizes.append(len(inputs["input"]))
            self.running.release()
            if not self.open.wait(20.0):
                raise TimeoutError("the test did not open the gate")
        return {"output": inputs["input"] * 2}


@contextmanager
def served(model: ServedModel, **options: Any) -> Iterator[App]:
    """An app in this process."""
    said: list[str] = []
    app = App(ServeOptions(max_batch=8, **options), lambda: STATUS, say=said.append)
    app.open(model)
    try:
        yield app
    finally:
        app.close()


def client(app: App) -> httpx.AsyncClient:
    """Of an app in this process."""
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://localhost")


def ask(app: App, method: str, path: str, **request: Any) -> httpx.Response:
    """One request."""

    async def asked() -> httpx.Response:
        async with client(app) as http:
            return await http.request(method, path, **request)

    return run(asked())


def run(asked: Coroutine[Any, Any, T]) -> T:
    """What a coroutine gives, within 20 s."""
    return asyncio.run(asyncio.wait_for(asked, 20.0))
