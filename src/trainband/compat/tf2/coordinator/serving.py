"""Serving: streams of requests, each answered in its turn, with failures as answers."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence
from typing import Any

import jax
from numpy.typing import NDArray

from trainband.cluster.identity import Role
from trainband.compat.tf1.graphs.errors import OpError
from trainband.compat.tf2.coordinator import records as r
from trainband.compat.tf2.coordinator.job import Job
from trainband.errors import ProtocolError, RefusalCode, Refused, StreamClosed, TrainbandError
from trainband.wire.frame import Bytes, Frame
from trainband.wire.limits import LIMITS
from trainband.wire.messages.codec import decode_any, encode
from trainband.wire.transport import ANYBODY, Caller, Stream, Tensor

_log = logging.getLogger(__name__)
_WORKERS = frozenset({Role.WORKER})


class PsLost(Exception):
    """A ps does not answer. `ps`: its number."""

    def __init__(self, ps: int, why: str) -> None:
        super().__init__(why)
        self.ps = ps


class Requests:
    """A `Handler` that answers requests; see `begin` and `answer` of those that it is for.

    Attributes:
      takes: the records that may come.
      serves_workers: whether workers may open streams, besides the coordinator.
    """

    takes: Any
    serves_workers = False

    def __init__(self, name: str, job: Job) -> None:
        self.name = name
        self._job = job

    def begin(self, hello: r.Hello) -> Any:
        """A stream begins. Returns what `answer` is given with each of its requests."""
        raise NotImplementedError

    def over(self, session: Any) -> None:
        """The stream for which `begin` gave this is over."""

    def answer(self, session: Any, record: Any, body: Sequence[Bytes]) -> tuple[Any, Sequence[Any]] | None:
        """What a request is answered with, if it is."""
        raise NotImplementedError

    def call(self, action: str, body: bytes, caller: Caller = ANYBODY) -> bytes:
        """See `Handler.call`."""
        del body, caller
        raise Refused(f"{self.name} serves a script of TensorFlow 2, and knows no action {action[:40]!r}.")

    def tensors(self) -> Sequence[Tensor]:
        """See `Handler.tensors`."""
        return ()

    def read(self, name: str) -> tuple[int, NDArray[Any]]:
        """See `Handler.read`."""
        raise Refused(f"{self.name} has no variable {name[:80]!r}.")

    def stream(self, stream: Stream, caller: Caller = ANYBODY) -> None:
        """See `Handler.stream`."""
        is_attached = False
        session: Any = None
        try:
            hello = self._hello(stream, caller)
            if hello.coordinates:
                self._job.attach(stream)
                is_attached = True
            session = self.begin(hello)
            with jax.enable_x64(True):
                self._serve(hello, session, stream)
        except StreamClosed:
            pass
        except TrainbandError as exc:
            with contextlib.suppress(TrainbandError):
                stream.send(encode(_failure(exc)))
            raise  # the stream ends with the same reason, for a peer that sends instead of receiving
        finally:
            if session is not None:
                self.over(session)
            if is_attached:
                self._job.detach(stream)

    def _hello(self, stream: Stream, caller: Caller) -> r.Hello:
        caller.require(_WORKERS, f"use {self.name}")
        most_bytes, stream.most_bytes = stream.most_bytes, 0  # a greeting has no body
        while (frame := stream.receive(1.0)) is None:
            pass
        stream.most_bytes = most_bytes
        hello = decode_any(frame.header, self.takes, stream.peer)
        if not isinstance(hello, r.Hello):
            raise ProtocolError(f"{stream.peer} did not identify itself.")
        if hello.coordinates:
            _require_chief(caller, hello.session)
        elif not self.serves_workers:
            raise Refused(f"only the coordinator may use {self.name}.", RefusalCode.FORBIDDEN)
        return hello

    def _serve(self, hello: r.Hello, session: Any, stream: Stream) -> None:
        while True:
            frame: Frame | None = stream.receive(1.0)
            if frame is None:
                continue
            record = decode_any(frame.header, self.takes, stream.peer)
            if isinstance(record, r.End):
                if hello.coordinates:
                    self._job.end()
                return
            try:
                # An update on a ps is bounded, and the ps outlives the worker that has asked for it.
                with self._job.running(stream) if isinstance(record, r.Run) else contextlib.nullcontext():
                    answer = self.answer(session, record, frame.body)
            except StreamClosed:
                raise
            except Exception as exc:  # whatever a program does: it belongs to who sent it
                _log.debug("%s could not do %s", self.name, type(record).__name__, exc_info=True)
                answer = _failure(exc), ()
            if answer is not None:
                stream.send(encode(answer[0]), [_whole(one) for one in answer[1]])


def _require_chief(caller: Caller, session: str) -> None:
    """Raises `Refused` where the caller is not the chief, or names the session of another process."""
    who = caller.identity
    if who is None:
        return
    if who.job != "chief":
        raise Refused(f"{who.name} is not the chief, and cannot coordinate.", RefusalCode.FORBIDDEN)
    caller.require_self(who.name, session, "coordinate")


def _whole(value: Any) -> Any:
    return value if value.flags.c_contiguous else value.copy()


def _failure(exc: Exception) -> r.Failure:
    kind = type(exc).__name__ if isinstance(exc, OpError) else "InternalError"
    if isinstance(exc, Refused) and exc.code is RefusalCode.NAME_TAKEN:
        kind = r.TAKEN
    if isinstance(exc, PsLost):
        kind = "UnavailableError"
    text = str(exc) if isinstance(exc, TrainbandError | PsLost) else f"{type(exc).__name__}: {exc}"
    return r.Failure(kind, text[: LIMITS.text_length], exc.ps if isinstance(exc, PsLost) else -1)
