"""FoundJob: where the ps of a job are, and what of the model lies where, asked of any one of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trainband.cluster.address import Address
from trainband.errors import ClusterError, PeerError, ProtocolError, RefusalCode, Refused
from trainband.model.contents import tensor_of
from trainband.model.layout import ShardLayout
from trainband.model.placement import Slice, rows_of
from trainband.model.variables import Variable
from trainband.wire.codec import decode
from trainband.wire.following import JobLayout
from trainband.wire.transport import Timeouts, Transport


@dataclass(frozen=True, slots=True)
class FoundJob:
    """A job as a reader knows it.

    Attributes:
      job: its name for itself, random.
      addresses: of each ps, as they are reached from here.
      variables: of the model.
      shards: the layout of each.
      standbys: whether the ps after a shard's own may hold it.
    """

    job: str
    addresses: tuple[str, ...]
    variables: tuple[Variable, ...]
    shards: tuple[ShardLayout, ...]
    standbys: bool

    def is_same(self, other: FoundJob) -> bool:
        """Whether it is the same job, wherever it was asked."""
        return (self.job, self.variables, self.shards) == (other.job, other.variables, other.shards)

    def places(self, shard: int) -> tuple[str, ...]:
        """The addresses of the ps that may hold a shard, its own one first."""
        count = len(self.addresses)
        homes = (shard, (shard + 1) % count) if self.standbys and count > 1 else (shard,)
        return tuple(self.addresses[ps] for ps in homes)

    def tensors(self) -> dict[str, Variable]:
        """The variables by the names that a checkpoint has for them."""
        return {tensor_of(variable): variable for variable in self.variables}


def find_job(addresses: Sequence[str], transport: Transport, timeouts: Timeouts) -> FoundJob:
    """Asks the first of these ps that answers.

    Args:
      addresses: of ps of one job, `host:port`; at least one.
      transport: how to reach them, with the job's credentials.
      timeouts: `call_s` for each answer.

    Raises:
      PeerError: none of them answers with a job; what the first one did.
      Refused: with the code `NOT_READY`: the job has no model yet.
      ClusterError: the job's addresses mean nothing on this machine.
    """
    first: PeerError | None = None
    for address in addresses:
        connection = transport.connect(address, timeouts)
        try:
            answer = decode(connection.call("layout", timeout_s=timeouts.call_s), JobLayout, address)
        except PeerError as exc:
            first = first or exc
            continue
        finally:
            connection.close()
        if not answer.variables:
            first = Refused(f"the job at {address} has no model yet: its chief has not defined one.", _NOT_READY)
            continue
        return _found(answer, address)
    assert first is not None
    raise first


_NOT_READY = RefusalCode.NOT_READY


def _found(answer: JobLayout, asked: str) -> FoundJob:
    """Makes sense of an answer; whoever gave it is reached at the address where it was asked.

    Raises:
      ProtocolError: there is none in it.
      ClusterError: other ps are at addresses of the loopback interface of another machine.
    """
    count = len(answer.addresses)
    job, _, index = answer.task.partition(":")
    if job != "ps" or not count or int(index) >= count:
        raise ProtocolError(f"{asked} calls itself {answer.task}, of {count} ps.")
    addresses = list(answer.addresses)
    addresses[int(index)] = asked
    if not Address.parse(asked, "--follow").is_loopback:
        for number, address in enumerate(addresses):
            if Address.parse(address, f"ps:{number}").is_loopback:
                raise ClusterError(
                    f"this job can be followed from its own machine only, because its ps:{number} is at {address}. "
                    f"Follow it there, or start it with addresses of the network, such as by trainband run --host."
                )
    variables = tuple(Variable(v.name, v.shape, v.dtype, v.trained) for v in answer.variables)
    slices: list[list[Slice]] = [[] for _ in addresses]
    covered = [0] * len(variables)
    for piece in answer.slices:
        if piece.variable >= len(variables) or piece.ps >= count or piece.start != covered[piece.variable]:
            raise ProtocolError(f"{asked} says that slices of its job's variables overlap, or lie nowhere.")
        covered[piece.variable] = piece.stop
        slices[piece.ps].append(Slice(variables[piece.variable], piece.start, piece.stop, piece.ps))
    if covered != [rows_of(variable) for variable in variables]:
        raise ProtocolError(f"{asked} says that slices of its job's variables leave rows out.")
    shards = tuple(ShardLayout.of(pieces) for pieces in slices)
    return FoundJob(answer.job, tuple(addresses), variables, shards, bool(answer.standbys))
