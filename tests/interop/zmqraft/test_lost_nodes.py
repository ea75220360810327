"""A snapshot that outlives the node that it is read from, on real nodes."""

from collections.abc import Iterator
from itertools import chain

import pytest

import kelek
from kelek.tests.table_cluster import NAMES, TableCluster

ROWS = 20_000


@pytest.fixture(scope="module")
def nodes() -> Iterator[TableCluster]:
    running = TableCluster()
    try:
        yield running
    finally:
        running.stop()


def pairs(what: bytes, first: int = 0) -> list[tuple[bytes, bytes]]:
    return [(b"%06d" % i, b"%s %d" % (what, i) * 5) for i in range(first, ROWS)]


@pytest.mark.timeout(400)
def test_a_scan_goes_on_at_another_node(nodes: TableCluster) -> None:
    before = pairs(b"before")
    with nodes.table(7) as table:
        table.put_many(before)
        lease = table.open_snapshot()
        table.put_many(pairs(b"after", ROWS // 2))
        table.delete_range(end=b"000100")
        chunks = table.snapshot_chunks(lease.number, chunk_pairs=700)
        found = [next(chunks) for _ in range(5)]
        lost = nodes.name_of(table.server().url)
        nodes.kill(lost)
        found += chunks
        assert list(chain.from_iterable(found)) == before
        assert nodes.name_of(table.server().url) != lost
        # As Arrow, of a part, from each node that is left.
        part = [key for key, _ in before if b"005000" <= key < b"005500"]
        for name in set(NAMES) - {lost}:
            with nodes.table(7, name) as one:
                batches = one.snapshot_chunks_arrow(
                    lease.number, start=b"005000", end=b"005500", keys_only=True
                )
                keys = [key for batch in batches for key in batch.column("key").to_pylist()]
                assert keys == part, name
        # A node that was down takes the snapshot when it comes to the entry.
        second = table.open_snapshot()
        table.put_many(pairs(b"later"))
        expected = [*pairs(b"before")[100 : ROWS // 2], *pairs(b"after", ROWS // 2)]
        nodes.start(lost)
        with nodes.table(7, lost) as one:
            assert list(chain.from_iterable(one.snapshot_chunks(second.number))) == expected
            assert list(chain.from_iterable(one.snapshot_chunks(lease.number))) == before
            one.renew(lease.number)
        # All nodes release it, at any node's order.
        table.release(lease.number)
        table.release(second.number)
        nodes.wait(lambda: not any(nodes.leases(name) for name in NAMES))
        with pytest.raises(kelek.TableRefused, match="it was released"):
            next(table.snapshot_chunks(lease.number))


def test_a_local_table_has_none(nodes: TableCluster) -> None:
    with nodes.table(900, "n1") as table:
        with pytest.raises(kelek.TableRefused, match="table 900 is local"):
            table.open_snapshot()
        with pytest.raises(ValueError, match="belongs to one server"):
            next(table.snapshot_chunks(12))
