"""Reads a farm's log for Spark sources, without Spark itself."""

import json
import time
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pyarrow

from ...clients.errors import FarmCompacted, FarmDenied, FarmError, FarmRefused, FarmTimeout
from ...clients.farm.farm import Farm
from ...clients.farm.operations import PAGE_ENTRIES, FarmTuning
from ...clients.farm.values import APPLICATION, FarmEntry, FarmPage
from ..errors import FarmRefuses, FarmUnreachable, LogEnds, OptionError, PipelineError
from ..log.offset import FarmOffset, LogRange
from ..log.positions import Ends, LogPositions
from .options import FarmReadOptions
from .rows import rows_of

POLL_S = 0.05  # Between two reads from a server whose commit index is behind.


class FarmView(LogPositions):
    """A connection to a farm. Its methods raise FarmUnreachable and FarmRefuses."""

    def __init__(self, options: FarmReadOptions) -> None:
        self._options = options
        with ExitStack() as stack, self._converted_errors():
            self._farm = Farm(
                options.urls,
                options.farm,
                user=options.user,
                secret_file=options.secret_file,
                ca_file=options.ca_file,
                certificate_file=options.certificate_file,
                key_file=options.key_file,
                timeout_ms=options.timeout_ms,
                tuning=FarmTuning(
                    options.tls,
                    options.server_name,
                    options.proxy or "",
                    options.i2p,
                    reach_ms=options.timeout_ms,
                ),
            )
            stack.callback(self._farm.close)
            self._farm.status()
            stack.pop_all()

    def close(self) -> None:
        self._farm.close()

    @contextmanager
    def _converted_errors(self) -> Iterator[None]:
        try:
            yield
        except FarmTimeout as error:
            raise FarmUnreachable(error) from error
        # The user may not; the server has no such farm; a local file is missing.
        except (FarmDenied, FarmRefused, OSError) as error:
            raise FarmRefuses(error) from error
        except FarmCompacted:
            raise
        except FarmError as error:
            raise PipelineError(str(error)) from error
        except ValueError as error:  # For example: without TLS only loopback addresses are allowed.
            raise OptionError(str(error)) from error

    # ---- offsets ----

    def info(self) -> Ends:
        with self._converted_errors():
            status = self._farm.status()
        first, commit, last = (int(status[key]) for key in ("first", "commit", "last"))
        return Ends(first, commit, last)

    def last_index(self) -> int:
        with self._converted_errors():
            return self._farm.commit_index()

    def offset_at(self, index: int) -> FarmOffset:
        offset = FarmOffset(self._options.farm, index)
        if not index:
            return offset
        try:
            for entry in self._page(index, index, 1).entries:
                return replace(offset, term=entry.term)
        except FarmCompacted:
            return offset
        raise LogEnds(index, index)

    def _time_from(self, index: int, behind: int) -> tuple[int, datetime | None]:
        while index < behind:
            page = self._page(index, behind - 1)
            rows = self._rows(page.entries)
            for at, time_of in zip(
                rows["index"].to_pylist(), rows["time"].to_pylist(), strict=True
            ):
                if time_of is not None:
                    return at, time_of.astimezone(UTC)
            index = page.next_index
        return index, None

    def _page(self, index: int, last: int, count: int = PAGE_ENTRIES) -> FarmPage:
        """At least one entry from index on, none after last. Repeats the read while the server's
        commit index is behind. Raises LogEnds, FarmCompacted.
        """
        until = time.monotonic() + self._options.timeout_ms / 1000
        while True:
            with self._converted_errors():
                wanted = min(count, last + 1 - index)
                page = self._farm.read(after=index - 1, count=wanted, all_kinds=True)
            if page.next_index > index:
                return page
            if time.monotonic() > until:
                raise LogEnds(index, last)
            time.sleep(POLL_S)

    # ---- entries ----

    def entries(self, wanted: LogRange) -> Generator[pyarrow.RecordBatch, None, None]:
        after, last = wanted
        while after < last:
            try:
                page = self._page(after + 1, last)
            except FarmCompacted as error:
                compacted = error.first_index - 1
                if self._options.fail_on_compaction:
                    raise self.compacted(after + 1, compacted) from error
                yield self._remaining_documents(LogRange(after, min(compacted, last)))
                after = compacted
                continue
            after = page.next_index - 1
            yield self._rows(page.entries)

    def _instead(self) -> str:
        return "the last document of each server and then what follows"

    def _remaining_documents(self, wanted: LogRange) -> pyarrow.RecordBatch:
        """What remains of compacted entries: each server's last document."""
        with self._converted_errors():
            documents = self._farm.documents()["documents"]
            entries = []
            for one in sorted(documents, key=lambda document: int(document["index"])):
                index = int(one["index"])
                if wanted.after < index <= wanted.last:
                    entries.append(FarmEntry(index, 0, APPLICATION, self._full_document(one)))
        return self._rows(entries)

    def _full_document(self, document_entry: Mapping[str, Any]) -> bytes:
        """A document's text; the server omits large ones from the list, so they are read alone."""
        document = document_entry["document"]
        if document is None:
            document = self._farm.documents(int(document_entry["id"]))["documents"][0]["document"]
        return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()

    def _rows(self, entries: Iterable[FarmEntry]) -> pyarrow.RecordBatch:
        return rows_of(entries, self._options.farm)
