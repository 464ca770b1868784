"""DataType: the numbers of dtypes in messages, as `DT_FLOAT` and so on."""

from __future__ import annotations

from tensorboardX.proto.types_pb2 import DataType as DataType

DT_VARIANT, DT_UINT32, DT_UINT64, DT_FLOAT_REF, DT_VARIANT_REF = 21, 22, 23, 101, 121
globals().update(DataType.items())
