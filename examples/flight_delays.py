"""A service that answers from a table. Any number of workers can offer it, on any machine.

./demo leaves the flights in table 1 and calls the service while it kills a worker.

    kelek worker run examples.flight_delays:delay
    kelek call flights.delay UA/2013-01-01T05:15/1545/000001
"""

import json
import os

import kelek

URLS = "tcp://127.0.0.1:7100,tcp://127.0.0.1:7110,tcp://127.0.0.1:7120"
DEP_DELAY = 5  # Column of a line.

# On a cluster with keys: {"key": "FILE.key_secret", "server_keys": {"URL": "PUBLIC KEY"}}
KEYS = json.loads(os.environ.get("FLIGHTS_KEYS", "{}"))

flights = kelek.AsyncTable(os.environ.get("FLIGHTS_URLS", URLS), 1, **KEYS)


@kelek.service("flights.delay", concurrency=64)
async def delay(key: kelek.Body) -> bytes:
    """The delay of a flight in minutes; NA: it did not leave."""
    line: bytes | None = await flights.get(key)  # One request carries the gets of concurrent calls.
    if line is None:
        raise kelek.ServiceRefused(404, f"there is no flight {key.decode(errors='replace')}")
    return line.split(b",")[DEP_DELAY]
