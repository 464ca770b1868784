"""`trainband doctor`: shows what this machine has, and what trainband would use.

`finding.py` defines a finding, `report.py` prints findings. Each other file examines one part of the machine.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import click

from trainband.cli.doctor.accelerators import accelerators
from trainband.cli.doctor.decisions import security, transport
from trainband.cli.doctor.finding import Section, as_json, info, missing, stopping
from trainband.cli.doctor.machine import clock, limits, machine, ports, shared_memory
from trainband.cli.doctor.networks import devices, rdma_ports
from trainband.cli.doctor.peers import peer
from trainband.cli.doctor.report import show
from trainband.cli.doctor.ucx_library import ucx_library
from trainband.cli.terminal import console_for_people
from trainband.cluster.address import Address
from trainband.cluster.resolvers.transport import resolve_transport
from trainband.cluster.transport_choice import TransportChoice
from trainband.errors import ClusterError
from trainband.runtime.formatting import printable_json

TIMEOUT_S = 20.0


@click.command()
@click.argument("addresses", metavar="[HOST:PORT]...", nargs=-1)
@click.option("--json", "as_object", is_flag=True, help="One JSON object, for programs.")
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=0, min_open=True),
    default=TIMEOUT_S,
    show_default=True,
    help="Seconds to wait for JAX, for UCX and for each address.",
)
@click.pass_context
def doctor(ctx: click.Context, addresses: tuple[str, ...], as_object: bool, timeout_s: float) -> None:
    """Shows what this machine has, what trainband would use, and which task answers at each HOST:PORT.

    Exit code 1 if a problem would stop a job; missing optional things do not count.
    """
    for address in addresses:
        Address.parse(address, "HOST:PORT")
    sections = examine(addresses, timeout_s)
    if as_object:
        click.echo(printable_json(json.dumps(as_json(sections), indent=2, ensure_ascii=False)))
    else:
        show(sections, console_for_people())
    ctx.exit(1 if stopping(sections) else 0)


def examine(addresses: Sequence[str], timeout_s: float) -> list[Section]:
    """Examines everything; slow checks run concurrently.

    Args:
      addresses: of ps to ask, `host:port`.
      timeout_s: the longest that JAX, UCX and each address may take, in seconds.
    """
    rdma = rdma_ports()
    secure = security()
    with ThreadPoolExecutor(max(1, len(addresses)) + 2, thread_name_prefix="trainband-doctor") as pool:
        computing = pool.submit(accelerators, timeout_s)
        talking = pool.submit(
            ucx_library, timeout_s, has_rdma=bool(rdma), is_wanted=_transport() is TransportChoice.UCX
        )
        asked = [pool.submit(peer, address, timeout_s) for address in addresses if not secure.stops_jobs]
        sections = [
            Section("Machine", [*machine(), clock(), *limits(bool(rdma))]),
            Section("Accelerators", computing.result()),
            Section("Network", [*devices(), *(rdma or [info("RDMA ports", "none")]), *ports()]),
            Section("Transports", [*shared_memory(), *talking.result()]),
        ]
        if addresses:
            unasked = [missing(address, "not asked: no usable credentials, see below") for address in addresses]
            sections.append(Section("Peers", [one.result() for one in asked] or unasked))
    return [*sections, Section("trainband would use", [*transport(talking.result()[0]), secure])]


def _transport() -> TransportChoice:
    """The requested transport; `auto` if the setting is invalid, which `transport` reports."""
    try:
        return resolve_transport()
    except ClusterError:
        return TransportChoice.AUTO
