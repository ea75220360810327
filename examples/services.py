"""Two services: kelek worker run examples.services:delay (docs/guides/services.md)."""

from collections.abc import Iterator

import kelek

MINUTES = {"UA1545": 11, "UA1714": 20, "DL461": -25}


@kelek.service("flights.delay", concurrency=4)
def delay(flight: kelek.Body) -> str:
    """The delay of a flight in minutes."""
    if flight.decode() not in MINUTES:
        raise kelek.ServiceRefused(404, f"there is no flight {flight.decode()}")
    return str(MINUTES[flight.decode()])


@kelek.service("flights.of")
def of(carrier: kelek.Body) -> Iterator[str]:
    """The flights of a carrier, one in each part of the answer."""
    for flight in MINUTES:
        if flight.startswith(carrier.decode()):
            yield flight
