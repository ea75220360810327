"""Lines of the logs of actors and supervisors: time, event, values, level.

A line is `TIME EVENT KEY=VALUE...` (actors/runtime/process_loop.py). A line without a time, as in a
traceback, belongs to the line before it.
"""

import json
import re
import time
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

SUPERVISOR = "supervisor"
LEVELS = "info", "warning", "error"
_LINE = re.compile(r"(\d{4}-\d\d-\d\dT[\d:.]+Z) (\S+)(.*)")
_VALUE = re.compile(r' ([\w.-]+)=("(?:[^"\\]|\\.)*"|\S*)')
# Events of each level by their names; all others are `info`.
_ERROR = re.compile(
    r"audit-lost|disk-full|exited|gave-up|log-tail|read-only|store-refuses|.*-(damaged|failed)"
    r"|(audit|state)-not-written|not-(expired|made|restored)|supervisor-gone"
)
_WARNING = re.compile(
    r"bad-messages|certificate-expires|connection-cut-.*|grants-not-enforced|insecure|"
    r"leadership-given-up|lease-not-taken|link-down|logins-delayed|repairing|restarting|slow-disk|"
    r"store-.*|state-not-understood|statistics-not-stored|unreachable|unwilling|"
    r".*-(denied|dropped|refused)"
)
# What changed in a cluster, for `supervisor events`.
_EVENT_WORDS = """
all-ready disk-full exited gave-up installed leadership-given-up leadership-kept link-down link-up
made not-restored read-only ready reloaded repaired repairing restarting restored role slow-disk
started starting stopped stopping unwilling updated writable-again
"""
EVENTS = frozenset(_EVENT_WORDS.split())
_AGO = re.compile(r"(\d+)(s|m|min|h|d)")
_SECONDS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400}


class LogLine(NamedTuple):
    """One line of the log of a process.

    time      UTC, as written; a line without a time has that of the line before it
    process   NODE/NAME
    text      the whole line
    """

    time: str
    process: str
    text: str

    @property
    def event(self) -> str:
        """ "" if the line has no time."""
        match = _LINE.match(self.text)
        return match[2] if match else ""

    @property
    def values(self) -> dict[str, str]:
        match = _LINE.match(self.text)
        pairs = _VALUE.findall(match[3]) if match else ()
        return {key: _unquoted(value) for key, value in pairs}

    @property
    def level(self) -> str:
        event = self.event
        if not event or _ERROR.fullmatch(event):
            return "info" if self.values.get("code") == "0" else "error"
        return "warning" if _WARNING.fullmatch(event) else "info"

    def is_at_least(self, level: str) -> bool:
        return LEVELS.index(self.level) >= LEVELS.index(level)

    def document(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "time": self.time,
            "process": self.process,
            "level": self.level,
            "event": self.event or None,
            "values": self.values,
            "text": self.text,
        }


def _unquoted(value: str) -> str:
    return str(json.loads(value)) if value.startswith('"') else value


def read_lines(process: str, lines: Iterable[str], stamp: str = "") -> Iterator[LogLine]:
    """Lines of a log with their times.

    stamp   the time of the line before the first
    """
    for line in lines:
        if match := _LINE.match(line):
            stamp = match[1]
        yield LogLine(stamp, process, line)


def stamp_of(word: str) -> str:
    """The time of `--since` as log lines have it: 10m ago, or a date with a time (UTC).

    Raises ValueError.
    """
    if match := _AGO.fullmatch(word):
        at_s = time.time() - int(match[1]) * _SECONDS[match[2]]
    else:
        from datetime import UTC, datetime

        found = datetime.fromisoformat(word)
        at_s = (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(at_s))}.{int(at_s * 1000) % 1000:03}Z"


def events_of(lines: Iterable[LogLine]) -> Iterator[LogLine]:
    """The events of a cluster, each once and with the process that it is about.

    A supervisor writes what concerns no single node into the logs of all its nodes.
    """
    seen: set[LogLine] = set()
    for line in lines:
        if line.event not in EVENTS:
            continue
        if line.process.endswith(f"/{SUPERVISOR}"):
            values = line.values
            node, subject = values.get("node"), values.get("role", values.get("unit", SUPERVISOR))
            line = line._replace(process=f"{node}/{subject}" if node else SUPERVISOR)
            if line in seen:
                continue
            if not node:
                seen.add(line)
        yield line


def event_text(line: LogLine) -> str:
    """What happened, for people."""
    values = {key: value for key, value in line.values.items() if key not in ("node", "unit")}
    if line.event == "role":
        log = f"farm {values['farm']}: " if "farm" in values else ""
        term, leader = values.get("term"), values.get("leader")
        match values.get("role"):
            case "leader":
                return f"{log}leads term {term}"
            case "follower" if leader not in (None, "None"):
                return f"{log}follows {leader} in term {term}"
            case "follower":
                return f"{log}knows no leader, term {term}"
            case role:
                return f"{log}{role} in term {term}"
    if line.event in ("exited", "started", "ready"):
        values.pop("role", None)
    return " ".join([line.event, *(f"{key}={value}" for key, value in values.items())])
