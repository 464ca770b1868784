"""The update rules: how pushes become updates. Each is a pure state machine in a file of its own."""

from trainband.ps.rules.asynchronous import Async as Async
from trainband.ps.rules.base import UpdateRule as UpdateRule
from trainband.ps.rules.bounded import Bounded as Bounded
from trainband.ps.rules.synchronous import Sync as Sync
