"""FoundJob: a job's ps addresses and shard layouts, obtained from any one ps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trainband.cluster.address import Address
from trainband.errors import ClusterError, PeerError, ProtocolError, RefusalCode, Refused
from trainband.model.contents import tensor_of
from trainband.model.layout import ShardLayout
from trainband.model.placement import Slice, rows_of
from trainband.model.variables import Variable
from trainband.ps.replication.replica_places import replica_places
from trainband.wire.messages.codec import decode
from trainband.wire.messages.following import JobLayout
from trainband.wire.transport import Timeouts, Transport


@dataclass(frozen=True, slots=True)
class FoundJob:
    """A job as seen by a reader.

    Attributes:
      job: its random identifier.
      addresses: of each ps, as reachable from here.
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
        """Whether it is the same job, at any addresses."""
        return (self.job, self.variables, self.shards) == (other.job, other.variables, other.shards)

    def places(self, shard: int) -> tuple[str, ...]:
        """The addresses of the ps that may hold a shard, its own first."""
        homes = replica_places(shard, len(self.addresses)) if self.standbys else (shard,)
        return tuple(self.addresses[ps] for ps in homes)

    def tensors(self) -> dict[str, Variable]:
        """The variables by their names in a checkpoint."""
        return {tensor_of(variable): variable for variable in self.variables}


def find_job(addresses: Sequence[str], transport: Transport, timeouts: Timeouts) -> FoundJob:
    """Asks the first of these ps that answers.

    Args:
      addresses: of ps of one job, `host:port`; at least one.
      transport: how to reach them, with the job's credentials.
      timeouts: `call_s` for each answer.

    Raises:
      PeerError: none answers with a job; the first one's error.
      Refused: the job has no model yet (code `NOT_READY`).
      ClusterError: the job's addresses are unreachable from here.
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
    """Interprets an answer; its sender is reachable at the address that was asked.

    Raises:
      ProtocolError: it is invalid.
      ClusterError: other ps have loopback addresses of another machine.
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
                    f"this job can be followed only from its own machine because its ps:{number} is at {address}. "
                    f"Follow it there, or start it with network addresses, for example by trainband run --host."
                )
    variables = tuple(Variable(v.name, v.shape, v.dtype, v.trained) for v in answer.variables)
    slices: list[list[Slice]] = [[] for _ in addresses]
    covered = [0] * len(variables)
    for piece in answer.slices:
        if piece.variable >= len(variables) or piece.ps >= count or piece.start != covered[piece.variable]:
            raise ProtocolError(f"{asked} sent slices of variables that overlap or are out of range.")
        covered[piece.variable] = piece.stop
        slices[piece.ps].append(Slice(variables[piece.variable], piece.start, piece.stop, piece.ps))
    if covered != [rows_of(variable) for variable in variables]:
        raise ProtocolError(f"{asked} sent slices of variables that leave rows out.")
    shards = tuple(ShardLayout.of(pieces) for pieces in slices)
    return FoundJob(answer.job, tuple(addresses), variables, shards, bool(answer.standbys))
