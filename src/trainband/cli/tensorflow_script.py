"""`trainband run --tensorflow`: its arguments, and the tasks that the script needs."""

from __future__ import annotations

from pathlib import Path

import click
from click.core import ParameterSource


def with_version(args: list[str]) -> list[str]:
    """The arguments with `--tensorflow=2` for `--tensorflow 2`, and `--tensorflow=auto` if no version follows."""
    if "--tensorflow" not in args:
        return args
    at = args.index("--tensorflow")
    if "--" in args[:at]:
        return args
    given = args[at + 1 : at + 2]
    takes = given in (["1"], ["2"]) and args[at + 2 : at + 3] not in ([], ["--"])  # else it is the script
    return [*args[:at], f"--tensorflow={given[0] if takes else 'auto'}", *args[at + 1 + takes :]]


def for_strategy(ctx: click.Context, script: str, *, ps: int, chief: bool) -> tuple[int, bool]:
    """The default numbers of ps and chiefs for a TensorFlow script."""
    from trainband.compat.wanted_tasks import wanted_tasks

    wanted = wanted_tasks(Path(script).read_text(encoding="utf-8", errors="replace"))
    if wanted.chief and ps and ctx.get_parameter_source("chief") is ParameterSource.DEFAULT:
        click.echo(f"trainband: adding a chief, which {wanted.strategy} needs (--chief)", err=True)
        chief = True
    elif wanted.strategy and wanted.ps and ps and not chief:
        click.echo(
            f"trainband: no chief, because {wanted.strategy} is only one of several strategies in {script}; "
            "if this run uses it, add --chief",
            err=True,
        )
    if not wanted.ps and ctx.get_parameter_source("ps") is ParameterSource.DEFAULT:
        click.echo(f"trainband: no ps, because {wanted.strategy} uses none (--ps 0)", err=True)
        ps = 0
    return ps, chief
