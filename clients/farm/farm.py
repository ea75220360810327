"""kelek.Farm: a farm's log and members, without a background thread.

All work happens inside the calls. A Farm belongs to one thread at a time.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
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
    """A client of a farm: servers that share a log by Garlic Farm's protocol.

        with kelek.Farm("tls://127.0.0.1:7401", "farm", user="demo", secret_file="secret",
                        ca_file="ca.pem") as farm:
            farm.append(b"one")
            farm.append_many([b"two", b"three"])
            for entry in farm.entries(): ...

    servers       some of them, in a list, joined by commas, or by id: {1: "tls://.."}; the
                  client learns the others. zre://CLUSTER is looked up
    farm          the farm's name
    user          a user in the servers' password file. secret_file holds its password alone and
                  must have mode 0600 or less; or give password
    ca_file       the CA certificates (PEM) of the servers; None: the system's
    timeout_ms    of each call
    tuning        TLS versions, proxies, JRaft servers

    A value may be in the log twice if a leader is lost during the call: the protocol has no
    sessions. Raises FarmError or one of its subclasses.
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
        self._operations = FarmOperations(self._client, timeout_ms)
        self._own(partial(FarmLinks, self._client, make_connect_settings(ca_file, tuning)))

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
            return self._run(self._operations.append(value))
        return self.append_many([value])

    def append_many(self, values: Iterable[bytes]) -> int:
        """Appends values in order; returns the index of the last once all are committed.

        A request carries up to 1000 values or 1 MiB, and 64 requests are sent at a time. The values
        of a request are consecutive in the log, so up to 1000 small values have the indexes up to
        the result. 0: there was no value. Raises as append() does.
        """
        next_index = self._run(self._operations.append(values))
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
        return self._run(self._operations.read(first_index, count, all_kinds))

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
        for page in self._batches(self._operations.entries(*wanted, all_kinds)):
            yield from page

    def commit_index(self) -> int:
        """The index of the last committed entry: the leader's, or without a leader any server's."""
        return self._run(self._operations.commit_index())

    # ---- views ----

    def reach(self, timeout_ms: int) -> None:
        """Waits up to timeout_ms until a server accepts the user.

        Raises FarmUnavailable, FarmDenied, FarmUntrusted, FarmRefused.
        """
        self._run(self._operations.reach(timeout_ms))

    def status(self) -> dict[str, Any]:
        """The leader's status: term, indexes, members, the member change in progress, counters.

        docs/protocols/garlic-farm.md lists its keys. Without a leader, any server's status.
        """
        return self._run(self._operations.status())

    def servers(self) -> list[FarmServer]:
        """The members, each with its own status."""
        return self._run(self._operations.servers())

    def documents(self, server_id: int | None = None) -> dict[str, Any]:
        """The state of the log: each server's last document, the publisher, exclusions,
        settings. docs/protocols/garlic-farm.md lists its keys.

        server_id   only this server's document. Large documents are null in the whole list
        """
        return self._run(self._operations.documents(server_id))

    def publisher(self) -> int | None:
        """The id of the server that publishes the MetaLS, or None."""
        return self._run(self._operations.publisher())

    # ---- members ----

    def add_server(self, server_id: int, endpoint: str, *, wait: bool = True) -> bool:
        """Adds a server that runs and waits for an invitation. Needs an administrator.

        endpoint   its address for the other servers: tcp://HOST:PORT
        wait       True: until it is a member. False: until the leader has started

        Returns False if it is a member already. Raises FarmDenied, FarmRefused, FarmTimeout.
        """
        return self._run(self._operations.add_server(server_id, endpoint, wait))

    def remove_server(self, server_id: int, *, wait: bool = True) -> bool:
        """Removes a server. If it leads, another server becomes leader. Its process keeps
        running.

        Returns False if it is not a member. Raises FarmDenied, FarmRefused, FarmTimeout.
        """
        return self._run(self._operations.remove_server(server_id, wait))

    # ---- orders of an administrator ----

    def publish(self, server: int | str | None) -> None:
        """Orders who publishes the MetaLS: a server's id, "auto" for the rule's choice, or None
        for no server. Raises FarmDenied.
        """
        self._run(self._operations.publish(server))

    def exclude(self, hashes: Iterable[str] = (), *, servers: Iterable[int] = ()) -> None:
        """Excludes destinations from the MetaLS, or all destinations of servers, which then do
        not publish. A hash is I2P's base64, HASH.b32.i2p, or the whole destination.
        """
        self._run(self._operations.order_exclusion(OrderKind.EXCLUDE, hashes, servers))

    def include(self, hashes: Iterable[str] = (), *, servers: Iterable[int] = ()) -> None:
        """Ends exclusions."""
        self._run(self._operations.order_exclusion(OrderKind.INCLUDE, hashes, servers))

    def export(self) -> dict[str, Any]:
        """The administrators' configuration and the members: the argument of import_(), here or
        in another farm.
        """
        return self._run(self._operations.from_leader("configuration"))

    def import_(self, configuration: Mapping[str, Any]) -> None:
        """Sets the administrators' configuration from an export. It does not change the members;
        see add_server() and remove_server().
        """
        self._run(self._operations.import_config(configuration))

    # ---- counters ----

    @property
    def counters(self) -> dict[str, int]:
        """Counts of connections, lost, requests, redirects, refused, junk."""
        return dict(self._client.counters)

    def _closed_error(self) -> FarmError:
        return FarmError("this Farm is closed")

    def _timeout_error(self) -> FarmTimeout:
        return FarmTimeout(self._client.explain().text)
