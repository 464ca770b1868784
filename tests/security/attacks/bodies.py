"""Bodies that are large, or become large."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.flight as flight

_REFUSALS = (flight.FlightError, pa.ArrowException, OSError)
LARGE = 1 << 30
_CHUNK = 16 << 20


def _options() -> Any:
    return flight.FlightCallOptions(timeout=20.0)


def reading(address: str) -> str:
    """Looks at what there is."""
    client = flight.connect(f"grpc://{address}")
    achieved = []
    with contextlib.suppress(*_REFUSALS):
        list(client.list_flights(options=_options()))
        achieved.append("listed the variables")
    for name in ("w", "hidden/kernel", "x" * 100_000):
        with contextlib.suppress(*_REFUSALS):
            client.do_get(flight.Ticket(name), _options()).read_all()
            achieved.append(f"read {name[:20]}")
        with contextlib.suppress(*_REFUSALS):
            client.get_flight_info(flight.FlightDescriptor.for_path(name), _options())
            achieved.append(f"looked at {name[:20]}")
    client.close()
    return ", ".join(achieved)


def _write(address: str, batch: pa.RecordBatch, total: int, options: Any = None) -> str:
    """Assigns a variable so many bytes; how many the ps has taken before it refused."""
    client = flight.connect(f"grpc://{address}")
    sent = 0
    with contextlib.suppress(*_REFUSALS):
        call = flight.FlightCallOptions(timeout=20.0, write_options=options)
        writer, _ = client.do_put(flight.FlightDescriptor.for_path("w"), batch.schema, call)
        try:
            while sent < total:
                writer.write_batch(batch)
                sent += batch.nbytes
        finally:
            writer.close()
        client.close()
        return f"assigned {sent} bytes"
    client.close()
    return ""


def assignment(address: str) -> str:
    """A body of a gigabyte."""
    return _write(address, pa.record_batch({"x": pa.array(np.zeros(_CHUNK, np.uint8))}), LARGE)


def bomb(address: str) -> str:
    """A body that is small as it travels, and gigabytes once it is unpacked."""
    batch = pa.record_batch({"x": pa.array(np.zeros(LARGE // 4, np.uint8))})
    return _write(address, batch, LARGE, pa.ipc.IpcWriteOptions(compression="zstd"))


def squeezed_call(address: str) -> str:
    """A control call that gRPC unpacks to thirty times what strangers may send, before it asks anybody."""
    gzip = [("grpc.default_compression_algorithm", 2), ("grpc.default_compression_level", 3)]
    client = flight.FlightClient(f"grpc://{address}", generic_options=gzip)
    achieved = 0
    for _ in range(4):
        with contextlib.suppress(*_REFUSALS):
            list(client.do_action(flight.Action("join", pa.py_buffer(np.zeros(LARGE // 4, np.uint8))), _options()))
            achieved += 1
    client.close()
    return f"{achieved} calls" if achieved else ""


def large_call(address: str) -> str:
    """A control call that gRPC reads to its end before it asks anybody."""
    client = flight.connect(f"grpc://{address}")
    body = pa.py_buffer(np.zeros(LARGE, np.uint8))
    achieved = ""
    with contextlib.suppress(*_REFUSALS):
        list(client.do_action(flight.Action("join", body), _options()))
        achieved = f"a call of {LARGE} bytes"
    client.close()
    return achieved
