"""SlurmCommands: sbatch, squeue, scancel and scontrol, run in the environment of whoever wants a job."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trainband.errors import YourError

ANSWER_S = 60.0
"""How long Slurm's controller may take to answer a command: it is slow where it is busy, and waits for a backup."""

WAITING = frozenset(
    {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD"}
)
RUNNING = frozenset({"RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING"})


@dataclass(frozen=True, slots=True)
class JobState:
    """What Slurm says of a job.

    Attributes:
      name: such as `PENDING`; see https://slurm.schedmd.com/squeue.html, "JOB STATE CODES".
      reason: why it is in this state, such as `Resources`; empty where Slurm gives none.
      nodes: where it runs.
    """

    name: str
    reason: str = ""
    nodes: str = ""

    @property
    def is_over(self) -> bool:
        """Whether it has ended, for good or ill."""
        return self.name not in WAITING | RUNNING


class SlurmCommands:
    """Slurm's commands.

    Args:
      environ: the environment to run them in.

    Raises:
      YourError: one of those that are named is missing.
    """

    def __init__(self, environ: Mapping[str, str], *names: str) -> None:
        self._environ = dict(environ)
        path = environ.get("PATH")
        self._programs = {name: shutil.which(name, path=path) for name in names}
        missing = [name for name, program in self._programs.items() if program is None]
        if missing:
            raise YourError(
                f"--on slurm: there is no {missing[0]} on this machine (PATH = {path}). Start the job on a machine "
                "that submits to your cluster, such as its login node."
            )

    def run(self, name: str, *arguments: str, given: str = "") -> str:
        """Runs a command with this text on its standard input; returns what it prints.

        Raises:
          YourError: it failed, with what it said.
        """
        program = self._programs[name]
        if program is None:
            raise YourError(f"--on slurm: there is no {name} on this machine.")
        try:
            done = subprocess.run(
                [program, *arguments],
                input=given,
                env=self._environ,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=ANSWER_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise YourError(f"Slurm's {name} gave no answer in {ANSWER_S:g} s; see whether sinfo does.") from None
        if done.returncode != 0:
            said = "; ".join(_told(line) for line in done.stderr.splitlines() if line.strip())
            raise YourError(f"Slurm's {name} failed: {said or f'exit code {done.returncode}'}")
        return done.stdout

    def submit(self, script: str, options: Sequence[str]) -> str:
        """Submits a batch script; returns the number of the job.

        Raises:
          YourError: Slurm does not take it, and says why.
        """
        answer = self.run("sbatch", "--parsable", *options, given=script)
        return answer.strip().partition(";")[0]

    def state(self, job: str) -> JobState | None:
        """What Slurm says of a job of this user; `None` where it has forgotten it, minutes after its end.

        Raises:
          YourError: Slurm does not answer.
        """
        listed = self.run("squeue", "--noheader", "--me", "--states=all", "--format=%i|%T|%r|%N")
        lines = [(*line.split("|"), "", "", "")[:4] for line in listed.splitlines()]
        # The groups of a heterogeneous job are 7+0, 7+1 and so on.
        of_job = [[word.strip() for word in line] for line in lines if line[0].strip().partition("+")[0] == job]
        if not of_job:
            return None
        _, name, reason, _ = min(of_job, key=lambda words: int(words[0].partition("+")[2] or 0))
        return JobState(name, "" if reason == "None" else reason, ",".join(words[3] for words in of_job if words[3]))

    def exit_status(self, job: str) -> int | None:
        """How the batch script of a job that is over has ended: its exit code, or minus the number of the signal that
        killed it; `None` where Slurm has forgotten it.

        Raises:
          YourError: Slurm does not answer.
        """
        told = self.run("scontrol", "--oneliner", "show", "job", job)
        match = re.search(r"\bExitCode=(\d+):(\d+)", told)
        if match is None:
            return None
        code, number = int(match[1]), int(match[2])
        return -number if number else code

    def cancel(self, job: str, *options: str) -> None:
        """Cancels a job, or with `--batch --signal=TERM` has its script end by itself.

        Raises:
          YourError: Slurm does not answer.
        """
        self.run("scancel", *options, job)


def _told(line: str) -> str:
    """A line of stderr without the name of the command, which is known."""
    return re.sub(r"^\w+: (?:error|fatal): ", "", line.strip())
