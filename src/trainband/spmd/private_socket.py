"""PrivateSocket: a socket to which only processes of this user can connect.

Every user of a machine can connect to a port of its loopback interface. Only those who can enter its directory reach a
socket in the file system.
"""

from __future__ import annotations

import atexit
import os
import shutil
import socket
import tempfile
from pathlib import Path

from trainband.errors import ClusterError

_MOST_BYTES = 100
"""The longest path of a socket: the system's limit is 104 to 108 bytes."""


class PrivateSocket:
    """The path of a socket, in a directory that only this user can enter. Remove it with `seal`.

    Raises:
      ClusterError: it cannot be created.
    """

    def __init__(self) -> None:
        try:
            self._directory = Path(tempfile.mkdtemp(prefix="trainband-jax-", dir=_place()))
        except OSError as exc:
            raise ClusterError(
                f"cannot create a socket for JAX's coordination service: {exc.strerror}. Make room in {_place()}."
            ) from None
        self.path = self._directory / "s"
        atexit.register(self.seal)

    @property
    def address(self) -> str:
        """The socket's address for gRPC."""
        return f"unix:{self.path}"

    def listen(self) -> socket.socket:
        """Returns a socket that listens there."""
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(self.path))
        listener.listen()
        return listener

    def connect(self, timeout_s: float) -> socket.socket:
        """Returns a connection to what listens there.

        Raises:
          OSError: nothing does.
        """
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(timeout_s)
        try:
            connection.connect(str(self.path))
        except OSError:
            connection.close()
            raise
        return connection

    def seal(self) -> None:
        """Removes the path; connections stay. A process that is killed later leaves nothing behind. Idempotent."""
        atexit.unregister(self.seal)
        shutil.rmtree(self._directory, ignore_errors=True)


def _place() -> str:
    usual = tempfile.gettempdir()
    return usual if len(os.fsencode(usual)) < _MOST_BYTES - len("/trainband-jax-12345678/s") else "/tmp"
