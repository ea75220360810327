"""The live view of `kelek top`, drawn by textual.

A thread collects the picture each second, so the view answers keys while a node is down.
"""

import json
import time
from collections.abc import Iterable, Sequence
from functools import partial
from typing import ClassVar

from textual import work
from textual.app import App, ComposeResult
from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen, Screen
from textual.widgets import DataTable, Footer, Input, Static

from ...actors.errors import OperatorError
from ...actors.runtime.cluster_status import (
    CommitHistory,
    Row,
    cluster_status,
    commits_before,
    highest,
)
from ...net.clock import monotonic_ms
from ..admin.processes import ProcessTarget, restart_targets
from ..admin.supervisor_client import load
from ..cli_errors import CliError
from ..logs.files import LogFiles, log_folders
from ..status.commands import Source
from .figures import (
    NODE_HEADS,
    NODE_SPARE,
    PROCESS_HEADS,
    PROCESS_SPARE,
    Sample,
    fitting,
    node_rows,
    process_rows,
    usage_of,
)

REFRESH_S = 1.0
LOG_LINES = 200
HELP = """\
up, down    choose a node, or a process of the chosen node
tab         go to the other table
l           the last lines of the log
d           describe: all that the process reports
r           restart it, after a question
/           filter nodes and processes by a part of their names; escape ends it
?           this page
escape      close a page
q           quit

COMMIT and FSYNC are the times of 99 % of the last second's entries, MEM is resident memory,
RST counts restarts. A dash: unknown, or nothing happened."""


class TextScreen(ModalScreen[None]):
    """Text over the view."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape,q", "dismiss", "close")]

    def __init__(self, title: str, text: str) -> None:
        super().__init__()
        self.heading, self.text = title, text

    def compose(self) -> ComposeResult:
        yield Static(self.heading, classes="heading", markup=False)
        with VerticalScroll():
            yield Static(self.text, markup=False)
        yield Footer()

    def on_mount(self) -> None:
        scroll = self.query_one(VerticalScroll)
        scroll.focus()
        if self.heading.startswith("log of"):
            self.call_after_refresh(scroll.scroll_end, animate=False)


class ConfirmScreen(ModalScreen[bool]):
    """Asks before something happens."""

    BINDINGS: ClassVar[list[BindingType]] = [
        ("y", "answer(True)", "yes"),
        ("n,escape,q", "answer(False)", "no"),
    ]

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text

    def compose(self) -> ComposeResult:
        yield Static(self.text, classes="question", markup=False)
        yield Footer()

    def action_answer(self, is_yes: bool) -> None:
        self.dismiss(is_yes)


class FittingTable(DataTable[str]):
    """A table that leaves out columns for which the screen has no room."""

    def __init__(self, name: str, heads: Sequence[str], spare: Sequence[str]) -> None:
        super().__init__(id=name, cursor_type="row")
        self._heads, self._spare = heads, spare
        self._shown: list[str] = []
        self.forget_widths()

    def forget_widths(self) -> None:
        """The screen has another width."""
        self._widths = {head: len(head) for head in self._heads}

    def fill(self, rows: Sequence[tuple[str, list[str]]]) -> None:
        """Replaces the rows; the cursor stays at its name."""
        at = name_at(self)
        for _, cells in rows:
            for head, cell in zip(self._heads, cells, strict=True):
                # Only growing: columns do not come and go with each picture.
                self._widths[head] = max(self._widths[head], len(cell))
        shown = fitting(self._widths, self._spare, self.scrollable_content_region.width)
        self.clear(columns=shown != self._shown)
        if shown != self._shown:
            self.add_columns(*shown)
            self._shown = shown
        for name, cells in rows:
            by_head = dict(zip(self._heads, cells, strict=True))
            self.add_row(*(by_head[head] for head in shown), key=name)
        names = [name for name, _ in rows]
        if at in names:
            self.move_cursor(row=names.index(at), animate=False)


class TopApp(App[None]):
    """Nodes above, the processes of the chosen node below, what is wrong at the bottom."""

    TITLE = "kelek top"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #summary { height: auto; max-height: 3; text-style: bold; }
    #nodes { height: auto; max-height: 40%; }
    #processes { height: 1fr; }
    #problems { height: auto; max-height: 5; color: $text-error; }
    #filter { display: none; border: none; height: 1; }
    TextScreen { background: $surface; }
    .heading { text-style: reverse; }
    .question { padding: 1 2; background: $warning-darken-2; width: 100%; height: auto; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        ("l", "logs", "logs"),
        ("d", "describe", "describe"),
        ("r", "restart", "restart"),
        ("slash", "filter", "filter"),
        ("question_mark", "help", "help"),
        ("q", "quit", "quit"),
    ]

    def __init__(self, source: Source) -> None:
        super().__init__()
        self.source = source
        self.samples: list[Sample] = []  # At most the last two, the newest last.
        self.commits = CommitHistory()
        self.word = ""  # The filter.
        self.chosen = ""  # The node whose processes are shown.
        self.is_reading = False

    def compose(self) -> ComposeResult:
        yield Static("asking ...", id="summary", markup=False)
        yield FittingTable("nodes", NODE_HEADS, NODE_SPARE)
        yield FittingTable("processes", PROCESS_HEADS, PROCESS_SPARE)
        yield Static(id="problems", markup=False)
        yield Input(id="filter", placeholder="a part of a name", compact=True)
        yield Footer()

    @property
    def main_screen(self) -> Screen[None]:
        """The tables, also while a page hides them."""
        return self.screen_stack[0]

    def on_mount(self) -> None:
        self.set_interval(REFRESH_S, self.read)
        self.read()

    # What is shown.

    def read(self) -> None:
        """Asks for a new picture, unless one is on its way."""
        if not self.is_reading:
            self.is_reading = True
            self._read()

    @work(thread=True)
    def _read(self) -> None:
        try:
            rows = self.source.read()
        except (CliError, OperatorError) as error:
            self.call_from_thread(self.on_rows, [], {}, str(error))
        else:
            self.call_from_thread(self.on_rows, rows, usage_of(rows), "")

    def on_rows(self, rows: list[Row], usage: dict, problem: str) -> None:  # type: ignore[type-arg]
        """Takes a new picture, or what keeps us from one; then the last one stays."""
        self.is_reading = False
        now_s = time.monotonic()
        if problem or not rows:
            text = problem or f"no node of {self.source.name} runs; `supervisor start` starts it"
            self.main_screen.query_one("#problems", Static).update(text)
            return
        now_ms = monotonic_ms()
        committed = highest([commits_before(rows), self.commits.known(now_ms)])
        self.commits.add(rows, now_ms)
        status = cluster_status(rows, committed, self.source.topology)
        self.samples = [*self.samples[-1:], Sample(now_s, rows, status, usage)]
        self.show_picture()

    def show_picture(self) -> None:
        if not self.samples:
            return
        now, before = self.samples[-1], self.samples[-2] if len(self.samples) > 1 else None
        names = [node.node for node in now.status.nodes]
        if self.chosen not in names:
            self.chosen = names[0] if names else ""
        self.main_screen.query_one("#summary", Static).update(now.status.summary)
        text = "\n".join([*map(str, now.status.problems), *now.status.notes])
        self.main_screen.query_one("#problems", Static).update(text)
        self._fill("#nodes", node_rows(now, before))
        self.show_processes()

    def on_resize(self) -> None:
        for table in self.main_screen.query(FittingTable):
            table.forget_widths()
        self.call_after_refresh(self.show_picture)

    def show_processes(self) -> None:
        now, before = self.samples[-1], self.samples[-2] if len(self.samples) > 1 else None
        node = next((each for each in now.status.nodes if each.node == self.chosen), None)
        self._fill("#processes", process_rows(now, before, None if self.word else node))

    def _fill(self, selector: str, rows: Iterable[tuple[str, list[str]]]) -> None:
        table = self.main_screen.query_one(selector, FittingTable)
        with self.prevent(DataTable.RowHighlighted):
            table.fill([(name, cells) for name, cells in rows if self.word in name])

    def on_data_table_row_highlighted(self, event: DataTable.RowHighlighted) -> None:
        if event.data_table.id == "nodes" and self.samples and event.row_key.value:
            self.chosen = event.row_key.value
            self.show_processes()

    @property
    def target(self) -> ProcessTarget | None:
        """The node or process at the cursor."""
        table = (
            self.focused
            if isinstance(self.focused, DataTable)
            else self.main_screen.query_one("#nodes")
        )
        node, _, role = name_at(table).partition("/")
        return ProcessTarget(node, role or None) if node else None

    # Keys.

    def action_help(self) -> None:
        self.push_screen(TextScreen("keys of kelek top", HELP))

    def action_describe(self) -> None:
        target = self.target
        if target and self.samples:
            rows = [
                row
                for row in self.samples[-1].rows
                if row["node"] == target.node and target.role in (None, row["name"])
            ]
            text = "\n\n".join(json.dumps(row, indent=2, ensure_ascii=False) for row in rows)
            self.push_screen(TextScreen(f"report of {target}", text))

    def action_logs(self) -> None:
        if target := self.target:
            self._read_logs(target)

    @work(thread=True)
    def _read_logs(self, target: ProcessTarget) -> None:
        try:
            text = self._log_text(target)
        except (CliError, OperatorError, OSError) as error:
            text = str(error)
        self.call_from_thread(self.push_screen, TextScreen(f"log of {target}", text))

    def _log_text(self, target: ProcessTarget) -> str:
        if not self._is_here(target):
            return f"{target.node} does not run on this machine: see its log there"
        folders = log_folders(load(self.source.name), [target.node])
        wanted = {str(target)} if target.role else None
        files = LogFiles(folders, lambda name: not wanted or name in wanted, lambda line: True)
        lines = files.last(LOG_LINES)
        return "\n".join(f"{line.process:<20} {line.text}" for line in lines) or "no lines"

    def _is_here(self, target: ProcessTarget) -> bool:
        rows = self.samples[-1].rows if self.samples else []
        return any(row["node"] == target.node and row["role"] not in ("remote", "foreign")
                   for row in rows)  # fmt: skip

    def action_restart(self) -> None:
        target = self.target
        if target is None:
            return
        if not self._is_here(target):
            self.notify(f"{target.node} does not run on this machine", severity="warning")
            return
        question = f"Restart {target}?  y: yes, n: no"
        self.push_screen(ConfirmScreen(question), partial(self._on_answer, target))

    def _on_answer(self, target: ProcessTarget, is_yes: bool | None) -> None:
        if is_yes:
            self.notify(f"restarting {target}")
            self._restart(target)

    @work(thread=True, group="restart")
    def _restart(self, target: ProcessTarget) -> None:
        try:
            done = restart_targets(self.source.name, [target], "json")
        except (CliError, OperatorError) as error:
            self.call_from_thread(self.notify, str(error), severity="error")
        else:
            roles = ", ".join(role for step in done for role in step["roles"])
            self.call_from_thread(self.notify, f"restarted {target.node}: {roles}")

    def action_filter(self) -> None:
        word = self.main_screen.query_one("#filter", Input)
        word.display = True
        word.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        self.word = event.value
        self.show_picture()

    def on_input_submitted(self) -> None:
        self.main_screen.query_one("#filter", Input).display = bool(self.word)
        self.main_screen.query_one("#processes", DataTable).focus()

    def key_escape(self) -> None:
        """Ends the filter."""
        word = self.main_screen.query_one("#filter", Input)
        word.value = ""
        word.display = False
        self.main_screen.query_one("#nodes", DataTable).focus()


def name_at(table: object) -> str:
    """The name of the row at the cursor; "": the table is empty."""
    assert isinstance(table, DataTable)
    if not table.is_valid_row_index(table.cursor_row):
        return ""
    return str(table.ordered_rows[table.cursor_row].key.value or "")
