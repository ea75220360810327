"""What the sources of a farm's log ask its servers, without Spark: places, entries."""

import json
import time
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
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

POLL_S = 0.05  # Between two looks at a server that has not heard yet what is committed.


class FarmView(LogPositions):
    """A connection to a farm. Its methods raise FarmUnreachable and FarmRefuses."""

    def __init__(self, options: FarmReadOptions) -> None:
        self._options = options
        with ExitStack() as stack, self._reached():
            self._farm = Farm(
                options.urls,
                options.farm,
                user=options.user,
                secret_file=options.secret_file,
                ca_file=options.ca_file,
                timeout_ms=options.timeout_ms,
                tuning=FarmTuning(
                    options.tls,
                    options.server_name,
                    options.proxy,
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
    def _reached(self) -> Iterator[None]:
        try:
            yield
        except FarmTimeout as error:
            raise FarmUnreachable(self._options.urls, self._options.farm, error) from error
        except FarmDenied as error:
            raise FarmRefuses(error) from error
        except (FarmRefused, OSError) as error:  # No such farm is there; no such file is here.
            raise FarmRefuses(error) from error
        except FarmCompacted:
            raise
        except FarmError as error:
            raise PipelineError(str(error)) from error
        except ValueError as error:  # Without TLS or a proxy only this machine is asked, say.
            raise OptionError(str(error)) from error

    # ---- places ----

    def info(self) -> Ends:
        with self._reached():
            found = self._farm.status()
        first, commit, last = (int(found[key]) for key in ("first", "commit", "last"))
        return Ends(first, commit, last)

    def last_index(self) -> int:
        with self._reached():
            return self._farm.commit_index()

    def offset_at(self, index: int) -> FarmOffset:
        offset = FarmOffset(self._options.farm, index)
        if not index:
            return offset
        try:
            for entry in self._page(index, index, 1).entries:
                return offset._replace(term=entry.term)
        except FarmCompacted:
            return offset
        raise LogEnds(index, index)

    def _time_from(self, index: int, behind: int) -> tuple[int, datetime | None]:
        while index < behind:
            page = self._page(index, behind - 1)
            rows = self._rows(page.entries)
            for at, found in zip(rows["index"].to_pylist(), rows["time"].to_pylist(), strict=True):
                if found is not None:
                    return at, found.astimezone(UTC)
            index = page.next_index
        return index, None

    def _page(self, index: int, last: int, count: int = PAGE_ENTRIES) -> FarmPage:
        """Entries from index on, one at least, and none behind last. A server that has not heard
        yet that index is committed is asked again. Raises LogEnds, FarmCompacted."""
        until = time.monotonic() + self._options.timeout_ms / 1000
        while True:
            with self._reached():
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
                yield self._kept(LogRange(after, min(compacted, last)))
                after = compacted
                continue
            after = page.next_index - 1
            yield self._rows(page.entries)

    def _instead(self) -> str:
        return "the last document of each server and then what follows"

    def _kept(self, wanted: LogRange) -> pyarrow.RecordBatch:
        """What the farm keeps of entries that are compacted: documents that are a server's last."""
        with self._reached():
            documents = self._farm.documents()["documents"]
            found = []
            for one in sorted(documents, key=lambda document: int(document["index"])):
                index = int(one["index"])
                if wanted.after < index <= wanted.last:
                    found.append(FarmEntry(index, 0, APPLICATION, self._whole(one)))
        return self._rows(found)

    def _whole(self, kept: Mapping[str, Any]) -> bytes:
        """A document as it is kept; of many large ones some are shown only alone."""
        document = kept["document"]
        if document is None:
            document = self._farm.documents(int(kept["id"]))["documents"][0]["document"]
        return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()

    def _rows(self, entries: Iterable[FarmEntry]) -> pyarrow.RecordBatch:
        return rows_of(entries, self._options.farm)
