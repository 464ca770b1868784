"""Starting and supervising the tasks of a job on this machine."""

from __future__ import annotations

from trainband.launch.events import Outcome as Outcome
from trainband.launch.guests import LocalGuests as LocalGuests
from trainband.launch.local_cluster import LocalCluster as LocalCluster
from trainband.launch.options import Grace as Grace
from trainband.launch.options import Restarts as Restarts
from trainband.launch.ports import ReservedPorts as ReservedPorts
