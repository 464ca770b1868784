"""Checkpoints in other formats, read back by those formats' own libraries."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors import safe_open
from tests.checkpoint import samples

from trainband.checkpoint import DTYPES, Checkpoint, CheckpointDirectory, write_part
from trainband.checkpoint.export import FORMATS, Exported, export, nested
from trainband.errors import CheckpointError, DamagedCheckpoint, YourError

FILES = [name for name in FORMATS if name != "orbax"]

EVERY_DTYPE = {f"params/{name}": np.array([[0, 1, 2]]).astype(dtype) for name, dtype in DTYPES.items()}


@pytest.fixture
def home(tmp_path: Path) -> CheckpointDirectory:
    return CheckpointDirectory(tmp_path / "checkpoints", pytest.fail)


@pytest.fixture
def sample(home: CheckpointDirectory) -> Checkpoint:
    """Two ps: a tensor in two files, an empty one, bfloat16, and one that each ps has its own of."""
    return Checkpoint.open(samples.commit(home, 7))


def holding(home: CheckpointDirectory, tensors: dict[str, NDArray[Any]]) -> Checkpoint:
    partial = home.create_partial(7)
    pieces = [samples.rows(name, values) for name, values in tensors.items()]
    return home.commit(partial, samples.manifest((write_part(partial, "ps-0", ps=0, version=7, pieces=pieces),)))


def same(found: NDArray[Any], wanted: NDArray[Any]) -> bool:
    return (found.dtype, found.shape, found.tobytes()) == (wanted.dtype, wanted.shape, wanted.tobytes())


def test_safetensors_holds_every_tensor_by_its_name(sample: Checkpoint, tmp_path: Path) -> None:
    out = tmp_path / "model.safetensors"
    done = export(sample, out, "safetensors")
    assert done == Exported(out, out.stat().st_size, 4, ())
    with safe_open(out, "np") as file:  # the library checks the header strictly
        assert set(file.keys()) == set(sample.manifest.tensors)
        assert file.metadata() == {"global_step": "7", "strategy": "ParameterServer", "trainband": "0.1.0"}
        assert same(file.get_tensor("params/hidden/kernel"), samples.KERNEL)
        assert same(file.get_tensor("params/hidden/empty"), samples.EMPTY)
        assert same(file.get_tensor("optimizer/0/count"), samples.STEPS)  # ps:0's


def test_safetensors_takes_every_dtype(home: CheckpointDirectory, tmp_path: Path) -> None:
    export(holding(home, EVERY_DTYPE), tmp_path / "out", "safetensors")
    data = (tmp_path / "out").read_bytes()
    assert (8 + int.from_bytes(data[:8], "little")) % 8 == 0
    native = {name: x for name, x in EVERY_DTYPE.items() if x.dtype.isbuiltin == 1}
    with safe_open(tmp_path / "out", "np") as file:
        assert set(file.keys()) == set(EVERY_DTYPE)
        for name, values in native.items():
            assert same(file.get_tensor(name), values)
    widest_first = sorted(EVERY_DTYPE, key=lambda name: (-EVERY_DTYPE[name].itemsize, name))
    assert data.endswith(b"".join(EVERY_DTYPE[name].tobytes() for name in widest_first))


def test_npz_says_what_became_float32(home: CheckpointDirectory, tmp_path: Path) -> None:
    done = export(holding(home, EVERY_DTYPE), tmp_path / "out.npz", "npz")
    foreign = {name for name, x in EVERY_DTYPE.items() if x.dtype.isbuiltin != 1}
    assert {piece.tensor for piece in done.widened} == foreign
    with np.load(tmp_path / "out.npz", allow_pickle=False) as found:
        assert set(found) == {*EVERY_DTYPE, "step"}
        assert same(found["step"], np.array(7, np.int64))
        for name, values in EVERY_DTYPE.items():
            assert same(found[name], values.astype(np.float32) if name in foreign else values)


def test_npz_of_rows_in_two_files(sample: Checkpoint, tmp_path: Path) -> None:
    export(sample, tmp_path / "out", "npz")  # no .npz is added
    with np.load(tmp_path / "out") as found:
        assert same(found["params/hidden/kernel"], samples.KERNEL)
        assert same(found["params/hidden/empty"], samples.EMPTY)
        assert same(found["model_state/mean"], samples.HALF.astype(np.float32))


PLAIN_ORBAX = """
import sys
import numpy as np
import orbax.checkpoint
found = orbax.checkpoint.StandardCheckpointer().restore(sys.argv[1])
assert not any(name.startswith("trainband") for name in sys.modules)
assert found["step"] == 7, found
kernel = found["params"]["hidden"]["kernel"]
assert (kernel.dtype, kernel.shape) == (np.float32, (10, 6)), kernel
assert (np.asarray(kernel) == np.arange(60).reshape(10, 6)).all()
mean = found["model_state"]["mean"]
assert (str(mean.dtype), np.asarray(mean, np.float32).tolist()) == ("bfloat16", [1.5, -2.0, 3.25])
print(*sorted(found), int(found["optimizer"]["0"]["count"]) if "optimizer" in found else "")
"""


@pytest.mark.parametrize(("optimizer", "said"), [(True, "model_state optimizer params step 7"), (False, None)])
def test_plain_orbax_restores_it(home: CheckpointDirectory, tmp_path: Path, optimizer: bool, said: str | None) -> None:
    pytest.importorskip("orbax.checkpoint")
    one = holding(
        home,
        {
            "params/hidden/kernel": samples.KERNEL,
            "model_state/mean": samples.HALF,
            "optimizer/0/count": samples.STEPS,
            "workers/0/carry/0": samples.STEPS,
        },
    )
    out = tmp_path / "orbax"
    assert export(one, out, "orbax", optimizer=optimizer).nbytes > samples.KERNEL.nbytes
    done = subprocess.run(
        [sys.executable, "-c", PLAIN_ORBAX, str(out)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": ""},
    )
    assert (done.returncode, done.stdout.strip()) == (0, said or "model_state params step"), done.stderr
    assert sorted(tmp_path.iterdir()) == [tmp_path / "checkpoints", out]


def test_orbax_stores_no_empty_arrays(sample: Checkpoint, tmp_path: Path) -> None:
    pytest.importorskip("orbax.checkpoint")
    with pytest.raises(CheckpointError, match=r"cannot store params/hidden/empty float32\[0,3\]"):
        export(sample, tmp_path / "out", "orbax")


def test_without_orbax_the_extra_is_named(sample: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "orbax.checkpoint", None)
    with pytest.raises(YourError, match=r"pip install 'trainband\[orbax\]'"):
        export(sample, tmp_path / "out", "orbax")
    assert not (tmp_path / "out").exists()


def test_a_tree_of_dicts() -> None:
    one, two = np.array(1), np.array(2)
    assert nested({"a/b": one, "a/c/d": two}) == {"a": {"b": one, "c": {"d": two}}}
    for names in (("a", "a/b"), ("a/b", "a"), ("a/b", "a/b/c/d")):
        with pytest.raises(CheckpointError, match="overlaps another tensor's"):
            nested(dict.fromkeys(names, one))


@pytest.mark.parametrize("to", FILES)
def test_what_is_of_the_workers_or_the_optimizer(home: CheckpointDirectory, tmp_path: Path, to: str) -> None:
    x = np.ones(2, np.float32)
    one = holding(home, {"workers/0/carry/0": x, "model_state": x, "optimizer/0/count": x, "params/w": x})
    assert export(one, tmp_path / "all", to).tensors == 3
    assert export(one, tmp_path / "some", to, optimizer=False).tensors == 2
    only = holding(home, {"workers/0/carry/0": x})
    with pytest.raises(YourError, match="nothing to export under params"):
        export(only, tmp_path / "none", to)


@pytest.mark.parametrize("to", FILES)
def test_a_file_is_replaced_only_by_force(sample: Checkpoint, tmp_path: Path, to: str) -> None:
    out = tmp_path / "out"
    out.write_text("mine")
    with pytest.raises(YourError, match=f"{out} already exists"):
        export(sample, out, to)
    assert out.read_text() == "mine"
    assert export(sample, out, to, force=True).nbytes == out.stat().st_size > 100


@pytest.mark.parametrize("to", FORMATS)
def test_force_does_not_cost_a_directory(sample: Checkpoint, tmp_path: Path, to: str) -> None:
    (tmp_path / "out").mkdir()
    with pytest.raises(YourError, match="write to another path"):
        export(sample, tmp_path / "out", to, force=True)
    assert (tmp_path / "out").is_dir()


def test_orbax_is_replaced_by_orbax(home: CheckpointDirectory, tmp_path: Path) -> None:
    pytest.importorskip("orbax.checkpoint")
    one = holding(home, {"params/w": np.ones(3, np.float32)})
    out = tmp_path / "out"
    export(one, out, "orbax")
    (out / "extra").touch()
    with pytest.raises(YourError, match="already exists"):
        export(one, out, "orbax")
    export(one, out, "orbax", force=True)
    assert not (out / "extra").exists()
    assert sorted(tmp_path.iterdir()) == [tmp_path / "checkpoints", out]


def test_no_file_appears_in_the_checkpoint_itself(sample: Checkpoint) -> None:
    with pytest.raises(YourError, match="inside the checkpoint"):
        export(sample, sample.path / "model.npz", "npz")


def test_no_directory_is_made_on_the_way(sample: Checkpoint, tmp_path: Path) -> None:
    with pytest.raises(YourError, match=f"no directory {tmp_path / 'none'}"):
        export(sample, tmp_path / "none" / "model.npz", "npz")


@pytest.mark.parametrize("to", FILES)
def test_damage_leaves_nothing(sample: Checkpoint, tmp_path: Path, to: str) -> None:
    samples.flip(sample.path / "ps-1.safetensors", -1)
    out = tmp_path / "out"
    out.write_text("mine")
    with pytest.raises(DamagedCheckpoint, match="model_state/mean"):
        export(sample, out, to, force=True)
    assert out.read_text() == "mine"
    assert sorted(tmp_path.iterdir()) == [tmp_path / "checkpoints", out]


def test_a_range_of_rows_is_in_memory_at_a_time(home: CheckpointDirectory, tmp_path: Path) -> None:
    """Rows of one tensor in two files are read one range after the other, and each once."""
    one = Checkpoint.open(samples.commit(home, 7))
    asked: list[tuple[int, int | None]] = []
    read = one.read

    def reading(tensor: str, start: int = 0, stop: int | None = None, prefer_ps: int | None = None) -> NDArray[Any]:
        if tensor == "params/hidden/kernel":
            asked.append((start, stop))
        return read(tensor, start, stop, prefer_ps)

    one.read = reading  # type: ignore[method-assign]
    export(one, tmp_path / "out", "safetensors")
    assert asked == [(0, 4), (4, 10)]
    assert same(load_file_of(tmp_path / "out", "params/hidden/kernel"), samples.KERNEL)


def load_file_of(path: Path, tensor: str) -> NDArray[Any]:
    with safe_open(path, "np") as file:
        return np.asarray(file.get_tensor(tensor))
