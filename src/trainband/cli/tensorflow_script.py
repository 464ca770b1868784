"""What `trainband run --tensorflow` makes of its arguments and of the script."""

from __future__ import annotations

from pathlib import Path

import click
from click.core import ParameterSource


def with_version(args: list[str]) -> list[str]:
    """The arguments with `--tensorflow=2` for `--tensorflow 2`, and `--tensorflow=auto` where no version follows."""
    if "--tensorflow" not in args:
        return args
    at = args.index("--tensorflow")
    if "--" in args[:at]:
        return args
    given = args[at + 1 : at + 2]
    takes = given in (["1"], ["2"]) and args[at + 2 : at + 3] not in ([], ["--"])  # else it is the script
    return [*args[:at], f"--tensorflow={given[0] if takes else 'auto'}", *args[at + 1 + takes :]]


def for_strategy(ctx: click.Context, script: str, *, ps: int, chief: bool) -> tuple[int, bool]:
    """The numbers of ps and chiefs for a script of TensorFlow, where nobody has said them."""
    from trainband.compat.wanted_tasks import wanted_tasks

    wanted = wanted_tasks(Path(script).read_text(encoding="utf-8", errors="replace"))
    if wanted.chief and ps and ctx.get_parameter_source("chief") is ParameterSource.DEFAULT:
        click.echo(f"trainband: a chief beside the workers, for {wanted.strategy} (--chief)", err=True)
        chief = True
    if not wanted.ps and ctx.get_parameter_source("ps") is ParameterSource.DEFAULT:
        click.echo(f"trainband: no ps, for {wanted.strategy} has no use for one (--ps 0)", err=True)
        ps = 0
    return ps, chief
