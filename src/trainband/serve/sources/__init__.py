"""Sources of a served model's versions, one per file."""

from trainband.serve.sources.base import OnVersion as OnVersion
from trainband.serve.sources.base import SourceState as SourceState
from trainband.serve.sources.base import SourceStatus as SourceStatus
from trainband.serve.sources.base import VersionSource as VersionSource
