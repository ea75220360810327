"""kelek.AsyncFarm: a farm for asyncio, with the methods of kelek.Farm.

The tasks of one loop may share an AsyncFarm; their appends share requests.
"""

import os
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import aclosing
from functools import partial
from typing import Any

from ...protocols.garlicfarm.app.orders import OrderKind
from ..aliases import warn_renamed
from ..errors import FarmError, FarmTimeout
from ..io.async_driver import AsyncDriver
from .links import FarmLinks
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
        self._operations = FarmOperations(self._client, timeout_ms)
        self._own(partial(FarmLinks, self._client, make_connect_settings(ca_file, tuning)))

    # ---- the log ----

    async def append(self, value: bytes | Iterable[bytes]) -> int:
        """Appends a value; returns its index once it is committed; see kelek.Farm.append()."""
        if not isinstance(value, bytes | str):
            warn_renamed("append() of several values", "append_many()")
            return await self._run(self._operations.append(value))
        return await self.append_many([value])

    async def append_many(self, values: Iterable[bytes]) -> int:
        """Appends values; returns the index of the last; see kelek.Farm.append_many()."""
        next_index = await self._run(self._operations.append(values))
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
        return await self._run(self._operations.read(first_index, count, all_kinds))

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
        async with aclosing(self._batches(self._operations.entries(*wanted, all_kinds))) as pages:
            async for page in pages:
                for entry in page:
                    yield entry

    async def commit_index(self) -> int:
        """The index of the last committed entry; see kelek.Farm.commit_index()."""
        return await self._run(self._operations.commit_index())

    # ---- views ----

    async def reach(self, timeout_ms: int) -> None:
        """Waits up to timeout_ms until a server accepts the user."""
        await self._run(self._operations.reach(timeout_ms))

    async def status(self) -> dict[str, Any]:
        """The leader's status; see kelek.Farm.status()."""
        return await self._run(self._operations.status())

    async def servers(self) -> list[FarmServer]:
        """The members, each with its own status."""
        return await self._run(self._operations.servers())

    async def documents(self, server_id: int | None = None) -> dict[str, Any]:
        """The state of the log; see kelek.Farm.documents()."""
        return await self._run(self._operations.documents(server_id))

    async def publisher(self) -> int | None:
        """The id of the server that publishes the MetaLS, or None."""
        return await self._run(self._operations.publisher())

    # ---- members ----

    async def add_server(self, server_id: int, endpoint: str, *, wait: bool = True) -> bool:
        """Adds a server; see kelek.Farm.add_server()."""
        return await self._run(self._operations.add_server(server_id, endpoint, wait))

    async def remove_server(self, server_id: int, *, wait: bool = True) -> bool:
        """Removes a server; see kelek.Farm.remove_server()."""
        return await self._run(self._operations.remove_server(server_id, wait))

    # ---- orders of an administrator ----

    async def publish(self, server: int | str | None) -> None:
        """Orders who publishes the MetaLS; see kelek.Farm.publish()."""
        await self._run(self._operations.publish(server))

    async def exclude(self, hashes: Iterable[str] = (), *, servers: Iterable[int] = ()) -> None:
        """Excludes destinations from the MetaLS; see kelek.Farm.exclude()."""
        await self._run(self._operations.order_exclusion(OrderKind.EXCLUDE, hashes, servers))

    async def include(self, hashes: Iterable[str] = (), *, servers: Iterable[int] = ()) -> None:
        """Ends exclusions."""
        await self._run(self._operations.order_exclusion(OrderKind.INCLUDE, hashes, servers))

    async def export(self) -> dict[str, Any]:
        """The administrators' configuration and the members; see kelek.Farm.export()."""
        return await self._run(self._operations.from_leader("configuration"))

    async def import_(self, configuration: Mapping[str, Any]) -> None:
        """Sets the administrators' configuration; see kelek.Farm.import_()."""
        await self._run(self._operations.import_config(configuration))

    # ---- counters ----

    @property
    def counters(self) -> dict[str, int]:
        """See kelek.Farm.counters."""
        return dict(self._client.counters)

    def _closed_error(self) -> FarmError:
        return FarmError("this AsyncFarm is closed")

    def _timeout_error(self) -> FarmTimeout:
        return FarmTimeout(self._client.explain().text)
