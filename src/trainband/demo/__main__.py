"""Runs the demo: `python -m trainband.demo`."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import click

from trainband.cli.main import main as trainband

PLOT = Path("runs/demo/training_curve.png")
NO_MATPLOTLIB = "drawing the training curve needs matplotlib, which is not installed: pip install 'trainband[plot]'."


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--train_steps", type=click.IntRange(min=1), default=10_000, show_default=True, help="Updates of the job."
)
@click.option("--plot", type=click.Path(path_type=Path), help=f"Draw the training curve to a file.  [default: {PLOT}]")
def demo(train_steps: int, plot: Path | None) -> None:
    """Trains a network on handwritten digits, included in the package, with one ps and two workers on this machine."""
    flags = [f"--train_steps={train_steps}"]
    if find_spec("matplotlib") is not None:
        flags.append(f"--plot={plot or PLOT}")
    elif plot is not None:
        raise click.ClickException(f"--plot: {NO_MATPLOTLIB}")
    else:
        click.echo(f"trainband: {NO_MATPLOTLIB}", err=True)
    trainband(["run", "--ps", "1", "--workers", "2", "-m", "trainband.demo.mnist", "--", *flags])


if __name__ == "__main__":
    demo(prog_name="python -m trainband.demo")
