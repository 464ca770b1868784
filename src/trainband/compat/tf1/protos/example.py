"""Example and its parts: what TFRecord files of training data hold."""

from __future__ import annotations

from typing import Any

from trainband.compat.tf1.protos.wire import messages

_CLASSES = messages(
    "example",
    """
    BytesList: bytes* value=1
    FloatList: float* value=1
    Int64List: int64* value=1
    Feature: BytesList kind.bytes_list=1 FloatList kind.float_list=2 Int64List kind.int64_list=3
    Features: Feature{} feature=1
    Example: Features features=1
    FeatureList: Feature* feature=1
    FeatureLists: FeatureList{} feature_list=1
    SequenceExample: Features context=1 FeatureLists feature_lists=2
    """,
)

BytesList: Any = _CLASSES["BytesList"]
FloatList: Any = _CLASSES["FloatList"]
Int64List: Any = _CLASSES["Int64List"]
Feature: Any = _CLASSES["Feature"]
Features: Any = _CLASSES["Features"]
Example: Any = _CLASSES["Example"]
FeatureList: Any = _CLASSES["FeatureList"]
FeatureLists: Any = _CLASSES["FeatureLists"]
SequenceExample: Any = _CLASSES["SequenceExample"]
