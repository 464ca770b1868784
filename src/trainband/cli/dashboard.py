"""`trainband dashboard`: a page on which a job is seen."""

from __future__ import annotations

import os
import signal
import sys
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from trainband.cluster.address import Address
from trainband.cluster.resolvers.joined import noted_history
from trainband.errors import ClusterError, PeerError, YourError

if TYPE_CHECKING:
    from trainband.monitor.page.access import Access

PORT = 8470
ADVICE = (
    "Give trainband dashboard the address of a ps of a job that runs, --wait to wait for one to begin, or "
    "--checkpoint-dir to see one that is over"
)
TIMEOUT_S = 5.0
NICE = 10
_POLL_S = 0.5
_LINGER_S = 0.3
"""For the page to hear that the job has ended, before its server does."""
_MOST_TOKEN = 256


@click.command(short_help="Show a job on a page in the browser.")
@click.argument("address", metavar="[HOST:PORT]", required=False)
@click.option(
    "--checkpoint-dir",
    type=click.Path(path_type=Path),
    help="Show the runs of this directory, or beside a job that runs, what is in it.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    help=f"Where the page is served; 0 for a free port.  [default: {PORT}, or the next one that is free]",
)
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="The address of this machine to serve it on. Other machines need the token in the printed address.",
)
@click.option(
    "--token-file",
    type=click.Path(path_type=Path),
    help="A file with the token, of at least 16 characters, to ask for.",
)
@click.option("--insecure", is_flag=True, help="Let anybody look who reaches the page.")
@click.option("--wait", is_flag=True, help="Wait for the job to begin.")
@click.option("--of-launcher", is_flag=True, hidden=True, help="End with the process that keeps stdin open.")
@click.option(
    "--shared",
    type=click.Path(path_type=Path),
    hidden=True,
    help="The directory in which the tasks of that process say where their history is.",
)
@click.pass_context
def dashboard(
    ctx: click.Context,
    address: str | None,
    checkpoint_dir: Path | None,
    port: int | None,
    host: str,
    token_file: Path | None,
    insecure: bool,
    wait: bool,
    of_launcher: bool,
    shared: Path | None,
) -> None:
    """Shows the job that the ps at HOST:PORT serves on a page, until Ctrl-C.

    Nothing on the page changes the job. It is served to this machine, unless --host says otherwise; where the job has a
    secret, the printed address has a token in it that is made from that.
    """
    if of_launcher:
        os.nice(NICE)  # the job comes first, and more so while this loads its libraries
    if address is None and checkpoint_dir is None:
        raise click.UsageError("give the address of a ps of a job that runs, --checkpoint-dir, or both.", ctx)
    if insecure and token_file is not None:
        raise click.UsageError("--insecure and --token-file contradict each other.", ctx)
    if address is not None:
        Address.parse(address, "HOST:PORT")
    from trainband.monitor.feed import Feed
    from trainband.monitor.page.app import make_app
    from trainband.monitor.page.server import PageServer
    from trainband.monitor.sources import Sources

    access = _access(address, host, token_file, insecure=insecure, always=of_launcher)
    feed = Feed(address or _name_of(checkpoint_dir))
    sources = Sources(feed, address, checkpoint_dir, lives=of_launcher)
    app = make_app(feed, access, summary=sources.summary, metrics=sources.metrics, recorder=sources.recorder)
    with ExitStack() as stack:
        stop = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            stack.callback(signal.signal, number, signal.signal(number, lambda *_: stop.set()))
        # The port first: that one is taken is said before anybody waits for a job.
        server = stack.enter_context(
            PageServer(app, access, host=host, port=PORT if port is None else port, search=port is None)
        )
        if address is not None and not (wait or of_launcher):
            _require_job(address)
        stack.enter_context(sources)
        click.echo(server.url if of_launcher else f"trainband: the page is at {server.url}")
        sys.stdout.flush()
        if of_launcher:
            threading.Thread(target=_await_launcher, args=(stop,), daemon=True).start()
        while not stop.wait(_POLL_S):
            found = None if shared is None or sources.follows_directory else noted_history(shared)
            if found is not None:
                sources.follow(found)  # the chief says it when it begins to train
        if of_launcher:
            sources.end()
            threading.Event().wait(_LINGER_S)


def _require_job(address: str) -> None:
    """Raises `PeerError` where nobody answers."""
    from trainband.monitor.inquiry import Inquiry

    with Inquiry(address, TIMEOUT_S, advice=ADVICE) as inquiry:
        inquiry.ask()


def _name_of(directory: Path | None) -> str:
    """What the page calls what it shows; a directory that only the launcher has made has no name for people."""
    is_own = directory is not None and noted_history(directory) == directory
    return "a job without checkpoint_dir" if is_own else str(directory)


def _access(address: str | None, host: str, token_file: Path | None, *, insecure: bool, always: bool) -> Access:
    """Who may look.

    Args:
      always: whether a token is asked for even where no job with a secret is asked, and on this machine.

    Raises:
      YourError: the token file cannot be used.
    """
    from trainband.cluster.resolvers.credentials import resolve_credentials
    from trainband.cluster.resolvers.local_jobs import credentials_for
    from trainband.monitor.page.access import Access, is_loopback, new_token, token_for

    loopback = is_loopback(host)
    if insecure:
        return Access(loopback=loopback)
    if token_file is not None:
        return Access(token=_read_token(token_file), loopback=loopback)
    try:
        token = token_for(credentials_for(address)) if address is not None else ""
    except (ClusterError, PeerError) as exc:
        raise YourError(str(exc)) from exc
    if address is None and always and not resolve_credentials(os.environ).insecure:
        token = new_token()
    return Access(token=token or ("" if loopback else new_token()), loopback=loopback)


def _read_token(path: Path) -> str:
    try:
        with path.open(encoding="utf-8") as file:
            token = file.read(_MOST_TOKEN + 2).strip()
    except (OSError, UnicodeDecodeError) as exc:
        raise YourError(f"--token-file {path} cannot be read ({getattr(exc, 'strerror', None) or exc}).") from exc
    if not (16 <= len(token) <= _MOST_TOKEN and token.isascii() and token.replace("-", "").replace("_", "").isalnum()):
        raise YourError(
            f"--token-file {path} must hold 16 to {_MOST_TOKEN} letters, digits, '-' and '_', such as those that "
            "`trainband secret` makes."
        )
    return token


def _await_launcher(stop: threading.Event) -> None:
    """Until the launcher has closed our stdin, or has died."""
    while os.read(0, 4096):
        pass
    stop.set()
