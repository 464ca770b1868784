"""How many GPUs this process may use, as the files of a machine and the environment say."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainband.cluster.resolvers.gpus import count_gpus, jax_is_restricted

# files in proc/driver/nvidia, files in dev, the variable -> how many
MACHINES: list[tuple[list[str], list[str], str | None, int]] = [
    ([], [], None, 0),
    (["gpus/0000:01:00.0", "gpus/0000:02:00.0"], ["nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"], None, 2),
    # the driver makes the files when CUDA first starts
    (["gpus/0000:01:00.0", "gpus/0000:02:00.0"], [], None, 2),
    # containers
    (["gpus/0000:01:00.0", "gpus/0000:02:00.0"], ["nvidia1", "nvidiactl"], None, 1),
    (["gpus/0000:01:00.0"], ["nvidia0", "nvidia1"], None, 1),
    ([], [f"nvidia{i}" for i in range(12)], None, 12),
    # cut into parts
    (["gpus/0000:01:00.0", "gpus/0000:02:00.0", "capabilities/gpu0/mig/gi1"], ["nvidia0", "nvidia1"], None, 0),
    # the variable has the last word
    (["gpus/0000:01:00.0"], ["nvidia0"], "", 0),
    (["gpus/0000:01:00.0"], ["nvidia0"], "-1", 0),
    (["gpus/0000:01:00.0"], ["nvidia0"], "NoDevFiles", 0),
    ([], [], "3", 1),
    ([], [], "3, 1", 2),
    ([], [], "0,1,-1,2", 2),
    ([], [], "GPU-8932f937,GPU-1a2b3c4d", 2),
    ([], [], "MIG-GPU-8932f937/1/0,MIG-GPU-8932f937/2/0", 1),
]


@pytest.mark.parametrize(("driver", "dev", "visible", "gpus"), MACHINES)
def test_the_gpus_of_a_machine(
    driver: list[str], dev: list[str], visible: str | None, gpus: int, tmp_path: Path
) -> None:
    for name in [*(f"proc/driver/nvidia/{name}" for name in driver), *(f"dev/{name}" for name in dev)]:
        (tmp_path / name).mkdir(parents=True)
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert count_gpus(environ, root=tmp_path) == gpus


def test_the_environment_of_this_process_is_asked_where_none_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2")
    monkeypatch.setenv("JAX_CUDA_VISIBLE_DEVICES", "1")
    assert count_gpus() == 3
    assert jax_is_restricted()
    assert not jax_is_restricted({})
    assert not jax_is_restricted({"JAX_CUDA_VISIBLE_DEVICES": "all"})
