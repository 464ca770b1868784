"""Who is in the job: which tasks there are, where they are, and which of them this process is."""

from __future__ import annotations

from .address import Address as Address
from .cluster import Cluster as Cluster
from .guests import LocalGuests as LocalGuests
from .launch import LocalCluster as LocalCluster
from .ports import ReservedPorts as ReservedPorts
from .resolvers import resolve as resolve
from .spec import ClusterSpec as ClusterSpec
from .supervision import Outcome as Outcome
from .task import JOBS as JOBS
from .task import Task as Task
