"""How often pages ask, what the charts say, and the timeline; without HTTP."""

import asyncio
import json
from typing import Any

import pytest

pytest.importorskip("starlette", reason="kelek[web] is not installed")

from kelek.actors.runtime.cluster_status import cluster_status
from kelek.console.logs.lines import read_lines
from kelek.console.web import collector as collectors
from kelek.console.web.collector import Collector
from kelek.console.web.documents import VIEWS, NetworkAnswer, Picture, document
from kelek.console.web.history import NAMES, ChartHistory, quantile_ms
from kelek.console.web.timeline import lanes
from kelek.native.latency import BOUNDS_S

PEER = {"node": "n1", "role": "raft_peer", "name": "raft_peer", "pid": 7, "state": "ready",
        "restarts": 0, "uptime": 60.0, "raft_role": "leader", "leader": "n1", "term": 3,
        "vote": "voter", "commit_index": 9, "last_index": 9, "applied_index": 9, "lag": 0,
        "taken": 5, "members": {"n1": "tcp://h:1", "n2": "tcp://h:2"},
        "followers": {"n2": {"silent_ms": 40, "match_index": 7}}}  # fmt: skip


def picture_of(rows: list[dict[str, Any]], at: float, **answers: NetworkAnswer) -> Picture:
    return Picture(at, "n1", "c", rows, cluster_status(rows), [], answers)


class CountedSources:
    """Answers as often as it was allowed to, and counts."""

    def __init__(self) -> None:
        self.views: list[set[str]] = []
        self.closed = asyncio.Event()
        self.allowed = asyncio.Semaphore(0)

    async def picture(self, views: set[str]) -> Picture:
        await self.allowed.acquire()
        self.views.append(views)
        return picture_of([PEER], 1000.0 + len(self.views))

    async def close(self) -> None:
        self.closed.set()


def test_pages_share_one_picture_and_none_is_made_without_a_page(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(collectors, "PERIOD_S", 0.01)
    sources = CountedSources()
    collector = Collector(sources)  # type: ignore[arg-type]

    async def run() -> None:
        task = asyncio.create_task(collector.run())
        await asyncio.wait_for(sources.closed.wait(), 10)
        assert not sources.views
        for _ in range(2):
            before = len(sources.views)
            sources.allowed = asyncio.Semaphore(0)
            with collector.open_page("raft") as first, collector.open_page("overview") as second:
                for number in range(1, 4):
                    sources.allowed.release()
                    messages = [await asyncio.wait_for(it.next(), 10) for it in (first, second)]
                    assert len(sources.views) == before + number
                    assert sources.views[-1] == {"raft", "overview"}
                    assert [b"event: history" in it for it in messages] == [number == 1] * 2
                sources.closed.clear()
            sources.allowed.release()  # For a picture that was begun while the pages were open.
            await asyncio.wait_for(sources.closed.wait(), 10)
            made = len(sources.views) - before
            assert made in (3, 4), "the collector waits for a page"
        collector.stop()
        await asyncio.wait_for(task, 10)

    asyncio.run(run())


def test_a_slow_page_misses_pictures_and_holds_one() -> None:
    page = collectors.OpenPage("raft")
    for number in range(1000):
        page.put(b"%d" % number)
    assert asyncio.run(page.next()) == b"999"


def test_rates_and_durations_are_those_between_two_reports() -> None:
    history = ChartHistory()
    idle = [0] * (len(BOUNDS_S) + 2)

    def add(at: float, taken: int, pid: int = 7, fast: int = 0, slow: int = 0) -> dict[str, Any]:
        counts = [*idle]
        counts[4], counts[-2] = fast, slow
        row = {**PEER, "pid": pid, "taken": taken, "latency": {"commit": counts}}
        history.add([row], at)
        newest = history.newest()
        assert newest is not None
        return dict(zip(NAMES, newest[1:], strict=True))

    assert add(100.0, 1000)["updates"] is None, "one report has no rate"
    assert add(101.0, 1500)["updates"] == 500.0
    assert add(103.0, 1600)["updates"] == 50.0
    assert add(104.0, 3, pid=8)["updates"] == 0.0, "a new process counts from now on"
    found = add(105.0, 3, pid=8, fast=99, slow=1)
    assert found["commit_p50"] <= 1000 * BOUNDS_S[3] < found["commit_p99"] + 1
    assert add(106.0, 3, pid=8, fast=99, slow=100)["commit_p99"] > 1000 * BOUNDS_S[-2]
    found = add(107.0, 3, pid=9, fast=3)
    assert found["commit_p99"] > 1000 * BOUNDS_S[-2], "what a killed process has counted stays"
    add(200.0, 9, pid=9)
    columns = history.columns()["columns"]
    assert columns[0][-2:] == [108.0, 200.0]
    assert columns[1][-2:] == [None, None], "a gap, and not a rate over 94 s"
    assert quantile_ms([0] * (len(BOUNDS_S) + 1), 0.5) is None


def test_the_timeline_follows_the_events() -> None:
    lines = read_lines("n1/raft_peer", [
        "2026-11-28T05:00:00.000Z role role=follower term=0 leader=None last=0",
        "2026-11-28T05:00:10.000Z role role=pre-candidate term=0 leader=None last=0",
        "2026-11-28T05:00:11.000Z role role=leader term=1 leader=n1 last=0",
        "2026-11-28T05:00:12.000Z role role=leader term=9 leader=s1 farm=f",
        "2026-11-28T05:00:20.000Z exited signal=SIGKILL",
        "2026-11-28T05:00:21.000Z role role=follower term=2 leader=n2 last=4",
    ])  # fmt: skip
    now = 1795842000.0 + 60  # 05:01:00
    (lane,) = lanes(lines, [PEER], now)["nodes"]
    shown = [(it["from"] - now, it["to"] - now, it["role"], it["term"]) for it in lane["spans"]]
    assert shown == [
        (-60, -50, "follower", 0), (-50, -49, "candidate", 0), (-49, -40, "leader", 1),
        (-40, -39, "down", None), (-39, 0, "follower", 2),
    ]  # fmt: skip
    (bare,) = lanes([], [PEER], now)["nodes"]
    assert [(it["role"], it["from"]) for it in bare["spans"]] == [("leader", now - 60)]


def test_every_view_has_a_document_for_any_rows() -> None:
    """Also while processes have not reported yet, and when questions fail."""
    bare = ("raft_peer", "table_worker", "zerodb_server", "job_server", "broker", "zre_node",
            "farm_server", "spark_job", "snapshot_sender", "web")  # fmt: skip
    new = [{"node": "n1", "role": it, "name": it, "pid": None, "state": "starting", "restarts": 0,
            "uptime": 0.0} for it in bare]  # fmt: skip
    supervisor = {"node": None, "nodes": ["n1"], "role": "supervisor", "name": "supervisor",
                  "pid": 1, "state": "ready", "restarts": 0, "uptime": 1.0}  # fmt: skip
    failed = NetworkAnswer(None, "no answer")
    pictures: list[list[dict[str, Any]]] = [[], [supervisor, *new], [supervisor, PEER]]
    for rows in pictures:
        for view in VIEWS:
            found = document(view, picture_of(rows, 1.0, tables=failed, jobs=failed,
                                              services=failed))  # fmt: skip
            json.dumps(found)
            assert found["view"] == view
    raft = document("raft", picture_of([supervisor, PEER], 1.0))["content"]
    assert [(it["node"], it["behind"]) for it in raft["members"]] == [("n1", 0), ("n2", 2)]
    assert document("tables", picture_of([], 1.0, tables=failed))["content"]["tables"]["problem"]
