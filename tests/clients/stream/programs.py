"""Processes of the drill of streams, which print a line for what they have done.

    python -m kelek.tests.clients.stream.programs produce URLS STREAM ID COUNT
    python -m kelek.tests.clients.stream.programs consume URLS STREAM GROUP TTL_S

`produce` appends the records ID/1 to ID/COUNT, each with one of a few keys, once under its id, and
prints `at NUMBER` after each batch. `consume` prints `got OFFSET KEY VALUE` for each record.
"""

import sys
from collections.abc import Iterator

import kelek

BATCH = 5
KEYS = 20
TIMEOUT_MS = 120_000


def records(name: str, first: int, count: int) -> Iterator[list[kelek.StreamRecord]]:
    for start in range(first, count + 1, BATCH):
        numbers = range(start, min(start + BATCH, count + 1))
        yield [kelek.StreamRecord(f"{name}/{it}", f"{name}/{it % KEYS}") for it in numbers]


def produce(urls: str, stream_name: str, name: str, count: int) -> None:
    with kelek.Stream(urls, stream_name, codec="text", timeout_ms=TIMEOUT_MS) as stream:
        producer = stream.producer(name)
        for batch in records(name, producer.sequence + 1, count):
            producer.append_batch(batch)
            print("at", producer.sequence, flush=True)


def consume(urls: str, stream_name: str, group_name: str, ttl_s: float) -> None:
    settings = {"ttl_s": ttl_s, "commit_s": 0.2}
    with (
        kelek.Stream(urls, stream_name, codec="text", timeout_ms=TIMEOUT_MS) as stream,
        stream.group(group_name, **settings) as group,
    ):
        for record in group:
            print("got", record.offset, record.key, record.value, flush=True)


def main(kind: str, urls: str, stream: str, name: str, number: str) -> None:
    if kind == "produce":
        produce(urls, stream, name, int(number))
    else:
        consume(urls, stream, name, float(number))


if __name__ == "__main__":
    main(*sys.argv[1:])
