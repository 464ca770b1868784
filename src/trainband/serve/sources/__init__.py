"""Where the versions of a served model come from, one kind a file."""

from trainband.serve.sources.base import OnVersion as OnVersion
from trainband.serve.sources.base import SourceState as SourceState
from trainband.serve.sources.base import SourceStatus as SourceStatus
from trainband.serve.sources.base import VersionSource as VersionSource
