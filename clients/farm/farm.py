"""kelek.Farm: a farm's log and its members, without a thread of its own.

All work is done inside the calls. One Farm belongs to one thread at a time; make one for each.
"""

import os
from collections.abc import Generator, Iterable, Iterator, Mapping
from typing import Any

from ...protocols.garlicfarm.app.orders import OrderKind
from ..aliases import warn_renamed
from ..errors import FarmError, FarmTimeout
from ..io.driver import BlockingDriver
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


class Farm(BlockingDriver):
    """A user of a farm: servers that share a log, by Garlic Farm's protocol.

        with kelek.Farm("tls://127.0.0.1:7401", "farm", user="demo", secret_file="secret",
                        ca_file="ca.pem") as farm:
            farm.append(b"one")
            farm.append_many([b"two", b"three"])
            for entry in farm.entries(): ...

    servers       where some of them are, in a list or joined by commas, or by id: {1: "tls://.."};
                  the others are learned. zre://CLUSTER is looked up
    farm          its name
    user          as the servers' password file knows him; secret_file holds his password alone, and
                  is readable by nobody else; password may be given instead
    ca_file       the certificates (PEM) that the servers' have to be signed with; None: those that
                  the system trusts
    timeout_ms    of a call
    tuning        TLS, proxies, servers of JRaft without either

    What is appended may be there twice when a leader is lost meanwhile: the protocol knows no
    sessions. Raises FarmError, or one of its kinds.
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
        credentials = Credentials(user, password, secret_file)
        self.timeout_ms = timeout_ms
        self._client = make_client(servers, farm, credentials, tuning)
        self._steps = FarmOperations(self._client, timeout_ms)
        self._own(FarmLinks(self._client, make_connect_settings(ca_file, tuning)))

    # ---- the log ----

    def append(self, value: bytes | Iterable[bytes]) -> int:
        """Appends a value of 1 byte to 8 MiB; returns its index once it is committed.

        A server of JRaft or an older kelek may return a larger index. A value may be in the log
        twice when a leader is lost during the call: the protocol has no request ids.

        Raises FarmUnavailable, FarmNoLeader (nothing was appended), FarmTimeout (the value may be
        appended, now or later), FarmRefused (the leader does not accept it from this user),
        FarmDenied, FarmTooLarge.
        """
        if not isinstance(value, bytes | str):
            warn_renamed("append() of several values", "append_many()")
            return self._run(self._steps.append(value))
        return self.append_many([value])

    def append_many(self, values: Iterable[bytes]) -> int:
        """Appends values in order; returns the index of the last once all are committed.

        A request carries up to 1000 values or 1 MiB, and 64 requests are sent at a time. The values
        of a request are consecutive in the log, so up to 1000 small values have the indexes up to
        the result. 0: there was no value. Raises as append() does.
        """
        next_index = self._run(self._steps.append(values))
        return max(0, next_index - 1)

    def read(
        self,
        from_index: int | None = None,
        count: int = PAGE_ENTRIES,
        *,
        after: int = 0,
        all_kinds: bool = False,
    ) -> FarmPage:
        """One page of committed entries after an index: up to 1000 entries or 4 MiB.

        all_kinds    also configurations (the members) and posters (the user who appends)
        from_index   deprecated: the first index itself

        Raises FarmCompacted when the first of them is no longer stored.
        """
        first_index = entry_range(from_index, after).first_index
        return self._run(self._steps.read(first_index, count, all_kinds))

    def entries(
        self,
        from_index: int | None = None,
        *,
        after: int = 0,
        all_kinds: bool = False,
        follow: bool | None = None,
    ) -> Iterator[FarmEntry]:
        """The entries after an index, up to the last that is committed when the call begins.

        When a server is lost, another one continues: no entry is missing or repeated.

        all_kinds            also configurations (the members) and posters (the user who appends)
        from_index, follow   deprecated: the first index itself; True as watch() does

        Raises FarmCompacted, FarmUnavailable.
        """
        return self._pages(entry_range(from_index, after, follow), all_kinds)

    def watch(self, after: int = 0, *, all_kinds: bool = False) -> Iterator[FarmEntry]:
        """The entries after an index, then each new one once it is committed, without end.

        When a server is lost, another one continues: no entry is missing or repeated. Raises
        FarmCompacted, FarmUnavailable.
        """
        return self._pages(EntryRange(after + 1, True), all_kinds)

    def _pages(self, wanted: EntryRange, all_kinds: bool) -> Iterator[FarmEntry]:
        for page in self._iterate(self._steps.entries(*wanted, all_kinds)):
            yield from page

    def commit_index(self) -> int:
        """The index of the last committed entry, as the leader knows it; when there is none, as any
        server does."""
        return self._run(self._steps.commit_index())

    # ---- what there is ----

    def reach(self, timeout_ms: int) -> None:
        """Waits until one of the servers has let us in, at most so long; what it is told is of no
        interest. Raises FarmUnavailable, FarmDenied, FarmUntrusted, FarmRefused."""
        self._run(self._steps.reach(timeout_ms))

    def status(self) -> dict[str, Any]:
        """The leader's view: term, indexes, members, the change in work, counters.

        docs/protocols/garlic-farm.md has its keys. Without a leader it is that of any server.
        """
        return self._run(self._steps.status())

    def servers(self) -> list[FarmServer]:
        """The members, each with what it says of itself."""
        return self._run(self._steps.servers())

    def documents(self, server_id: int | None = None) -> dict[str, Any]:
        """What the log amounts to: the last document of each server, who publishes, what is left
        out, settings. docs/protocols/garlic-farm.md has its keys.

        server_id   only that server's document: of many large ones some are null, unless alone
        """
        return self._run(self._steps.documents(server_id))

    def publisher(self) -> int | None:
        """Which server publishes the MetaLS; None: nobody does."""
        return self._run(self._steps.publisher())

    # ---- members ----

    def add_server(self, server_id: int, endpoint: str, *, wait: bool = True) -> bool:
        """Takes a server in that has been started and waits for it; the user is an administrator.

        endpoint   where the others reach it: tcp://HOST:PORT
        wait       until it is a member, not only until the leader has begun

        Returns False when it is one already. Raises FarmDenied, FarmRefused, FarmTimeout.
        """
        return self._run(self._steps.add_server(server_id, endpoint, wait))

    def remove_server(self, server_id: int, *, wait: bool = True) -> bool:
        """Leaves a server out, the leader too: another one leads then. Its process stays.

        Returns False when it is no member. Raises FarmDenied, FarmRefused, FarmTimeout.
        """
        return self._run(self._steps.remove_server(server_id, wait))

    # ---- orders of an administrator ----

    def publish(self, server: int | str | None) -> None:
        """Says who publishes the MetaLS: a server's id, "auto" for the one that the rule finds, or
        None for nobody. Raises FarmDenied."""
        self._run(self._steps.publish(server))

    def exclude(self, hashes: Iterable[str] = (), *, servers: Iterable[int] = ()) -> None:
        """Leaves destinations out of the MetaLS, or all of a server's: its own and the right to
        publish. A hash is I2P's base64, HASH.b32.i2p, or the whole destination."""
        self._run(self._steps.order_exclusion(OrderKind.EXCLUDE, hashes, servers))

    def include(self, hashes: Iterable[str] = (), *, servers: Iterable[int] = ()) -> None:
        """Takes in again what was left out."""
        self._run(self._steps.order_exclusion(OrderKind.INCLUDE, hashes, servers))

    def export(self) -> dict[str, Any]:
        """What an administrator has set, and who the members are: what import_() takes, of this
        farm or of another one."""
        return self._run(self._steps.from_leader("configuration"))

    def import_(self, configuration: Mapping[str, Any]) -> None:
        """Sets all that an administrator may set as an export has it. The members in it are left
        alone: add_server() and remove_server() change them."""
        self._run(self._steps.import_config(configuration))

    # ---- the end ----

    @property
    def counters(self) -> dict[str, int]:
        """What happened: connections, lost, requests, redirects, refused, junk."""
        return dict(self._client.counters)

    def _iterate(self, steps: Generator[Any, None, None]) -> Generator[list[Any], None, None]:
        if self._links is None:
            raise self._closed_error()
        return super()._iterate(steps)

    def _closed_error(self) -> FarmError:
        return FarmError("this Farm is closed")

    def _timeout_error(self) -> FarmTimeout:
        return FarmTimeout(self._client.explain().text)
