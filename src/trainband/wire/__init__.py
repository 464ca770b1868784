"""How tasks talk: the transport seam and what stands behind it."""

from .memory import MemoryTransport as MemoryTransport
from .network import Network as Network
from .transport import BODY_ALIGNMENT as BODY_ALIGNMENT
from .transport import Bytes as Bytes
from .transport import Connection as Connection
from .transport import Frame as Frame
from .transport import Handler as Handler
from .transport import Listener as Listener
from .transport import Stream as Stream
from .transport import Tensor as Tensor
from .transport import Timeouts as Timeouts
from .transport import Transport as Transport
