"""`trainband serve`: predictions over HTTP."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
from trainband.cli.question import explained
from trainband.cli.terminal import console_for_people
from trainband.cluster.address import Address
from trainband.cluster.resolvers.local_jobs import credentials_for
from trainband.errors import AddressInUse, PeerError, YourError
from trainband.runtime.waiting import Say, say_on_stderr
from trainband.wire.network import Network
from trainband.wire.transport import Timeouts

if TYPE_CHECKING:
    from trainband.serve import VersionSource

POLL_S = 0.2
"""Seconds between two looks whether a signal has come."""

TIMEOUTS = Timeouts(connect_s=5.0, call_s=5.0)
"""Of a ps that is followed: a server that is asked to end waits for no longer."""

ADVICE = (
    "Give --follow the address of a ps of a job that runs, or, for a job without ps, serve its directory of checkpoints"
)


@click.command(short_help="Predictions over HTTP.")
@click.argument("source", required=False, type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "--model",
    metavar="FILE.py:NAME",
    help="A function predict(params, batch), or a trainband.Predictor; an exported model needs none.",
)
@example_option
@input_option
@batch_option
@click.option(
    "--follow",
    metavar="HOST:PORT",
    help="A ps of a job that runs: its new versions are served while it trains. SOURCE may then be left out; the "
    "newest checkpoint in it is served until the job can be reached.",
)
@click.option(
    "--follow-interval",
    default=0.5,
    show_default=True,
    type=click.FloatRange(min=0.02),
    help="Seconds between two questions for a newer version, with --follow.",
)
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
    source: Path | None,
    model: str | None,
    example: Path | None,
    inputs: tuple[str, ...],
    batch: int | None,
    follow: str | None,
    follow_interval: float,
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

    New checkpoints in a directory are served as they land, and new versions of a job that runs, without checkpoints,
    with --follow. It speaks the open inference protocol (/v2, as KServe and Triton do) and TensorFlow Serving's REST
    interface (/v1/models/NAME:predict); metrics for Prometheus are at /metrics.
    """
    if follow is None and source is None:
        raise click.UsageError("Give SOURCE, or a job that runs: --follow HOST:PORT.")
    if follow is not None and model is None:
        raise click.UsageError("--follow serves a function of yours: name it by --model program.py:predict.")
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
    asked: list[str] = []
    if follow is not None and model is not None:
        chosen = _followed(follow, follow_interval, source, model, tracing, lambda: bool(asked))
    else:
        assert source is not None
        chosen = _source(source, model, tracing, say_on_stderr)
    with on_request_to_end(asked.append):
        with (
            _explaining(follow, asked),
            InferenceServer(chosen, name=name, host=host, port=port, options=options) as server,
        ):
            console = console_for_people()
            console.print(
                f"serves {server.name}, version {server.model.current.number}, on {backend}, at {server.url} "
                f"(/v2/models/{server.name}/infer, /v1/models/{server.name}:predict)",
                soft_wrap=True,
            )
            while not asked:
                time.sleep(POLL_S)
        end_for(asked[0])


def _followed(
    address: str,
    interval_s: float,
    directory: Path | None,
    model: str,
    tracing: dict[str, Any],
    stop: Callable[[], bool],
) -> VersionSource:
    """The job that a ps serves."""
    from trainband.ps.reader.follower import Follower
    from trainband.serve.sources.parameter_servers import ParameterServerSource

    Address.parse(address, "--follow")
    predictor = predictor_from(model)
    network = Network(credentials=credentials_for(address))
    follower = Follower(address, transport=network, timeouts=TIMEOUTS, interval_s=interval_s)
    return ParameterServerSource(follower, predictor, tracing=tracing, directory=directory, stop=stop)


@contextmanager
def _explaining(follow: str | None, asked: list[str]) -> Iterator[None]:
    """Within, an error says what it means for --follow; nothing failed where somebody asked for the end."""
    try:
        yield
    except PeerError as exc:
        if asked:
            return
        if follow is None or isinstance(exc, AddressInUse):
            raise
        raise explained(exc, follow, ADVICE, waited_s=TIMEOUTS.call_s, left_s=2.0, context="") from None


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
        return ProgramSource(program_of(path, predictor, unpack=True, **tracing))
    if not (path / MANIFEST).is_file():
        raise YourError(
            f"{path} is no exported model; to serve its checkpoints, name the function: --model program.py:predict."
        )
    return ArtifactSource(path)
