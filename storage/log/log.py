"""The durable log as its only writer uses it: recover, append, sync; docs/reference/disk-format.md.

The writer never shortens or overwrites data: after a conflict a new segment supersedes the entries
of older ones. The log counts an entry as durable only after a sync of its own.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, closing, suppress
from typing import NamedTuple, NoReturn

from ...native.errors import HEADER_SIZE
from ...native.latency import Latency, monotonic_us
from ...native.log import segments
from ...protocols.errors import LocalProtocolError, RemoteProtocolError
from ...protocols.raft.messages import AppendJob, EntryBatch
from ...protocols.record import BLOCK_HEADER, check_block
from ..disk.files import DAMAGED_SUFFIX, UNFINISHED, File, Files, Syncer, open_existing, replace
from ..errors import Damaged, StorageError, StorageFull, check_usable, storage_error
from . import repair
from .recovery import CLEAN, RecoveredFiles, Tail, live_segments, recover
from .runs import Runs
from .segment import (
    FOLDER,
    SEGMENT_START,
    CleanMark,
    Identity,
    SegmentHeader,
    encode_clean,
    encode_header,
)

SEGMENT_BYTES = 16 << 20
SEGMENT_BYTES_MIN = 8 << 10
LOCK = "lock"
SPARE = f"{FOLDER}/spare"


class SegmentEnd(NamedTuple):
    """The durable end of a log, in its active segment."""

    file: File
    syncer: Syncer
    offset: int


class Log:
    """The log of one peer. Its process holds the directory's lock until close().

    syncing        a background sync of appended entries runs; poll_sync() reports its end
    latency        of the syncs of appended entries
    lacks_space    the disk has no room for a spare segment: append() refuses until it has
    damage         the repair mark that this start has written, if the log was damaged
    """

    def __init__(
        self,
        files: Files,
        identity: Identity,
        *,
        epoch: int,
        segment_bytes: int = SEGMENT_BYTES,
        base: tuple[int, int] = (0, 0),
        background_sync: bool = False,
        damage: Damaged | None = None,
    ) -> None:
        """Recovers the log in a data directory, or makes a new one.

        epoch             new at each start of writer and peer
        segment_bytes     8 KiB or more
        base              index and term of the last entry in the newest snapshot: the log may lack
                          the entries up to it, and restarts after it if it lacks that entry
        background_sync   start_sync() does not wait for the disk
        damage            damage of a snapshot: then the log counts as damaged, too

        A damaged log keeps its sound beginning; `damage` and a repair mark on the disk report it.
        Raises StorageError: locked, foreign, or refused by the system; StorageFull.
        """
        files.make_folder("")
        files.make_folder(FOLDER)
        self._files = files
        self._identity = identity
        self._epoch = epoch
        self._segment_bytes = max(segment_bytes, SEGMENT_BYTES_MIN)
        self.lock_file = files.lock(LOCK)
        self._failed: StorageError | None = None
        self._spare: File | None = None
        self._next_spare: File | None = None  # Grows piece by piece until it is the spare.
        self._filling = False  # It grows now.
        self._has_unused = True  # Segments that are no longer used may be left.
        self._syncer: Syncer | None = None
        self._spare_syncer = files.syncer()  # Another one: entries do not wait for the spare.
        self.latency = Latency()
        self.syncing, self._syncing_since_us = False, 0
        self.lacks_space = False
        self.damage: repair.RepairMark | None = None
        with ExitStack() as undo:
            undo.callback(self.lock_file.close)
            undo.callback(self._spare_syncer.close)
            self._recover(base, damage)
            undo.callback(self._close_files)
            if background_sync:
                self._syncer = files.syncer()
                self.latency = self._syncer.latency
            self.reset(*base)
            undo.pop_all()

    # ---- contents ----

    @property
    def first_index(self) -> int:
        """The first entry of the log, or the next one if it is empty."""
        return self._runs.base_index + 1

    @property
    def last_index(self) -> int:
        return self._runs.last_index

    @property
    def last_term(self) -> int:
        return self._runs.last_term

    @property
    def runs(self) -> list[tuple[int, int]]:
        """(first index, term) of each run of equal terms, ascending by index."""
        return list(self._runs.items)

    def term_at(self, index: int) -> int | None:
        """The term of an entry or of entry first_index - 1; None for any other index."""
        return self._runs.term_at(index)

    # ---- recovery ----

    def _recover(self, base: tuple[int, int], damage: Damaged | None) -> None:
        files = self._files
        try:
            if damage is not None:
                raise damage
            repair.read_mark(files)
            found = recover(files, self._identity, base[0])
        except Damaged as error:
            found = self._salvage(base, error)
        self._runs = found.runs
        self._headers = found.headers
        names = files.names(FOLDER)
        for name in names:
            if name.endswith(UNFINISHED):
                files.remove(f"{FOLDER}/{name}")
        if CLEAN in (f"{FOLDER}/{name}" for name in names):
            files.remove(CLEAN)  # Before the first write: it would be wrong from then on.
            files.sync_folder(FOLDER)
        self._spare = self._find_spare()
        if not found.headers:
            self._start_segment(Tail(1, 0, []))
        elif found.tail is not None:
            last = found.headers[-1]
            self._start_segment(found.tail)
            if self.damage is None:  # Kills leave many segments that are hardly used.
                with suppress(StorageError), closing(open_existing(files, last.path, True)) as file:
                    file.free(found.offset)
        else:
            self._resume(found.headers[-1], found.offset)

    def _salvage(self, base: tuple[int, int], error: Damaged) -> RecoveredFiles:
        """Finds the sound beginning of a damaged log. Writes the repair mark before any change:
        without it the next start would take the remaining entries for the whole log."""
        mark = repair.RepairMark(self._epoch, 0, f"{error.place}: {error.problem}")
        left = repair.salvage(self._files, self._identity, base, mark)
        repair.write_mark(self._files, left.mark)
        self.damage = left.mark
        for path in left.unreadable:
            self._files.rename(path, path + DAMAGED_SUFFIX)
        self._files.sync_folder(FOLDER)
        return left.found

    def _find_spare(self) -> File | None:
        """Opens the spare segment if it has its full size and holds zeros only."""
        file = self._files.open(SPARE, writable=True)
        if file is None:
            return None
        if file.size >= self._segment_bytes and segments.zeros(file.load()) == file.size:
            return file
        file.close()
        self._files.remove(SPARE)
        return None

    def _resume(self, header: SegmentHeader, offset: int) -> None:
        file = open_existing(self._files, header.path, writable=True)
        file.sync()
        self._files.sync_folder(FOLDER)
        self._active = file
        self._offset = self._synced = offset

    def _start_segment(self, tail: Tail) -> None:
        """Writes the tail to a new segment, which gets its name when its contents are durable."""
        size = sum(map(len, tail.blocks))
        file, path = self._prepare(SEGMENT_START + size + HEADER_SIZE)
        mark = segments.mark(SEGMENT_START + size, self._epoch)
        file.write(SEGMENT_START, [*tail.blocks, mark])
        header = self._new_header(file, tail.first_index, tail.previous_term)
        if self.damage is not None and tail.first_index == self._runs.base_index + 1:
            header = header._replace(starts_log=True)  # Older segments may not lead up to it.
        self._activate(file, path, header)
        self._offset = self._synced = SEGMENT_START + size + len(mark)

    # ---- segments ----

    def _prepare(self, size: int) -> tuple[File, str]:
        """Returns a file of zeros with room for size bytes, and its path. Raises StorageFull."""
        if size <= self._segment_bytes:
            self._fill_spare(wait=True)
        if self._spare is not None and size <= self._spare.size:
            return self._spare, SPARE
        path = f"{FOLDER}/{self._sequence + 1:016x}{UNFINISHED}"
        file = self._files.create(path)
        try:
            file.zero(0, -(-size // SEGMENT_START) * SEGMENT_START)
            self._sync(file.sync)
        except StorageError:
            file.close()
            self._files.remove(path)
            raise
        return file, path

    @property
    def _sequence(self) -> int:
        return self._headers[-1].sequence if self._headers else 0

    def _new_header(self, file: File, first_index: int, previous_term: int) -> SegmentHeader:
        return SegmentHeader(file.size, self._sequence + 1, first_index, previous_term)

    def _activate(self, file: File, path: str, header: SegmentHeader) -> None:
        """Makes a prepared file the active segment. The previous one must be synced, unless its
        unsynced entries are superseded."""
        file.write(0, [encode_header(header, self._identity)])
        self._sync(file.sync)
        self._files.rename(path, header.path)
        if file is self._spare:
            self._spare = None
        file.full_path = self._files.full_path(header.path)
        self._sync(lambda: self._files.sync_folder(FOLDER))
        self._headers.append(header)
        self._active, self._has_unused = file, True

    # ---- writing ----

    def append(self, prev_index: int, prev_term: int, blocks: Sequence[bytes]) -> None:
        """Writes blocks after entry prev_index; they replace later entries. Not durable yet.

        Raises LocalProtocolError: the blocks do not follow; StorageFull: nothing was changed;
        StorageError: the disk failed, and the log can't be used any more.
        """
        check_usable(self._failed)
        batches = self._check(prev_index, prev_term, blocks)
        self._wait_for_sync()
        if self.lacks_space:
            self._fill_spare(wait=True)  # Raises StorageFull while there is no room.
        size = HEADER_SIZE + sum(map(len, blocks))
        if prev_index < self.last_index or size > self._active.size - self._offset:
            self._roll(prev_index, prev_term, size)
        if batches:
            mark = segments.mark(self._synced, self._epoch)
            try:
                self._active.write(self._offset, [mark, *blocks])
            except StorageFull:  # Harmless: a retry writes the same bytes to the same place.
                raise
            except StorageError as error:
                self._fail(error)
            self._offset += size
        for batch in batches:
            self._runs.extend(batch.count, batch.term)

    def sync(self) -> None:
        """Makes all appended entries durable. After a StorageError the log can't be used."""
        check_usable(self._failed)
        self._wait_for_sync()
        if self._synced != self._offset:
            begin_us = monotonic_us()
            self._sync(self._active.sync)
            self.latency.add(monotonic_us() - begin_us)
            self._synced = self._offset

    # ---- background syncs ----

    @property
    def sync_fd(self) -> int | None:
        """Readable when a background sync has ended: call poll_sync(). None: no such syncs."""
        return None if self._syncer is None else self._syncer.fileno()

    def start_sync(self) -> bool:
        """As sync(), but in the background if the log was opened with background_sync.

        Returns whether everything is durable already; otherwise poll_sync() reports it. An append()
        waits for a running sync.
        """
        check_usable(self._failed)
        if self._syncer is None:
            self.sync()
        elif self._synced != self._offset and not self.syncing:
            syncer = self._syncer
            self._sync(lambda: syncer.start(self._active))
            self._begin_syncing()
        return not self.syncing

    def _begin_syncing(self) -> None:
        self.syncing, self._syncing_since_us = True, monotonic_us()

    @property
    def syncing_ms(self) -> int:
        """How long the background sync of appended entries has run, 0 without one."""
        return (monotonic_us() - self._syncing_since_us) // 1000 if self.syncing else 0

    def poll_sync(self, wait: bool = False) -> bool:
        """Handles ended background syncs. True: the entries of start_sync() are durable.

        After a StorageError the log can't be used.
        """
        check_usable(self._failed)
        assert self._syncer is not None, "the log was opened without background_sync"
        try:
            while self._syncer.poll(wait and self.syncing) is not None:
                self._synced = self._offset
                self.syncing = False
        except StorageError as error:
            self._fail(error)
        return not self.syncing

    @property
    def spare_fd(self) -> int:
        """Readable when the spare segment is ready, or has no room: call poll_spare()."""
        return self._spare_syncer.fileno()

    def poll_spare(self, wait: bool = False) -> None:
        """Takes the spare segment once it is ready. Without room `lacks_space` is set.

        Raises StorageFull if it was to wait; StorageError: the log can't be used.
        """
        check_usable(self._failed)
        if not self._filling:
            return
        try:
            file = self._spare_syncer.poll(wait)
        except StorageFull:
            self._filling, self.lacks_space = False, True
            if wait:
                raise
            return
        except StorageError as error:
            self._fail(error)
        if file is not None:
            self._files.rename(SPARE + UNFINISHED, SPARE)
            self._spare, self._next_spare, self._filling = file, None, False
            self.lacks_space = False

    # ---- steady states: C appends and syncs (csrc/steady) ----

    @property
    def end(self) -> SegmentEnd | None:
        """Where C may go on. None: something runs or is missing that C does not know."""
        file, syncer = self._active, self._syncer
        if self._failed is not None or self.syncing or self.lacks_space or syncer is None:
            return None
        if self._synced != self._offset:
            return None
        return SegmentEnd(file, syncer, self._offset)

    def end_steady(
        self, batches: Iterable[EntryBatch], offset: int, synced: int, error: int
    ) -> None:
        """C has appended batches, up to offset in the segment, and synced them up to there.

        synced   below offset: the sync of the rest runs
        error    errno of a sync that has failed, or 0

        Raises StorageError after a failed sync: the log can't be used any more.
        """
        if error:
            self._fail(storage_error(self._active.full_path, "sync", OSError(error, "")))
        for batch in batches:
            self._runs.extend(batch.count, batch.term)
        self._offset, self._synced = offset, synced
        if synced != offset:
            assert self._syncer is not None
            self._syncer.adopt(self._active)
            self._begin_syncing()

    def _wait_for_sync(self) -> None:
        if self.syncing:
            self.poll_sync(wait=True)

    def close(self) -> None:
        """Syncs, writes the clean mark, and releases the data directory."""
        try:
            if self._failed is None:
                self.sync()
                try:
                    self._write_clean()
                except StorageFull:  # Without the mark the next start is slower and as safe.
                    self._files.remove(CLEAN + UNFINISHED)
        finally:
            if self._syncer is not None:
                self._syncer.close()
            self._spare_syncer.close()
            self._close_files()
            self.lock_file.close()
            self._failed = StorageError(self._files.root, "the log is closed", "open it again")

    def _close_files(self) -> None:
        for file in (self._active, self._spare, self._next_spare):
            if file is not None:
                file.close()

    # ---- snapshots ----

    def compact(self, index: int) -> None:
        """Drops the segments, except the active one, that hold no entry after index.

        A durable snapshot includes entry index. background_step() removes the files. The log then
        starts at first_index.
        """
        check_usable(self._failed)
        assert index <= self.last_index, f"entry {index} is not in the log"
        for header in self._live_headers():
            if self._runs.base_index < header.first_index - 1 <= index:
                self._runs.rebase(header.first_index - 1)
                self._has_unused = True

    def reset(self, index: int, term: int) -> None:
        """Restarts the log after entry index of a durable snapshot, unless it holds that entry.

        All older entries are dropped. The change is durable on return. Raises StorageFull: nothing
        was changed; StorageError: the disk failed.
        """
        check_usable(self._failed)
        if self.term_at(index) == term:
            return
        self._wait_for_sync()
        file, path = self._prepare(SEGMENT_START)
        before = self._active
        self._activate(
            file, path, self._new_header(file, index + 1, term)._replace(starts_log=True)
        )
        before.close()
        self._offset = self._synced = SEGMENT_START
        self._runs = Runs(index, term, [], index)

    def _live_headers(self) -> list[SegmentHeader]:
        """The segments that the log consists of."""
        base_index = self._runs.base_index
        return [
            header for header in live_segments(self._headers) if header.first_index > base_index
        ]

    def _check(self, prev_index: int, prev_term: int, blocks: Sequence[bytes]) -> list[EntryBatch]:
        if self.term_at(prev_index) != prev_term:
            raise LocalProtocolError(
                f"entries after {prev_index} of term {prev_term} do not follow: the log holds "
                f"{self.first_index} to {self.last_index}, there term {self.term_at(prev_index)}"
            )
        batches = []
        for block in blocks:
            try:
                batch = check_block(block)
            except RemoteProtocolError as error:
                raise LocalProtocolError(f"a block for the log is broken: {error}") from error
            if batch.first_index != prev_index + 1 or batch.term < prev_term:
                raise LocalProtocolError(
                    f"a block from {batch.first_index} of term {batch.term} does not follow entry "
                    f"{prev_index} of term {prev_term}"
                )
            prev_index, prev_term = batch.last_index, batch.term
            batches.append(batch)
        return batches

    def _roll(self, prev_index: int, prev_term: int, size: int) -> None:
        """Continues after prev_index in a new segment with room for at least size bytes."""
        file, path = self._prepare(SEGMENT_START + size)
        self.sync()
        before = self._active
        self._activate(file, path, self._new_header(file, prev_index + 1, prev_term))
        with suppress(StorageError):  # The blocks stay until the segment is removed.
            before.free(self._offset)  # After a conflict it may be hardly used.
        before.close()
        self._offset = self._synced = SEGMENT_START
        self._runs.truncate(prev_index)

    def _write_clean(self) -> None:
        clean = CleanMark(self._sequence, self._offset, self.last_index, self.last_term)
        replace(self._files, CLEAN, encode_clean(clean))

    # ---- the disk refuses ----

    def _sync(self, sync: Callable[[], None]) -> None:
        """A failed sync is final, also for lack of space: the disk's contents are unknown."""
        try:
            sync()
        except StorageError as error:
            self._fail(error)

    def _fail(self, error: StorageError) -> NoReturn:
        self._failed = error
        raise StorageError(error.place, error.problem, error.way_out) from error

    # ---- in the background ----

    @property
    def has_background_work(self) -> bool:
        """Whether background_step() is due, besides the tries after a full disk."""
        return self._has_unused or (self._spare is None and not (self._filling or self.lacks_space))

    def background_step(self) -> bool:
        """Does a small piece of background work. Returns whether more is left.

        It removes superseded and compacted segments, and has the next spare written ahead. When the
        disk is full `lacks_space` is set. Then append() refuses, which keeps the rest of the active
        segment for entries that make room. Each later call tries again, and so does append().
        """
        check_usable(self._failed)
        live = {header.sequence for header in self._live_headers()}
        for header in self._headers:
            if header.sequence not in live:
                self._files.remove(header.path)
                # One by one, oldest first: no segment may outlive the one that supersedes it.
                self._sync(lambda: self._files.sync_folder(FOLDER))
                self._headers.remove(header)
                return True
        self._has_unused = False
        try:
            self._fill_spare()
        except StorageFull:
            self.lacks_space = True
        return False

    def _fill_spare(self, wait: bool = False) -> None:
        """Has the next spare written, unless there is one. Raises StorageFull if it was to wait."""
        if self._spare is not None:
            return
        if not self._filling:
            if self._next_spare is None:
                self._next_spare = self._files.create(SPARE + UNFINISHED)
            self._spare_syncer.fill(self._next_spare, self._segment_bytes)
            self._filling = True
        self.poll_spare(wait)


class Writer:
    """Writes the jobs of the peer in its restart unit. Peer and writer have the same epoch."""

    def __init__(self, log: Log, epoch: int) -> None:
        self.log = log
        self.epoch = epoch
        self.dropped = 0  # Jobs of another epoch.
        self._last_seq = 0  # Of the last job in the queue.
        self._syncing_seq = 0  # Of the last job that the running background sync covers; 0: none.
        self._jobs: list[AppendJob] = []

    @property
    def has_jobs(self) -> bool:
        return bool(self._jobs)

    def enqueue(self, job: AppendJob) -> None:
        """Queues a job for the next flush(). Drops jobs of another epoch.

        Raises LocalProtocolError on a gap in seq: peer and writer no longer agree on the log.
        """
        if job.epoch != self.epoch:
            self.dropped += 1
            return
        if job.seq != self._last_seq + 1:
            raise LocalProtocolError(f"job {job.seq} came after job {self._last_seq}")
        self._last_seq = job.seq
        self._jobs.append(job)

    def flush(self) -> int | None:
        """Writes all queued jobs and syncs once. Returns the newly durable seq, if there is one.

        With background syncs poll_sync() returns it, and jobs queued until then wait for the next
        flush().
        Raises LocalProtocolError when a job does not follow the log, and StorageError when the disk
        failed; both end the restart unit. After StorageFull the jobs stay queued: flush() again.
        """
        if not self._jobs or self.log.syncing:
            return None
        while self._jobs:
            count = _joined(self._jobs)
            first = self._jobs[0]
            blocks = [block for job in self._jobs[:count] for block in job.blocks]
            if first.reset:
                self.log.reset(first.prev_index, first.prev_term)
            self.log.append(first.prev_index, first.prev_term, blocks)
            del self._jobs[:count]
        if self.log.start_sync():
            return self._last_seq
        self._syncing_seq = self._last_seq
        return None

    @property
    def end(self) -> SegmentEnd | None:
        """Where C may go on writing (Log.end). None: a job waits, or a sync runs."""
        return None if self._jobs or self._syncing_seq else self.log.end

    def on_steady(self, seq: int) -> None:
        """C has written job seq, and its sync runs (Log.end_steady())."""
        assert seq == self._last_seq + 1
        self._last_seq = self._syncing_seq = seq

    def poll_sync(self) -> int | None:
        """Handles the end of a background sync. Returns the newly durable seq, if there is one.

        Raises StorageError when the sync has failed, which ends the restart unit.
        """
        if not self.log.poll_sync() or not self._syncing_seq:
            return None
        seq, self._syncing_seq = self._syncing_seq, 0
        return seq


def _joined(jobs: list[AppendJob]) -> int:
    """How many of the jobs form one append: each starts where the one before ends."""
    index, term = jobs[0].prev_index, jobs[0].prev_term
    for count, job in enumerate(jobs):
        if (job.prev_index, job.prev_term) != (index, term) or (job.reset and count):
            return count
        if job.blocks:
            _, _, first_index, term, entries, _ = BLOCK_HEADER.unpack_from(job.blocks[-1])
            index = first_index + entries - 1
    return len(jobs)
