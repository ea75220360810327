"""Processes of the drill of streams, which print a line for what they have done.

    python -m kelek.tests.clients.stream.programs produce URLS STREAM ID
    python -m kelek.tests.clients.stream.programs consume URLS STREAM GROUP TTL_S

`produce` appends the records ID/1, ID/2, ... until its input ends, each with one of a few keys,
once under its id, and prints `at NUMBER` after each batch. `consume` prints `got OFFSET KEY VALUE`
for each record.
"""

import select
import sys

import kelek

BATCH = 5
PACE_S = 0.05  # Between batches.
KEYS = 20
TIMEOUT_MS = 120_000


def produce(urls: str, stream_name: str, name: str) -> None:
    with kelek.Stream(urls, stream_name, codec="text", timeout_ms=TIMEOUT_MS) as stream:
        producer = stream.producer(name)
        ended: list[object] = []
        while not ended:
            numbers = range(producer.sequence + 1, producer.sequence + 1 + BATCH)
            producer.append_batch(
                kelek.StreamRecord(f"{name}/{it}", f"{name}/{it % KEYS}") for it in numbers
            )
            print("at", producer.sequence, flush=True)
            ended, _, _ = select.select([sys.stdin], [], [], PACE_S)


def consume(urls: str, stream_name: str, group_name: str, ttl_s: float) -> None:
    settings = {"ttl_s": ttl_s, "commit_s": 0.2}
    with (
        kelek.Stream(urls, stream_name, codec="text", timeout_ms=TIMEOUT_MS) as stream,
        stream.group(group_name, **settings) as group,
    ):
        for record in group:
            print("got", record.offset, record.key, record.value, flush=True)


def main(kind: str, urls: str, stream: str, name: str, *ttl_s: str) -> None:
    if kind == "produce":
        produce(urls, stream, name)
    else:
        consume(urls, stream, name, *map(float, ttl_s))


if __name__ == "__main__":
    main(*sys.argv[1:])
