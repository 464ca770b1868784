"""SpmdEngine: trains in one program that all devices of a mesh compute."""

from __future__ import annotations

import jax
from jax.sharding import Mesh

from trainband.job.checkpoints import RestoreFrom
from trainband.model.mesh_context import DATA
from trainband.model.model import Model
from trainband.runtime.waiting import Say
from trainband.spmd.batch_sharding import BatchSharding
from trainband.spmd.calls import Calls
from trainband.spmd.checkpoints import Checkpoints
from trainband.spmd.compute_devices import ComputeDevices
from trainband.spmd.control_flags import ControlFlags
from trainband.spmd.end_of_training import EndOfTraining
from trainband.spmd.first_step import FirstStep
from trainband.spmd.peers import MeshPeers
from trainband.spmd.pipeline import Pipeline
from trainband.spmd.process_group import Group, SingleProcess
from trainband.spmd.sharded_state import ShardedState
from trainband.spmd.sharding import Rules, whole
from trainband.spmd.shared_data import SharedData
from trainband.spmd.step_inputs import StepInputs
from trainband.spmd.step_program import StepProgram
from trainband.spmd.steps import MeshSteps
from trainband.spmd.values import MeshValues


class SpmdEngine:
    """The `Engine` of one process.

    The rules place params, optimizer and model state on the mesh, and the batch is split over the axis `data`. The
    result is that of one device on the whole batch, except for rounding: if the loss is the mean over its examples,
    each device computes its part alone; JAX's compiler splits any other loss and adds the exchanges that it needs.

    Args:
      model: what is trained.
      mesh: the devices.
      group: the processes that own them; `None`: only this one.
      rules: how the variables are split over them.
      restore: what the job begins from.
      say: prints lines for the user.
      remainder: see `BatchSharding`.
      central: keep and update the params on the CPU, and send them to the devices for each step; not with a group.
    """

    def __init__(
        self,
        model: Model,
        mesh: Mesh,
        group: Group | None = None,
        *,
        rules: Rules = whole,
        restore: RestoreFrom | None = None,
        say: Say,
        remainder: str = "pad",
        central: bool = False,
    ) -> None:
        self._group = group = group or SingleProcess()
        in_step = group.count > 1
        group.start_engine()
        with group.busy("starts"):
            cpu = jax.local_devices(backend="cpu")[0] if central else None
            per_call = 1 if central else model.steps_per_execution
            axes = (DATA,) if DATA in mesh.shape else ()
            says = say if group.is_chief else lambda _: None
            state = ShardedState(
                model,
                mesh,
                group,
                rules=rules,
                central=cpu,
                remainder=remainder,
                counts_down=in_step and per_call > 1,
                say=say,
            )
            sharding = BatchSharding(mesh, axes, remainder, group.task, says)
            inputs = StepInputs(
                sharding, mesh, group.task, accumulate=model.accumulate, per_call=per_call, in_step=in_step
            )
            program = StepProgram(model, mesh, axes, sharding.parts, state.where, cpu)
            control = ControlFlags(mesh, per_call) if in_step else None
            ending = EndOfTraining(group)
            pipeline = Pipeline(program, state, group, control, ending, per_call=per_call, say=says)
            state.make_first(program.first_carry)
            data = SharedData(group)
            self.checkpoints = checkpoints = Checkpoints(
                state, pipeline, group, data, sharers=sharding.own.sharers, per_call=per_call, say=say
            )
            if restore is not None:
                checkpoints.restore(restore)
        self.values = MeshValues(state, mesh, group, pipeline, control, central=central)
        calls = Calls(pipeline, inputs, checkpoints, ending, control, per_call=per_call, accumulate=model.accumulate)
        first = FirstStep(model, state, group, inputs, pipeline, ending, say) if in_step else None
        devices = ComputeDevices(mesh.devices.flat)
        self.steps = MeshSteps(group, state, inputs, pipeline, calls, checkpoints, first, devices)
        self.peers = MeshPeers(group, data, self.steps)

    def close(self, failure: str = "") -> None:
        """Leaves the job; `failure` says why, if something went wrong. Idempotent."""
        self._group.close(failure)
