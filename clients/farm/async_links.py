"""The connections of a farm's client within an asyncio loop, which watches them."""

from ...protocols.garlicfarm.client.client import FarmClient
from ..io.async_waits import AsyncWaits
from .links import FarmLinks, Reach


class AsyncFarmLinks(AsyncWaits, FarmLinks):
    """Watched by an asyncio loop: kelek.AsyncFarm."""

    def __init__(self, client: FarmClient, reach: Reach) -> None:
        AsyncWaits.__init__(self)
        FarmLinks.__init__(self, client, reach, self.resources)

    def _on_wake(self) -> None:
        self._read_on()
        self._act()
        if self._unread:
            self.wake()
        self._wake_at(self.client.deadline_ms)
        self._wake_waiters()

    def _on_file(self, file: int) -> None:
        connection = self._files.get(file)
        if connection is not None:
            self._on_event(connection)
        self.wake()

    def _watch(self, file: int, writes: bool) -> None:
        self._loop.add_reader(file, self._on_file, file)
        if writes:
            self._loop.add_writer(file, self._on_file, file)
        else:
            self._loop.remove_writer(file)

    def _unwatch(self, file: int) -> None:
        if not self._loop.is_closed():
            self._loop.remove_reader(file)
            self._loop.remove_writer(file)

    def close(self) -> None:
        self._end_waits()
        FarmLinks.close(self)
