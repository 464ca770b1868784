"""Starting and supervising the tasks of a job on this machine."""

from __future__ import annotations

from trainband.launch.guests import LocalGuests as LocalGuests
from trainband.launch.local_cluster import LocalCluster as LocalCluster
from trainband.launch.ports import ReservedPorts as ReservedPorts
from trainband.launch.supervision import Grace as Grace
from trainband.launch.supervision import Outcome as Outcome
from trainband.launch.supervision import Restarts as Restarts
