"""`kelek top`: keys and pictures by textual's pilot."""

import asyncio
import os
import re
import signal
import time
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot
from textual.widgets import DataTable, Static

from kelek.actors.runtime.cluster_status import ClusterStatus
from kelek.console.cli_errors import CliError
from kelek.console.options import ClusterOptions
from kelek.console.status.commands import Source, source_of
from kelek.console.top import figures
from kelek.console.top.app import ConfirmScreen, TextScreen, TopApp
from kelek.native.latency import BOUNDS_S
from kelek.tests.console.kelek_runner import fails
from kelek.tests.console.status.test_view import peers

DEADLINE_S = 60.0
ROOT = Path(__file__).parents[3]
Rows = list[dict[str, Any]]


def run(
    app: TopApp, story: Callable[[Pilot[None]], Coroutine[Any, Any, None]], columns: int = 80
) -> None:
    async def main() -> None:
        async with app.run_test(size=(columns, 24)) as pilot:
            await story(pilot)

    asyncio.run(main())


async def until(pilot: Pilot[None], holds: Callable[[], bool]) -> None:
    end_s = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < end_s, text_of(pilot.app)
        assert isinstance(pilot.app, TopApp)
        pilot.app.read()
        await pilot.pause(0.02)


def text_of(app: Any) -> str:
    """What the view says besides its tables."""
    found = [*app.screen.query(Static)]
    return "\n".join(str(each.render()) for each in found)


def cells_of(app: Any, selector: str) -> list[list[str]]:
    table = app.query_one(selector, DataTable)
    return [[str(cell) for cell in table.get_row_at(row)] for row in range(table.row_count)]


def test_keys_and_a_cluster_in_trouble(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node goes down, then no leader is left, then no supervisor answers."""
    rows: Rows = peers()
    problem = ""
    restarted = []

    def read() -> Rows:
        if problem:
            raise CliError(problem)
        return [{**row, "pid": os.getpid()} for row in rows]

    def restart(path: str, targets: Any, output: str) -> Rows:
        restarted.append(str(targets[0]))
        return [{"roles": ["raft_peer"]}]

    monkeypatch.setattr("kelek.console.top.app.restart_targets", restart)
    monkeypatch.setattr("kelek.console.top.app.REFRESH_S", 3600.0)  # until() reads.
    app = TopApp(Source("f.yaml", read))

    async def story(pilot: Pilot[None]) -> None:
        nonlocal problem
        await until(pilot, lambda: "3 of 3 nodes, n1 leads term 3" in text_of(app))
        await until(pilot, lambda: len(app.samples) > 1)
        assert [row[:3] for row in cells_of(app, "#nodes")] == [
            ["n1", "ready", "leader"], ["n2", "ready", "follower"], ["n3", "ready", "follower"],
        ]  # fmt: skip
        assert app.query_one("#nodes", DataTable).virtual_size.width <= 80
        await pilot.press("down")
        await until(pilot, lambda: app.chosen == "n2")
        await pilot.press("question_mark")
        assert isinstance(app.screen, TextScreen)
        await pilot.press("escape", "d")
        await until(pilot, lambda: '"term": 3' in text_of(app))  # New pictures come meanwhile.
        await pilot.press("escape", "r")
        assert isinstance(app.screen, ConfirmScreen)
        await pilot.press("n")
        assert not restarted
        await pilot.press("r", "y")
        await until(pilot, lambda: restarted == ["n2"])
        await pilot.press("slash", "n", "3", "enter")
        assert [row[0] for row in cells_of(app, "#nodes")] == ["n3"]
        await pilot.press("escape")
        assert len(cells_of(app, "#nodes")) == 3
        rows[2] |= {"state": "backoff", "restarts": 4}
        await until(pilot, lambda: "n3 backoff" in text_of(app))
        for row in rows:
            row |= {"leader": None, "raft_role": "candidate"}
        await until(pilot, lambda: "no leader" in text_of(app))
        problem = "node n1: its supervisor (1) does not answer"
        await until(pilot, lambda: problem in text_of(app))
        assert len(cells_of(app, "#nodes")) == 3, "the last picture stays"
        problem = ""
        rows.clear()
        await until(pilot, lambda: "no node of f.yaml runs" in text_of(app))

    run(app, story)


def test_a_narrow_screen_lacks_the_less_important_columns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counts = [9, 3, *[0] * len(BOUNDS_S)]
    rows = [{**row, "pid": os.getpid(), "latency": {"commit": counts}} for row in peers()]
    monkeypatch.setattr("kelek.console.top.app.REFRESH_S", 3600.0)
    app = TopApp(Source("f.yaml", lambda: [dict(row) for row in rows]))

    def heads(selector: str) -> list[str]:
        return [str(each.label) for each in app.query_one(selector, DataTable).columns.values()]

    def fits(columns: int) -> bool:
        """And nothing is left out without a reason."""
        tables = app.query(DataTable)
        whole = (
            heads("#nodes") == [*figures.NODE_HEADS],
            heads("#processes") == [*figures.PROCESS_HEADS],
        )
        is_narrow = all(it.virtual_size.width <= columns for it in tables)
        return len(app.samples) > 1 and is_narrow and whole == (columns == 200,) * 2

    async def story(pilot: Pilot[None]) -> None:
        for columns in (60, 200, 40):
            await pilot.resize_terminal(columns, 24)
            await until(pilot, partial(fits, columns))
            assert heads("#nodes")[:3] == ["NODE", "STATE", "RAFT"]
            assert heads("#processes")[:2] == ["PROCESS", "STATE"]
            assert [row[0] for row in cells_of(app, "#nodes")] == ["n1", "n2", "n3"]

    run(app, story, 60)


def test_a_wide_column_gives_way_to_several_narrow_ones() -> None:
    widths = {"A": 3, "B": 20, "C": 4, "D": 4}
    for most, kept in ((50, "ABCD"), (36, "ABD"), (30, "ACD"), (16, "AD"), (1, "A")):
        assert "".join(figures.fitting(widths, ("C", "B", "D"), most)) == kept


def test_figures(tmp_path: Path) -> None:
    """Rates, quantiles and processor time are those between two pictures."""
    zero = [0] * (len(BOUNDS_S) + 2)
    slow = [90_000, *([0] * 3), 100, *([0] * (len(zero) - 5))]
    old: Rows = [{**peers()[0], "taken": 100, "pid": 5, "latency": {"commit": zero}}]
    new: Rows = [{**old[0], "taken": 300, "commit_index": 205, "latency": {"commit": slow}}]
    status = ClusterStatus([], [], [], "n1", 1)
    (tmp_path / "5").mkdir()
    ticks = os.sysconf("SC_CLK_TCK")
    (tmp_path / "5" / "stat").write_text(f"5 (a b) S {'0 ' * 10}{ticks} {ticks} 0")
    (tmp_path / "5" / "statm").write_text("9 512 0")
    assert figures.usage_of([{"pid": 6}], tmp_path) == {}
    usage = figures.usage_of(old, tmp_path)
    assert usage == {5: figures.Usage(2.0, 512 * os.sysconf("SC_PAGE_SIZE"))}
    before = figures.Sample(10.0, old, status, {5: figures.Usage(1.0, 1)})
    now = figures.Sample(12.0, new, status, usage)
    [(name, cells)] = figures.process_rows(now, before, None)
    bound = figures.duration_text(BOUNDS_S[3])
    assert name == "n1/raft_peer"
    memory = figures.bytes_text(usage[5].memory_bytes)
    assert cells[2:7] == ["100", f"commit {bound} / {bound}", "-", "50%", memory]
    [(_, cells)] = figures.process_rows(before, now, None)
    assert cells[2] == "-", "a counter that fell: the process has restarted"


@pytest.mark.tables
def test_a_real_cluster(
    shell: Any, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """A process is killed and seen to come back; its log; a restart of another.

    `--rewrite` draws the picture of the documents.
    """
    for name, value in shell.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(shell.folder)
    shell.ok("supervisor start topology.yaml --detach")
    shell.ok("kelek table put 1 key value")
    app = TopApp(source_of(ClusterOptions("topology.yaml", (), None, 0, "text")))

    def row_of(process: str) -> dict[str, Any]:
        node, _, name = process.partition("/")
        rows = app.samples[-1].rows if app.samples else []
        return next((row for row in rows if (row["node"], row["name"]) == (node, name)), {})

    async def story(pilot: Pilot[None]) -> None:
        await until(pilot, lambda: "3 of 3 nodes" in text_of(app) and len(app.samples) > 1)
        if request.config.getoption("--rewrite"):
            load = shell.start("kelek log bench")
            await until(pilot, lambda: not {"-", "0"} & {*cells_of(app, "#nodes")[0][3:6]})
            load.kill()
            load.communicate()
            picture = re.sub(r"@font-face {.*?}", "", app.export_screenshot(), flags=re.DOTALL)
            picture = re.sub(r"[ \t]+$", "", picture, flags=re.MULTILINE)
            (ROOT / "docs/pictures/top.svg").write_text(picture, "utf-8")
        assert all(row[7].endswith("%") for row in cells_of(app, "#nodes")), "processor time"
        os.kill(row_of("n1/snapshot_sender")["pid"], signal.SIGKILL)
        await until(pilot, lambda: row_of("n1/snapshot_sender").get("restarts") == 1)
        await until(pilot, lambda: row_of("n1/snapshot_sender")["state"] == "ready")
        await pilot.press("slash", *"n1/raft", "enter")
        await until(pilot, lambda: str(app.target) == "n1/raft_peer")
        await pilot.press("l")
        await until(pilot, lambda: "log of n1/raft_peer" in text_of(app))
        assert "recovered" in text_of(app)
        await pilot.press("escape", "escape", "slash", *"n2/state_m", "enter")
        await until(pilot, lambda: str(app.target) == "n2/state_machine")
        pid = row_of("n2/state_machine")["pid"]
        await pilot.press("r")
        assert "Restart n2/state_machine?" in text_of(app)
        await pilot.press("y")
        await until(pilot, lambda: row_of("n2/state_machine").get("pid") not in (pid, None))
        await until(pilot, lambda: row_of("n2/state_machine")["state"] == "ready")

    run(app, story)


def test_without_a_terminal(tmp_path: Path) -> None:
    file = tmp_path / "t.yaml"
    file.write_text("cluster: c\n")
    code, line = fails("top", "-t", file)
    assert (code, line) == (
        2, "kelek: top: no terminal; `kelek status --watch` prints a line a change",
    )  # fmt: skip
