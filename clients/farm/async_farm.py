"""kelek.AsyncFarm: a farm for asyncio, with the methods of kelek.Farm.

Any number of tasks of one loop may share one AsyncFarm: what they append travels together.
"""

import os
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import aclosing
from typing import Any

from ...protocols.garlicfarm.app.orders import OrderKind
from ..aliases import warn_renamed
from ..errors import FarmError, FarmTimeout
from ..io.async_driver import AsyncDriver
from ..io.async_waits import AsyncWaits
from .async_links import AsyncFarmLinks
from .operations import (
    PAGE_ENTRIES,
    TIMEOUT_MS,
    Credentials,
    FarmOperations,
    FarmTuning,
    make_client,
    make_connect_settings,
)
from .values import EntryRange, FarmEntry, FarmPage, FarmServer, Servers, entry_range


class AsyncFarm(AsyncDriver):
    """A user of a farm, for the tasks of one asyncio loop.

        async with kelek.AsyncFarm("tls://127.0.0.1:7401", "farm", user="demo",
                                   secret_file="secret", ca_file="ca.pem") as farm:
            await farm.append(b"one")
            await farm.append_many([b"two", b"three"])
            async for entry in farm.entries(): ...

    The arguments are kelek.Farm's. Connections are made with the first call.
    """

    def __init__(
        self,
        servers: Servers,
        farm: str = "farm",
        *,
        user: str = "",
        secret_file: str | os.PathLike[str] | None = None,
        password: str | None = None,
        ca_file: str | os.PathLike[str] | None = None,
        timeout_ms: int = TIMEOUT_MS,
        tuning: FarmTuning | None = None,
    ) -> None:
        tuning = tuning or FarmTuning()
        self.timeout_ms = timeout_ms
        self._client = make_client(servers, farm, Credentials(user, password, secret_file), tuning)
        self._steps = FarmOperations(self._client, timeout_ms)
        self._settings = make_connect_settings(ca_file, tuning)

    # ---- the log ----

    async def append(self, value: bytes | Iterable[bytes]) -> int:
        """Appends a value; returns its index once it is committed; see kelek.Farm.append()."""
        if not isinstance(value, bytes | str):
            warn_renamed("append() of several values", "append_many()")
            return await self._run(self._steps.append(value))
        return await self.append_many([value])

    async def append_many(self, values: Iterable[bytes]) -> int:
        """Appends values; returns the index of the last; see kelek.Farm.append_many()."""
        next_index = await self._run(self._steps.append(values))
        return max(0, next_index - 1)

    async def read(
        self,
        from_index: int | None = None,
        count: int = PAGE_ENTRIES,
        *,
        after: int = 0,
        all_kinds: bool = False,
    ) -> FarmPage:
        """One page of committed entries after an index; see kelek.Farm.read()."""
        first_index = entry_range(from_index, after).first_index
        return await self._run(self._steps.read(first_index, count, all_kinds))

    def entries(
        self,
        from_index: int | None = None,
        *,
        after: int = 0,
        all_kinds: bool = False,
        follow: bool | None = None,
    ) -> AsyncIterator[FarmEntry]:
        """The committed entries after an index; see kelek.Farm.entries()."""
        return self._pages(entry_range(from_index, after, follow), all_kinds)

    def watch(self, after: int = 0, *, all_kinds: bool = False) -> AsyncIterator[FarmEntry]:
        """The entries after an index, then each new one; see kelek.Farm.watch()."""
        return self._pages(EntryRange(after + 1, True), all_kinds)

    async def _pages(self, wanted: EntryRange, all_kinds: bool) -> AsyncIterator[FarmEntry]:
        async with aclosing(self._iterate(self._steps.entries(*wanted, all_kinds))) as pages:
            async for page in pages:
                for entry in page:
                    yield entry

    async def commit_index(self) -> int:
        """The index of the last committed entry, as the leader knows it; when there is none, as any
        server does."""
        return await self._run(self._steps.commit_index())

    # ---- what there is ----

    async def reach(self, timeout_ms: int) -> None:
        """Waits until one of the servers has let us in, at most so long."""
        await self._run(self._steps.reach(timeout_ms))

    async def status(self) -> dict[str, Any]:
        """The leader's view; see kelek.Farm.status()."""
        return await self._run(self._steps.status())

    async def servers(self) -> list[FarmServer]:
        """The members, each with what it says of itself."""
        return await self._run(self._steps.servers())

    async def documents(self, server_id: int | None = None) -> dict[str, Any]:
        """What the log amounts to; see kelek.Farm.documents()."""
        return await self._run(self._steps.documents(server_id))

    async def publisher(self) -> int | None:
        """Which server publishes the MetaLS; None: nobody does."""
        return await self._run(self._steps.publisher())

    # ---- members ----

    async def add_server(self, server_id: int, endpoint: str, *, wait: bool = True) -> bool:
        """Takes a server in; see kelek.Farm.add_server()."""
        return await self._run(self._steps.add_server(server_id, endpoint, wait))

    async def remove_server(self, server_id: int, *, wait: bool = True) -> bool:
        """Leaves a server out; see kelek.Farm.remove_server()."""
        return await self._run(self._steps.remove_server(server_id, wait))

    # ---- orders of an administrator ----

    async def publish(self, server: int | str | None) -> None:
        """Says who publishes the MetaLS; see kelek.Farm.publish()."""
        await self._run(self._steps.publish(server))

    async def exclude(self, hashes: Iterable[str] = (), *, servers: Iterable[int] = ()) -> None:
        """Leaves destinations out of the MetaLS, or all of a server's; see kelek.Farm.exclude()."""
        await self._run(self._steps.order_exclusion(OrderKind.EXCLUDE, hashes, servers))

    async def include(self, hashes: Iterable[str] = (), *, servers: Iterable[int] = ()) -> None:
        """Takes in again what was left out."""
        await self._run(self._steps.order_exclusion(OrderKind.INCLUDE, hashes, servers))

    async def export(self) -> dict[str, Any]:
        """What an administrator has set, and who the members are."""
        return await self._run(self._steps.from_leader("configuration"))

    async def import_(self, configuration: Mapping[str, Any]) -> None:
        """Sets all that an administrator may set as an export has it; see kelek.Farm.import_()."""
        await self._run(self._steps.import_config(configuration))

    # ---- the end ----

    @property
    def counters(self) -> dict[str, int]:
        """As kelek.Farm's."""
        return dict(self._client.counters)

    def _make_links(self) -> AsyncWaits:
        return AsyncFarmLinks(self._client, self._settings)

    def _closed_error(self) -> FarmError:
        return FarmError("this AsyncFarm is closed")

    def _timeout_error(self) -> FarmTimeout:
        return FarmTimeout(self._client.explain().text)
