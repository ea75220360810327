"""The configuration entries of a log: the members with all that the wire says of them."""

from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

from ..raft.membership import Configuration, ConfigurationHistory
from ..raft.messages import EntryBatch

Entry = TypeVar("Entry")


class ConfigurationLog(Generic[Entry]):
    """Configuration entries by index. The core's history of voters says which one is in force."""

    def __init__(
        self,
        entries: Mapping[int, Entry],
        history: ConfigurationHistory,
        decode: Callable[[EntryBatch], Entry | None],
        voters: Callable[[Entry], Configuration],
    ) -> None:
        """Takes the entries in history, the reader of a batch of one entry, and the voters of an
        entry."""
        self.history = history
        self._entries = dict(entries)
        self._decode = decode
        self._voters = voters

    def read_config(self, batch: EntryBatch) -> Configuration | None:
        """Setup.configuration of the core: the voters that a batch of one entry sets, or None."""
        entry = self._decode(batch)
        return None if entry is None else self.record(batch.first_index, entry)

    def record(self, index: int, entry: Entry) -> Configuration:
        """Records the entry at index, or that of a snapshot up to index. Returns its voters."""
        self._entries[index] = entry
        return self._voters(entry)

    def at(self, index: int) -> Entry:
        """Returns the entry in force at an index, which is not below the log's base."""
        return self._entries[self.history.entry_at(index)]

    @property
    def latest(self) -> Entry:
        """The entry in force: the newest of the log, committed or not."""
        return self._entries[self.history.last_index]

    def compact(self, index: int) -> None:
        """Forgets entries older than the one at index, the log's new base. Only the history knows
        which one that is: entries that were replaced in the log are still recorded here."""
        keep = self.history.entry_at(index)
        self._entries = {at: each for at, each in self._entries.items() if at >= keep}
