"""trainband's server for the benchmark; with --swaps it takes new versions while it answers."""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from pathlib import Path

import numpy as np

from bench.peers.serve_model import FUNCTIONS, params_of
from trainband.model.predictor import Predictor
from trainband.serve import InferenceServer, ServeOptions


def main() -> None:
    """Serve until standard input ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=list(FUNCTIONS), required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--max-delay-ms", type=float, default=2.0)
    parser.add_argument("--swaps", type=int, default=0)
    parser.add_argument("--swap-every", type=float, default=0.05, help="seconds between two")
    parser.add_argument("--done", type=Path, help="made after the last swap")
    flags = parser.parse_args()
    sys.setswitchinterval(0.0005)  # as `trainband serve` does
    params = params_of(flags.model)
    weights = {f"params/{layer}/{name}": leaf for layer, leaves in params.items() for name, leaf in leaves.items()}
    predictor = Predictor(FUNCTIONS[flags.model], example=np.zeros((4, 28, 28), np.float32))
    options = ServeOptions(max_delay_s=flags.max_delay_ms / 1e3)
    with InferenceServer(predictor.program(weights), name="predict", port=flags.port, options=options) as server:
        print(json.dumps({"url": server.url}), flush=True)
        if flags.swaps:
            while not server.app.metrics.in_flight:  # the load has begun
                time.sleep(0.01)
            for number in range(1, flags.swaps + 1):
                time.sleep(flags.swap_every)
                server.model.swap({name: leaf * 0.999 for name, leaf in weights.items()}, number)
            print(json.dumps({"swaps": server.model.swaps, "version": server.model.current.number}), flush=True)
            if flags.done is not None:
                flags.done.touch()
        threading.Event().wait()


if __name__ == "__main__":
    main()
