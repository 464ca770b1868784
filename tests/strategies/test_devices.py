"""Devices: which one a task computes on, and what it says when it cannot have what was wanted."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import pytest

from trainband.errors import ClusterError
from trainband.strategies.devices import choose_device, on_device, reserve_gpu
from trainband.strategies.mesh_strategy import MeshStrategy
from trainband.strategies.mirrored import Mirrored, choose_devices
from trainband.strategies.model_parallel import ModelParallel


@dataclass(frozen=True)
class Device:
    """As much of a device as the choice needs."""

    platform: str
    number: int
    device_kind: str = "a kind"


CPU = Device("cpu", 0)
GPUS = [Device("gpu", i) for i in range(2)]
WITHOUT, WITH = {"cpu": [CPU]}, {"gpu": GPUS, "cpu": [CPU]}

CHOICES: list[tuple[dict[str, list[Device]], str | None, int, Device, str]] = [
    # what the machine has, what is wanted, the how-manieth task -> device, words
    (WITHOUT, None, 0, CPU, "worker:3 computes on the CPU: JAX sees no accelerator"),
    (WITHOUT, "cpu", 0, CPU, ""),
    (WITHOUT, "cpu:0", 5, CPU, ""),
    (WITHOUT, "gpu", 0, CPU, "worker:3 computes on the CPU: there is no device gpu"),
    (WITHOUT, "gpu:1", 0, CPU, "there is no device gpu:1"),
    (WITHOUT, "tpu", 0, CPU, "there is no device tpu"),
    (WITH, None, 0, GPUS[0], ""),
    (WITH, None, 1, GPUS[1], ""),
    (WITH, None, 2, GPUS[0], ""),  # more tasks than devices
    (WITH, "gpu", 3, GPUS[1], ""),
    (WITH, "gpu:0", 3, GPUS[0], ""),  # a number is a wish of its own
    (WITH, "gpu:2", 0, CPU, "there is no device gpu:2"),
    (WITH, "/gpu:1", 0, GPUS[1], ""),  # as TensorFlow calls them
    (WITH, "GPU:1", 0, GPUS[1], ""),
    (WITH, "/device:GPU:1", 0, GPUS[1], ""),
    (WITH, "cpu", 1, CPU, ""),
]


@pytest.mark.parametrize(("machine", "wanted", "index", "device", "words"), CHOICES, ids=range(len(CHOICES)))
def test_the_choice(
    machine: dict[str, list[Device]],
    wanted: str | None,
    index: int,
    device: Device,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _fake(machine, monkeypatch)
    said: list[str] = []
    assert choose_device(wanted, index, "worker:3", said.append) == device
    assert len(said) == bool(words)
    assert words in "".join(said)


def _fake(machine: dict[str, list[Device]], monkeypatch: pytest.MonkeyPatch) -> None:
    def local_devices(backend: str | None = None) -> list[Device]:
        if backend is None:
            return next(iter(machine.values()))
        if backend not in machine:
            raise RuntimeError(f"Unknown backend {backend}")
        return machine[backend]

    monkeypatch.setattr(jax, "local_devices", local_devices)


STRICT: list[tuple[dict[str, list[Device]], str, str]] = [
    (WITHOUT, "gpu", "cpu:0"),
    (WITHOUT, "gpu:1", "cpu:0"),
    (WITH, "gpu:2", "gpu:0, gpu:1, cpu:0"),
    (WITH, "tpu", "gpu:0, gpu:1, cpu:0"),
    ({"gpu": GPUS}, "cpu", "gpu:0, gpu:1"),  # JAX_PLATFORMS=cuda
]


@pytest.mark.parametrize(("machine", "wanted", "there"), STRICT)
def test_the_cpu_does_not_do_for_who_is_strict(
    machine: dict[str, list[Device]], wanted: str, there: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _fake(machine, monkeypatch)
    message = rf"^worker:3 should compute on {wanted}, but JAX sees only {there}; with strict=False"
    with pytest.raises(ClusterError, match=message):
        choose_device(wanted, 0, "worker:3", pytest.fail, strict=True)


@pytest.mark.parametrize(("machine", "wanted", "index", "device", "words"), CHOICES, ids=range(len(CHOICES)))
def test_strict_changes_nothing_where_there_is_what_was_wanted(
    machine: dict[str, list[Device]],
    wanted: str | None,
    index: int,
    device: Device,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if "there is no device" in words:
        return
    _fake(machine, monkeypatch)
    said: list[str] = []
    assert choose_device(wanted, index, "worker:3", said.append, strict=True) == device
    assert words in "".join(said)


@pytest.fixture
def jax_that_has_not_started(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """JAX as it is before its backends start, on a machine where nothing was said of platforms."""
    from jax._src import xla_bridge

    monkeypatch.setattr(xla_bridge, "backends_are_initialized", lambda: False)
    before = dict(jax.config.values)
    jax.config.update("jax_platforms", None)
    yield
    for name in ("jax_platforms", "jax_cuda_visible_devices", "jax_rocm_visible_devices"):
        jax.config.update(name, before[name])


def _visible() -> list[str]:
    return [jax.config.values[f"jax_{kind}_visible_devices"] for kind in ("cuda", "rocm")]


@pytest.fixture
def four_gpus(tmp_path: Path) -> Path:
    for i in range(4):
        (tmp_path / f"proc/driver/nvidia/gpus/0000:0{i}:00.0").mkdir(parents=True)
        (tmp_path / f"dev/nvidia{i}").mkdir(parents=True)
    return tmp_path


# which training task, the environment, what is wanted -> the GPU, of how many
TAKEN: list[tuple[int, dict[str, str], str | None, str, int]] = [
    (0, {}, None, "0", 4),
    (3, {}, None, "3", 4),
    (5, {}, "gpu", "1", 4),  # more tasks than GPUs
    (1, {"CUDA_VISIBLE_DEVICES": "3,2"}, "cuda", "1", 2),  # JAX counts what CUDA shows it
    (1, {"JAX_CUDA_VISIBLE_DEVICES": "all"}, None, "1", 4),
]


@pytest.mark.usefixtures("jax_that_has_not_started")
@pytest.mark.parametrize(("index", "environ", "wanted", "gpu", "gpus"), TAKEN)
def test_a_task_takes_one_card_alone(
    index: int, environ: dict[str, str], wanted: str | None, gpu: str, gpus: int, four_gpus: Path
) -> None:
    assert reserve_gpu(index, environ, wanted=wanted, root=four_gpus) == f"takes GPU {gpu} of {gpus}"
    assert _visible() == [gpu, gpu]
    assert reserve_gpu(index, environ, wanted=wanted, root=four_gpus) is None, "it has taken one"


# the environment, JAX's options, what is wanted
LEFT: list[tuple[dict[str, str], dict[str, str], str | None]] = [
    ({"CUDA_VISIBLE_DEVICES": "2"}, {}, None),  # one GPU
    ({"CUDA_VISIBLE_DEVICES": ""}, {}, None),  # none
    ({"JAX_CUDA_VISIBLE_DEVICES": "0,1"}, {}, None),
    ({}, {"jax_cuda_visible_devices": "0,1"}, None),
    ({}, {"jax_platforms": "cpu"}, None),
    ({}, {}, "cpu"),
    ({}, {}, "gpu:1"),
]


@pytest.mark.usefixtures("jax_that_has_not_started")
@pytest.mark.parametrize(("environ", "options", "wanted"), LEFT)
def test_the_users_word_on_gpus_stands(
    environ: dict[str, str], options: dict[str, str], wanted: str | None, four_gpus: Path
) -> None:
    for name, value in options.items():
        jax.config.update(name, value)
    before = _visible()
    assert reserve_gpu(0, environ, wanted=wanted, root=four_gpus) is None
    assert _visible() == before


def test_a_jax_that_has_started_keeps_its_devices(four_gpus: Path) -> None:
    jax.devices()
    platforms = jax.config.values["jax_platforms"]
    jax.config.update("jax_platforms", None)
    try:
        assert reserve_gpu(0, {}, root=four_gpus) is None
    finally:
        jax.config.update("jax_platforms", platforms)
    assert _visible() == ["all", "all"]


@pytest.mark.parametrize("wanted", ["gpu:", "gpu:x", "gpu:-1", "gpu:1:2", ":", "gpu: 1"])
def test_a_device_that_does_not_read_as_one(wanted: str) -> None:
    with pytest.raises(ClusterError, match="device must have the form cpu, gpu or gpu:1, got"):
        choose_device(wanted, 0, "worker:0", pytest.fail)


def test_the_first_device_needs_no_context() -> None:
    device = jax.local_devices()[0]
    with on_device(device):
        assert jax.numpy.ones(3).device == device


def test_a_device_may_be_given_itself() -> None:
    cpu = jax.devices("cpu")[0]
    assert choose_device(cpu, 3, "worker:0", pytest.fail) is cpu
    assert choose_devices([cpu], pytest.fail, strict=True) == [cpu]
    assert choose_devices(cpu, pytest.fail, strict=True) == [cpu]
    assert choose_devices(iter([cpu]), pytest.fail, strict=True) == [cpu]
    with pytest.raises(ClusterError, match=r"gpu:1, or be one of jax\.devices"):
        choose_device(0, 0, "worker:0", pytest.fail)


def test_a_number_names_no_devices() -> None:
    with pytest.raises(ClusterError, match=r"Mirrored: devices must name them, such as \['gpu:0', 'gpu:1'\], .* got 4"):
        Mirrored(4)


# what the machine has, what is wanted -> devices, words
SEVERAL: list[tuple[dict[str, list[Device]], list[str], list[Device], str]] = [
    (WITH, ["gpu:0", "gpu:1"], GPUS, "this process computes on gpu:0, gpu:1"),
    (WITH, ["gpu:0", "gpu:2"], GPUS[:1], "computes on .* only: there is no gpu:2"),
    (WITHOUT, ["gpu:0", "gpu:1"], [CPU], "this process computes on the CPU: there is no device gpu:0, gpu:1"),
]


@pytest.mark.parametrize(("machine", "wanted", "devices", "words"), SEVERAL, ids=range(len(SEVERAL)))
def test_several_devices_some_of_which_are_not_there(
    machine: dict[str, list[Device]],
    wanted: list[str],
    devices: list[Device],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _fake(machine, monkeypatch)
    said: list[str] = []
    assert choose_devices(wanted, said.append, strict=False) == devices
    (line,) = said
    assert re.search(words, line)
    if "there is no" in words:
        with pytest.raises(ClusterError, match="but JAX sees only"):
            choose_devices(wanted, pytest.fail, strict=True)
    with pytest.raises(ClusterError, match="name each device once"):
        choose_devices(["cpu", "cpu"], pytest.fail, strict=False)


@pytest.mark.parametrize(
    ("machine", "wanted", "words"),
    [
        (WITHOUT, None, "this process computes on the CPU: JAX sees no accelerator"),
        (WITH, None, "this process computes on gpu:0, gpu:1"),
        (WITH, ["gpu:1"], "this process computes on gpu:1"),
        ({"tpu": [Device("tpu", i) for i in range(8)]}, "tpu", "this process computes on 8 devices, tpu:0 to tpu:7"),
    ],
)
def test_mirrored_says_what_it_computes_on(
    machine: dict[str, list[Device]], wanted: Any, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _fake(machine, monkeypatch)
    said: list[str] = []
    choose_devices(wanted, said.append, strict=False)
    assert said == [words]


@pytest.mark.parametrize(
    "strategy",
    [
        lambda devices: Mirrored(devices),
        lambda devices: ModelParallel({"data": -1}, [], devices=devices),
    ],
    ids=["Mirrored", "ModelParallel"],
)
def test_devices_of_several_platforms_are_refused_by_name(
    strategy: Callable[[Any], MeshStrategy], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = {"cpu": [Device("cpu", 0, "EPYC")], "gpu": [Device("gpu", 0, "H100")]}
    monkeypatch.setattr(jax, "local_devices", lambda backend="gpu": machine[backend])
    with pytest.raises(ClusterError, match=r"\(gpu, H100\), .*\(cpu, EPYC\)\. Name devices of one platform"):
        strategy(["gpu:0", "cpu:0"]).mesh()


def test_devices_of_several_kinds_of_one_platform_get_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = {"gpu": [Device("gpu", 0, "H100"), Device("gpu", 1, "A100")]}
    monkeypatch.setattr(jax, "local_devices", lambda backend="gpu": machine[backend])
    said: list[str] = []
    assert choose_devices(None, said.append, strict=False) == machine["gpu"]
    assert "is a H100" in said[0]
    assert "is a A100" in said[0]
    assert "all wait for the slowest" in said[0]


def test_model_parallel_over_named_devices_takes_no_cluster() -> None:
    with pytest.raises(ClusterError, match="devices must be a list of devices of this process"):
        ModelParallel({"data": -1}, [], devices="gpu")
    mesh = ModelParallel({"data": -1}, [], devices=["cpu:0"]).mesh()
    assert [str(device.platform) for device in mesh.devices.flat] == ["cpu"]
