"""`trainband dashboard`: a web page that shows a job."""

from __future__ import annotations

import os
import signal
import sys
import threading
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trainband.cli.options import pop_options
from trainband.cluster.address import Address
from trainband.cluster.resolvers.joined import reported_history
from trainband.errors import ClusterError, PeerError, YourError

if TYPE_CHECKING:
    from trainband.runtime.http.access import Access

PORT = 8470
ADVICE = (
    "Give trainband dashboard the address of a ps of a running job, --wait to wait for one to begin, or "
    "--checkpoint-dir to see one that has ended"
)
TIMEOUT_S = 5.0
NICE = 10
_POLL_S = 0.5
_LINGER_S = 0.3
"""Time for the page to learn that the job has ended before its server stops."""


@click.command(short_help="Show a job on a page in the browser.")
@click.argument("address", metavar="[HOST:PORT]", required=False)
@click.option(
    "--checkpoint-dir",
    type=click.Path(path_type=Path),
    help="Show the runs in this directory, alone or beside a running job.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    help=f"The port of the page; 0 for any free port.  [default: {PORT}, or the next free one]",
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
    help="A file with the token, of at least 16 characters, that viewers must give.",
)
@click.option(
    "--allow-host",
    "allowed_hosts",
    metavar="NAME",
    multiple=True,
    help="Another host name that browsers may use, such as a proxy's; * for any.",
)
@click.option("--insecure", is_flag=True, help="Let anyone who reaches the page see it.")
@click.option("--wait", is_flag=True, help="Wait for the job to begin.")
@click.option("--of-launcher", is_flag=True, hidden=True, help="End when stdin is closed.")
@click.option(
    "--shared",
    type=click.Path(path_type=Path),
    hidden=True,
    help="The directory in which that process's tasks record where their history is.",
)
@click.pass_context
def dashboard(
    ctx: click.Context,
    /,
    address: str | None,
    checkpoint_dir: Path | None,
    port: int | None,
    wait: bool,
    of_launcher: bool,
    shared: Path | None,
    **given: Any,
) -> None:
    """Shows the job of the ps at HOST:PORT on a web page, until Ctrl-C.

    Nothing on the page changes the job. Only this machine can reach it, unless --host says otherwise. If the job has a
    secret, the printed address contains a token that is derived from it.
    """
    if of_launcher:
        os.nice(NICE)  # the job comes first, especially while this loads its libraries
    if address is None and checkpoint_dir is None:
        raise click.UsageError("give the address of a ps of a running job, --checkpoint-dir, or both.", ctx)
    reach = pop_options(_Reach, given)
    if reach.insecure and reach.token_file is not None:
        raise click.UsageError("--insecure and --token-file contradict each other.", ctx)
    if address is not None:
        Address.parse(address, "HOST:PORT")
    from trainband.monitor.live_feed import LiveFeed
    from trainband.monitor.page.app import make_app
    from trainband.monitor.page.server import PageServer
    from trainband.monitor.page_sources import Sources

    access = reach.access(address, always=of_launcher)
    feed = LiveFeed(address or _name_of(checkpoint_dir))
    sources = Sources(feed, address, checkpoint_dir, lives=of_launcher)
    app = make_app(feed, access, summary=sources.summary, metrics=sources.metrics, recorder=sources.recorder)
    with ExitStack() as stack:
        stop = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            stack.callback(signal.signal, number, signal.signal(number, lambda *_: stop.set()))
        # The port first: an error about a taken port must not wait for a job.
        server = stack.enter_context(
            PageServer(app, access, host=reach.host, port=PORT if port is None else port, search=port is None)
        )
        if address is not None and not (wait or of_launcher):
            _require_job(address)
        stack.enter_context(sources)
        click.echo(server.url if of_launcher else f"trainband: the page is at {server.url}")
        sys.stdout.flush()
        if of_launcher:
            threading.Thread(target=_await_launcher, args=(stop,), daemon=True).start()
        while not stop.wait(_POLL_S):
            found = None if shared is None or sources.follows_directory else reported_history(shared)
            if found is not None:
                sources.follow(found)  # the chief records it when it begins to train
        if of_launcher:
            sources.end()
            threading.Event().wait(_LINGER_S)


def _require_job(address: str) -> None:
    """Raises `PeerError` if no ps answers."""
    from trainband.monitor.inquiry import Inquiry

    with Inquiry(address, TIMEOUT_S, advice=ADVICE) as inquiry:
        inquiry.ask()


def _name_of(directory: Path | None) -> str:
    """The title of the page; a directory that the launcher made has no name for people."""
    is_own = directory is not None and reported_history(directory) == directory
    return "a job without checkpoint_dir" if is_own else str(directory)


@dataclass(frozen=True, slots=True)
class _Reach:
    host: str
    token_file: Path | None
    allowed_hosts: tuple[str, ...]
    insecure: bool

    def access(self, address: str | None, *, always: bool) -> Access:
        """Who may see the page.

        Args:
          always: require a token even on this machine and without a job that has a secret.

        Raises:
          YourError: the token file cannot be used.
        """
        from trainband.cluster.resolvers.credentials import resolve_credentials
        from trainband.cluster.resolvers.local_jobs import credentials_for
        from trainband.monitor.page.token import token_for
        from trainband.runtime.hosts import is_loopback
        from trainband.runtime.http.access import Access, new_token, read_token

        if self.insecure:
            return Access.at(self.host, hosts=self.allowed_hosts)
        if self.token_file is not None:
            return Access.at(self.host, token=read_token(self.token_file, "--token-file"), hosts=self.allowed_hosts)
        try:
            token = token_for(credentials_for(address)) if address is not None else ""
        except (ClusterError, PeerError) as exc:
            raise YourError(str(exc)) from exc
        if address is None and always and not resolve_credentials(os.environ).insecure:
            token = new_token()
        token = token or ("" if is_loopback(self.host) else new_token())
        return Access.at(self.host, token=token, hosts=self.allowed_hosts)


def _await_launcher(stop: threading.Event) -> None:
    """Waits until the launcher has closed this process's stdin, or has died."""
    while os.read(0, 4096):
        pass
    stop.set()
