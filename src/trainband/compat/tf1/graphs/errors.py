"""The errors that TensorFlow raises at run time, under TensorFlow's names, in trainband's tree.

::

    TrainbandError
    └── OpError                        also what `tf.errors.OpError` is
        ├── InvalidArgumentError       NotFoundError         AlreadyExistsError
        ├── FailedPreconditionError    OutOfRangeError       UnimplementedError
        ├── AbortedError               UnavailableError      CancelledError
        ├── DeadlineExceededError      InternalError         ResourceExhaustedError
        └── PermissionDeniedError      UnauthenticatedError  DataLossError, UnknownError
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from trainband.errors import TrainbandError

OK, CANCELLED, UNKNOWN, INVALID_ARGUMENT, DEADLINE_EXCEEDED, NOT_FOUND, ALREADY_EXISTS = range(7)
PERMISSION_DENIED, RESOURCE_EXHAUSTED, FAILED_PRECONDITION, ABORTED, OUT_OF_RANGE, UNIMPLEMENTED = range(7, 13)
INTERNAL, UNAVAILABLE, DATA_LOSS, UNAUTHENTICATED = range(13, 17)


class Located(Protocol):
    """An operation, as far as an error names it."""

    name: str
    where: str


class OpError(TrainbandError):
    """An operation failed.

    Args:
      node_def: unused; scripts that raise such errors pass it.
      op: the operation, whose name and line in the user's script go into the message.
      message: what went wrong.
    """

    code = UNKNOWN

    def __init__(self, node_def: object, op: Located | None, message: str, error_code: int | None = None) -> None:
        self.node_def = node_def
        self.op = op
        if error_code is not None:
            self.code = error_code
        where = "" if op is None else f"\n\t [[node {op.name} (defined at {op.where})]]"
        self.message = message + where
        super().__init__(self.message)

    @property
    def error_code(self) -> int:
        """TensorFlow's code for this kind of error."""
        return self.code


class CancelledError(OpError):
    """An operation was cancelled."""

    code = CANCELLED


class InvalidArgumentError(OpError):
    """An operation cannot work with its inputs."""

    code = INVALID_ARGUMENT


class DeadlineExceededError(OpError):
    """It took too long."""

    code = DEADLINE_EXCEEDED


class NotFoundError(OpError):
    """A file or a tensor in it is not there."""

    code = NOT_FOUND


class AlreadyExistsError(OpError):
    """It is there already."""

    code = ALREADY_EXISTS


class ResourceExhaustedError(OpError):
    """Memory or another resource has run out."""

    code = RESOURCE_EXHAUSTED


class FailedPreconditionError(OpError):
    """The system is not in the required state: a variable has no value yet, for example."""

    code = FAILED_PRECONDITION


class AbortedError(OpError):
    """An operation was aborted."""

    code = ABORTED


class OutOfRangeError(OpError):
    """The input has ended."""

    code = OUT_OF_RANGE


class UnimplementedError(OpError):
    """The operation is not supported."""

    code = UNIMPLEMENTED


class InternalError(OpError):
    """Something went wrong inside."""

    code = INTERNAL


class UnavailableError(OpError):
    """Another task cannot be reached."""

    code = UNAVAILABLE


class DataLossError(OpError):
    """A file is damaged."""

    code = DATA_LOSS


class UnknownError(OpError):
    """The cause is not known."""

    code = UNKNOWN

    def __init__(self, node_def: object, op: Located | None, message: str, error_code: int = UNKNOWN) -> None:
        super().__init__(node_def, op, message, error_code)


class PermissionDeniedError(OpError):
    """The caller may not do this."""

    code = PERMISSION_DENIED


class UnauthenticatedError(OpError):
    """The caller has not said who it is."""

    code = UNAUTHENTICATED


def exception_type_from_error_code(error_code: int) -> type[OpError]:
    """Return the class of the errors of a code.

    Raises:
      KeyError: there is none.
    """
    return {one.code: one for one in OpError.__subclasses__() if "code" in vars(one)}[error_code]


def error_code_from_exception_type(cls: type[OpError]) -> int:
    """Return the code of the errors of a class."""
    return cls.code


@contextmanager
def raise_exception_on_not_ok_status() -> Iterator[None]:
    """Do nothing: errors are exceptions from the start."""
    yield


def of_file(exc: OSError) -> OpError:
    """Return the error of TensorFlow for one of the operating system about a file."""
    kinds: dict[type[OSError], type[OpError]] = {
        FileNotFoundError: NotFoundError,
        FileExistsError: AlreadyExistsError,
        PermissionError: PermissionDeniedError,
        NotADirectoryError: FailedPreconditionError,
        IsADirectoryError: FailedPreconditionError,
    }
    return kinds.get(type(exc), UnknownError)(None, None, f"{exc.filename}; {exc.strerror}")
