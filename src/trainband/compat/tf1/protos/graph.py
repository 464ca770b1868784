"""GraphDef and its parts, as messages. trainband neither writes graphs in them nor runs them."""

from __future__ import annotations

from tensorboardX.proto.attr_value_pb2 import AttrValue as AttrValue
from tensorboardX.proto.graph_pb2 import GraphDef as GraphDef
from tensorboardX.proto.node_def_pb2 import NodeDef as NodeDef
