"""`trainband serve`: predictions over HTTP."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from ssl import SSLContext
from typing import TYPE_CHECKING, Any

import click

from trainband.cli.options import pop_options
from trainband.cli.predictor import TracingOptions, predictor_from, tracing_options
from trainband.cli.terminal import console_for_people
from trainband.cluster.address import Address
from trainband.cluster.resolvers.local_jobs import credentials_for
from trainband.cluster.resolvers.serving import TOKEN_FILE, resolve_token_file
from trainband.errors import AddressInUse, PeerError, YourError
from trainband.monitor.question import explained
from trainband.runtime.http.access import Access, read_token
from trainband.runtime.http.server import tls_context
from trainband.runtime.waiting import Say, say_on_stderr
from trainband.wire.network import Network
from trainband.wire.transport import Timeouts

if TYPE_CHECKING:
    from trainband.serve import VersionSource

POLL_S = 0.2
"""Seconds between two checks for a signal."""

TIMEOUTS = Timeouts(connect_s=5.0, call_s=5.0)
"""For calls to a followed ps: the longest that a stopping server waits."""

ADVICE = (
    "Give --follow the address of a ps of a running job, or, for a job without ps, serve its directory of checkpoints"
)


@click.command(short_help="Serve predictions over HTTP.")
@click.argument("source", required=False, type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "--model",
    metavar="FILE.py:NAME",
    help="A function predict(params, batch) or a trainband.Predictor; not needed for an exported model.",
)
@tracing_options
@click.option(
    "--follow",
    metavar="HOST:PORT",
    help="A ps of a running job: serve its new versions while it trains. SOURCE is then optional; its newest "
    "checkpoint is served until the job can be reached.",
)
@click.option(
    "--follow-interval",
    default=0.5,
    show_default=True,
    type=click.FloatRange(min=0.02),
    help="With --follow: seconds between checks for a newer version.",
)
@click.option("--name", default="", help="The model's name in addresses.  [default: the function's]")
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="The address to listen on; 0.0.0.0 for all. Without a token, anyone who reaches it can get predictions.",
)
@click.option(
    "--token-file",
    type=click.Path(path_type=Path),
    help="A file with a token, of at least 16 characters, that clients must send, except for health checks.  "
    f"[default: ${TOKEN_FILE}]",
)
@click.option(
    "--allow-host",
    "allowed_hosts",
    metavar="NAME",
    multiple=True,
    help="Another host name that clients may use, as in http://NAME:8000; * for any. Addresses, localhost and this "
    "machine's own name are always allowed.",
)
@click.option("--tls-certificate", type=click.Path(path_type=Path), help="A PEM file with the server's certificate.")
@click.option("--tls-key", type=click.Path(path_type=Path), help="A PEM file with its private key.")
@click.option("--port", default=8000, show_default=True, type=click.IntRange(0, 65535), help="0 for a free one.")
@click.option(
    "--device",
    type=click.Choice(["cpu", "gpu", "tpu"]),
    help="The device to compute on; a training run may hold the accelerators.  [default: $JAX_PLATFORMS, or cpu]",
)
@click.option("--max-batch", default=64, show_default=True, type=click.IntRange(min=1), help="Most examples a batch.")
@click.option(
    "--max-delay-ms",
    "max_delay_s",
    default=2.0,
    show_default=True,
    type=click.FloatRange(min=0),
    callback=lambda _ctx, _parameter, milliseconds: milliseconds / 1e3,
    help="Longest time, in milliseconds, that a request waits for others to share its batch.",
)
@click.option(
    "--max-concurrency",
    default=1024,
    show_default=True,
    type=click.IntRange(min=1),
    help="Most requests in progress; further ones get 503 and Retry-After.",
)
@click.option(
    "--max-body",
    "max_body_bytes",
    default=16.0,
    show_default=True,
    type=click.FloatRange(min=0, min_open=True),
    callback=lambda _ctx, _parameter, mebibytes: round(mebibytes * (1 << 20)),
    help="Most MiB in a request.",
)
@click.option(
    "--timeout",
    "request_timeout_s",
    default=30.0,
    show_default=True,
    type=click.FloatRange(min=0, min_open=True),
    help="Most seconds that a request may take.",
)
@click.option(
    "--drain",
    "drain_s",
    default=0.0,
    show_default=True,
    type=click.FloatRange(min=0),
    help="Seconds after SIGTERM during which it still answers, but reports that it is not ready.",
)
def serve(
    source: Path | None,
    model: str | None,
    follow: str | None,
    follow_interval: float,
    name: str,
    port: int,
    device: str | None,
    **given: Any,
) -> None:
    """Serve the model in SOURCE over HTTP: an exported model, or checkpoints with your function (--model).

    New checkpoints in a directory are served as they appear; --follow serves new versions of a running job without
    checkpoints. The server speaks the Open Inference Protocol (/v2, as KServe and Triton do) and TensorFlow Serving's
    REST interface (/v1/models/NAME:predict); Prometheus metrics are at /metrics.
    """
    if follow is None and source is None:
        raise click.UsageError("Give SOURCE, or a running job: --follow HOST:PORT.")
    if follow is not None and model is None:
        raise click.UsageError("--follow needs your function: give --model program.py:predict.")
    reach = pop_options(_Reach, given)
    host, tls, access = reach.host, reach.tls(), reach.access()
    os.environ["JAX_PLATFORMS"] = device or os.environ.get("JAX_PLATFORMS") or "cpu"
    backend = _backend()
    from trainband.runtime.signals import end_for, on_request_to_end
    from trainband.serve import InferenceServer, ServeOptions

    # Otherwise a batch's thread waits 5 ms for the request thread each time it needs the interpreter.
    sys.setswitchinterval(0.0005)
    options, tracing = pop_options(ServeOptions, given), pop_options(TracingOptions, given).read()
    asked: list[str] = []
    if follow is not None and model is not None:
        chosen = _followed(follow, follow_interval, source, model, tracing, lambda: bool(asked))
    else:
        assert source is not None
        chosen = _source(source, model, tracing, say_on_stderr)
    with on_request_to_end(asked.append):
        with (
            _explaining(follow, asked),
            InferenceServer(chosen, name=name, host=host, port=port, options=options, access=access, tls=tls) as server,
        ):
            console = console_for_people()
            console.print(
                f"serving {server.name}, version {server.model.current.number}, on {backend}, at {server.url} "
                f"(/v2/models/{server.name}/infer, /v1/models/{server.name}:predict)",
                soft_wrap=True,
            )
            while not asked:
                time.sleep(POLL_S)
        end_for(asked[0])


@dataclass(frozen=True, slots=True)
class _Reach:
    host: str
    token_file: Path | None
    allowed_hosts: tuple[str, ...]
    tls_certificate: Path | None
    tls_key: Path | None

    def tls(self) -> SSLContext | None:
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise click.UsageError("--tls-certificate and --tls-key belong together: give both.")
        return tls_context(self.tls_certificate, self.tls_key) if self.tls_certificate and self.tls_key else None

    def access(self) -> Access:
        """Who may ask for predictions; warns if other machines may without a token."""
        token_file = resolve_token_file(self.token_file)
        token = "" if token_file is None else read_token(token_file, "--token-file")
        access = Access.at(self.host, token=token, hosts=self.allowed_hosts)
        if not (token or access.loopback):
            say_on_stderr(
                f"WARNING: anyone who reaches {self.host} can get predictions, metrics and the model's description; "
                "give --token-file FILE to require a token"
            )
        return access


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
    """Explains an error for --follow; ignores it after a request to end."""
    try:
        yield
    except PeerError as exc:
        if asked:
            return
        if follow is None or isinstance(exc, AddressInUse):
            raise
        raise explained(exc, follow, ADVICE, waited_s=TIMEOUTS.call_s, left_s=2.0, context="") from None


def _backend() -> str:
    """The backend that JAX computes on.

    Raises:
      YourError: JAX has no device of the requested kind.
    """
    import jax

    try:
        return jax.default_backend()
    except RuntimeError as exc:
        reason = str(exc).partition(" (set JAX_PLATFORMS")[0]
        raise YourError(
            f"JAX has no {os.environ['JAX_PLATFORMS']} to use ({reason}); leave --device out to compute on the CPU, "
            "or install JAX for it."
        ) from exc


def _source(path: Path, model: str | None, tracing: dict[str, Any], say: Say) -> VersionSource:
    """The source of versions in a directory."""
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
            f"{path} is not an exported model; to serve its checkpoints, name the function: --model program.py:predict."
        )
    return ArtifactSource(path)
