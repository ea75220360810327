"""The servers of a farm and their endpoints, by the Configurations in its log."""

from ...raft.core import Raft
from ...raft.membership import Configuration
from ...raft.messages import EntryBatch
from ..wire.entries import configuration_of, voters_of
from ..wire.messages import ClusterServer, FarmConfiguration


class ServerDirectory:
    """The Configurations of the log. The core's history of voters says which one is current."""

    def __init__(self, configurations: tuple[tuple[int, FarmConfiguration], ...]) -> None:
        self._by_index = dict(configurations)
        self.core: Raft | None = None  # Set once the core exists, which needs record().

    def record(self, batch: EntryBatch) -> Configuration | None:
        """Setup.configuration of the core: the voters that a batch of one entry sets, or None."""
        configuration = configuration_of(batch)
        if configuration is None:
            return None
        self._by_index[batch.first_index] = configuration
        return voters_of(configuration.servers)

    def install(self, index: int, configuration: FarmConfiguration) -> Configuration:
        """Records the Configuration of a snapshot that ends at index."""
        self._by_index[index] = configuration
        return voters_of(configuration.servers)

    def compact(self, index: int) -> None:
        """Forgets Configurations older than the one at index, the log's new base. Only the log
        knows which one that is: entries that were replaced in it are still recorded here.
        """
        assert self.core is not None
        keep = self.core.log.configurations.entry_at(index)
        self._by_index = {at: each for at, each in self._by_index.items() if at >= keep}

    @property
    def latest(self) -> FarmConfiguration:
        """The newest Configuration in the log, committed or not."""
        assert self.core is not None
        return self._by_index[self.core.log.configurations.last_index]

    @property
    def committed(self) -> FarmConfiguration:
        assert self.core is not None
        history = self.core.log.configurations
        return self._by_index[history.entry_at(max(self.core.commit_index, history.first_index))]

    def at(self, index: int) -> FarmConfiguration:
        """The Configuration at an index that is not below the log's base."""
        assert self.core is not None
        return self._by_index[self.core.log.configurations.entry_at(index)]

    def next_configuration(
        self, index: int, servers: tuple[ClusterServer, ...]
    ) -> FarmConfiguration:
        """A Configuration of these servers for the entry at index."""
        return FarmConfiguration(index, self.latest.log_index, servers)

    def find(self, server_id: int) -> ClusterServer | None:
        """A server of the latest Configuration."""
        return next((each for each in self.latest.servers if each.id == server_id), None)
