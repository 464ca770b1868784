"""The tasks of a job, their addresses, and which of them this process is."""

from __future__ import annotations

from trainband.cluster.address import Address as Address
from trainband.cluster.cluster import Cluster as Cluster
from trainband.cluster.credentials import Credentials as Credentials
from trainband.cluster.resolvers import resolve as resolve
from trainband.cluster.resolvers.credentials import resolve_credentials as resolve_credentials
from trainband.cluster.spec import ClusterSpec as ClusterSpec
from trainband.cluster.task import JOBS as JOBS
from trainband.cluster.task import Task as Task
