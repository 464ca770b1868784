"""Looks into a running job with plain pyarrow: no trainband here, and any other Flight client will do.

python examples/flight_client.py HOST:PORT                # lists the variables of the ps at HOST:PORT
python examples/flight_client.py HOST:PORT hidden/kernel  # reads one
"""

import sys

import numpy as np
import pyarrow.flight as flight


def read(client: flight.FlightClient, name: str) -> np.ndarray:
    info = client.get_flight_info(flight.FlightDescriptor.for_path(name))
    slices = []
    for endpoint in info.endpoints:  # a large variable has rows on several ps
        table = flight.connect(endpoint.locations[0]).do_get(endpoint.ticket).read_all()
        slices.append(table["values"].combine_chunks().to_numpy_ndarray())
    return np.concatenate(slices)


def main(address: str, names: list[str]) -> None:
    client = flight.connect(f"grpc://{address}")
    for info in client.list_flights():
        print(info.descriptor.path[0].decode(), info.schema.field("values").type, f"{info.total_bytes} bytes")
    for name in names:
        print(name, "=", read(client, name))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
