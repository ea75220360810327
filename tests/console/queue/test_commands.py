"""`kelek queue` against a cluster of one node with a broker."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

import kelek
import kelek.testing
from kelek.clients.table import operations
from kelek.testing.local_cluster import LocalCluster
from kelek.tests.console.kelek_runner import fails, ok


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    broker = {"services": {"orders": {"durable": True}}}
    with kelek.testing.cluster(nodes=1, broker=broker) as cluster:
        yield cluster


def rows(*words: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in ok("queue", *words, "-o", "json").splitlines()]


def test_jobs_are_put_listed_shown_and_ended(cluster: LocalCluster) -> None:
    of = "-t", cluster.topology
    assert "no queue has the name thumbs" in fails("queue", "list", "thumbs", *of)[1]
    job = ok("queue", "put", "thumbs", '{"name": "a.jpg"}', "--priority", "7", *of).strip()
    later = ok("queue", "put", "thumbs", "b.jpg", "--delay", "3600", "--unique", "b", *of).strip()
    assert ok("queue", "put", "thumbs", "b.jpg", "--unique", "b", *of).strip() == later
    found = rows("list", "thumbs", *of)
    assert [(row["id"], row["state"], row["body"]) for row in found] == [
        (job, "waiting", {"name": "a.jpg"}),
        (later, "delayed", "b.jpg"),
    ]
    shown = ok("queue", "show", "thumbs", job, *of)
    assert "state      waiting" in shown
    for text in (shown, ok("queue", "list", "thumbs", *of)):
        assert '{"name": "a.jpg"}' in text, "as `kelek queue put` takes it"
    with kelek.Queue(cluster.table_urls, "thumbs") as queue:

        @queue.worker
        def work(job: kelek.Job) -> None:
            raise kelek.JobFailed("broken picture")

        queue.run(idle_s=0.1)
    (dead,) = rows("dead", "thumbs", *of)
    assert dead["error"] == "JobFailed: broken picture"
    (info,) = rows("info", "thumbs", *of)
    assert (info["dead"], info["delayed"], info["waiting"]) == (1, 1, 0)
    assert "failure" in ok("queue", "show", "thumbs", job, *of)
    assert ok("queue", "retry", "thumbs", "--all", *of) == "1 jobs wait again\n"
    ok("queue", "cancel", "thumbs", job, later, *of)
    assert {row["state"] for row in rows("list", "thumbs", "--state", "ended", *of)} == {
        "cancelled"
    }


def test_all_queues_and_durable_services_are_counted(cluster: LocalCluster) -> None:
    with (
        kelek.Broker(cluster.broker_urls) as broker,
        kelek.Queue(cluster.table_urls, "counted") as queue,
    ):
        broker.call("titanic.request", [b"orders", b"one"])
        queue.put({"name": b"bytes"})
        found = {row["queue"]: row for row in rows("info", "-t", cluster.topology)}
    assert found["counted"]["waiting"] == 1
    assert found["orders"]["waiting"] == 1
    assert rows("list", "counted", "-t", cluster.topology)[0]["body"] == "{'name': b'bytes'}"


def test_one_connection_counts_the_jobs_of_all_queues(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, count in (("first", 1), ("second", 2)):
        with kelek.Queue(cluster.table_urls, name) as queue:
            queue.put_many(range(count))
    made, make_client = [], operations.make_client

    def make(*arguments: Any) -> Any:
        made.append(arguments)
        return make_client(*arguments)

    monkeypatch.setattr(operations, "make_client", make)
    found = {row["queue"]: row["waiting"] for row in rows("info", "-t", cluster.topology)}
    assert (found["first"], found["second"]) == (1, 2)
    assert len(made) == 1


def test_errors_are_one_line(cluster: LocalCluster) -> None:
    of = "-t", cluster.topology
    missing = "00" * 15
    for code, text, words in (
        (2, "name", ["list", "a/b"]),
        (2, "30 digits", ["show", "thumbs", "x"]),
        (1, "there is no job", ["show", "thumbs", missing]),
        (1, "has ended", ["cancel", "thumbs", missing]),
        (1, "no dead letter", ["retry", "thumbs", missing]),
        (2, "give a JOB", ["retry", "thumbs"]),
        (1, "no queue has the name", ["list", "thumb"]),
        (1, "no queue has the name", ["dead", "thumb"]),
        (1, "no queue has the name", ["info", "thumbs", "thumb"]),
    ):
        found, line = fails("queue", *words, *of)
        assert found == code, line
        assert text in line
