"""Communication between tasks: the transport seam and its implementations."""

from trainband.wire.frame import BODY_ALIGNMENT as BODY_ALIGNMENT
from trainband.wire.frame import Bytes as Bytes
from trainband.wire.frame import Frame as Frame
from trainband.wire.memory.transport import MemoryTransport as MemoryTransport
from trainband.wire.network import Network as Network
from trainband.wire.transport import Connection as Connection
from trainband.wire.transport import Handler as Handler
from trainband.wire.transport import Listener as Listener
from trainband.wire.transport import Stream as Stream
from trainband.wire.transport import Tensor as Tensor
from trainband.wire.transport import Timeouts as Timeouts
from trainband.wire.transport import Transport as Transport
