"""One farm's part of a farm_server: its peer, what it keeps, its links, who is let in to it.

All that a wake has brought is decided at once: one write and one sync of the log, one send a link.
"""

import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from random import SystemRandom
from typing import Any, NamedTuple, Protocol

from ...net.streams import StreamPoll
from ...protocols.garlicfarm.app.application import Application, AppSetup
from ...protocols.garlicfarm.app.documents import PublishConfig
from ...protocols.garlicfarm.app.router import Router
from ...protocols.garlicfarm.server.inbound import PeerSession
from ...protocols.garlicfarm.server.peer import FarmPeer
from ...protocols.garlicfarm.server.values import FarmSetup
from ...protocols.garlicfarm.wire.http_api import ViewRequest
from ...protocols.garlicfarm.wire.messages import ClusterServer
from ...storage.disk.disk import Disk
from ...storage.farm.storage import FarmStorage
from ...storage.log.segment import Identity
from .links import FarmLink, LinkState, Way
from .listener import Connection
from .names import Names

TIDY_MS = (2, 1000)  # Between two pieces of work on the disk: while there is more, and else.
HURRIED_PIECES_MAX = 8
UNWILLING_MS = 5000  # Between two lines about who would take us in.


class Shared(Protocol):
    """What all farms of a process have in common: the actor."""

    now_ms: int
    counters: Counter[str]
    poll: StreamPoll
    names: Names

    @property
    def log(self) -> Callable[..., None]: ...


class PartPlace(NamedTuple):
    """Where a farm's part is kept, how it begins, and for what router."""

    data_dir: str
    epoch: int
    may_begin: bool
    router: Router
    publish: str  # PublishConfig.
    post_interval_ms: int
    user: str  # As whom this server connects to the others.


class FarmReplica:
    """A member of one farm, or one that waits to be."""

    def __init__(
        self, name: str, shared: Shared, options: Mapping[str, Any], place: PartPlace
    ) -> None:
        """Raises StorageError."""
        self.name = name
        self.server_id: int = options["server_id"]
        self.entries_bytes_max: int = options["entries_bytes_max"]
        self.poll, self.names = shared.poll, shared.names
        self.links: dict[int, FarmLink] = {}
        # A leader that knocks too late at one that is back is dethroned by it.
        self.pause_ms_max: int = options["election_timeout_ms_min"] // 3
        self.way: Way  # Set by whoever knows how, before the first act().
        self._shared = shared
        self._options = options
        self._connections: dict[int, Connection] = {}  # By FarmPeer's number.
        self._touched = True  # Something has happened that the peer has to act on.
        self._shown: tuple[object, ...] = ()
        self._unwilling, self._unwilling_ms = "", 0  # What was told, and until when it is enough.
        self._data_dir = place.data_dir
        servers = {int(number): url for number, url in options["servers"].items()}
        beginning: tuple[ClusterServer, ...] = ()
        if self.server_id in options["begin"]:
            beginning = tuple(ClusterServer(each, servers[each]) for each in options["begin"])
        self.home = FarmStorage(
            Disk(place.data_dir),
            Identity(name, str(self.server_id)),
            place.epoch,
            beginning,
            may_begin=place.may_begin,
        )
        self.peer = FarmPeer(
            FarmSetup(
                self.server_id,
                beginning,
                options["election_timeout_ms_min"],
                options["election_timeout_ms_max"],
                options["heartbeat_ms"],
                options["request_timeout_ms"],
                self.entries_bytes_max,
                cluster=name,
                user=place.user,
                entry_bytes_max=min(options["entry_bytes_max"], self.entries_bytes_max),
            ),
            self.home.recovered,
            self.home,
            shared.now_ms,
            SystemRandom(),
        )
        self.app = Application(
            AppSetup(
                name,
                PublishConfig(place.publish),
                place.post_interval_ms,
                frozenset(options["admins"]),
            ),
            self.peer,
            place.router,
            self._connections_shown,
        )
        self._tidy_ms = 0
        self._due_ms = 0

    def _connections_shown(self) -> dict[str, object]:
        """What /status says of connections."""
        links = {str(each): link.state.name.lower() for each, link in self.links.items()}
        return {"inbound": len(self._connections), "links": links, **self._shared.counters}

    @property
    def now_ms(self) -> int:
        return self._shared.now_ms

    # ---- connections of others ----

    def accept(self, grant: PeerSession, connection: Connection) -> int:
        """One that is let in; returns its number."""
        number = self.peer.accept(grant)
        self._connections[number] = connection
        for link in self.links.values():
            # It may be the one that was not there.
            self._touched = link.hurry() or self._touched
        return number

    def on_requests(self, connection: Connection, data: bytes) -> None:
        assert connection.inside is not None
        self._touched = True
        inbound = self.peer.inbound[connection.inside.number]
        self.peer.on_requests(connection.inside.number, data, self.now_ms)
        connection.bound(inbound.is_full, inbound.partial)
        self._tell_audits()

    def _tell_audits(self) -> None:
        intake = self.peer.append_policy
        while intake.audits:
            user, what, is_accepted = intake.audits.popleft()
            self._shared.log("audit", farm=self.name, user=user, what=what, taken=is_accepted)
        if intake.audits_lost:
            self._shared.log("audit-lost", farm=self.name, count=intake.audits_lost)
            self._shared.counters["audits_lost"] += intake.audits_lost
            intake.audits_lost = 0

    def on_closed(self, connection: Connection) -> None:
        assert connection.inside is not None
        del self._connections[connection.inside.number]
        self.peer.on_closed(connection.inside.number)

    def send_away(self, users: Collection[str]) -> None:
        """Closes the connections of users who may no longer be here."""
        for number, connection in list(self._connections.items()):
            user = self.peer.inbound[number].session.user
            if user in users:
                self._shared.log("sent-away", farm=self.name, user=user)
                connection.end()
                connection.settle()

    # ---- links of ours ----

    def touch(self) -> None:
        self._touched = True

    def on_insecure(self) -> None:
        self._shared.counters["insecure_endpoints"] += 1

    def on_up(self, server_id: int) -> None:
        self._touched = True
        self._shared.log("link-up", farm=self.name, server=server_id)
        self.peer.on_connected(server_id, self.now_ms)

    def on_answers(self, server_id: int, data: bytes) -> None:
        self._touched = True
        self.peer.on_responses(server_id, data, self.now_ms)

    def on_down(self, server_id: int, news: str) -> None:
        self._touched = True
        self._shared.counters["links_lost"] += 1
        if news:
            self._shared.log("link-down", farm=self.name, server=server_id, why=news)
        self.peer.on_lost(server_id)

    def _follow_links(self) -> None:
        """A connection for each link that the peer has, to where it has it."""
        wanted = self.peer.links
        for server_id in [each for each in self.links if each not in wanted]:
            self.links.pop(server_id).close()
        for server_id, link in wanted.items():
            mine = self.links.get(server_id)
            if mine is None:
                mine = self.links[server_id] = FarmLink(self, server_id, link.endpoint)
            if link.failure:
                mine.endpoint = link.endpoint
                mine.lose(link.failure)
            mine.step(self.now_ms)

    # ---- the loop ----

    def act(self, now_ms: int) -> None:
        """Does all that can be done now."""
        if not self._touched and now_ms < self.deadline_ms:
            return
        self._touched = False
        peer, more = self.peer, True
        while more:
            peer.wake(now_ms)
            self._follow_links()
            for server_id, link in peer.links.items():
                if link.out:
                    self.links[server_id].send(link.out)
            more = peer.write()
            self._answer()
        self._apply(now_ms)
        self._make_snapshot()
        self._tidy(now_ms)
        self._show()
        self._due_ms = self._next_ms()

    def _apply(self, now_ms: int) -> None:
        """The application behind all that somebody waits for."""
        posted, error = self.app.posted, self.app.router_error
        self.app.wake(now_ms, time.time_ns() // 1_000_000)
        self._touched = self._touched or self.app.posted != posted
        if self.app.router_error != error:
            self._shared.log("router", farm=self.name, problem=self.app.router_error or "none")

    def _make_snapshot(self) -> None:
        """When there is enough to leave out. Whoever asks for the state has it follow, too."""
        every, index = self._options["snapshot_entries"], self.app.state.index
        if every and index - self.home.mark.last_index >= every:
            mark, pieces = self.app.snapshot()
            keep = self._options["snapshot_behind"]
            self.home.make_snapshot(mark, pieces, max(1, index - keep + 1))
            self.peer.on_own_snapshot(self.home.mark, keep)
            self._shared.log("snapshot", farm=self.name, index=index, size=self.home.mark.size)

    def _tidy(self, now_ms: int) -> None:
        """Work on the disk that is not urgent, a piece of it."""
        hurry = self.home.lags
        if now_ms < self._tidy_ms and not hurry:
            return
        busy = self.home.tidy()
        for _ in range(HURRIED_PIECES_MAX):
            if not (busy and hurry and self.home.lags):
                break
            busy = self.home.tidy()
        self._tidy_ms = now_ms + TIDY_MS[not busy]

    def render(self, view: ViewRequest) -> bytes:
        """What is asked for over HTTP."""
        self._touched = True
        return self.app.render(view)

    def _answer(self) -> None:
        """What is answered leaves; a connection that FarmPeer gives up ends behind it."""
        for number, inbound in list(self.peer.inbound.items()):
            if not (inbound.out or inbound.failure):
                continue
            connection = self._connections[number]
            if inbound.failure and not connection.ending:
                user = inbound.session.user
                self._shared.log("refused", farm=self.name, user=user, why=inbound.failure)
                connection.stream.out += inbound.out
                inbound.out.clear()
                connection.end()
            connection.bound(inbound.is_full, inbound.partial)
            connection.send(inbound.out)

    @property
    def deadline_ms(self) -> int:
        """When act() must come at the latest."""
        return self.now_ms if self._touched else self._due_ms

    def _next_ms(self) -> int:
        """The same, as far as nothing happens before: only act() changes it."""
        times = [link.deadline_ms for link in self.links.values() if link.deadline_ms is not None]
        return min((self.peer.deadline_ms, self.app.deadline_ms, self._tidy_ms, *times))

    def _show(self) -> None:
        """A line of the log when the term, the leader or the members are others."""
        core = self.peer.core
        members = ",".join(str(each.id) for each in self.peer.directory.committed.servers)
        shown = (str(core.role), core.term, core.leader, members)
        if shown != self._shown:
            self._shown = shown
            role, term, leader, members = shown
            self._shared.log(
                "farm", farm=self.name, role=role, term=term, leader=leader, members=members
            )

        if self.peer.join_refusal != self._unwilling and self.now_ms >= self._unwilling_ms:
            self._unwilling, self._unwilling_ms = self.peer.join_refusal, self.now_ms + UNWILLING_MS
            way_out = f"if it was removed meanwhile, stop it and empty {self._data_dir}"
            self._shared.log("unwilling", farm=self.name, why=self._unwilling, way_out=way_out)

    # ---- reports ----

    @property
    def is_waited_for(self) -> bool:
        """Whether somebody has not been answered yet."""
        return any(inbound.pending for inbound in self.peer.inbound.values())

    @property
    def role(self) -> str:
        """As operators call it."""
        if self.peer.is_waiting:
            return "waiting"
        return str(self.peer.core.role)

    def status(self) -> dict[str, Any]:
        core = self.peer.core
        return {
            "raft_role": self.role,
            "term": core.term,
            "leader": core.leader,
            "last_index": core.log.last_index,
            "commit_index": core.commit_index,
            "applied_index": self.app.state.index,
            "snapshot_index": self.home.mark.last_index,
            "links": sum(link.state is LinkState.UP for link in self.links.values()),
            "malformed": self.peer.malformed,
            "refused": self.peer.refused.total(),
        }

    def close(self) -> None:
        for link in self.links.values():
            link.close()
        self.home.close()
