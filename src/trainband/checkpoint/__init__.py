"""Checkpoints as files: manifest, parts, directory and lock. Independent of tasks and training."""

from trainband.checkpoint.directory import CheckpointDirectory as CheckpointDirectory
from trainband.checkpoint.lock import LOCK_FILE as LOCK_FILE
from trainband.checkpoint.lock import DirectoryLock as DirectoryLock
from trainband.checkpoint.manifest import DTYPES as DTYPES
from trainband.checkpoint.manifest import Manifest as Manifest
from trainband.checkpoint.manifest import Part as Part
from trainband.checkpoint.manifest import Piece as Piece
from trainband.checkpoint.manifest import Stored as Stored
from trainband.checkpoint.manifest import WorkerEntry as WorkerEntry
from trainband.checkpoint.manifest import decode as decode
from trainband.checkpoint.manifest import encode as encode
from trainband.checkpoint.reader import Checkpoint as Checkpoint
from trainband.checkpoint.reader import PartReader as PartReader
from trainband.checkpoint.retention import Retention as Retention
from trainband.checkpoint.writer import write_part as write_part
