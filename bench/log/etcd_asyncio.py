"""Drives a running etcd with the Python client of shared/peers, in a process of its own.

    python -m kelek.bench.log.etcd_asyncio PEERS_DIRECTORY FIRST_PORT OUTSTANDING SIZE SECS

It prints what peerlib.load() counts as one JSON object. grpcio, which the client needs, is no
dependency of kelek: without it the benchmark leaves this column empty.
"""

import asyncio
import importlib
import json
import sys
from typing import Any


async def load(peer_etcd: Any, outstanding: int, size: int, secs: float) -> dict[str, Any]:
    """The closed loop of shared/peers, with as many calls outstanding on one channel a member."""
    peer = peer_etcd.Etcd()
    client = await peer.connect()
    await peer_etcd.wait_write(peer, client)
    found = await peer_etcd.load(peer, client, outstanding, size, secs)
    await client.close()
    return {
        "updates_s": found["ops_s"],
        "p50_us": found["p50_us"],
        "p99_us": found["p99_us"],
        "cpu_us_update": found["cli_cpu_us_op"],
    }


def main() -> None:
    directory, first_port, outstanding, size, secs = sys.argv[1:]
    sys.path.insert(0, directory)
    try:
        peer_etcd: Any = importlib.import_module("peer_etcd")
    except ImportError as error:
        print(json.dumps({"error": f"{error.name} is missing (pip install grpcio)"}))
        return
    peer_etcd.P0 = int(first_port)
    found = asyncio.run(load(peer_etcd, int(outstanding), int(size), float(secs)))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
