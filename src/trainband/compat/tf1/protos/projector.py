"""What TensorBoard's projector shows: `tensorflow.contrib.tensorboard.plugins.projector`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from google.protobuf import text_format

from trainband.compat.tf1.protos.wire import messages
from trainband.runtime.regular_files import write_regular

_CLASSES = messages(
    "projector",
    """
    SpriteMetadata: string image_path=1 uint32* single_image_dim=2
    EmbeddingInfo: string tensor_name=1 string metadata_path=2 string bookmarks_path=3 uint32* tensor_shape=4 \
        SpriteMetadata sprite=5 string tensor_path=6
    ProjectorConfig: string model_checkpoint_path=1 EmbeddingInfo* embeddings=2 string model_checkpoint_dir=3
    """,
)

SpriteMetadata: Any = _CLASSES["SpriteMetadata"]
EmbeddingInfo: Any = _CLASSES["EmbeddingInfo"]
ProjectorConfig: Any = _CLASSES["ProjectorConfig"]


def visualize_embeddings(summary_writer: Any, config: Any) -> None:
    """Write what TensorBoard reads, into a summary writer's directory or a directory."""
    logdir = summary_writer.get_logdir() if hasattr(summary_writer, "get_logdir") else summary_writer
    path = Path(str(logdir)) / "projector_config.pbtxt"
    write_regular(path, text_format.MessageToString(config).encode())
