"""The settings in the environment, and what trainband would therefore use."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from trainband.cli.doctor.finding import Finding, Mark, info, missing, ok, problem
from trainband.cluster.certificate_files import AUTHORITY, CertificateFiles
from trainband.cluster.credentials import NO_CREDENTIALS, Credentials
from trainband.cluster.resolvers.credentials import INSECURE, SECRET_FILE, TLS_DIRECTORY, resolve_credentials
from trainband.cluster.resolvers.transport import TRANSPORT, resolve_transport
from trainband.cluster.transport_choice import TRUSTED_FABRIC, TransportChoice
from trainband.errors import ClusterError
from trainband.wire.network import Network

NAMES = {
    TransportChoice.SHARED_MEMORY: "shared memory",
    TransportChoice.UCX: "UCX",
    TransportChoice.FLIGHT: "Arrow Flight",
}


def security(environ: Mapping[str, str] | None = None) -> Finding:
    """The credentials of tasks started here."""
    environ = os.environ if environ is None else environ
    said = [f"{name}={environ[name]}" for name in (SECRET_FILE, TLS_DIRECTORY, INSECURE) if environ.get(name)]
    try:
        credentials = resolve_credentials(environ)
        owners = [] if credentials.tls is None else _owners(credentials.tls)
    except ClusterError as exc:
        return problem("security", str(exc), f"Correct or unset {', '.join(said)}.", stops_jobs=True)
    if credentials.insecure:
        advice = f"Unset {INSECURE} and give all tasks a secret, unless this network is yours alone."
        return missing("security", f"{INSECURE}=1: anyone who reaches a ps can read and change the model", advice)
    if not said:
        advice = f"For several machines: trainband secret FILE, and {SECRET_FILE}=FILE for every task."
        return missing("security", "no secret and no certificates: a ps serves only you on this machine", advice)
    text = ", ".join(said) + (f", which has the certificates of {', '.join(owners)}" if owners else "")
    return ok("security", text, certificates=owners)


def _owners(directory: Path) -> list[str]:
    """The tasks that have a certificate and a key in a directory, from the file names.

    Raises:
      ClusterError: there are none, or they cannot be read.
    """
    names = sorted(path.stem for path in directory.glob("*.key") if path.stem != AUTHORITY)
    if not names:
        raise ClusterError(f"{TLS_DIRECTORY} = {directory} has no task's certificate and key.")
    for name in names:
        files = CertificateFiles(directory, name)
        files.authority, files.certificate, files.key  # noqa: B018 - so that errors appear now
    return names


def transport(ucx: Finding, environ: Mapping[str, str] | None = None) -> list[Finding]:
    """The transports that streams would use."""
    environ = os.environ if environ is None else environ
    said = [f"{name}={environ[name]}" for name in (TRANSPORT, TRUSTED_FABRIC) if environ.get(name)]
    try:
        transports = Network(credentials=_credentials(environ)).transports
    except ClusterError as exc:
        return [problem("transport", str(exc), f"Correct or unset {', '.join(said)}.", stops_jobs=bool(said))]
    found = [info("asked for", ", ".join(said))] if said else []
    if (
        ucx.mark is Mark.OK
        and resolve_transport(environ) is TransportChoice.AUTO
        and TransportChoice.UCX not in transports
    ):
        text = f"not declared as trusted, so no streams over UCX; see {TRUSTED_FABRIC} in docs/networks.md"
        found.append(info("trusted network", text))
    return found + routes(transports, ucx_works=ucx.mark is Mark.OK)


def _credentials(environ: Mapping[str, str]) -> Credentials:
    """The environment's credentials; none if they cannot be used, which `security` reports."""
    try:
        return resolve_credentials(environ)
    except ClusterError:
        return NO_CREDENTIALS


def routes(transports: tuple[TransportChoice, ...], *, ucx_works: bool) -> list[Finding]:
    """The transports within this machine and to others.

    Args:
      transports: that streams try, best first.
    """
    usable = [one for one in transports if one is not TransportChoice.UCX or ucx_works]
    between = [one for one in usable if one is not TransportChoice.SHARED_MEMORY]
    found = []
    for name, ways in (("this machine", usable), ("other machines", between)):
        if not ways:
            text = "none: only " + ", ".join(NAMES[c] for c in transports) + " is allowed"
            advice = f"Set {TRANSPORT}=auto to allow others."
            found.append(problem(name, text, advice, carriers=[]))
            continue
        best, *others = (NAMES[c] for c in ways)
        text = best
        if others and ways[0] is TransportChoice.UCX:
            text = f"{best} if the other end supports it, else {others[-1]}"
        found.append(ok(name, text, carriers=[str(c) for c in ways]))
    return found
