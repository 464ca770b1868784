"""Starting and supervising the tasks of a job, on this machine and on others."""

from __future__ import annotations

from trainband.launch.elastic_workers import LocalElasticWorkers as LocalElasticWorkers
from trainband.launch.events import Outcome as Outcome
from trainband.launch.job_handle import JobHandle as JobHandle
from trainband.launch.jobs import LocalJobs as LocalJobs
from trainband.launch.jobs import local as local
from trainband.launch.jobs import run as run
from trainband.launch.local_cluster import LocalCluster as LocalCluster
from trainband.launch.options import Grace as Grace
from trainband.launch.options import Restarts as Restarts
from trainband.launch.ports import ReservedPorts as ReservedPorts
