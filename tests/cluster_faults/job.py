"""One job of two ps and three workers, each on a machine of its own, to which one thing happens at one moment."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.cluster_faults.matrix import ELASTIC, TARGETS, TWO, Case
from tests.machines import Machines
from tests.programs import DEADLINE_S, ROOT, Program, Programs

from trainband.checkpoint import CheckpointDirectory
from trainband.cluster import Cluster, ClusterSpec, Task
from trainband.cluster.resolvers import tf_config

Rows = NDArray[np.float32]

SCRIPT = ROOT / "tests" / "cluster_faults" / "counting.py"
PS = ("ps:0", "ps:1")
WORKERS = ("worker:0", "worker:1", "worker:2")
CHIEF = "worker:0"

STEPS = 120
SAVE_STEPS = 20
LEASE_S = 4.0
SHORT_S = 0.7
"""Of a pause after which nobody is missed: with the last heartbeat before it, shorter than the lease."""
LONG_S = 6.0
LATE_S = 8.0
"""After which a ps that has died is started again late."""
NOTICED_S = LEASE_S + 20.0
FIRST_STEP_S = 10.0
"""The longest that a worker takes for its first gradient, which is compiled; before, it needs no ps."""
SAID_S = 2.0
"""After which whoever waits says so."""
SILENT_S = 10.0
"""The longest silence of a task."""
END_S = 150.0
"""For a job to end by itself once nothing keeps it: a ps waits 30 s for a chief that does not come back."""

STARTS = re.compile("^begins its life | computes on the CPU: ")
LEAVES = re.compile(r"SIGTERM asked this task to end; it leaves the job at global step ([\d,]+)$", re.MULTILINE)
BEFORE_A_WORKER = ("dies before a worker", "dies unknown to a worker")
KILLED = ("dies", "stays dead", *TWO)
UNHEARD = ("sleeps", "unplugged", "mute")
"""What makes a task silent for longer than the lease, without an end of its process."""
TAKEN_OVER = (*KILLED, *UNHEARD, "deaf", "parted", "half parted")
"""What parts the two standbys of a shard for so long that one of them goes on without the other."""


class Job:
    """The job of one case.

    Args:
      case: what happens.
      programs: starts the processes.
      machines: `MACHINES` of them.
      directory: for the checkpoints and for the files by which the tasks are led; it is made.
    """

    MACHINES: ClassVar[int] = len(PS) + len(WORKERS)

    def __init__(self, case: Case, programs: Programs, machines: Machines, directory: Path) -> None:
        self._case = case
        self._programs = programs
        self._machines = machines
        self._control = directory / "control"
        self._control.mkdir(parents=True)
        self._home = CheckpointDirectory(directory / "checkpoints", pytest.fail)
        self._tasks: dict[str, Program] = {}
        self._ended: list[Program] = []
        """Of tasks that were killed."""
        self._struck_at = 0.0
        self._saves = case.phase == "saving" or not (case.standbys or case.fault == "leaves")
        """Whether there is a checkpoint_dir. Where shards have standbys, none is needed, nor where all ps live."""

    def run(self) -> None:
        """Starts the job, lets happen what the case says, and looks at all that must hold then."""
        case = self._case
        if case.phase != "start":
            self._send("go")
        self._send("finish" if case.phase == "end" else "end")
        for name in (*PS, *WORKERS):
            self._start(name)
        self._await_phase()
        self._struck_at = time.monotonic()
        self._strike()
        if case.phase == "start":
            self._send("go")
        if case.phase == "end" and case.fault not in KILLED:
            self._send("end")
        self._expect_noticed()
        self._heal()
        if case.phase != "end" or case.fault in KILLED:
            self._await_recovery()
        for word in ("finish", "end"):
            self._send(word)
        self._expect_all_end()
        self._expect_no_worker_silent()
        self._expect_no_ps_silent()
        self._expect_exact_updates(self._saved() if self._saves else self._read())

    def expect_no_socket_left(self) -> None:
        """Fails where a connection or a listener outlives the job."""
        for index, name in enumerate((*PS, *WORKERS)):
            assert not self._machines.sockets(index), f"sockets of {name} are left: {self._machines.sockets(index)}"

    # --- leading it

    def _send(self, word: str) -> None:
        (self._control / word).touch()

    def _start(self, name: str) -> None:
        life = sum(program.name == name for program in self._ended)
        addresses = self._machines.addresses
        ps, workers = addresses[: len(PS)], addresses[len(PS) :]
        flags = [
            f"--rule={self._case.rule}",
            f"--steps={STEPS}",
            f"--step_s={self._step_s():g}",
            f"--save_steps={SAVE_STEPS}",
            *([f"--dir={self._home.path}"] if self._saves else ()),
            f"--control={self._control}",
            f"--life={life}",
            f"--disk_s={0.3 if self._case.phase == 'saving' else 0}",
            f"--standbys={self._case.standbys}",
        ]
        machine = self._machines.names[self._index(name)]
        if self._case.target != ELASTIC:
            self._tasks[name] = self._programs.task(
                name, *flags, ps=ps, workers=workers, script=SCRIPT, machine=machine
            )
            return
        workers = workers[: WORKERS.index(ELASTIC)]
        spec = ClusterSpec({"ps": ps, "worker": workers})
        who = Cluster(spec=spec, task=Task.parse(name), elastic=name == ELASTIC)
        environ = {tf_config.VARIABLE: tf_config.write(who)}
        self._tasks[name] = self._programs.python(name, str(SCRIPT), *flags, environ=environ, machine=machine)

    def _step_s(self) -> float:
        """So much that what happens in the middle does, and no more."""
        each = 0.15 if self._case.fault in (*TWO, "leaves") else 0.02 if self._case.phase == "end" else 0.05
        # An update of the synchronous rules takes a push of each worker, one of the others takes one.
        return each if self._case.rule in ("sync", "backups") else 2 * each

    @staticmethod
    def _index(name: str) -> int:
        return (*PS, *WORKERS).index(name)

    def _await_phase(self) -> None:
        match self._case.phase:
            case "start":
                self._await_each(WORKERS, "^ready$")
            case "training":
                self._await_each(WORKERS, "^at global step")
                if self._saves:
                    self._await_checkpoint()
            case "saving":
                self._await_checkpoint()
                now = time.monotonic()
                if self._case.standbys:  # on a busy machine, either ps may hold either shard by now
                    self._until(lambda: bool(self._said("part-0", now)), "that a ps writes its part")
                else:
                    writer, file = {
                        "worker:0": (CHIEF, "manifest"),
                        "ps:1": ("ps:1", "part-00001-of"),
                    }.get(self._case.target, ("ps:0", "part-00000-of"))
                    self._await_line(writer, rf"^writes .*{file}", now)
            case "end":
                self._await_each(WORKERS, "^over at global step")

    def _await_each(self, names: Iterable[str], pattern: str) -> None:
        for name in names:
            self._tasks[name].wait_for(pattern)

    def _await_checkpoint(self) -> None:
        self._until(lambda: bool(self._home.steps()), "the first checkpoint")

    def _await_line(self, name: str, pattern: str, since: float, deadline_s: float = DEADLINE_S) -> float:
        """Waits for a line that comes after a moment; gives when it came."""
        expression = re.compile(pattern)
        program = self._tasks[name]
        end = time.monotonic() + deadline_s
        while True:
            for at, line in list(program.lines):
                if at >= since and expression.search(line):
                    return at
            if time.monotonic() > end or program.ended_at is not None:
                self._fail(f"{name} should have said {pattern!r} within {deadline_s:g} s")
            time.sleep(0.02)

    def _until(self, condition: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + DEADLINE_S
        while not condition():
            if time.monotonic() > end:
                self._fail(f"{what} did not happen within {DEADLINE_S:g} s")
            time.sleep(0.05)

    def _fail(self, why: str) -> None:
        told = "\n".join(program.output for program in (*self._ended, *self._tasks.values()))
        pytest.fail(f"{self._case}: {why}\n{told}")

    # --- what happens

    def _strike(self) -> None:
        target = self._case.target
        program, index = self._tasks[target], self._index(target)
        match self._case.fault:
            case "dies" | "stays dead" | "dies twice" | "dies before the other" | "dies before a worker":
                self._kill(target)
            case "leaves":
                self._ask_to_leave(target)
            case "dies unknown to a worker":
                self._tasks["worker:1"].send(signal.SIGSTOP)
                self._kill(target)
            case "dies after the chief":
                self._kill(CHIEF)
                for ps in PS:
                    self._await_line(ps, f"^trainband: {CHIEF} is gone: ", self._struck_at, NOTICED_S)
                self._sleep_until(LEASE_S)
                self._struck_at = time.monotonic()
                self._kill(target)
            case "pauses" | "sleeps":
                program.send(signal.SIGSTOP)
            case "unplugged":
                self._machines.unplug(index)
            case "mute":
                self._machines.mute(index)
            case "deaf":
                self._machines.deafen(index)
            case "slow":
                self._machines.slow(index)
            case "parted":
                self._machines.mute(index, self._other_index())
                self._machines.mute(self._other_index(), index)
            case "half parted":
                self._machines.mute(index, self._other_index())

    def _kill(self, name: str) -> None:
        program = self._tasks.pop(name)
        program.send(signal.SIGKILL)
        assert program.wait() == -signal.SIGKILL
        self._ended.append(program)

    def _ask_to_leave(self, name: str) -> None:
        program = self._tasks.pop(name)
        program.send(signal.SIGTERM)
        code = program.wait()
        left = LEAVES.search(program.stderr)
        if code != 128 + signal.SIGTERM or not left:
            self._fail(f"{name} should have ended after its step, but ended with {code}\n{program.output}")
        assert left is not None
        program.expect_no_noise()
        self._ended.append(program)
        if self._saves and name == CHIEF:
            at, newest = int(left[1]), max(self._home.steps())
            assert at <= newest, f"the chief left at global step {at}, and the newest checkpoint is of {newest}"

    def _other(self) -> str:
        """The ps that nothing happens to."""
        return PS[1 - PS.index(self._case.target)]

    def _other_index(self) -> int:
        return self._index(self._other())

    def _heal(self) -> None:
        target = self._case.target
        index = self._index(target)
        match self._case.fault:
            case "dies" | "leaves":
                self._start(target)
            case "dies twice":
                self._start(target)
                self._await_standbys()
                self._struck_at = time.monotonic()
                self._kill(target)
                self._start(target)
            case "dies before the other":
                self._start(target)
                self._await_standbys()
                self._struck_at = time.monotonic()
                self._kill(self._other())
            case "dies before a worker" | "dies unknown to a worker":
                self._start(target)
                self._await_standbys()
                self._kill("worker:1")
            case "stays dead":
                if target in PS and not self._case.standbys:
                    self._sleep_until(LATE_S)
                    if self._case.phase != "end":
                        self._await_line(CHIEF, f"^trainband: waiting for {target} ", self._struck_at)
                    self._start(target)
                elif target == CHIEF and self._case.phase == "end":
                    # The others have ended their trainings: nobody is left that could save.
                    self._sleep_until(LATE_S)
                    self._start(target)
            case "pauses":
                self._sleep_until(SHORT_S)
                self._tasks[target].send(signal.SIGCONT)
            case "sleeps":
                self._sleep_until(LONG_S)
                self._tasks[target].send(signal.SIGCONT)
            case "unplugged":
                self._sleep_until(LONG_S)
                self._machines.plug(index)
            case "mute":
                self._sleep_until(LONG_S)
                self._machines.unmute(index)
            case "deaf":
                self._sleep_until(LONG_S)
                self._machines.undeafen(index)
            case "parted":
                self._sleep_until(LONG_S)
                self._machines.unmute(index, self._other_index())
                self._machines.unmute(self._other_index(), index)
            case "half parted":
                self._sleep_until(LONG_S)
                self._machines.unmute(index, self._other_index())

    def _sleep_until(self, seconds: float) -> None:
        """Until so long after what happened."""
        time.sleep(max(0.0, self._struck_at + seconds - time.monotonic()))

    def _expect_noticed(self) -> None:
        """A death is noticed within the lease: that of a worker by every ps, that of a ps by whoever needs it."""
        target, fault = self._case.target, self._case.fault
        if target in WORKERS and (fault in KILLED or fault in UNHEARD):
            for ps in PS:
                self._await_line(ps, f"^trainband: {target} is gone: ", self._struck_at, NOTICED_S)
        if target in PS and fault in KILLED and self._case.phase != "end" and not self._case.standbys:
            within_s = NOTICED_S + (FIRST_STEP_S if self._case.phase == "start" else SAID_S)
            # Whichever meets it first: a step, or what the chief asks for a checkpoint.
            self._await_line(CHIEF, f"^trainband: (lost|waiting for) {target} at ", self._struck_at, within_s)

    def _await_recovery(self) -> None:
        target, fault = self._case.target, self._case.fault
        if fault in BEFORE_A_WORKER:
            # The ps that was started again may not have met it.
            self._await_line(self._other(), "^trainband: worker:1 is gone: ", self._struck_at, NOTICED_S)
            return
        if fault in KILLED and target in PS and self._case.standbys:
            successor = target if fault == "dies before the other" else self._other()
            if fault != "dies twice":  # the other had both shards when it died once more, or it had its own again
                self._await_line(
                    successor, f"^trainband: {successor} takes over .* at version ", self._struck_at, NOTICED_S
                )
        elif fault in KILLED and target in PS:
            self._await_line(CHIEF, f"^trainband: {target} resumes from ", self._struck_at)
        elif fault in ("dies", "leaves"):
            self._tasks[target].wait_for("^ready$")
        elif fault not in KILLED:
            healed_at = time.monotonic()
            self._until(lambda: self._all_go_on(healed_at), "that every worker goes on")
        if self._case.standbys and target in PS and fault in TAKEN_OVER and set(PS) <= set(self._tasks):
            self._await_standbys()

    def _await_standbys(self) -> None:
        """Until each shard has been given a standby since."""
        self._until(
            lambda: all(self._said(f" is the standby of shard {shard}") for shard in range(len(PS))),
            "that each shard has a standby again",
        )

    def _said(self, text: str, since: float | None = None) -> list[str]:
        """The lines of the ps since then, or since what happened, that have this text in them."""
        since = self._struck_at if since is None else since
        return [
            line
            for ps in PS
            if ps in self._tasks
            for at, line in list(self._tasks[ps].lines)
            if at >= since and text in line
        ]

    def _all_go_on(self, since: float) -> bool:
        """Whether every worker has got answers since.

        Or one has, and waits for the tests' word: where a ps has made an update without it, the others are a step
        ahead of it and wait for its push, which comes only after the word. That they go on, their end shows.
        """
        lines = {
            worker: [line for at, line in list(self._tasks[worker].lines) if at >= since]
            for worker in WORKERS
            if worker in self._tasks
        }
        if any(line.startswith("waits for the tests' word: finish") for said in lines.values() for line in said):
            return True
        return all(any(line.startswith("at global step") for line in said) for said in lines.values())

    # --- what must hold

    def _expect_all_end(self) -> None:
        deadline = time.monotonic() + END_S
        for name, program in self._tasks.items():
            while program.ended_at is None:
                if time.monotonic() > deadline:
                    self._fail(f"{name} has not ended within {END_S:g} s")
                time.sleep(0.05)
        for name, program in self._tasks.items():
            code = program.wait()
            if code != 0 and not self._may_fail(name):
                self._fail(f"{name} ended with exit code {code}")
            if code != 0 and not re.search("^error: ", program.stderr, re.MULTILINE):
                self._fail(f"{name} ended with exit code {code} and no error in words")
            program.expect_no_noise()

    def _may_fail(self, name: str) -> bool:
        """A worker that is cut off when the job ends may find nobody any more, and say so."""
        case = self._case
        return case.phase == "end" and name == case.target != CHIEF and case.fault in (*UNHEARD, "deaf")

    def _expect_no_worker_silent(self) -> None:
        for program in (*self._ended, *self._tasks.values()):
            if not program.name.startswith("worker"):
                continue
            # After these lines it reads its programs and compiles, however long that takes here, and waits for nobody;
            # it releases them after its last line.
            moments = [at for at, line in program.lines if not STARTS.search(line)]
            if not moments:
                continue  # killed before it had anything to say
            self._expect_words(program, moments)

    def _expect_no_ps_silent(self) -> None:
        """Unlike one that serves, a ps that has no worker left to serve waits for something, and says for what."""
        last = max(program.ended_at or 0.0 for name, program in self._tasks.items() if name in WORKERS)
        for program in (self._tasks[ps] for ps in PS if ps in self._tasks):
            assert program.ended_at is not None
            said = [at for at, _ in program.lines if at > last]
            self._expect_words(program, [last, *said, max(last, program.ended_at)])

    def _expect_words(self, program: Program, moments: Sequence[float]) -> None:
        """Fails where more than `SILENT_S` lie between two moments at which a task has said something."""
        silence, since = max(((after - before, before) for before, after in pairwise(moments)), default=(0.0, 0.0))
        if silence > SILENT_S:
            self._fail(f"{program.name} said nothing for {silence:.1f} s, {since - self._struck_at:.1f} s after it")

    def _saved(self) -> dict[str, Rows]:
        """What each ps had at the end, by the last checkpoint."""
        newest = self._home.newest()
        if newest is None:
            self._fail("there is no checkpoint")
        assert newest is not None
        versions = [part.version for part in newest.manifest.parts]
        if set(versions) != {STEPS}:
            self._fail(f"the last checkpoint is of the versions {versions}, instead of {STEPS} on every ps")
        assert newest.manifest.complete
        names = {path.name for path in self._home.path.iterdir()} - {"history"}
        left = sorted(name for name in names if not name.startswith("step-"))
        assert not left, f"left beside the checkpoints: {left}"
        return {ps: newest.read(f"params/{name}") for ps, name in zip(PS, "ab", strict=True)}

    def _read(self) -> dict[str, Rows]:
        """What each ps had at the end, as all workers have read it, each from the primary that it knew."""
        files = sorted(self._control.glob("params-*.npz"))
        assert files, "no worker has come to its end"
        read = [dict(np.load(file)) for file in files]
        for file, one in zip(files, read, strict=True):
            for name in "ab":
                np.testing.assert_array_equal(one[name], read[0][name], err_msg=f"{name} of {file.name}")
        return {ps: read[0][name] for ps, name in zip(PS, "ab", strict=True)}

    def _expect_exact_updates(self, final: Mapping[str, Rows]) -> None:
        case = self._case
        killed = case.target if case.fault in KILLED else ""
        applied = {ps: self._applied_on(ps, shares) for ps, shares in final.items()}
        told = self._told()
        for ps in PS:
            # What one that died had since its last checkpoint is lost, and other pushes were made in its place.
            if ps != killed or case.standbys:
                assert told <= applied[ps], f"told to be applied, but not so on {ps}: {sorted(told - applied[ps])}"
        both = applied[PS[0]] & applied[PS[1]]
        if killed in WORKERS or case.fault in ("dies after the chief", *BEFORE_A_WORKER):
            # The last push of the worker that died; whoever lives hears of its own, if need be from the successor.
            assert len(both - told) <= 1, f"applied, and nobody was told: {sorted(both - told)}"
        elif case.fault in ("pauses", "slow", "leaves") or (killed and case.standbys):
            assert told == both, f"applied, and nobody was told: {sorted(both - told)}"
        taken_over = [line for line in self._said(" takes over shard ") if f" at version {STEPS} " not in line]
        if taken_over and case.fault in ("pauses", "slow", "leaves"):  # at the end, one ps may go before the other
            self._fail("a shard was taken over though nobody was away")

    def _applied_on(self, ps: str, shares: Rows) -> set[int]:
        """The pushes that a ps has applied, after a look that it has applied none of them twice."""
        # Alone in its update, or one of two, or of three.
        fair = (1.0, 0.5, 1 / 3) if self._case.rule in ("sync", "backups") else (1.0,)
        rows = np.flatnonzero(shares)
        odd = [row for row in rows if not np.isclose(shares[row], fair, atol=1e-4).any()]
        assert not odd, f"{ps} has applied pushes {odd} with shares {shares[odd]}, of which only {fair} are fair"
        assert shares.sum() == pytest.approx(STEPS, abs=1e-2), f"{ps} has made {shares.sum()} updates in truth"
        return set(rows.tolist())

    def _told(self) -> set[int]:
        """The pushes of which some worker was told that they are applied."""
        files = self._control.glob("applied-*")
        return {int(line) for file in files for line in file.read_text(encoding="utf-8").splitlines()}


assert set(TARGETS) <= {*PS, *WORKERS}
