"""The servers of a farm and their endpoints, by the Configurations in its log."""

from ...host.configurations import ConfigurationLog
from ...raft.core import Raft
from ...raft.membership import ConfigurationHistory
from ..wire.entries import configuration_of, voters_of
from ..wire.messages import ClusterServer, FarmConfiguration


class ServerDirectory(ConfigurationLog[FarmConfiguration]):
    def __init__(
        self,
        configurations: tuple[tuple[int, FarmConfiguration], ...],
        history: ConfigurationHistory,
    ) -> None:
        super().__init__(
            dict(configurations), history, configuration_of, lambda each: voters_of(each.servers)
        )
        self.core: Raft | None = None  # Set once the core exists, which needs read_config().

    @property
    def committed(self) -> FarmConfiguration:
        assert self.core is not None
        return self.at(max(self.core.commit_index, self.history.first_index))

    def next_configuration(
        self, index: int, servers: tuple[ClusterServer, ...]
    ) -> FarmConfiguration:
        """A Configuration of these servers for the entry at index."""
        return FarmConfiguration(index, self.latest.log_index, servers)

    def find(self, server_id: int) -> ClusterServer | None:
        """A server of the latest Configuration."""
        return next((each for each in self.latest.servers if each.id == server_id), None)
