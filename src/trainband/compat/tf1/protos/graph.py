"""GraphDef, MetaGraphDef, SavedModel and their parts, as messages."""

from __future__ import annotations

from typing import Any

from tensorboardX.proto.attr_value_pb2 import AttrValue as AttrValue
from tensorboardX.proto.attr_value_pb2 import NameAttrList as NameAttrList
from tensorboardX.proto.node_def_pb2 import NodeDef as NodeDef
from tensorboardX.proto.tensor_pb2 import TensorProto as TensorProto
from tensorboardX.proto.tensor_shape_pb2 import TensorShapeProto as TensorShapeProto
from tensorboardX.proto.versions_pb2 import VersionDef as VersionDef

from trainband.compat.tf1.protos.wire import messages

_CLASSES = messages(
    "graph",
    """
    OpDef: string name=1 OpDef.ArgDef* input_arg=2 OpDef.ArgDef* output_arg=3
    OpDef.ArgDef: string name=1 string description=2 DataType type=3
    FunctionDef: OpDef signature=1 NodeDef* node_def=3
    FunctionDefLibrary: FunctionDef* function=1
    GraphDef: NodeDef* node=1 FunctionDefLibrary library=2 int32 version=3 VersionDef versions=4
    OpList: OpDef* op=1
    SaveSliceInfoDef: string full_name=1 int64* full_shape=2 int64* var_offset=3 int64* var_shape=4
    VariableDef: string variable_name=1 string initializer_name=2 string snapshot_name=3 bool is_resource=4
    VariableDef: SaveSliceInfoDef save_slice_info_def=5 string initial_value_name=6 bool trainable=7
    SaverDef: string filename_tensor_name=1 string save_tensor_name=2 string restore_op_name=3 int32 max_to_keep=4
    SaverDef: bool sharded=5 float keep_checkpoint_every_n_hours=6 SaverDef.CheckpointFormatVersion version=7
    CollectionDef: CollectionDef.NodeList kind.node_list=1 CollectionDef.BytesList kind.bytes_list=2
    CollectionDef: CollectionDef.Int64List kind.int64_list=3 CollectionDef.FloatList kind.float_list=4
    CollectionDef.NodeList: string* value=1
    CollectionDef.BytesList: bytes* value=1
    CollectionDef.Int64List: int64* value=1
    CollectionDef.FloatList: float* value=1
    TensorInfo: string encoding.name=1 DataType dtype=2 TensorShapeProto tensor_shape=3
    TensorInfo: TensorInfo.CooSparse encoding.coo_sparse=4
    TensorInfo.CooSparse: string values_tensor_name=1 string indices_tensor_name=2 string dense_shape_tensor_name=3
    SignatureDef: TensorInfo{} inputs=1 TensorInfo{} outputs=2 string method_name=3
    AssetFileDef: TensorInfo tensor_info=1 string filename=2
    MetaGraphDef: MetaGraphDef.MetaInfoDef meta_info_def=1 GraphDef graph_def=2 SaverDef saver_def=3
    MetaGraphDef: CollectionDef{} collection_def=4 SignatureDef{} signature_def=5 AssetFileDef* asset_file_def=6
    MetaGraphDef.MetaInfoDef: string meta_graph_version=1 OpList stripped_op_list=2 string* tags=4
    MetaGraphDef.MetaInfoDef: string tensorflow_version=5 string tensorflow_git_version=6 bool stripped_default_attrs=7
    SavedModel: int64 saved_model_schema_version=1 MetaGraphDef* meta_graphs=2
    """,
    {"SaverDef.CheckpointFormatVersion": "LEGACY=0 V1=1 V2=2"},
    beside=("attr_value", "node_def", "tensor_shape", "types", "versions"),
)
OpDef: Any = _CLASSES["OpDef"]
FunctionDef: Any = _CLASSES["FunctionDef"]
FunctionDefLibrary: Any = _CLASSES["FunctionDefLibrary"]
GraphDef: Any = _CLASSES["GraphDef"]
OpList: Any = _CLASSES["OpList"]
SaveSliceInfoDef: Any = _CLASSES["SaveSliceInfoDef"]
VariableDef: Any = _CLASSES["VariableDef"]
SaverDef: Any = _CLASSES["SaverDef"]
CollectionDef: Any = _CLASSES["CollectionDef"]
TensorInfo: Any = _CLASSES["TensorInfo"]
SignatureDef: Any = _CLASSES["SignatureDef"]
AssetFileDef: Any = _CLASSES["AssetFileDef"]
MetaGraphDef: Any = _CLASSES["MetaGraphDef"]
SavedModel: Any = _CLASSES["SavedModel"]
