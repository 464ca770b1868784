"""Every error that trainband raises on purpose, in one tree.

::

    TrainbandError
    ├── YourError                  the input is invalid; fix it and run again
    │   ├── ClusterError           a ClusterSpec, TF_CONFIG or cluster flag (also a ValueError)
    │   ├── ModelError             the params, the loss or the optimizer (also a ValueError)
    │   │   └── ModelMismatch      this worker's model or optimizer is not the chief's
    │   └── DataError              a data file or a batch (also a ValueError)
    ├── PeerError                  another task, or the network to it
    │   ├── AddressInUse           another process has the port (also an OSError)
    │   ├── Unreachable            the address does not answer (also a ConnectionError)
    │   │   ├── UnknownHost        the host name of the address cannot be resolved
    │   │   ├── NobodyListens      the machine answers, but no process has the port
    │   │   └── NoTaskListens      a process has the port, but it is not a trainband task
    │   ├── DeadlineExceeded       the peer is reachable but did not answer in time (also a TimeoutError)
    │   ├── StreamClosed           the other end of a stream has gone (also a ConnectionError)
    │   ├── ProtocolError          a message does not have this version's format
    │   └── Refused                the other task refused a request
    │       └── AuthenticationError    one of the two has not proved that it belongs to the job
    ├── ResourceExhausted          the system is out of threads or file descriptors
    ├── TransportUnavailable       one end does not support the requested stream transport
    ├── JobFailed                  a task of a job that this program has started
    ├── CheckpointError            a checkpoint or its directory
    │   ├── DamagedCheckpoint      a file is missing or does not match the manifest
    │   └── DirectoryLocked        another job writes to this directory
    └── TrainingError              the mathematics
        └── NonFiniteGradient      a gradient contains NaN or infinity

The tree is split by whose fault the error is, so that a program can react: fix the input, retry later,
check the disk, or check the model.
"""

from __future__ import annotations

from enum import StrEnum

_ABOUT_FRAMES = "JAX has removed its internal frames"


class TrainbandError(Exception):
    """The root: everything that trainband raises on purpose."""

    def add_note(self, note: str, /) -> None:
        """Like `BaseException.add_note`, but without JAX's notice about its own frames.

        JAX adds it to every exception that passes through a traced function, and Python prints notes last: the reader
        would find it where the message should be.
        """
        if _ABOUT_FRAMES not in note:
            super().add_note(note)


class YourError(TrainbandError):
    """The caller's input is invalid."""


class ClusterError(YourError, ValueError):
    """A cluster description is malformed, incomplete or inconsistent."""


class ModelError(YourError, ValueError):
    """The params, the loss or the optimizer cannot be trained."""


class ModelMismatch(ModelError):
    """A worker's model, optimizer or settings differ from the chief's."""


class DataError(YourError, ValueError):
    """A data file or a batch cannot be used."""


class PeerError(TrainbandError):
    """Another task, or the network to it, failed."""


class AddressInUse(PeerError, OSError):
    """Another process listens on the address of this task."""


class Unreachable(PeerError, ConnectionError):
    """An address does not answer."""


class UnknownHost(Unreachable):
    """The host name of an address cannot be resolved."""


class NobodyListens(Unreachable):
    """The machine answers, but no process listens on the port."""


class NoTaskListens(Unreachable):
    """A process listens on the address, but it is not a trainband task."""


class DeadlineExceeded(PeerError, TimeoutError):
    """A peer is reachable but did not answer in time."""


class StreamClosed(PeerError, ConnectionError):
    """The other end of a stream has closed it or died."""


class ProtocolError(PeerError):
    """A message does not have the format that this version of trainband sends."""


class RefusalCode(StrEnum):
    """Why a request was refused, for programs; the message is for people."""

    OTHER = ""
    """A reason that programs do not handle."""
    MOVED = "moved"
    """Another ps holds the shard, or soon will."""
    NOT_READY = "not ready"
    """The ps has no model or no values yet, for example after a restart."""
    UNKNOWN_WORKER = "unknown worker"
    """The ps does not know the worker, for example after a restart; the worker must join again."""
    NAME_TAKEN = "name taken"
    """A live process holds the task's name."""
    REPLACED = "replaced"
    """Another process has since taken the task's name."""
    NOT_CHIEF = "not chief"
    """Only the chief may request this, and another worker is the chief."""
    OTHER_JOB = "other job"
    """The worker belongs to a job that has ended; once restarted, it may join this one."""
    OTHER_MODEL = "other model"
    """The worker's model is not the chief's."""
    OTHER_VERSION = "other version"
    """The other task runs another version of trainband."""
    UNPROVED = "unproved"
    """The caller has not proved that it belongs to the job."""
    NO_SESSION = "no session"
    """The server has no session for the caller, which must authenticate again and repeat the call."""
    FORBIDDEN = "forbidden"
    """The caller is authenticated but not allowed to do this."""
    BUSY = "busy"
    """The caller, or another process on its machine, exceeds its quota."""
    NO_UCX = "no UCX"
    """The server does not accept UCX streams, or not from this version of UCX."""


class Refused(PeerError):
    """The other task refused a request; the message says why, and programs check the code."""

    def __init__(self, message: str, code: RefusalCode = RefusalCode.OTHER) -> None:
        super().__init__(message)
        self.code = code

    @property
    def is_for_another(self) -> bool:
        """Whether another task, and not this one, holds the shard and knows the worker."""
        return self.code in (RefusalCode.MOVED, RefusalCode.NOT_READY, RefusalCode.UNKNOWN_WORKER)


class AuthenticationError(Refused):
    """One of the two tasks has not proved to the other that it belongs to the job."""

    def __init__(self, message: str, code: RefusalCode = RefusalCode.UNPROVED) -> None:
        super().__init__(message, code)


class ResourceExhausted(TrainbandError):
    """The system is out of threads or file descriptors for this process."""


class TransportUnavailable(TrainbandError):
    """One end does not support the requested stream transport."""


class JobFailed(TrainbandError):
    """A task of a job that this program has started has failed."""


class CheckpointError(TrainbandError):
    """A checkpoint cannot be written or read."""


class DamagedCheckpoint(CheckpointError):
    """A file of a checkpoint is missing, truncated or altered."""


class DirectoryLocked(CheckpointError):
    """Another job writes its checkpoints to the directory."""


class TrainingError(TrainbandError):
    """The model's arithmetic went wrong."""


class NonFiniteGradient(TrainingError):
    """A gradient contains NaN or infinity."""
