"""LitServe, with the same batching as trainband's server."""

import argparse
from typing import Any

import jax
import litserve
import numpy as np

from bench.peers.serve_model import FUNCTIONS, params_of


class Predict(litserve.LitAPI):  # type: ignore[misc]
    """The function, for batches of its requests' images."""

    def setup(self, device: str) -> None:
        """Load the params and compile every batch size."""
        del device
        self.function = jax.jit(FUNCTIONS[FLAGS.model])
        self.params = jax.device_put(params_of(FLAGS.model))
        for size in (1, 2, 4, 8, 16, 32, 64):
            self._run(np.zeros((size, 28, 28), np.float32))

    def decode_request(self, request: dict[str, Any]) -> Any:
        """Return an image."""
        return np.asarray(request["instances"][0], np.float32)

    def batch(self, inputs: list[Any]) -> Any:
        """Join images."""
        return np.stack(inputs)

    def predict(self, images: Any) -> Any:
        """Run a batch, filled up to a power of two so that nothing is compiled meanwhile."""
        size = 1 << (len(images) - 1).bit_length()
        return self._run(np.concatenate([images, np.repeat(images[-1:], size - len(images), 0)]))[: len(images)]

    def unbatch(self, output: Any) -> Any:
        """Take a batch apart."""
        return list(output)

    def encode_response(self, output: Any) -> dict[str, Any]:
        """Answer as TensorFlow Serving does."""
        return {"predictions": [output.tolist()]}

    def _run(self, images: Any) -> Any:
        return np.asarray(self.function(self.params, images))


parser = argparse.ArgumentParser()
parser.add_argument("--model", choices=list(FUNCTIONS), required=True)
parser.add_argument("--port", type=int, required=True)
FLAGS = parser.parse_args()

if __name__ == "__main__":
    api = Predict(max_batch_size=64, batch_timeout=0.002, api_path="/v1/models/predict:predict")
    server = litserve.LitServer(api, accelerator="cpu", workers_per_device=1, timeout=30)
    server.run(host="127.0.0.1", port=FLAGS.port, generate_client_file=False, log_level="warning", num_api_servers=1)
