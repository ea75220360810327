"""The audit file of a node: a line of JSON for each administrative command; samples of refusals.

    {"time": "2026-11-23T22:41:06.120Z", "node": "n1", "actor": "raft_peer", "who": "ann",
     "from": "10.0.0.9", "command": "transfer", "arguments": {"to": "n2"}, "result": "ok"}

`request` is the request id, which the command's entry in the log has, too, and `log_index` that
entry's index. All actors of a node append to NODE/audit.jsonl.
"""

import fcntl
import json
import os
from collections import Counter
from collections.abc import Callable

from ...native.net.guard import GUARD_LOG, GUARD_TABLES, MessageGuard
from ...protocols.access.audit import LOG, TABLES, AuditRecord
from ...protocols.access.grants import Right
from ..runtime.process_loop import timestamp

FILE_BYTES_MAX = 16 << 20  # Then it becomes audit.jsonl.1, and replaces the former one.
LINE_BYTES_MAX = 4096
DENIED_S_MAX = 10  # Lines about refusals, of one process in a second; others are counted.
FILE_MODE = 0o600
NAME = "audit.jsonl"
ONE_WAY = ("zerodb.pull_url", "zerodb.sub_url")


def audit_guard(key: str) -> MessageGuard | None:
    """Finds administrative commands at an endpoint without CURVE. key: of the node in the topology.
    None: it has none."""
    if key in ("url", "peer_url"):
        return MessageGuard(GUARD_LOG, dict.fromkeys(LOG, int(Right.ADMIN)))
    if key in ("zerodb.url", "zerodb.jobs_url", *ONE_WAY):
        needed = dict.fromkeys((bytes((each,)) for each in TABLES), int(Right.ADMIN))
        return MessageGuard(GUARD_TABLES, needed, unrouted=key in ONE_WAY)
    return None


class AuditFile:
    """Appends whole lines. A failure never stops the actor: it is counted and logged."""

    def __init__(
        self,
        path: str,
        node: str,
        actor: str,
        on_problem: Callable[[str], None],
        bytes_max: int = FILE_BYTES_MAX,
    ) -> None:
        """on_problem: gets the reason for which a line was not written"""
        self.path = path
        self._head = {"node": node, "actor": actor}
        self._on_problem = on_problem
        self._bytes_max = bytes_max
        self._second = 0
        self._denied = 0  # In that second.
        self._unwritten: Counter[str] = Counter()  # Refusals since the last line, by command.

    def write(self, record: AuditRecord, **more: object) -> None:
        line: dict[str, object] = {"time": timestamp(), **self._head}
        line |= {**record.sender.fields(), "command": record.command}
        if record.arguments:
            line["arguments"] = dict(record.arguments)
        if record.request:
            line["request"] = record.request.hex()
        line["result"] = record.result
        if record.log_index is not None:
            line["log_index"] = record.log_index
        data = json.dumps(line | more, default=str).encode()
        if len(data) >= LINE_BYTES_MAX:
            line["arguments"] = f"{len(data)} bytes"
            line["result"] = record.result[:256]
            data = json.dumps(line | more, default=str).encode()
        try:
            self._append(data + b"\n")
        except OSError as error:
            self._on_problem(f"{self.path}: {error.strerror}")

    def write_denied(self, record: AuditRecord, now_ms: int, count: int = 1) -> None:
        """Writes a sample of refused requests; `more` has how many had no line since the last.

        count   how many there are like this one
        """
        if now_ms // 1000 != self._second:
            self._second, self._denied = now_ms // 1000, 0
        self._unwritten[record.command] += count
        if self._denied < DENIED_S_MAX:
            self._denied += 1
            self._unwritten[record.command] -= 1
            unwritten, self._unwritten = +self._unwritten, Counter()
            self.write(record, **({"more": unwritten} if unwritten else {}))

    def _append(self, data: bytes) -> None:
        """Raises OSError."""
        fd = self._open()
        try:
            if os.fstat(fd).st_size + len(data) > self._bytes_max and self._rotate(fd):
                os.close(fd)
                fd = self._open()
            written = os.write(fd, data)  # One write: lines of other actors do not mix with it.
            if written < len(data):
                os.write(fd, b"\n")
                raise OSError(0, "the disk is full")
        finally:
            os.close(fd)

    def _open(self) -> int:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        return os.open(self.path, flags | os.O_NONBLOCK, FILE_MODE)

    def _rotate(self, fd: int) -> bool:
        """Renames the file unless another actor does or has done so."""
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.stat(self.path).st_ino == os.fstat(fd).st_ino:
                os.replace(self.path, f"{self.path}.1")
        except (BlockingIOError, FileNotFoundError):
            return False
        return True
