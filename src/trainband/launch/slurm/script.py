"""The batch script of a job, as text."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from trainband.cluster.resolvers.log_level import FORMAT
from trainband.errors import ClusterError
from trainband.launch.request import JobRequest

EXIT_CODE = "exit-code"
"""The file in the run's directory that the script writes when the job has ended for good."""

_BODY = """\
run={directory}
rm -f "$run/{exit_code}"
launcher=
leaving=
leave() {{
  leaving=$1
  [ -z "$launcher" ] || kill -TERM "$launcher" 2>/dev/null
}}
trap 'leave requeue' {signal}
trap 'leave end' TERM INT
{command} &
launcher=$!
while kill -0 "$launcher" 2>/dev/null; do wait "$launcher"; done
wait "$launcher"
code=$?
if [ "$leaving" = requeue ] && [ "$code" -gt 128 ]; then
  if [ {requeue} = yes ]; then
    echo "trainband: Slurm ends its job $SLURM_JOB_ID here (SIG{signal}); putting it back into the queue" >&2
    scontrol requeue "$SLURM_JOB_ID" && exit "$code"
    echo "trainband: the job was not put back into the queue" >&2
  else
    echo "trainband: Slurm ends its job $SLURM_JOB_ID here (SIG{signal})" >&2
  fi
fi
echo "$code" > "$run/{exit_code}.new" && mv "$run/{exit_code}.new" "$run/{exit_code}"
exit "$code"
"""


def batch_script(
    groups: Sequence[Sequence[str]], command: Sequence[str], *, run: str, signal: str, requeue: bool
) -> str:
    """Returns the script of a job that runs a launcher in its allocation.

    Args:
      groups: the options of each group of nodes, such as `--nodes=2`; several make a heterogeneous job.
      run: the directory of this run, which the nodes share with this machine.
      signal: the name, without SIG, of the signal by which Slurm announces that the job's time is over or that another
        job preempts it. The launcher then ends the tasks, which save, and the job is requeued.
      requeue: whether it is.
    """
    lines = ["#!/bin/bash"]
    for i, options in enumerate(groups):
        lines += ["#SBATCH hetjob"] if i else []
        lines += [f"#SBATCH {shlex.quote(option)}" for option in options]
    body = _BODY.format(
        directory=shlex.quote(run),
        command=shlex.join(command),
        signal=signal,
        requeue="yes" if requeue else "no",
        exit_code=EXIT_CODE,
    )
    return "\n".join(
        [*lines, "# Written by `trainband run --on slurm`, which runs in the job's allocation again.", body]
    )


def inner_command(request: JobRequest, program: Sequence[str], python: str) -> list[str]:
    """Returns the command that runs a request within an allocation.

    Args:
      program: the request's, or one that calls its function.

    Raises:
      ClusterError: the command line cannot express the request.
    """
    numbers: Mapping[str, object] = {
        "--ps": request.ps,
        "--workers": request.workers,
        "--restarts": request.restarts.limit,
        "--min-workers": request.min_workers,
        "--threads": request.threads,
        "--tls": "auto" if request.tls else None,
    }
    options = [word for name, value in numbers.items() if value is not None for word in (name, str(value))]
    options += [name for name, is_set in (("--chief", request.chief), ("--evaluator", request.evaluator)) if is_set]
    if request.environment.get(FORMAT) == "json":
        options.append("--plain")  # for the launcher, whose lines the submitting process reads
    if program[0] == "-m":
        if len(program) < 2:
            raise ClusterError("the job's program is -m without a module name.")
        options, program = [*options, "-m"], program[1:]
    return [python, "-m", "trainband.cli.main", "run", "--on", "slurm", *options, program[0], "--", *program[1:]]
