"""Turns measurements into figures, a table and the page bench/RESULTS.md."""

import statistics
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

Rounds = list[dict[str, Any]]
MB = 1e6
SECTION_BEGIN = "\n## "
ALONE = "Asked alone"  # First words of a section with conditions of its own.
PEER_CLIENT = "etcd, asyncio client"
WRITERS = ("process", "inline")  # Other writers; the default is the thread.


class Figure(NamedTuple):
    """A number with a goal: the median, and the smallest and largest of the rounds."""

    name: str
    value: float
    low: float
    high: float
    unit: str
    goal: float
    at_least: bool = False

    @property
    def met(self) -> bool:
        return self.value >= self.goal if self.at_least else self.value <= self.goal

    def json(self) -> dict[str, Any]:
        return {**self._asdict(), "met": self.met}

    def cells(self) -> list[str]:
        sign = ">=" if self.at_least else "<="
        spread = f"{number(self.low)}-{number(self.high)}"
        verdict = "met" if self.met else "missed"
        return [self.name, number(self.value), spread, self.unit, f"{sign} {self.goal:g}", verdict]


class Section(NamedTuple):
    """What one question adds to the page."""

    title: str
    figures: list[Figure]
    rows: list[list[str]]  # A table; the first row is its head.
    note: str

    def json(self) -> dict[str, Any]:
        figures = [figure.json() for figure in self.figures]
        return {**self._asdict(), "figures": figures}


def number(value: float) -> str:
    """Formats a number with three digits."""
    if value >= 1000:
        return f"{value:.0f}"
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"


def ratios(upper: Rounds, lower: Rounds, key: str) -> list[float]:
    """Returns the ratios within each round, so that a busy minute affects both sides."""
    return [a[key] / b[key] for a, b in zip(upper, lower, strict=True) if b[key]]


def summed_up(name: str, values: list[float], unit: str, goal: float, up: bool = False) -> Figure:
    return Figure(name, statistics.median(values), min(values), max(values), unit, goal, up)


def figures(found: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the figures that have goals, if they were measured."""
    return [figure.json() for figure in goals(found)]


def goals(found: dict[str, Any]) -> list[Figure]:
    result = []
    busy = found.get("throughput", {}).get("8 x 32", {})
    alone = found.get("throughput", {}).get("1 x 1", {})
    for peer, client in (("etcd", "C client"), (PEER_CLIENT, "asyncio client of shared/peers")):
        if peer in busy:
            values = ratios(busy["kelek"], busy[peer], "updates_s")
            result.append(
                summed_up(f"8 x 32: updates/s over etcd's, {client}", values, "x", 6, True)
            )
    if "floor" in busy:
        values = ratios(busy["kelek"], busy["floor"], "updates_s")
        result.append(summed_up("8 x 32: updates/s over the floor's", values, "x", 0.3, True))
    for ours in ("kelek", *(f"kelek, {writer}" for writer in WRITERS)):
        for peer, client in (("etcd", "C client"), (PEER_CLIENT, "asyncio client")):
            if ours in alone and peer in alone:
                name = f"one outstanding: p50 of {ours} over etcd's, {client}"
                result.append(summed_up(name, ratios(alone[ours], alone[peer], "p50_us"), "x", 1))
    if "failover" in found:
        name = "longest gap between commits, leader's node killed"
        result.append(summed_up(name, found["failover"]["kelek"], "ms", 600))
    if "restart" in found:
        name = "restart with 1e5 entries, first committed write"
        result.append(summed_up(name, found["restart"]["kelek"], "s", 1))
    if "memory" in found:
        nodes = [found["memory"][node]["anonymous"] / MB for node in ("n1", "n2", "n3")]
        result.append(summed_up("anonymous memory of a node (PSS, summed)", nodes, "MB", 120))
    return result


def rows_of_figures(figures: Iterable[Figure]) -> list[list[str]]:
    head = ["figure", "median", "spread", "unit", "goal", "verdict"]
    return [head, *(figure.cells() for figure in figures)]


def rows_of_loops(found: dict[str, Any]) -> list[list[str]]:
    """Returns one row for each loop and system, with ratios and CPU time."""
    rows = [
        ["clients x outstanding", "system", "updates/s", "spread", "p50 us", "p99 us",
         "kelek / it", "spread", "CPU us servers", "client"]
    ]  # fmt: skip
    for case, systems in found.get("throughput", {}).items():
        for system, rounds in systems.items():
            ratio = ratios(systems["kelek"], rounds, "updates_s")
            rows.append(
                [
                    case,
                    system,
                    number(median(rounds, "updates_s")),
                    spread(rounds, "updates_s"),
                    number(median(rounds, "p50_us")),
                    number(median(rounds, "p99_us")),
                    "" if system == "kelek" else f"{statistics.median(ratio):.2f}",
                    "" if system == "kelek" else f"{min(ratio):.2f}-{max(ratio):.2f}",
                    servers_cpu(rounds),
                    number(median(rounds, "cpu_us_update")),
                ]
            )
    return rows


def median(rounds: Rounds, key: str) -> float:
    return float(statistics.median(one[key] for one in rounds))


def spread(rounds: Rounds, key: str) -> str:
    values = [one[key] for one in rounds]
    return f"{number(min(values))}-{number(max(values))}"


def servers_cpu(rounds: Rounds) -> str:
    """CPU microseconds of all server processes for one update; the Python client reports none."""
    values = [sum(one["server_cpu_us_update"].values()) for one in rounds if one.get("done")]
    return number(statistics.median(values)) if values else ""


def rows_of_cpu(found: dict[str, Any]) -> list[list[str]]:
    """CPU microseconds for one update in each kelek process, the leader's node first."""
    rows = [["clients x outstanding", "process", "CPU us an update"]]
    for case, systems in found.get("throughput", {}).items():
        rounds = systems["kelek"]
        names = sorted({name for one in rounds for name in one["server_cpu_us_update"]})
        for name in names:
            values = [one["server_cpu_us_update"].get(name, 0.0) for one in rounds]
            rows.append([case, name, f"{statistics.median(values):.2f}"])
    return rows


def rows_of_others(found: dict[str, Any]) -> list[list[str]]:
    """etcd's results in the same call where the goal is an absolute number."""
    rows = [["beside it", "etcd's median", "spread"]]
    for part, unit in (("failover", "ms"), ("restart", "s")):
        values = found.get(part, {}).get("etcd")
        if values:
            low, high = number(min(values)), number(max(values))
            rows.append([part, f"{number(statistics.median(values))} {unit}", f"{low}-{high}"])
    if "etcd" in found.get("memory", {}):
        rows.append(["anonymous memory, largest", f"{found['memory']['etcd'] / MB:.0f} MB", ""])
    return rows if len(rows) > 1 else []


def aligned(rows: list[list[str]]) -> str:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if i < 2 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def all_rounds(found: dict[str, Any]) -> list[Rounds]:
    return [
        rounds for systems in found.get("throughput", {}).values() for rounds in systems.values()
    ]


def conditions(found: dict[str, Any]) -> list[str]:
    pairs = {**found["conditions"], **found["versions"]}
    lines = [f"{found['date']}, load {found['load'][0]} before and {found['load'][1]} after"]
    loads = [one["load"] for rounds in all_rounds(found) for one in rounds]
    if loads:
        lines[0] += f", {statistics.median(loads):.1f} during the closed loops"
    lines += [f"{key}: {value}" for key, value in pairs.items()]
    lines.append(f"medians of {found.get('rounds')} rounds of {found.get('secs')} s")
    lines += [f"without {name}: {reason}" for name, reason in found["missing"].items()]
    return lines


def table(found: dict[str, Any], sections: Sequence[Section] = ()) -> str:
    """Everything on one page of text."""
    parts = ["\n".join(conditions(found))]
    asked = [figure for section in sections for figure in section.figures]
    goals_rows = rows_of_figures([*goals(found), *asked])
    for rows in (rows_of_loops(found), goals_rows, rows_of_others(found)):
        if len(rows) > 1:
            parts.append(aligned(rows))
    for section in sections:
        parts.append(f"{section.title}. {section.note}\n\n{aligned(section.rows)}")
    return "\n\n".join(parts)


def markdown_table(rows: list[list[str]]) -> str:
    head, *body = rows
    lines = [head, ["---"] * len(head), *body]
    return "\n".join(f"| {' | '.join(row)} |" for row in lines)


HEAD = """# The replicated log, measured

Written by `python -m kelek.bench {questions} --results bench/RESULTS.md`; what is held equal, and
what is not, stands at the head of `bench/log/log.py` and of the module of each question. Absolute
figures drift with the machine and its load: compare within one call.
"""
NOTES = """
- "kelek" is driven in the text form of RequestUpdate, exactly as the floor is; "kelek, packs" is
  the form that `kelek.Log` uses, 16 updates a message. Both run at the defaults: the log is synced
  by a thread of the peer. "kelek, process" and "kelek, inline" are the other writers.
- "etcd" is driven by a C client as lean as ours (bench/load/loadgen_etcd.c); "etcd, asyncio
  client" is the Python client of `shared/peers`. Its own CPU time also limits it.
- p50 and p99 are from the first send to the committed answer, in a closed loop.
- CPU: of all servers together, and of the client, for one update.
- Failover: SIGKILL of every process of the leader's node while one client has 32 updates
  outstanding; the longest time between two committed answers. The client asks all peers for the
  leader each 10 ms as soon as its connection breaks.
- Restart: from the moment before SIGKILL of everything, the supervisor included, to the first
  committed answer of a client that was started with it.
- Memory: Pss_Anon of /proc/PID/smaps_rollup, summed over the processes of a node (heap, stacks and
  private writable pages; not code, mapped files or the kernel's buffers), 336,776 updates of 64 B
  after a fresh start; the supervisor is not a node's.
"""


def markdown(found: dict[str, Any], sections: Sequence[Section] = (), before: str = "") -> str:
    """Returns bench/RESULTS.md. Sections of separate runs stay as they are."""
    head = HEAD.format(questions="all" if sections else "log")
    parts = [head, "\n".join(f"- {line}" for line in conditions(found))]
    asked = [figure for section in sections for figure in section.figures]
    pages = {
        "Goals": rows_of_figures([*goals(found), *asked]),
        "Closed loops": rows_of_loops(found),
        "CPU by process": rows_of_cpu(found),
        "Beside it": rows_of_others(found),
    }
    for title, rows in pages.items():
        if len(rows) > 1:
            parts.append(f"\n## {title}\n\n{markdown_table(rows)}")
    parts.append(f"\n## Notes\n{NOTES}".rstrip())
    for section in sections:
        parts.append(f"\n## {section.title}\n\n{markdown_table(section.rows)}\n\n{section.note}")
    _, *old = before.split(SECTION_BEGIN)
    titles = {section.title for section in sections}
    for text in old:
        title, _, body = text.partition("\n")
        if body.startswith(f"\n{ALONE}") and title not in titles:
            parts.append(f"\n## {text}".rstrip("\n"))
    return "\n".join(parts) + "\n"


def with_section(page: str, section: Section, conditions: Iterable[str]) -> str:
    """Replaces a section of the page, or appends it; it keeps its own conditions."""
    parts = [f"{section.title}\n", f"{ALONE}: {', '.join(conditions)}. {section.note}"]
    for rows in (rows_of_figures(section.figures), section.rows):
        if len(rows) > 1:
            parts.append(f"\n{markdown_table(rows)}")
    head, *old = page.removesuffix("\n").split(SECTION_BEGIN)
    titles = [text.partition("\n")[0] for text in old]
    place = titles.index(section.title) if section.title in titles else len(titles)
    old[place : place + 1] = ["\n".join(parts) + "\n"]
    return SECTION_BEGIN.join([head, *(text.rstrip("\n") + "\n" for text in old)])
