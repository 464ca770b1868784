"""The rows of embedding tables on a ps: found by id, updated, admitted, evicted, and copied for checkpoints."""

from trainband.ps.tables.occurrences import summed as summed
from trainband.ps.tables.occurrences import unique as unique
from trainband.ps.tables.row_chunk import RowChunk as RowChunk
from trainband.ps.tables.sharding import shard_of as shard_of
from trainband.ps.tables.statistics import TableStatistics as TableStatistics
from trainband.ps.tables.store import TableStore as TableStore
