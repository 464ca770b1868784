"""`trainband certs`: certificates for the tasks of a job."""

from __future__ import annotations

from pathlib import Path

import click

from trainband.cluster import certificates
from trainband.cluster.certificate_files import AUTHORITY, REVOKED

_DIRECTORY = click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
_SETTINGS = {"help_option_names": ["-h", "--help"]}


# Not certs' docstring: click's \b, which keeps line breaks, does not work in a raw docstring.
_HELP = """Make the certificates that tasks use to encrypt traffic and to identify themselves.

\b
    trainband certs init ca
    trainband certs issue ca ps:0 10.0.0.7 ps0.example.org
    trainband certs issue ca worker:0
    trainband certs issue ca observer

Copy to each machine a directory with ca.pem and the .pem and .key files of its own tasks, and set TRAINBAND_TLS to
its path. Keep ca.key where it is: anyone with it can issue certificates.
"""


@click.group(context_settings=_SETTINGS, help=_HELP)
def certs() -> None:
    """The group; `_HELP` is its documentation."""


@certs.command(context_settings=_SETTINGS)
@_DIRECTORY
@click.option("--days", type=click.IntRange(min=1), default=certificates.AUTHORITY_DAYS, show_default=True)
def init(directory: Path, days: int) -> None:
    """Make a new certificate authority in DIR."""
    certificates.make_authority(directory, days=days)
    click.echo(f"made the authority {directory / AUTHORITY}.pem; keep {directory / AUTHORITY}.key to yourself")


@certs.command(context_settings=_SETTINGS)
@_DIRECTORY
@click.argument("name")
@click.argument("hosts", metavar="[HOST]...", nargs=-1)
@click.option("--days", type=click.FloatRange(min=0, min_open=True), default=certificates.TASK_DAYS, show_default=True)
def issue(directory: Path, name: str, hosts: tuple[str, ...], days: float) -> None:
    """Issue a certificate to NAME: a task (worker:0), observer, admin, or a whole job (worker).

    HOST is a name or address of the ps; without one, its certificate is valid at every address.
    """
    path = certificates.issue(directory, name, hosts, days=days)
    click.echo(f"issued {path} and its key, for {days:g} days")


@certs.command(context_settings=_SETTINGS)
@_DIRECTORY
@click.argument("name")
def revoke(directory: Path, name: str) -> None:
    """Revoke the certificate of NAME."""
    serial = certificates.revoke(directory, name)
    click.echo(f"revoked {name} (serial {serial}); copy {directory / REVOKED} to every machine of the job")


@certs.command("list", context_settings=_SETTINGS)
@_DIRECTORY
def list_(directory: Path) -> None:
    """List the certificates in DIR."""
    for one in certificates.listing(directory):
        state = "revoked" if one.revoked else "expired" if one.expired else "valid"
        hosts = f"  at {', '.join(one.hosts)}" if one.hosts else ""
        click.echo(f"{one.name:<12} {state:<8} until {one.expires:%Y-%m-%d %H:%M} UTC  serial {one.serial}{hosts}")
