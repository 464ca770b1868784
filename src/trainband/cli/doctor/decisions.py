"""What the environment asks for, and what trainband would therefore use."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from trainband.cli.doctor.finding import Finding, Mark, info, missing, ok, problem
from trainband.cluster.carrier import TRUSTED_FABRIC, Carrier
from trainband.cluster.certificate_files import AUTHORITY, CertificateFiles
from trainband.cluster.credentials import NO_CREDENTIALS, Credentials
from trainband.cluster.resolvers.credentials import INSECURE, SECRET_FILE, TLS_DIRECTORY, resolve_credentials
from trainband.cluster.resolvers.transport import TRANSPORT
from trainband.errors import ClusterError
from trainband.wire.network import Network

NAMES = {Carrier.SHARED_MEMORY: "shared memory", Carrier.UCX: "UCX", Carrier.FLIGHT: "Arrow Flight"}


def security(environ: Mapping[str, str] | None = None) -> Finding:
    """With what tasks that are started here prove who they are."""
    environ = os.environ if environ is None else environ
    said = [f"{name}={environ[name]}" for name in (SECRET_FILE, TLS_DIRECTORY, INSECURE) if environ.get(name)]
    try:
        credentials = resolve_credentials(environ)
        owners = [] if credentials.tls is None else _owners(credentials.tls)
    except ClusterError as exc:
        return problem("security", str(exc), f"Correct or unset {', '.join(said)}.", stops_jobs=True)
    if credentials.insecure:
        advice = f"Unset {INSECURE} and give all tasks a secret, unless nobody else reaches this network."
        return missing("security", f"{INSECURE}=1: whoever reaches a ps can read and change the model", advice)
    if not said:
        advice = f"For several machines: trainband secret FILE, and {SECRET_FILE}=FILE for every task."
        return missing("security", "no secret and no certificates: a ps serves this machine alone", advice)
    text = ", ".join(said) + (f", which has the certificates of {', '.join(owners)}" if owners else "")
    return ok("security", text, certificates=owners)


def _owners(directory: Path) -> list[str]:
    """The tasks whose certificates and keys lie in a directory, as their files are named.

    Raises:
      ClusterError: there are none, or they cannot be read.
    """
    names = sorted(path.stem for path in directory.glob("*.key") if path.stem != AUTHORITY)
    if not names:
        raise ClusterError(f"{TLS_DIRECTORY} = {directory} has no certificate of a task with its key.")
    for name in names:
        files = CertificateFiles(directory, name)
        files.authority, files.certificate, files.key  # noqa: B018 - so that a fault shows now
    return names


def transport(ucx: Finding, environ: Mapping[str, str] | None = None) -> list[Finding]:
    """Which way streams would take.

    Args:
      ucx: what was found about UCX.
    """
    environ = os.environ if environ is None else environ
    said = [f"{name}={environ[name]}" for name in (TRANSPORT, TRUSTED_FABRIC) if environ.get(name)]
    try:
        carriers = Network(credentials=_credentials(environ)).carriers
    except ClusterError as exc:
        return [problem("transport", str(exc), f"Correct or unset {', '.join(said)}.", stops_jobs=bool(said))]
    found = [info("asked for", ", ".join(said))] if said else []
    return found + routes(carriers, ucx_works=ucx.mark is Mark.OK)


def _credentials(environ: Mapping[str, str]) -> Credentials:
    """Those of the environment; none where they cannot be used, which `security` says."""
    try:
        return resolve_credentials(environ)
    except ClusterError:
        return NO_CREDENTIALS


def routes(carriers: tuple[Carrier, ...], *, ucx_works: bool) -> list[Finding]:
    """The ways within this machine and to others.

    Args:
      carriers: that streams try, the best first.
    """
    usable = [c for c in carriers if c is not Carrier.UCX or ucx_works]
    between = [c for c in usable if c is not Carrier.SHARED_MEMORY]
    found = []
    for name, ways in (("this machine", usable), ("other machines", between)):
        if not ways:
            text = "no way: " + ", ".join(NAMES[c] for c in carriers) + " alone is asked for"
            advice = f"Set {TRANSPORT}=auto, which takes a way that leads there."
            found.append(problem(name, text, advice, carriers=[]))
            continue
        best, *others = (NAMES[c] for c in ways)
        text = best
        if others and ways[0] is Carrier.UCX:
            text = f"{best} where the other end has it too, else {others[-1]}"
        found.append(ok(name, text, carriers=[str(c) for c in ways]))
    return found
