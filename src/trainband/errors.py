"""Every error that trainband raises on purpose, in one tree.

::

    TrainbandError
    ├── YourError                  what you gave us cannot be used; mend it and run again
    │   ├── ClusterError           a ClusterSpec, TF_CONFIG or cluster flag (also a ValueError)
    │   ├── ModelError             the params, the loss or the optimizer (also a ValueError)
    │   │   └── ModelMismatch      this worker's model or optimizer is not the chief's
    │   └── DataError              a data file or a batch (also a ValueError)
    ├── PeerError                  another task, or the network to it
    │   ├── AddressInUse           somebody else has the port (also an OSError)
    │   ├── Unreachable            nobody answers there (also a ConnectionError)
    │   │   ├── UnknownHost        the host name of the address cannot be resolved
    │   │   └── NobodyListens      its machine answers, but no process has the port
    │   ├── DeadlineExceeded       somebody is there, but did not answer in time (also a TimeoutError)
    │   ├── StreamClosed           the other end of a stream has gone (also a ConnectionError)
    │   ├── ProtocolError          what came is not what this version of trainband sends
    │   └── Refused                the other task said no, and why
    │       └── AuthenticationError    one of the two has not proved that it belongs to the job
    ├── ResourceExhausted          the machine gives this process no more threads or descriptors
    ├── TransportUnavailable       a way to carry streams that was asked for, and that one end does not have
    ├── CheckpointError            a checkpoint or its directory
    │   ├── DamagedCheckpoint      a file of it is missing, or is not what its manifest says
    │   └── DirectoryLocked        another job writes into this directory
    └── TrainingError              the mathematics
        └── NonFiniteGradient      a gradient holds NaN or infinity

Each is split off by whose fault it is, so that a program can react: mend the input, try another
time, look at the disk, or look at the model.
"""

from __future__ import annotations

from enum import StrEnum

_ABOUT_FRAMES = "JAX has removed its internal frames"


class TrainbandError(Exception):
    """The root: everything that trainband raises on purpose."""

    def add_note(self, note: str, /) -> None:
        """As `BaseException.add_note`, but without JAX's notice about its own frames.

        JAX adds it to every exception that passes through a traced function, and Python prints notes last: the reader
        would find it where the message should be.
        """
        if _ABOUT_FRAMES not in note:
            super().add_note(note)


class YourError(TrainbandError):
    """What the caller gave cannot be used."""


class ClusterError(YourError, ValueError):
    """A cluster description is malformed, half-set or contradicts itself."""


class ModelError(YourError, ValueError):
    """The params, the loss or the optimizer cannot be trained."""


class ModelMismatch(ModelError):
    """A worker's model, optimizer or settings are not those of the chief."""


class DataError(YourError, ValueError):
    """A data file or a batch cannot be used."""


class PeerError(TrainbandError):
    """Another task, or the network between, did not do its part."""


class AddressInUse(PeerError, OSError):
    """Another process listens on the address that this task should serve."""


class Unreachable(PeerError, ConnectionError):
    """Nobody answers at an address."""


class UnknownHost(Unreachable):
    """The host name of an address cannot be resolved."""


class NobodyListens(Unreachable):
    """The machine of an address answers, and says that no process listens there."""


class DeadlineExceeded(PeerError, TimeoutError):
    """A peer is there but gave no answer in time."""


class StreamClosed(PeerError, ConnectionError):
    """The other end of a stream has closed it or died."""


class ProtocolError(PeerError):
    """A message does not have the form that this version of trainband sends."""


class RefusalCode(StrEnum):
    """Why a request was refused, for programs; the message is for people."""

    OTHER = ""
    """For a reason that no program acts on."""
    MOVED = "moved"
    """Another ps holds the shard, or will soon."""
    NOT_READY = "not ready"
    """The ps has been given no model or no values yet, as after it has died and come back."""
    UNKNOWN_WORKER = "unknown worker"
    """The ps does not know the worker, as after it has died and come back: join again."""
    NAME_TAKEN = "name taken"
    """A live process holds the task's name."""
    REPLACED = "replaced"
    """Another process has had the task's name since."""
    NOT_CHIEF = "not chief"
    """Only the chief may ask for this, and the ps takes another worker for the chief."""
    OTHER_JOB = "other job"
    """The worker belongs to a job that has ended; started again, it may join this one."""
    OTHER_MODEL = "other model"
    """The worker's model is not the chief's."""
    OTHER_VERSION = "other version"
    """The other task runs another version of trainband."""
    UNPROVED = "unproved"
    """The caller has not proved that it belongs to the job."""
    NO_SESSION = "no session"
    """The listener does not know the caller (any more): it proves itself again, and repeats the call."""
    FORBIDDEN = "forbidden"
    """The caller is known, and may not do this."""
    BUSY = "busy"
    """The caller, or whoever shares its machine, asks for more than it may."""
    NO_UCX = "no UCX"
    """The listener takes no streams over UCX, or not from this version of it."""


class Refused(PeerError):
    """The other task refused a request; the message says why, and the code says it to programs."""

    def __init__(self, message: str, code: RefusalCode = RefusalCode.OTHER) -> None:
        super().__init__(message)
        self.code = code

    @property
    def is_for_another(self) -> bool:
        """Whether this task is not, or not any more, the one that holds the shard and knows the worker."""
        return self.code in (RefusalCode.MOVED, RefusalCode.NOT_READY, RefusalCode.UNKNOWN_WORKER)


class AuthenticationError(Refused):
    """One of the two tasks has not proved to the other that it belongs to the job."""

    def __init__(self, message: str, code: RefusalCode = RefusalCode.UNPROVED) -> None:
        super().__init__(message, code)


class ResourceExhausted(TrainbandError):
    """The machine gives this process no more threads or descriptors."""


class TransportUnavailable(TrainbandError):
    """Streams should travel in a way that this machine, or the one at the other end, does not have."""


class JobFailed(TrainbandError):
    """A task of a job that this program has started has failed."""


class CheckpointError(TrainbandError):
    """A checkpoint cannot be written or read."""


class DamagedCheckpoint(CheckpointError):
    """A file of a checkpoint is missing, cut short or altered."""


class DirectoryLocked(CheckpointError):
    """Another job writes its checkpoints into the directory."""


class TrainingError(TrainbandError):
    """The model's arithmetic went wrong."""


class NonFiniteGradient(TrainingError):
    """A gradient holds NaN or infinity."""
