"""`trainband serve`: predictions over HTTP."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trainband.cli.predictor import (
    batch_option,
    example_from,
    example_option,
    input_option,
    inputs_from,
    predictor_from,
)
from trainband.cli.terminal import console_for_people
from trainband.errors import YourError
from trainband.runtime.waiting import Say, say_on_stderr

if TYPE_CHECKING:
    from trainband.serve import VersionSource

POLL_S = 0.2
"""Seconds between two looks whether a signal has come."""


@click.command(short_help="Predictions over HTTP.")
@click.argument("source", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "--model",
    metavar="FILE.py:NAME",
    help="A function predict(params, batch), or a trainband.Predictor; an exported model needs none.",
)
@example_option
@input_option
@batch_option
@click.option("--name", default="", help="The model's name in addresses.  [default: the function's]")
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="The address to listen on; 0.0.0.0 for all. Whoever reaches it may ask for predictions.",
)
@click.option("--port", default=8000, show_default=True, type=click.IntRange(0, 65535), help="0 for a free one.")
@click.option(
    "--device",
    type=click.Choice(["cpu", "gpu", "tpu"]),
    help="What computes; a training may hold this machine's accelerators.  [default: $JAX_PLATFORMS, or cpu]",
)
@click.option("--max-batch", default=64, show_default=True, type=click.IntRange(min=1), help="Examples at once.")
@click.option(
    "--max-delay-ms",
    default=2.0,
    show_default=True,
    type=click.FloatRange(min=0),
    help="The longest that a request waits for others to share a batch with.",
)
@click.option(
    "--max-concurrency",
    default=1024,
    show_default=True,
    type=click.IntRange(min=1),
    help="Requests under way; more get 503 and are asked to come back.",
)
@click.option(
    "--max-body", default=16.0, show_default=True, type=click.FloatRange(min=0, min_open=True), help="MiB of a request."
)
@click.option(
    "--timeout",
    default=30.0,
    show_default=True,
    type=click.FloatRange(min=0, min_open=True),
    help="Seconds that a request may take.",
)
@click.option(
    "--drain",
    default=0.0,
    show_default=True,
    type=click.FloatRange(min=0),
    help="Seconds after SIGTERM during which it still answers, while its readiness says no.",
)
def serve(
    source: Path,
    model: str | None,
    example: Path | None,
    inputs: tuple[str, ...],
    batch: int | None,
    name: str,
    host: str,
    port: int,
    device: str | None,
    max_batch: int,
    max_delay_ms: float,
    max_concurrency: int,
    max_body: float,
    timeout: float,
    drain: float,
) -> None:
    """Serve what is in SOURCE over HTTP: an exported model, or checkpoints with a function of yours (--model).

    New checkpoints in a directory are served as they land. It speaks the open inference protocol (/v2, as KServe and
    Triton do) and TensorFlow Serving's REST interface (/v1/models/NAME:predict); metrics for Prometheus are at
    /metrics.
    """
    os.environ["JAX_PLATFORMS"] = device or os.environ.get("JAX_PLATFORMS") or "cpu"
    backend = _backend()
    from trainband.runtime.signals import end_for, on_request_to_end
    from trainband.serve import InferenceServer, ServeOptions

    # A batch's thread else waits 5 ms for the one that answers requests, each time that it needs the interpreter.
    sys.setswitchinterval(0.0005)
    options = ServeOptions(
        max_batch=max_batch,
        max_delay_s=max_delay_ms / 1e3,
        max_concurrency=max_concurrency,
        max_body_bytes=round(max_body * (1 << 20)),
        request_timeout_s=timeout,
        drain_s=drain,
    )
    tracing = {"example": example_from(example), "inputs": inputs_from(inputs), "batch": batch}
    chosen = _source(source, model, tracing, say_on_stderr)
    asked: list[str] = []
    with on_request_to_end(asked.append):
        with InferenceServer(chosen, name=name, host=host, port=port, options=options) as server:
            console = console_for_people()
            console.print(
                f"serves {server.name}, version {server.model.current.number}, on {backend}, at {server.url} "
                f"(/v2/models/{server.name}/infer, /v1/models/{server.name}:predict)",
                soft_wrap=True,
            )
            while not asked:
                time.sleep(POLL_S)
        end_for(asked[0])


def _backend() -> str:
    """What JAX computes on.

    Raises:
      YourError: it has none of the kind that was asked for.
    """
    import jax

    try:
        return jax.default_backend()
    except RuntimeError as exc:
        reason = str(exc).partition(" (set JAX_PLATFORMS")[0]
        raise YourError(
            f"there is no {os.environ['JAX_PLATFORMS']} that JAX could use ({reason}); leave --device out to compute "
            "on the CPU, or install JAX for it."
        ) from exc


def _source(path: Path, model: str | None, tracing: dict[str, Any], say: Say) -> VersionSource:
    """What kind of source a directory is."""
    from trainband.checkpoint import CheckpointDirectory
    from trainband.export.artifact import MANIFEST
    from trainband.export.source import program_of
    from trainband.serve import ArtifactSource, CheckpointSource
    from trainband.serve.sources.program import ProgramSource

    if model is not None:
        predictor = predictor_from(model)
        if CheckpointDirectory(path, say).steps():
            return CheckpointSource(path, predictor, tracing=tracing, say=say)
        return ProgramSource(program_of(path, predictor, **tracing))
    if not (path / MANIFEST).is_file():
        raise YourError(
            f"{path} is no exported model; to serve its checkpoints, name the function: --model program.py:predict."
        )
    return ArtifactSource(path)
