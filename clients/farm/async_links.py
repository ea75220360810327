"""The sockets of a farm client in an asyncio loop."""

from ...protocols.garlicfarm.client.client import FarmClient
from ..io.async_waits import AsyncWaits
from .links import ConnectSettings, FarmLinks


class AsyncFarmLinks(AsyncWaits, FarmLinks):
    """The connections of kelek.AsyncFarm, polled by asyncio."""

    def __init__(self, client: FarmClient, settings: ConnectSettings) -> None:
        AsyncWaits.__init__(self)
        FarmLinks.__init__(self, client, settings, self.resources)

    def _on_wake(self) -> None:
        self._read_rest()
        self._run_actions()
        if self._unread:
            self.wake()
        self._wake_at(self.client.deadline_ms)
        self._wake_waiters()

    def _on_file(self, fd: int) -> None:
        connection = self._files.get(fd)
        if connection is not None:
            self._on_event(connection)
        self.wake()

    def _watch(self, fd: int, wants_write: bool) -> None:
        self._loop.add_reader(fd, self._on_file, fd)
        if wants_write:
            self._loop.add_writer(fd, self._on_file, fd)
        else:
            self._loop.remove_writer(fd)

    def _unwatch(self, fd: int) -> None:
        if not self._loop.is_closed():
            self._loop.remove_reader(fd)
            self._loop.remove_writer(fd)

    def close(self) -> None:
        self._end_waits()
        FarmLinks.close(self)
