"""SlurmCommands: sbatch, squeue, scancel and scontrol, run in the caller's environment."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trainband.errors import YourError

ANSWER_S = 60.0
"""How long Slurm's controller may take to answer: it is slow if busy, and commands wait for a backup controller."""

WAITING = frozenset(
    {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD"}
)
RUNNING = frozenset({"RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING"})


@dataclass(frozen=True, slots=True)
class JobState:
    """The state of a job in Slurm.

    Attributes:
      name: such as `PENDING`; see https://slurm.schedmd.com/squeue.html, "JOB STATE CODES".
      reason: why it is in this state, such as `Resources`; empty if Slurm gives none.
      nodes: where it runs.
    """

    name: str
    reason: str = ""
    nodes: str = ""

    @property
    def is_over(self) -> bool:
        """Whether it has ended, successfully or not."""
        return self.name not in WAITING | RUNNING


class SlurmCommands:
    """Slurm's commands.

    Raises:
      YourError: one of `names` is missing.
    """

    def __init__(self, environ: Mapping[str, str], *names: str) -> None:
        self._environ = dict(environ)
        path = environ.get("PATH")
        self._programs = {name: shutil.which(name, path=path) for name in names}
        missing = [name for name, program in self._programs.items() if program is None]
        if missing:
            raise YourError(
                f"--on slurm: {missing[0]} is not on this machine (PATH = {path}). Start the job on a machine "
                "that submits to your cluster, such as its login node."
            )

    def run(self, name: str, *arguments: str, given: str = "") -> str:
        """Runs a command with `given` on its standard input; returns its output.

        Raises:
          YourError: it failed; the message has its output.
        """
        program = self._programs[name]
        if program is None:
            raise YourError(f"--on slurm: {name} is not on this machine.")
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
            raise YourError(f"Slurm's {name} gave no answer in {ANSWER_S:g} s; check that sinfo works.") from None
        if done.returncode != 0:
            said = "; ".join(_told(line) for line in done.stderr.splitlines() if line.strip())
            raise YourError(f"Slurm's {name} failed: {said or f'exit code {done.returncode}'}")
        return done.stdout

    def submit(self, script: str, options: Sequence[str]) -> str:
        """Submits a batch script; returns the job's id.

        Raises:
          YourError: Slurm refuses it; the message says why.
        """
        answer = self.run("sbatch", "--parsable", *options, given=script)
        return answer.strip().partition(";")[0]

    def state(self, job: str) -> JobState | None:
        """Returns the state of a job of this user; `None` if Slurm has forgotten it, minutes after its end.

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
        """Returns the exit code of a finished job's batch script, or minus the number of the signal that killed it;
        `None` if Slurm has forgotten it.

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
        """Cancels a job, or with `--batch --signal=TERM` lets its script end by itself.

        Raises:
          YourError: Slurm does not answer.
        """
        self.run("scancel", *options, job)


def _told(line: str) -> str:
    """Returns a line of stderr without the name of the command."""
    return re.sub(r"^\w+: (?:error|fatal): ", "", line.strip())
