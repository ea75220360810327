"""Who the servers of a farm are and where they listen, by the configurations in the log."""

from ...raft.core import Raft
from ...raft.membership import Configuration
from ...raft.messages import EntryBatch
from ..wire.entries import configuration_of, voters_of
from ..wire.messages import ClusterServer, FarmConfiguration


class ServerDirectory:
    """The Configurations beside the core's own history of voters: that one says what holds."""

    def __init__(self, configurations: tuple[tuple[int, FarmConfiguration], ...]) -> None:
        self._by_index = dict(configurations)
        self.core: Raft | None = None  # Known once it has been made with our note().

    def record(self, batch: EntryBatch) -> Configuration | None:
        """Setup.configuration of the core: what a batch of one entry puts in force."""
        configuration = configuration_of(batch)
        if configuration is None:
            return None
        self._by_index[batch.first_index] = configuration
        return voters_of(configuration.servers)

    def install(self, index: int, configuration: FarmConfiguration) -> Configuration:
        """A snapshot that ends at index says what was in force there."""
        self._by_index[index] = configuration
        return voters_of(configuration.servers)

    def compact(self, index: int) -> None:
        """The log's base is at index: what is older than what was in force there goes. Only the log
        knows which that was: entries that were replaced in it are still noted here."""
        assert self.core is not None
        keep = self.core.log.configurations.entry_at(index)
        self._by_index = {at: each for at, each in self._by_index.items() if at >= keep}

    @property
    def latest(self) -> FarmConfiguration:
        """Of the newest entry, committed or not."""
        assert self.core is not None
        return self._by_index[self.core.log.configurations.last_index]

    @property
    def committed(self) -> FarmConfiguration:
        assert self.core is not None
        history = self.core.log.configurations
        return self._by_index[history.entry_at(max(self.core.commit_index, history.first_index))]

    def at(self, index: int) -> FarmConfiguration:
        """What was in force at an index that is not below the log's base."""
        assert self.core is not None
        return self._by_index[self.core.log.configurations.entry_at(index)]

    def next_configuration(
        self, index: int, servers: tuple[ClusterServer, ...]
    ) -> FarmConfiguration:
        """A new one, to be the entry at index."""
        return FarmConfiguration(index, self.latest.log_index, servers)

    def find(self, server_id: int) -> ClusterServer | None:
        """A server of the configuration in force."""
        return next((each for each in self.latest.servers if each.id == server_id), None)
