"""A plain FastAPI handler that calls the jitted function for each request, as tutorials write it."""

from __future__ import annotations

import argparse
from typing import Any

import jax
import numpy as np
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

from bench.peers.serve_model import FUNCTIONS, params_of


class Request(BaseModel):
    """Like TensorFlow Serving."""

    instances: list[list[list[float]]]


def main() -> None:
    """Serve."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=list(FUNCTIONS), required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--inline", action="store_true", help="in the event loop, rather than in FastAPI's threads")
    flags = parser.parse_args()
    function = jax.jit(FUNCTIONS[flags.model])
    params = jax.device_put(params_of(flags.model))
    np.asarray(function(params, np.zeros((1, 28, 28), np.float32)))
    app = FastAPI()

    def predict(request: Request) -> dict[str, Any]:
        outputs = function(params, np.asarray(request.instances, np.float32))
        return {"predictions": np.asarray(outputs).tolist()}

    async def inline(request: Request) -> dict[str, Any]:
        return predict(request)

    app.post("/v1/models/predict:predict")(inline if flags.inline else predict)
    uvicorn.run(app, port=flags.port, log_level="warning", access_log=False)


if __name__ == "__main__":
    main()
