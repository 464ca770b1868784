"""RunMetadata: how long runs have taken, as messages. A run is one compiled program, and so one node of a trace."""

from __future__ import annotations

from typing import Any

from tensorboardX.proto.graph_pb2 import GraphDef as GraphDef

from trainband.compat.tf1.protos.wire import messages

_CLASSES = messages(
    "run_metadata",
    """
    NodeExecStats: string node_name=1 int64 all_start_micros=2 int64 op_start_rel_micros=3 int64 op_end_rel_micros=4
    NodeExecStats: int64 all_end_rel_micros=5 string timeline_label=8 uint32 thread_id=10
    DeviceStepStats: string device=1 NodeExecStats* node_stats=2
    StepStats: DeviceStepStats* dev_stats=1
    RunMetadata: StepStats step_stats=1 GraphDef* partition_graphs=3
    """,
    beside=("graph",),
)
StepStats: Any = _CLASSES["StepStats"]
RunMetadata: Any = _CLASSES["RunMetadata"]


def note_run(metadata: Any, device: str, begin: float, end: float) -> None:
    """Notes a run in place of what a `RunMetadata` holds.

    Args:
      begin, end: seconds since 1970.
    """
    metadata.Clear()
    stats = metadata.step_stats.dev_stats.add(device=device)
    micros = round((end - begin) * 1e6)
    stats.node_stats.add(
        node_name="Session.run",
        all_start_micros=round(begin * 1e6),
        op_end_rel_micros=micros,
        all_end_rel_micros=micros,
        timeline_label="Session.run: one compiled program",
    )
