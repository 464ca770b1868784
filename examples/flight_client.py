"""Reads variables of a running job with pyarrow; for a job without security, any Flight client works.

python examples/flight_client.py HOST:PORT                # lists the variables of the ps at HOST:PORT
python examples/flight_client.py HOST:PORT hidden/kernel  # reads one
"""

import sys

import numpy as np
import pyarrow.flight as flight

import trainband


def read(client: flight.FlightClient, name: str) -> np.ndarray:
    info = client.get_flight_info(flight.FlightDescriptor.for_path(name))
    slices = []
    for endpoint in info.endpoints:  # a large variable has rows on several ps
        holder = trainband.flight_client(endpoint.locations[0].uri.decode())
        table = holder.do_get(endpoint.ticket).read_all()
        slices.append(table["values"].combine_chunks().to_numpy_ndarray())
    return np.concatenate(slices)


def main(address: str, names: list[str]) -> None:
    client = trainband.flight_client(address)  # with the job's secret
    for info in client.list_flights():
        print(info.descriptor.path[0].decode(), info.schema.field("values").type, f"{info.total_bytes} bytes")
    for name in names:
        print(name, "=", read(client, name))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
