"""`trainband profile`: a trace of some steps of a running job."""

from __future__ import annotations

from pathlib import Path

import click

from trainband.errors import YourError
from trainband.monitor.inquiry import Inquiry
from trainband.monitor.step_recordings import record
from trainband.monitor.trace import trace_of, write_trace
from trainband.wire.messages.recording import MOST_STEPS

ADVICE = "Give trainband profile the address of a ps of a running job"
TIMEOUT_S = 5.0


@click.command(short_help="Record some steps of a running job as a trace.")
@click.argument("address", metavar="HOST:PORT")
@click.option("--steps", type=click.IntRange(1, MOST_STEPS), default=10, show_default=True, help="Steps per worker.")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("trace.json.gz"),
    show_default=True,
    help="The file to write.",
)
def profile(address: str, steps: int, output: Path) -> None:
    """Records the next steps of the job of the ps at HOST:PORT, for up to 32 workers.

    The trace shows on one clock what workers, network and parameter servers did. Open it at https://ui.perfetto.dev or
    in chrome://tracing.
    """
    if not output.absolute().parent.is_dir():
        raise YourError(f"--output {output}: there is no directory {output.absolute().parent}.")
    with Inquiry(address, TIMEOUT_S, advice=ADVICE) as inquiry:
        recordings = record(inquiry, steps)
    try:
        write_trace(output, trace_of(recordings))
    except OSError as exc:
        raise YourError(f"--output {output} cannot be written: {exc.strerror or exc}.") from exc
    recorded = sum(span.name == "step" for one in recordings for span in one.spans)
    whose = f"{len(recordings)} worker{'s' * (len(recordings) != 1)}"
    click.echo(f"trainband: wrote {recorded} steps of {whose} to {output}; open it at https://ui.perfetto.dev")
