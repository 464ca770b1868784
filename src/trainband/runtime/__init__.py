"""The machine as every layer may use it: time, threads, and waiting."""

from trainband.runtime.base import Clock as Clock
from trainband.runtime.base import Condition as Condition
from trainband.runtime.base import Event as Event
from trainband.runtime.base import Lock as Lock
from trainband.runtime.base import Runtime as Runtime
from trainband.runtime.base import Thread as Thread
from trainband.runtime.system import SYSTEM as SYSTEM
from trainband.runtime.system import SystemRuntime as SystemRuntime
