"""`trainband checkpoint`: what it shows of checkpoints that were really written."""

from __future__ import annotations

import importlib
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import optax
import pytest
from rich.console import Console
from tests.checkpoint import samples
from tests.strategies.regression import batches, init, loss

import trainband
from trainband.checkpoint import CheckpointDirectory, DirectoryLock, Manifest, WorkerEntry, write_part
from trainband.cli.checkpoint.common import age_of
from trainband.cli.main import main
from trainband.runtime.formatting import printable

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoints of a training of 30 steps, at every tenth, the last of which is the best."""
    directory = tmp_path_factory.mktemp("trained")
    data = list(batches(10))
    with trainband.Trainer(
        init=init, loss=loss, optimizer=optax.adam(1e-2), console=False, say=lambda _: None
    ) as trainer:
        trainer.fit(data, steps=30, checkpoint_dir=directory, save_steps=10, validation=data[:2], every=10)
    return directory


@pytest.fixture
def home(tmp_path: Path) -> CheckpointDirectory:
    return CheckpointDirectory(tmp_path, pytest.fail)


def commit(home: CheckpointDirectory, step: int, shift: float = 0.0, **more: Any) -> Path:
    """A checkpoint of two ps and two workers."""
    partial = home.create_partial(step)
    inner = {"passes": 1, "batches": 12000, "beyond": 0, "state": {"value": {"epoch": 3, "examples": 512}}}
    position = json.dumps({"training": 2, "position": json.dumps(inner)})
    workers = {"0": WorkerEntry("worker:0", 4, position), "1": WorkerEntry("worker:1", 3, "")}
    key = samples.rows("workers/0/carry/0", np.array([1, 2], np.uint32))
    manifest = Manifest(
        step,
        samples.CREATED_AT,
        "0.1.0",
        "ParameterServer",
        samples.write_parts(partial, shift),
        workers,
        trainings=(0, 1000),
        worker_part=write_part(partial, "workers.safetensors", ps=0, version=0, pieces=[key]),
    )
    manifest = msgspec.structs.replace(manifest, **more)
    return home.commit(partial, manifest).path


def run(capsys: Capture, *arguments: object) -> tuple[int, str, str]:
    """(exit code, stdout, stderr) of `trainband checkpoint ...`."""
    with pytest.raises(SystemExit) as ended:
        main(["checkpoint", *map(str, arguments)])
    found = capsys.readouterr()
    assert isinstance(ended.value.code, int)
    return ended.value.code, found.out, found.err


def squeezed(text: str) -> list[str]:
    """Lines without the spaces that columns need."""
    return [" ".join(line.split()) for line in text.splitlines()]


# --- ls


def test_ls_of_a_training(trained: Path, capsys: Capture) -> None:
    code, out, err = run(capsys, "ls", trained)
    assert (code, err) == (0, "")
    lines = squeezed(out)
    assert re.fullmatch(rf"{trained}: 3 checkpoints, 5\.\d kB, strategy OneDevice", lines[0])
    assert lines[1].startswith("best: step 30, loss 0.")
    assert lines[2] == "step time ago size files metrics"
    assert re.fullmatch(r"10 \d{4}-\d\d-\d\d \d\d:\d\d \d+ (s|min) 1\.8 kB 1 loss 0\.\d+", lines[3]), out
    assert next(line for line in lines if line.startswith("30 ")).endswith(" best")
    assert lines[-1].endswith(" complete")


def test_ls_json(trained: Path, capsys: Capture) -> None:
    code, out, err = run(capsys, "ls", trained, "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert set(found) == {"directory", "lock", "best", "checkpoints"}
    assert (found["directory"], found["lock"]) == (str(trained), None)
    assert (found["best"]["step"], found["best"]["metric"]) == (30, "loss")
    assert [one["step"] for one in found["checkpoints"]] == [10, 20, 30]
    last = found["checkpoints"][-1]
    assert set(last) == {
        *("step", "path", "damage", "created_at", "nbytes", "files", "strategy", "metrics", "complete", "best")
    }
    assert (last["damage"], last["complete"], last["best"], last["files"]) == (None, True, True, 1)
    assert last["path"] == str(trained / "step-000000000030")
    assert set(last["metrics"]) == {"loss", "worst"}


def test_ls_names_the_damaged_and_goes_on(home: CheckpointDirectory, capsys: Capture) -> None:
    commit(home, 1000)
    (commit(home, 2000) / "ps-1.safetensors").unlink()
    (commit(home, 3000) / "manifest.json").write_text("{}")
    code, out, err = run(capsys, "ls", home.path)
    assert (code, err) == (1, "")
    lines = squeezed(out)
    assert "2,000 damaged" in lines
    assert f"step 2,000 is damaged: {home.path}/step-000000002000/ps-1.safetensors is missing." in out
    assert "step 3,000 is damaged: " in out
    code, out, _ = run(capsys, "ls", home.path, "--json")
    assert code == 1
    assert ["is missing" in (one["damage"] or "") for one in json.loads(out)["checkpoints"]] == [False, True, False]


def test_ls_says_who_writes_there_and_touches_nothing(home: CheckpointDirectory, capsys: Capture) -> None:
    commit(home, 1000)
    with DirectoryLock(home.path, "chief:0"):
        before = {path.name: path.stat().st_mtime_ns for path in home.path.iterdir()}
        code, out, _ = run(capsys, "ls", home.path)
        assert code == 0
        assert re.search(
            rf"^in use by chief:0 \(process {os.getpid()} on \S+\) since .*, renewed \d+ s ago$", out, re.M
        )
        lock = json.loads(run(capsys, "ls", home.path, "--json")[1])["lock"]
        assert (lock["owner"], lock["pid"], lock["expired"]) == ("chief:0", os.getpid(), False)
        assert {path.name: path.stat().st_mtime_ns for path in home.path.iterdir()} == before
        os.utime(home.path / "LOCK", (samples.CREATED_AT, samples.CREATED_AT))
        assert "left locked by chief:0 (process" in run(capsys, "ls", home.path)[1]
    (home.path / "LOCK").write_text("?")
    assert "in use by a job that its lock file does not name, renewed" in run(capsys, "ls", home.path)[1]


def test_ls_of_an_empty_directory(tmp_path: Path, capsys: Capture) -> None:
    assert run(capsys, "ls", tmp_path) == (0, f"{tmp_path}: no checkpoint\n", "")


def test_ls_of_two_strategies_has_a_column_for_them(home: CheckpointDirectory, trained: Path, capsys: Capture) -> None:
    commit(home, 1000)
    (home.path / "step-000000000030").symlink_to(trained / "step-000000000030")
    out = run(capsys, "ls", home.path)[1]
    assert "strategy" in out.splitlines()[1]
    assert "ParameterServer" in out


AGES = [(-5, "0 s"), (59, "59 s"), (60, "1 min"), (3600, "1 h"), (47 * 3600, "47 h"), (48 * 3600, "2 days")]


@pytest.mark.parametrize(("seconds", "words"), AGES)
def test_ages(seconds: float, words: str) -> None:
    assert age_of(seconds) == words


# --- show


def test_show(home: CheckpointDirectory, capsys: Capture) -> None:
    path = commit(home, 2000, metrics={"loss": 0.25})
    code, out, err = run(capsys, "show", path)
    assert (code, err) == (0, "")
    lines = squeezed(out)
    for line in (
        str(path),
        "global step 2,000",
        "metrics loss 0.25",
        "trainings began at global step 0, 1,000",
        "worker:0 4 2 passes 1, batches 12,000, beyond 0, epoch 3, examples 512",
        "worker:1 3 not known",
        "ps-1.safetensors 1 9 4 466 B",
        "params: 2 tensors, 60 values, 240 B",
        "params/hidden/kernel float32[10,6] 240 B ps:0[0:4], ps:1[4:10]",
        "model state: 1 tensor, 3 values, 6 B",
        "model_state/mean bfloat16[3] 6 B ps:1",
        "optimizer state: 1 tensor, 1 value, 4 B",
        "optimizer/0/count int32[] 4 B ps:0, ps:1 (each its own)",
        "workers/0/carry/0 uint32[2] 8 B workers.safetensors",
    ):
        assert line in lines, out


def test_show_of_a_training_and_of_one_of_its_steps(trained: Path, capsys: Capture) -> None:
    assert "global step 30, the training is complete" in run(capsys, "show", trained)[1]
    lines = squeezed(run(capsys, "show", trained, "--step", 20)[1])
    assert "global step 20" in lines
    assert "local 20 1 passes 1, batches 10, beyond 0" in lines
    assert "params/hidden/kernel float32[6,8] 192 B ps:0" in lines


def test_show_json(home: CheckpointDirectory, capsys: Capture) -> None:
    path = commit(home, 2000)
    found = json.loads(run(capsys, "show", path, "--json")[1])
    assert set(found) == {
        *("path", "step", "created_at", "trainband", "strategy", "complete", "nbytes", "metrics", "trainings"),
        *("workers", "sources", "files", "tensors"),
    }
    assert (found["step"], found["trainings"]) == (2000, [0, 1000])
    assert found["workers"][0]["position"]["state"]["value"] == {"epoch": 3, "examples": 512}
    assert found["workers"][1] == {"task": "worker:1", "steps": 3, "training": None, "position": None}
    assert found["files"][2] == {"file": "workers.safetensors", "ps": None, "version": 0, "nbytes": 88}
    kernel = found["tensors"][0]
    assert kernel["places"] == [
        {"file": "ps-0.safetensors", "ps": 0, "start": 0, "stop": 4},
        {"file": "ps-1.safetensors", "ps": 1, "start": 4, "stop": 10},
    ]
    del kernel["places"]
    assert kernel == {"name": "params/hidden/kernel", "dtype": "float32", "shape": [10, 6], "nbytes": 240}


def test_show_skips_what_is_damaged_and_says_so(home: CheckpointDirectory, capsys: Capture) -> None:
    commit(home, 1000)
    (commit(home, 2000) / "ps-1.safetensors").unlink()
    code, out, err = run(capsys, "show", home.path)
    assert code == 0
    assert "global step 1,000" in out
    assert "step-000000002000 is damaged" in err
    code, out, err = run(capsys, "show", home.path, "--step", 2000)
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1


def test_values_of_one_tensor_read_only_its_files(home: CheckpointDirectory, capsys: Capture) -> None:
    path = commit(home, 1000)
    samples.flip(path / "ps-0.safetensors", -1)  # would be noticed
    code, out, err = run(capsys, "show", path, "--values", "model_state/mean")
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "model_state/mean  bfloat16[3]  6 B",
        "min -2, max 3.25, mean 0.916667",
        "[ 1.5  -2.    3.25]",
    ]
    found = json.loads(run(capsys, "show", path, "--values", "model_state/mean", "--json")[1])
    assert found == {
        **{"name": "model_state/mean", "dtype": "bfloat16", "shape": [3], "nan": 0, "infinite": 0},
        **{"min": -2.0, "max": 3.25, "mean": pytest.approx(11 / 12)},
    }


VALUES: list[tuple[Any, str]] = [
    (np.array([np.nan, 1.0, np.inf]), "min 1, max 1, mean 1\n1 NaN and 1 infinite of 3 values\n[nan  1. inf]"),
    (np.zeros((0, 2), np.float32), "no finite value\n[]"),
    (np.array(2**53 + 1), "min 9,007,199,254,740,993, max 9,007,199,254,740,993, mean 9.0072e+15\n9007199254740993"),
    (np.array([3 + 4j], np.complex64), "min 5, max 5\n[3.+4.j]"),
    (np.array([True, False]), "min 0, max 1, mean 0.5\n[ True False]"),
]


@pytest.mark.parametrize(("values", "words"), VALUES, ids=range(len(VALUES)))
def test_values(home: CheckpointDirectory, capsys: Capture, values: Any, words: str) -> None:
    partial = home.create_partial(1)
    part = write_part(partial, "ps-0", ps=0, version=1, pieces=[samples.rows("params/w", values)])
    home.commit(partial, samples.manifest((part,), 1))
    code, out, _ = run(capsys, "show", home.path, "--values", "params/w")
    assert (code, out.split("\n", 1)[1]) == (0, words + "\n")


def test_values_that_every_ps_has_of_its_own(home: CheckpointDirectory, capsys: Capture) -> None:
    out = run(capsys, "show", commit(home, 1), "--values", "optimizer/0/count")[1]
    assert "this is ps:0's; ps:1 has its own" in out
    assert out.endswith("\n7\n")


# --- verify


@pytest.mark.smoke
def test_verify(trained: Path, capsys: Capture) -> None:
    code, out, err = run(capsys, "verify", trained)
    assert (code, err) == (0, "")
    assert squeezed(out) == [
        str(trained / "step-000000000030"),
        "part-00000-of-00001.safetensors 1.8 kB ok",
        "the checkpoint is sound",
    ]
    code, out, _ = run(capsys, "verify", trained, "--all")
    assert (code, out.splitlines()[-1]) == (0, "all 3 checkpoints are sound")
    assert str(trained / "step-000000000010") in run(capsys, "verify", trained, "--step", 10)[1]


def test_verify_tells_of_every_file(home: CheckpointDirectory, capsys: Capture) -> None:
    commit(home, 1000)
    altered = commit(home, 2000)
    samples.flip(altered / "ps-1.safetensors", -1)
    (altered / "ps-0.safetensors").unlink()
    (commit(home, 3000) / "manifest.json").write_text("{")
    code, out, err = run(capsys, "verify", home.path, "--all")
    assert (code, err) == (1, "")
    lines = squeezed(out)
    at = lines.index(str(altered))
    assert lines[at + 1] == "ps-0.safetensors 260 B damaged"
    assert "ps-0.safetensors is missing." in lines[at + 2]
    assert "ps-1.safetensors 466 B damaged" in lines[at + 3 :]
    assert "has altered bytes in model_state/mean" in out
    assert "workers.safetensors 88 B ok" in lines[at + 3 :]
    assert "is not a checkpoint's manifest" in out
    assert lines[-1] == "2 of 3 checkpoints are damaged"


def test_verify_notices_a_manifest_of_another_step(home: CheckpointDirectory, capsys: Capture) -> None:
    commit(home, 1000).rename(home.path / "step-000000000999")
    code, out, _ = run(capsys, "verify", home.path)
    assert (code, out.count(" ok\n")) == (1, 3)
    assert "has global step 1,000" in out
    assert out.endswith("the checkpoint is damaged\n")


# --- diff


def test_diff(home: CheckpointDirectory, capsys: Capture) -> None:
    first, second = commit(home, 1000), commit(home, 2000, shift=1.0)
    code, out, err = run(capsys, "diff", first, second)
    assert (code, err) == (1, "")
    lines = squeezed(out)
    assert lines[:2] == [f"A: {first} (global step 1,000)", f"B: {second} (global step 2,000)"]
    assert "params/hidden/kernel float32[10,6] 1 0.0292 differs" in lines
    assert "model_state/mean bfloat16[3] identical" in lines
    assert lines[-1] == "5 tensors: 1 different, 4 bit-identical"
    assert run(capsys, "diff", home.path, "--steps", 1000, 2000) == (1, out, "")
    code, out, _ = run(capsys, "diff", first, second, "--atol", "1")
    assert (code, squeezed(out)[-1]) == (0, "5 tensors: 1 within the tolerance, 4 bit-identical")


def test_diff_of_the_same(home: CheckpointDirectory, capsys: Capture) -> None:
    commit(home, 1000), commit(home, 2000)
    code, out, _ = run(capsys, "diff", home.path, "--steps", 1000, 2000)
    assert (code, out.splitlines()[2:]) == (0, ["bit-identical: 5 tensors"])


def test_diff_of_two_models(home: CheckpointDirectory, trained: Path, capsys: Capture) -> None:
    code, out, _ = run(capsys, "diff", trained, commit(home, 1000), "--params-only")
    assert code == 1
    lines = squeezed(out)
    assert "params/hidden/kernel float32[6,8] float32[10,6]" in lines
    assert "params/hidden/empty - float32[0,3]" in lines
    assert lines[-1] == "6 tensors: 6 cannot be compared"


def test_diff_of_a_training(trained: Path, capsys: Capture) -> None:
    code, out, _ = run(capsys, "diff", trained, "--steps", 10, 30)
    assert code == 1
    assert "optimizer/0/count int32[] 20 2 differs" in squeezed(out)
    assert out.splitlines()[-1] == "13 tensors: 13 different"


# --- export


def test_export(trained: Path, tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "model.npz"
    code, text, err = run(capsys, "export", trained, "--step", 20, "--to", "npz", out)
    assert (code, err) == (0, "")
    assert re.fullmatch(rf"exported global step 20 to {out}: 13 tensors, \d\.\d kB\n", text)
    with np.load(out) as found:
        assert (found["step"], found["optimizer/0/count"]) == (20, 20)
    assert run(capsys, "export", trained, "--to", "npz", out)[0] == 2
    assert "4 tensors" in run(capsys, "export", trained, "--to", "npz", out, "--force", "--params-only")[1]


def test_export_says_what_became_float32(home: CheckpointDirectory, tmp_path: Path, capsys: Capture) -> None:
    out = run(capsys, "export", commit(home, 1), "--to", "npz", tmp_path / "out")[1]
    assert out.splitlines()[1] == "1 tensor became float32, because NumPy's format has no bfloat16"


RESTORE = """
import sys
import orbax.checkpoint
found = orbax.checkpoint.StandardCheckpointer().restore(sys.argv[1])
assert not any(name.startswith("trainband") for name in sys.modules)
print(found["step"], found["params"]["hidden"]["kernel"].sum(), found["optimizer"]["0"]["count"])
"""


def test_plain_orbax_restores_what_was_trained(trained: Path, tmp_path: Path) -> None:
    pytest.importorskip("orbax.checkpoint")
    out = tmp_path / "orbax"
    environ = {name: value for name, value in os.environ.items() if name != "JAX_PLATFORMS"}
    asked = "import os, sys\nfrom trainband.cli.main import main\ntry:\n    main(sys.argv[1:])\nexcept SystemExit:\n"
    asked += "    import jax\n    print(os.environ['JAX_PLATFORMS'], jax.default_backend())"
    arguments = ["checkpoint", "export", str(trained), "--to", "orbax", str(out)]
    done = python(asked, *arguments, environ=environ)
    assert done[-1] == "cpu cpu"  # no accelerator was taken
    (said,) = python(RESTORE, str(out), environ={**environ, "JAX_PLATFORMS": "cpu"})
    kernel = trainband_kernel(trained)
    assert said.split()[0::2] == ["30", "30"]
    assert float(said.split()[1]) == pytest.approx(float(kernel.sum()), rel=1e-5)


def trainband_kernel(trained: Path) -> Any:
    from trainband.checkpoint import Checkpoint

    return Checkpoint.open(trained / "step-000000000030").read("params/hidden/kernel")


def python(program: str, *arguments: str, environ: dict[str, str]) -> list[str]:
    """The lines that a fresh process prints."""
    done = subprocess.run(
        [sys.executable, "-W", "error::RuntimeWarning", "-c", program, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=environ,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


# --- all of them


WITHOUT_JAX = """
import os, sys
from trainband.cli.main import main
trained, out = sys.argv[1:]
for arguments in (
    ["ls", trained],
    ["show", trained],
    ["show", trained, "--values", "params/out/bias"],
    ["verify", trained, "--all"],
    ["diff", trained, "--steps", "10", "30"],
    ["export", trained, "--to", "npz", out + ".npz"],
    ["export", trained, "--to", "safetensors", out + ".safetensors"],
):
    try:
        main(["checkpoint", *arguments])
    except SystemExit as ended:
        assert ended.code == (arguments[0] == "diff"), (arguments, ended)
print(sorted({name.partition(".")[0] for name in sys.modules} & {"jax", "jaxlib", "optax", "orbax", "pyarrow"}))
"""


def test_nothing_but_orbax_needs_jax(trained: Path, tmp_path: Path) -> None:
    assert python(WITHOUT_JAX, str(trained), str(tmp_path / "out"), environ=dict(os.environ))[-1] == "[]"


ERRORS: list[tuple[list[str], str]] = [
    # `@` is a training's directory, `#` an empty one
    (["ls", "#/none"], "there is no directory #/none."),
    (["ls", "@/step-000000000030"], "is one checkpoint; list @"),
    (["show", "#"], "there is no checkpoint in #."),
    (["show", "@", "--step", "11"], "no checkpoint of global step 11 in @; it has 10, 20, 30."),
    (["show", "@/step-000000000030", "--step", "30"], "--step is for a directory of several"),
    (["show", "@", "--values", "params/hidden/kernal"], "(but params/hidden/kernel)"),
    (["verify", "#"], "there is no checkpoint in #."),
    (["verify", "@", "--all", "--step", "10"], "leave --step out"),
    (["diff", "@", "--steps", "10", "11"], "no checkpoint of global step 11"),
    (["diff", "@", "#"], "there is no checkpoint in #."),
    (["export", "@", "--to", "npz", "#/none/out"], "cannot write out: there is no directory #/none; create it first"),
    (["export", "@", "--to", "npz", "@"], "@ already exists"),
]


@pytest.mark.parametrize(("arguments", "words"), ERRORS, ids=[" ".join(one[0]) for one in ERRORS])
def test_errors_are_one_line(trained: Path, tmp_path: Path, capsys: Capture, arguments: list[str], words: str) -> None:
    def real(text: str) -> str:
        return text.replace("@", str(trained)).replace("#", str(tmp_path))

    code, out, err = run(capsys, *map(real, arguments))
    assert (code, out) == (2, "")
    (line,) = err.splitlines()
    assert line.startswith("error: ")
    assert real(words) in line


@pytest.mark.parametrize("arguments", [["diff", "a"], ["diff", "a", "b", "--steps", "1", "2"], ["diff"]])
def test_diff_wants_two(capsys: Capture, arguments: list[str]) -> None:
    code, _, err = run(capsys, *arguments)
    assert code == 2
    assert "Usage: " in err


@pytest.mark.parametrize("width", [80, 120])
def test_it_is_readable_on_a_terminal(
    home: CheckpointDirectory, capsys: Capture, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    metrics = {"loss": 0.123456, "validation_accuracy": 0.987654}
    commit(home, 1_000_000, metrics=metrics)
    commit(home, 2_000_000, shift=1.0, metrics=metrics, complete=True)
    home.mark_best(2_000_000, "loss", 0.123456)
    output = io.StringIO()
    console = Console(file=output, width=width, markup=False, emoji=False, highlight=False)
    for command in ("ls", "show", "diff"):
        module = importlib.import_module(f"trainband.cli.checkpoint.{command}")
        monkeypatch.setattr(module, "console_for_people", lambda: console)
    for arguments in (["ls", home.path], ["show", home.path], ["diff", home.path, "--steps", 1_000_000, 2_000_000]):
        run(capsys, *arguments)
    text = output.getvalue()
    tables = [line for line in text.splitlines() if str(home.path) not in line]
    assert max(map(len, tables)) <= width
    lines = squeezed(text)
    assert any(re.fullmatch(r"1,000,000 \S+ \S+ \d+ days 814 B 3 loss 0.1235", line) for line in lines), text
    assert "params/hidden/kernel float32[10,6] 240 B ps:0[0:4], ps:1[4:10]" in lines
    assert "params/hidden/kernel float32[10,6] 1 0.0292 differs" in lines


HOSTILE = "\x1b[2J[red]x[/red]\u202e\n\x9b"


def test_a_strangers_checkpoint_tells_the_terminal_nothing(home: CheckpointDirectory, capsys: Capture) -> None:
    deep = json.dumps({"training": 1, "position": "[" * 900 + "]" * 900})
    path = commit(
        home,
        7,
        strategy=HOSTILE,
        trainband=HOSTILE,
        metrics={HOSTILE: 1.0},
        sources={HOSTILE: HOSTILE, "huge": "1" + "0" * 400},
        workers={HOSTILE: WorkerEntry(HOSTILE, 4, HOSTILE), "1": WorkerEntry("worker:1", 1, deep)},
    )
    home.mark_best(7, HOSTILE, 1.0)
    holder = {"owner": HOSTILE, "host": HOSTILE, "pid": 1, "process_start": 0, "machine": "", "acquired_at": 1.0}
    (home.path / "LOCK").write_text(json.dumps({**holder, "lease_s": 1e9, "token": "a"}))
    (home.path / "step-000000000009").mkdir()
    (home.path / "step-000000000009" / "manifest.json").write_text(json.dumps({"format": 2, "trainband": HOSTILE}))
    for arguments in (["ls", home.path], ["ls", home.path, "--json"], ["show", path], ["show", path, "--json"]):
        _, out, err = run(capsys, *arguments)
        assert printable(out + err, newline="\n") == out + err
        assert "[red]x[/red]" in out


def test_what_is_no_file_makes_no_command_wait(home: CheckpointDirectory, capsys: Capture) -> None:
    path = commit(home, 7)
    for name in ("manifest.json", "LOCK", "best.json"):
        where = (path if name == "manifest.json" else home.path) / name
        where.unlink(missing_ok=True)
        os.mkfifo(where)
    for command, code in (("ls", 1), ("show", 2), ("verify", 1)):
        assert run(capsys, command, home.path)[0] == code
