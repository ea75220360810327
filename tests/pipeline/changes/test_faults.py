"""Each node is lost while queries follow a table: they go on at the others."""

import json
from typing import Any

from kelek.tests.pipeline.changes.test_source import Query, apply, write_at_random
from kelek.tests.table_cluster import NAMES, TableCluster

TABLE = 7


def test_a_query_goes_on_at_another_node() -> None:
    cluster = TableCluster()
    try:
        urls = ",".join(cluster.urls.values())
        with cluster.table(TABLE) as table:
            write_at_random(table, 1, 30)
            queries = [Query(table, urls=urls, previous=previous) for previous in ("false", "true")]
            states: list[dict[bytes, bytes]] = [{}, {}]
            seen: list[list[Any]] = [[], []]

            def follow(key: bytes) -> None:
                for query, state, keys in zip(queries, states, seen, strict=True):
                    rows = query.until(key)
                    keys += [(row["index"], row["place"], row["key"]) for row in rows]
                    apply(rows, state)

            for number, name in enumerate(NAMES):
                write_at_random(table, 2 + number, 50)
                cluster.kill(name)
                write_at_random(table, 12 + number, 50)
                table.put(b"zzz", name.encode())
                follow(b"zzz")
                cluster.start(name)
            assert states[0] == states[1] == dict(table.scan())
        for query, keys in zip(queries, seen, strict=True):
            assert len({*keys}) == len(keys)
            assert json.loads(query.position)["index"] >= keys[-1][0]
            query.stop()
    finally:
        cluster.stop()
