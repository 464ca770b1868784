"""Serve: predictions over HTTP, from an exported model, from checkpoints or from a running job."""

from trainband.runtime.http.access import Access as Access
from trainband.serve.model import LoadedVersion as LoadedVersion
from trainband.serve.model import ServedModel as ServedModel
from trainband.serve.options import ServeOptions as ServeOptions
from trainband.serve.server import InferenceServer as InferenceServer
from trainband.serve.sources import SourceState as SourceState
from trainband.serve.sources import SourceStatus as SourceStatus
from trainband.serve.sources import VersionSource as VersionSource
from trainband.serve.sources.artifact import ArtifactSource as ArtifactSource
from trainband.serve.sources.checkpoints import CheckpointSource as CheckpointSource
from trainband.serve.sources.parameter_servers import ParameterServerSource as ParameterServerSource
