"""`trainband run`: what it accepts, shows and exits with."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import click
import pytest

import trainband.cli.run as run_module
from trainband.cli.main import COMMANDS, cli, main
from trainband.cli.run import launch, run
from trainband.cli.run_options import script_arguments
from trainband.cli.run_output import StreamOutput, describe_failure
from trainband.cluster.resolvers.joined import PAGE
from trainband.cluster.resolvers.metrics import HOST, PORT
from trainband.cluster.spec import ClusterSpec
from trainband.cluster.task import Task
from trainband.launch.backend import Watcher
from trainband.launch.backends.local import Local
from trainband.launch.events import Outcome
from trainband.launch.request import JobRequest

DEADLINE_S = 30.0
# Absolute, because the programs run in another directory than the tests, whose PYTHONPATH may be a relative one.
ENVIRON = {**os.environ, "PYTHONPATH": str(Path(run_module.__file__).parents[2])}
PS, WORKER0, WORKER1 = Task("ps", 0), Task("worker", 0), Task("worker", 1)


def _trainband(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "trainband.cli.main", *arguments],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        cwd=cwd,
        env=ENVIRON,
        check=False,
    )


ECHO = """
import json, os, sys
who = "{type}:{index}".format(**json.loads(os.environ["TF_CONFIG"])["task"])
print(who, json.dumps(sys.argv[1:]), os.environ["NPROC"])
print("warned", file=sys.stderr)
"""

CALLS: list[tuple[list[str], list[str]]] = [
    (["train.py"], []),
    (["train.py", "--"], []),
    (["train.py", "data", "--lr", "0.1", "-m", "x"], ["data", "--lr", "0.1", "-m", "x"]),
    (["train.py", "--", "--workers", "8", "--", "x"], ["--workers", "8", "--", "x"]),
    (["-m", "train", "--lr=0.1"], ["--lr=0.1"]),
    (["-m", "train", "--", "--help"], ["--help"]),
    (["train.py", "--help"], ["--help"]),
]


@pytest.mark.parametrize(("call", "received"), CALLS)
def test_what_follows_the_script_goes_to_it(call: list[str], received: list[str], tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(ECHO)
    result = _trainband("run", "--threads", "3", "--workers", "1", "--ps", "0", *call, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout == f"[worker:0] worker:0 {json.dumps(received)} 3\n"
    assert result.stderr == "[worker:0] warned\n"


def test_each_line_has_its_task_before_it(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(ECHO)
    result = _trainband("run", "--chief", "--ps", "2", "--threads", "1", "train.py", cwd=tmp_path)
    tasks = ["chief:0", "ps:0", "ps:1", "worker:0", "worker:1"]
    assert result.returncode == 0, result.stderr
    assert sorted(result.stdout.splitlines()) == [f"[{task}] {task} [] 1" for task in tasks]
    *warned, alone = sorted(result.stderr.splitlines())
    assert warned == [f"[{task}] warned" for task in tasks]
    assert alone.startswith("trainband: WARNING: no task joined the cluster; each ran the program alone.")


def test_a_failure_shows_who_how_and_the_last_lines_at_the_end(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        ECHO + "if who == 'worker:1':\n  for i in range(30): print('step', i)\n  raise ValueError('no such luck')\n"
        "import signal; signal.pause()"
    )
    result = _trainband("run", "train.py", cwd=tmp_path)
    assert result.returncode == 1
    frame = result.stderr[result.stderr.index("── worker:1 failed: exit code 1 ──") :].splitlines()
    assert frame[1] == "│ ValueError: no such luck"
    assert frame[2].startswith("── its last 20 lines ──")
    assert len(frame) == 24
    assert frame[-2] == "│ ValueError: no such luck"
    assert set(frame[-1]) == {"─"}
    assert "trainband: worker:1 failed (exit code 1); stopping the others: ps:0, worker:0\n" in result.stderr


def test_restarts_that_are_used_up_end_the_job_with_the_last_lines(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        ECHO + "if who == 'worker:1':\n  print('life', os.getpid())\n  sys.exit(3)\nimport signal; signal.pause()"
    )
    result = _trainband("run", "--restarts", "2", "train.py", cwd=tmp_path)
    assert result.returncode == 3
    starts = [line for line in result.stderr.splitlines() if "restarting it in" in line]
    assert starts == [
        "trainband: worker:1 failed (exit code 3); restarting it in 1 s (1 of 2)",
        "trainband: worker:1 failed (exit code 3); restarting it in 2 s (2 of 2)",
    ]
    assert "trainband: worker:1 failed (exit code 3); stopping the others: ps:0, worker:0\n" in result.stderr
    lives = [line.split()[-1] for line in result.stdout.splitlines() if line.startswith("[worker:1] life ")]
    assert len(set(lives)) == 3
    frame = result.stderr[result.stderr.index("── worker:1 failed: exit code 3 ──") :]
    assert f"│ life {lives[-1]}\n" in frame


def test_a_task_that_dies_of_a_signal_gives_its_exit_code(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    result = _trainband("run", "--ps", "0", "--workers", "1", "train.py", cwd=tmp_path)
    assert result.returncode == 128 + 9
    assert "── worker:0 failed: killed by SIGKILL ── it printed nothing ──" in result.stderr


ERRORS: list[tuple[list[str], str]] = [
    (["nowhere.py"], r"error: there is no script 'nowhere.py' in "),
    (["--workers", "0", "train.py"], "error: --workers must be at least 1, or no task"),
    (
        ["--ps", "0", "--min-workers", "3", "train.py"],
        "error: --min-workers must be at most the number of workers, which is 2, got 3.",
    ),
    (
        ["--min-workers", "1", "train.py"],
        "error: --min-workers is for jobs without ps, whose workers train in lockstep: add --ps 0.",
    ),
    (["--host", "192.0.2.1", "train.py"], "error: cannot serve on the host '192.0.2.1'"),
]


@pytest.mark.parametrize(("arguments", "message"), ERRORS)
def test_the_users_errors_are_one_line_and_exit_code_2(arguments: list[str], message: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    result = _trainband("run", *arguments, cwd=tmp_path)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith(message)
    assert result.stderr.count("\n") == 1


UNPARSED = [["--workers", "-1", "train.py"], ["--wrokers", "1", "train.py"], ["--min-workers", "0", "train.py"], []]


@pytest.mark.parametrize("arguments", UNPARSED)
def test_what_cannot_be_parsed_is_a_usage_error(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exited:
        main(["run", *arguments])
    assert exited.value.code == 2
    assert "Usage: trainband run [OPTIONS] SCRIPT [--] [ARGS]..." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("--steps", "If it is an option of the script, write it after SCRIPT: train.py --steps"),
        ("--wrokers", "Did you mean --workers?"),
        ("-n", "If it is an option of the script"),
    ],
)
def test_an_unknown_option_is_taken_for_one_of_the_script(
    option: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["run", option, "10", "train.py"])
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith(f"Error: trainband run has no option {option}. {words}")


@pytest.mark.parametrize("argument", ["--workers", "--workers=3", "--ps", "--chief"])
def test_an_option_of_ours_after_the_script_is_ambiguous(argument: str) -> None:
    with pytest.raises(click.UsageError, match=rf"{argument.split('=')[0]} after train.py could be for"):
        script_arguments(click.Context(run), "train.py", ["x", argument])


def test_the_launcher_loads_neither_jax_nor_pyarrow(tmp_path: Path) -> None:
    """Else each start of `trainband run` would take a second more, and its memory beside that of the tasks."""
    (tmp_path / "train.py").write_text("")
    code = (
        "import sys, trainband.cli.main as m\n"
        "try: m.main(sys.argv[1:])\n"
        "finally: print('loaded', [n for n in ('jax', 'pyarrow', 'numpy', 'rich', 'msgspec') if n in sys.modules])\n"
    )
    for arguments in (["--help"], ["run", "--help"], ["run", "train.py"]):
        result = subprocess.run(
            [sys.executable, "-c", code, *arguments],
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            cwd=tmp_path,
            env=ENVIRON,
            check=False,
        )
        assert result.stdout.splitlines()[-1] == "loaded []", result.stderr


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, expected in ((["--help"], "Run a script as all the tasks"), (["--version"], "trainband ")):
        with pytest.raises(SystemExit) as exited:
            main(arguments)
        assert exited.value.code == 0
        assert expected in capsys.readouterr().out
    assert cli.list_commands(click.Context(cli)) == list(COMMANDS)
    assert cli.get_command(click.Context(cli), "run") is run
    assert cli.get_command(click.Context(cli), "fly") is None


GLOO = "[Gloo] Rank 0 is connected to 1 peer ranks. Expected number of connected peer ranks is : 1"


class Terminal(io.StringIO):
    """A stream that says whether it is a terminal, and counts the writes."""

    encoding = "utf-8"

    def __init__(self, *, terminal: bool = True, encoding: str = "utf-8") -> None:
        super().__init__()
        self.terminal = terminal
        self.encoding = encoding
        self.writes: list[str] = []

    def isatty(self) -> bool:
        return self.terminal

    def write(self, text: str, /) -> int:
        self.writes.append(text)
        return super().write(text)


def test_each_task_has_a_colour_on_a_terminal_only() -> None:
    stdout, stderr = Terminal(), Terminal(terminal=False)
    output = StreamOutput([PS, WORKER0, WORKER1], stdout=stdout, stderr=stderr, environ={})
    for task in (PS, WORKER0, WORKER1):
        output.line(task, "hello")
        output.line(task, "hello", "stderr")
    output.report("a note")
    assert stdout.writes == [
        "\x1b[36m[ps:0]\x1b[0m hello\x1b[0m\n",
        "\x1b[33m[worker:0]\x1b[0m hello\x1b[0m\n",
        "\x1b[32m[worker:1]\x1b[0m hello\x1b[0m\n",
    ]
    assert stderr.writes == ["[ps:0] hello\n", "[worker:0] hello\n", "[worker:1] hello\n", "a note\n"]


def test_what_the_collectives_print_when_they_connect_is_not_shown() -> None:
    stdout = Terminal(terminal=False)
    output = StreamOutput([WORKER0], stdout=stdout, stderr=stdout, environ={})
    pieces = GLOO.partition(" is connected")
    mixed = [f"{pieces[0]}{GLOO}", f"0{GLOO}", "".join(pieces[1:]), GLOO.partition("1")[2]]  # by two threads
    for stream in ("stdout", "stderr"):
        for line in (GLOO, *mixed):
            output.line(WORKER0, line, stream)
    for line in (f" {GLOO}", "", "1", f"{GLOO} step"):
        output.line(WORKER0, line)
    assert stdout.writes == [f"[worker:0]  {GLOO}\n", "[worker:0] \n", "[worker:0] 1\n", f"[worker:0] {GLOO} step\n"]


def test_nor_does_it_stand_among_the_last_lines_of_a_failure(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(f"print({GLOO!r}); print('step 1'); raise SystemExit(3)")
    result = _trainband("run", "--ps", "0", "--workers", "1", "train.py", cwd=tmp_path)
    assert "── worker:0 failed: exit code 3 ── its last line ──" in result.stderr
    assert "│ step 1\n" in result.stderr
    assert "Gloo" not in result.stdout + result.stderr


@pytest.mark.parametrize(("no_colour", "coloured"), [("", True), ("1", False), ("0", False)])
def test_no_color_turns_colour_off(no_colour: str, coloured: bool) -> None:
    stdout = Terminal()
    StreamOutput([PS], stdout=stdout, stderr=stdout, environ={"NO_COLOR": no_colour}).line(PS, "hello")
    assert ("\x1b" in stdout.getvalue()) is coloured


def test_what_a_terminal_cannot_show_is_shown_as_well_as_it_can() -> None:
    stdout = Terminal(terminal=False, encoding="ascii")
    StreamOutput([PS], stdout=stdout, stderr=stdout, environ={}).line(PS, "loss — 0.1")
    assert stdout.getvalue() == "[ps:0] loss \\u2014 0.1\n"


def test_the_frame_around_the_last_lines() -> None:
    assert describe_failure(WORKER1, "exit code 3", ["a", "b"], width=50).splitlines() == [
        "── worker:1 failed: exit code 3 ── its last 2 lines ".ljust(50, "─"),
        "│ a",
        "│ b",
        "─" * 50,
    ]


TRACEBACK = [
    "  3 of 4",
    "Done",  # as the last line of a list in a program's output
    '  File "train.py", line 3, in <module>',
    "    fit()",
    "trainband.errors.ModelError: loss() must return a scalar",
    "--------------------",
    "For simplicity, JAX has removed its internal frames from the traceback of the following exception. Set",
]


def test_the_exception_comes_first_and_jaxs_notice_not_at_all() -> None:
    frame = describe_failure(WORKER1, "exit code 1", TRACEBACK, width=50).splitlines()
    assert frame[:3] == [
        "── worker:1 failed: exit code 1 ".ljust(50, "─"),
        "│ trainband.errors.ModelError: loss() must return a scalar",
        "── its last 5 lines ".ljust(50, "─"),
    ]
    assert frame[3:-1] == [f"│ {line}" for line in TRACEBACK[:5]]
    no_traceback = describe_failure(WORKER1, "exit code 1", TRACEBACK[:2], width=50).splitlines()
    assert no_traceback[0] == "── worker:1 failed: exit code 1 ── its last 2 lines "


class Recorder:
    """An `Output` that keeps what it gets, as another front end would show it."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str, str]] = []
        self.notes: list[str] = []

    def line(self, task: Task, text: str, stream: str = "stdout") -> None:
        self.lines.append((str(task), text, stream))

    def report(self, text: str) -> None:
        self.notes.append(text)

    def watching(self, spec: ClusterSpec) -> AbstractContextManager[None]:
        self.tasks = list(spec.tasks())
        return nullcontext()


def test_another_output_can_take_the_place_of_the_streams() -> None:
    output = Recorder()
    command = ["-c", "import sys; print('hello'); print('oh', file=sys.stderr); sys.exit(5)"]
    request = JobRequest(program=command, environment={}, ps=0, workers=1)
    assert launch(Local(), request, output) == 5
    assert sorted(output.lines) == [("worker:0", "hello", "stdout"), ("worker:0", "oh", "stderr")]
    assert output.notes[0] == "trainband: worker:0 failed (exit code 5)"
    assert output.tasks == [WORKER0]


class Elsewhere:
    """A platform that has run a job without anybody here having seen anything of it."""

    spec = shared_directory = None
    alive: frozenset[Task] = frozenset()
    has_been_joined = True

    def prepare(self, request: JobRequest, watcher: Watcher) -> Elsewhere:
        del watcher
        self.environment = request.environment
        return self

    def __enter__(self) -> Elsewhere:
        return self

    def __exit__(self, *exc: object) -> None: ...

    def wait(self, timeout_s: float | None = None) -> Outcome:
        del timeout_s
        return Outcome(kind="succeeded", exit_code=0)

    def interrupt(self, signal_number: int) -> None: ...

    def last_lines(self, task: Task) -> list[str]:
        raise AssertionError(task)


def test_a_page_that_cannot_be_is_no_secret() -> None:
    output, backend = Recorder(), Elsewhere()
    request = JobRequest(program=["train.py"], environment={}, ps=0, workers=2)
    assert launch(backend, request, output) == 0
    assert (output.notes, dict(backend.environment)) == ([], {})
    assert launch(backend, request, output, page=True) == 0
    assert ["there is no page of this job" in note for note in output.notes] == [True]
    assert dict(backend.environment) == {PAGE: "1"}


def test_quiet_leaves_out_all_that_trainband_says_but_for_warnings() -> None:
    stderr = Terminal(terminal=False)
    output = StreamOutput([WORKER0, WORKER1], stdout=stderr, stderr=stderr, environ={}, quiet=True)
    said = [
        "trainband: where the time went:",
        "    60.0%  computing",
        "Traceback",
        "    mine",
        "trainband: WARNING: look",
    ]
    for line in [*said, "    at this"]:
        output.line(WORKER0, line, "stderr")
        output.line(WORKER1, "    mine", "stderr")
    kept = [line for line in stderr.writes if "worker:0" in line]
    assert [line.strip().partition("] ")[2] for line in kept] == [
        "Traceback",
        "    mine",
        "trainband: WARNING: look",
        "    at this",
    ]
    assert len(stderr.writes) == len(kept) + 6


@pytest.mark.parametrize(
    ("given", "command"),
    [
        (["--tensorflow"], []),
        (["--tensorflow", "2"], ["--tensorflow", "2"]),
        (["--tensorflow=1", "--convert"], ["--tensorflow", "1", "--convert"]),
        (["--workers", "2", "--tensorflow", "1", "--ps", "0"], ["--tensorflow", "1"]),
    ],
)
def test_the_version_of_tensorflow_may_be_left_out(
    given: list[str], command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "2").write_text("")
    started: list[list[str]] = []
    monkeypatch.chdir(tmp_path)

    def start(_backend: object, request: JobRequest, _output: object, **_: object) -> int:
        assert not callable(request.program)
        started.append(list(request.program))
        return 0

    monkeypatch.setattr("trainband.cli.run.launch", start)
    cli.main(["run", *given, "2", "--", "--tensorflow"], standalone_mode=False)  # a script named 2
    assert started == [["-m", "trainband.compat", *command, "2", "--tensorflow"]]


@pytest.mark.parametrize(
    ("given", "environ"),
    [
        ([], {}),
        (["--metrics-port", "9400"], {PORT: "9400+"}),
        (["--metrics-port", "0", "--metrics-host", "0.0.0.0"], {PORT: "0", HOST: "0.0.0.0"}),
    ],
)
def test_tasks_are_told_where_to_serve_metrics(
    given: list[str], environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "train.py"
    script.touch()
    for name in (PORT, HOST):
        monkeypatch.delenv(name, raising=False)
    found: list[dict[str, str]] = []

    def start(_backend: object, request: JobRequest, _output: object, **_: object) -> int:
        found.append({name: value for name, value in request.environment.items() if name in (PORT, HOST)})
        return 0

    monkeypatch.setattr("trainband.cli.run.launch", start)
    cli.main(["run", *given, str(script)], standalone_mode=False)
    assert found == [environ]


def test_an_address_for_metrics_needs_a_port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PORT, raising=False)
    (tmp_path / "train.py").touch()
    with pytest.raises(click.UsageError, match="--metrics-host needs --metrics-port"):
        cli.main(["run", "--metrics-host", "::1", str(tmp_path / "train.py")], standalone_mode=False)


def test_convert_is_for_scripts_of_tensorflow_1() -> None:
    with pytest.raises(click.UsageError, match="add --tensorflow"):
        cli.main(["run", "--convert", "train.py"], standalone_mode=False)
