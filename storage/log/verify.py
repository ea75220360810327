"""Inspects a peer's data directory for tools: identity, entries, damage.

It only reads and takes no lock. While a writer runs, its report may be out of date.
"""

import re
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from ...native.log import segments
from ...protocols.raft.messages import HardState
from ...protocols.record import decode_block
from ..disk.files import Files, read_file
from ..errors import StorageError
from ..snapshot.snapshot import SnapshotInfo, open_path, paths
from . import hard_state
from .reader import LogReader
from .recovery import (
    CLEAN,
    corrupt,
    live_segments,
    read_clean,
    read_header,
    scan_segment,
    segment_paths,
    segments_after,
)
from .runs import Runs
from .segment import (
    FOLDER,
    SEGMENT_START,
    CleanMark,
    Identity,
    SegmentHeader,
    read_owner,
)

_OFFSET = re.compile(r"offset (\d+): (.*)")  # The start of an error message with an offset.


@dataclass(frozen=True, slots=True)
class StoredEntry:
    """One entry of the log."""

    index: int
    term: int
    kind: int
    reqid: bytes | None
    data: bytes


class Finding(NamedTuple):
    """A damage."""

    path: str  # Within the data directory.
    offset: int | None
    problem: str


class SegmentReport(NamedTuple):
    """The sound part of a live segment."""

    path: str
    first_index: int
    last_index: int
    used: int  # Bytes from the start of the file.


class Report(NamedTuple):
    """The contents of a data directory."""

    identity: Identity
    findings: list[Finding]
    segments: list[SegmentReport]
    first_index: int  # Of the log. If it is empty, last_index is first_index - 1.
    last_index: int
    last_term: int
    snapshots: list[SnapshotInfo]  # The sound ones, newest first.
    hard_state: HardState | None  # None: no file, or its identity block is damaged.
    closed: bool  # The writer has closed the log; otherwise the next start recovers it.


def read_identity(files: Files) -> Identity:
    """The identity of the data. StorageError: no peer's data, or all identity blocks damaged."""
    damaged: StorageError | None = None
    for path in (hard_state.PATH, *segment_paths(files)):
        data = read_file(files, path, SEGMENT_START)
        if data is None:
            continue
        read = hard_state.read_owner if path == hard_state.PATH else read_owner
        try:
            return read(data, files.full_path(path))
        except StorageError as error:
            damaged = error
    raise damaged or StorageError(
        files.root, "no peer keeps its data here", "give the data directory of a peer"
    )


def entries(
    files: Files, identity: Identity, first_index: int = 1, last_index: int | None = None
) -> Iterator[StoredEntry]:
    """Yields entries from first_index, or from the log's first entry, to last_index or the end.

    They may be uncommitted. Raises StorageError at the first damaged entry.
    """
    with closing(LogReader(files, identity)) as reader:
        for batch in reader.scan(first_index):
            _, records = decode_block(batch.block)
            for index, record in enumerate(records, batch.first_index):
                if last_index is not None and index > last_index:
                    return
                yield StoredEntry(index, batch.term, *record)


def verify(files: Files) -> Report:
    """Reads everything. Raises StorageError only when no file tells the identity."""
    identity = read_identity(files)
    findings: list[Finding] = []
    state = _hard_state(files, identity, findings)
    snapshots = _snapshots(files, identity, findings)
    base = snapshots[0] if snapshots else None
    clean = read_clean(files)
    log = _LogCheck(files, identity, findings)
    log.read((base.index, base.term) if base else (0, 0), clean)
    return Report(
        identity,
        findings,
        log.segments,
        log.base[0] + 1,
        *log.last,
        snapshots,
        state,
        clean is not None,
    )


def _found(path: str, error: StorageError) -> Finding:
    match = _OFFSET.fullmatch(error.problem)
    if match is None:
        return Finding(path, None, error.problem)
    return Finding(path, int(match[1]), match[2])


def _hard_state(files: Files, identity: Identity, findings: list[Finding]) -> HardState | None:
    path = hard_state.PATH
    try:
        state, damaged = hard_state.inspect(files, identity)
    except StorageError as error:
        findings.append(_found(path, error))
        return None
    for offset in damaged:
        findings.append(Finding(path, offset, "the slot is damaged: a vote may be forgotten"))
    return state


def _snapshots(files: Files, identity: Identity, findings: list[Finding]) -> list[SnapshotInfo]:
    sound = []
    for path in paths(files):
        try:
            snapshot = open_path(files, path, identity)
            if snapshot is not None:
                with closing(snapshot):
                    snapshot.check()
                    snapshot.check_reqids()
                sound.append(snapshot.info)
        except StorageError as error:
            findings.append(_found(path, error))
    return sound


class _LogCheck:
    """Checks the segments."""

    def __init__(self, files: Files, identity: Identity, findings: list[Finding]) -> None:
        self.segments: list[SegmentReport] = []
        self.base = self.last = 0, 0  # Index and term.
        self._files = files
        self._identity = identity
        self._findings = findings

    def read(self, snapshot: tuple[int, int], clean: CleanMark | None) -> None:
        live = segments_after(live_segments(self._headers()), snapshot[0])
        if not live:
            self.base = self.last = snapshot
            if clean:
                self._add_finding(FOLDER, None, "every segment is missing")
            return
        first = live[0]
        self.base = self.last = first.first_index - 1, first.previous_term
        if first.first_index > snapshot[0] + 1:
            self._add_finding(
                first.path, None, f"entries {snapshot[0] + 1} to {self.base[0]} are missing"
            )
        for header, successor in pairwise(live):
            self._segment(header, successor, None)
        self._segment(live[-1], None, clean)

    def _add_finding(self, path: str, offset: int | None, problem: str) -> None:
        self._findings.append(Finding(path, offset, problem))

    def _headers(self) -> list[SegmentHeader]:
        headers = []
        for path in segment_paths(self._files):
            try:
                header = read_header(self._files, path, self._identity)
                headers += [] if header is None else [header]
            except StorageError as error:
                self._findings.append(_found(path, error))
        return headers

    def _segment(
        self, header: SegmentHeader, successor: SegmentHeader | None, clean: CleanMark | None
    ) -> None:
        """Checks a segment up to its successor's first entry; the active one has no successor."""
        path, before = header.path, (header.first_index - 1, header.previous_term)
        if before != self.last:
            what = f"it follows entry {before[0]} of term {before[1]}, what is before it ends with"
            self._add_finding(path, 24, f"{what} {self.last[0]} of term {self.last[1]}")
        file = self._files.open(path)
        if file is None:
            self._add_finding(path, None, "it disappeared")
            return
        with closing(file):
            data, place = file.load(), file.full_path
        runs = Runs(*before, [], before[0])
        scan = scan_segment(data, header, runs)
        self.last = runs.last_index, runs.last_term
        if successor is None:
            if scan.code and (
                clean or scan.misplaced or not segments.segment_torn(data, scan.offset)
            ):
                self._findings.append(_found(path, corrupt(place, data, scan)))
            elif clean and clean != (header.sequence, scan.offset, *self.last):
                clean_end = f"{clean.last_index} of term {clean.last_term}"
                problem = f"it does not end as {CLEAN} says: with {clean_end}"
                self._add_finding(path, scan.offset, problem)
        else:
            self.last = successor.first_index - 1, successor.previous_term
            if runs.last_index >= self.last[0]:  # The successor supersedes the rest.
                runs.truncate(self.last[0])
                self.last = runs.last_index, runs.last_term
            elif scan.code:
                self._findings.append(_found(path, corrupt(place, data, scan)))
            else:
                missing = f"entries {scan.next_index} to {self.last[0]} are missing"
                self._add_finding(path, scan.offset, missing)
        report = SegmentReport(path, header.first_index, runs.last_index, scan.offset)
        self.segments.append(report)
