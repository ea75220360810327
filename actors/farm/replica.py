"""One farm in a farm_server process: its peer, storage, application, links and connections.

A wake decides everything at once: one write and one sync of the log, and one send per link.
"""

import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from random import SystemRandom
from typing import Any, Protocol

from ...net.streams import StreamPoll
from ...protocols.access.audit import OK, AuditRecord, Sender
from ...protocols.garlicfarm.app.application import Application, AppSetup
from ...protocols.garlicfarm.app.documents import PublishConfig
from ...protocols.garlicfarm.app.router import Router
from ...protocols.garlicfarm.server.append_policy import AppendPolicy
from ...protocols.garlicfarm.server.inbound import InboundConnection, PeerSession
from ...protocols.garlicfarm.server.peer import FarmPeer
from ...protocols.garlicfarm.server.values import (
    ConnectionClosed,
    FarmEvent,
    FarmReport,
    FarmSetup,
    LinkUp,
)
from ...protocols.garlicfarm.wire.http_api import ViewRequest
from ...protocols.garlicfarm.wire.link import Link
from ...protocols.garlicfarm.wire.messages import ClusterServer
from ...protocols.host.border import LinkLost, Requests
from ...storage.disk.disk import Disk
from ...storage.farm.storage import FarmStorage
from ...storage.log.segment import Identity
from ..access.audit import AuditFile
from ..runtime.setup import ActorSetup
from ..topology.farm import admins_of, farm_directory, initial_servers
from .links import FarmLink, LinkEvent, LinkSettings, LinkState
from .listener import InboundStream
from .resolver import AddressResolver

BACKGROUND_MS = (2, 1000)  # Between two background steps: while there is more work, and otherwise.
REFUSED = "refused"
REFUSAL_LOG_MS = 5000  # Between two log lines about refused invitations.


class ReplicaHost(Protocol):
    """What the farms of a process share: the actor."""

    setup: ActorSetup
    now_ms: int
    counters: Counter[str]
    poll: StreamPoll
    resolver: AddressResolver

    @property
    def log(self) -> Callable[..., None]: ...

    def log_rarely(self, event: str, **values: object) -> None: ...

    @property
    def certificate_days(self) -> int | None: ...

    @property
    def audit_file(self) -> AuditFile: ...


class FarmReplica:
    """A member of one farm, or a server that waits to join it."""

    def __init__(self, name: str, shared: ReplicaHost, router: Router) -> None:
        """Raises StorageError."""
        setup, farm = shared.setup, shared.setup.settings.farm
        assert farm is not None
        settings, node = farm.farms[name], farm.server
        self.name = name
        self.server_id = farm.server_ids[name]
        self.poll, self.resolver, self.counters = shared.poll, shared.resolver, shared.counters
        self.links: dict[int, FarmLink] = {}
        # A leader that reconnects later than this could be deposed by a returning server.
        self.retry_ms_max = settings.election_timeout_ms[0] // 3
        self.link_settings: LinkSettings  # The owner sets it before the first run_once().
        self._shared = shared
        self._settings = settings
        self._connections: dict[int, InboundStream] = {}  # By FarmPeer.accept()'s number.
        self._has_work = True  # There is input for the peer.
        self._logged_state: tuple[object, ...] = ()
        # The last logged refusal, and the earliest time of the next line.
        self._logged_refusal = ("", 0)
        self._data_dir = str(farm_directory(Path(setup.data_dir), name))
        ids = initial_servers(settings)
        initial = tuple(ClusterServer(each, settings.servers[each]) for each in ids)
        if self.server_id not in ids:
            initial = ()
        self.storage = FarmStorage(
            Disk(self._data_dir),
            Identity(name, str(self.server_id)),
            setup.epoch,
            initial,
            is_first_start=setup.bootstrap or name in setup.new_farms,
        )
        self.peer = FarmPeer(
            FarmSetup(
                self.server_id,
                initial,
                *settings.election_timeout_ms,
                settings.heartbeat_ms,
                settings.request_timeout_ms,
                settings.entries_bytes_max,
                cluster=name,
                user="" if node.insecure_jraft else node.user,
                entry_bytes_max=min(settings.entry_bytes_max, settings.entries_bytes_max),
            ),
            self.storage.recovered,
            self.storage,
            shared.now_ms,
            SystemRandom(),
        )
        self.app = Application(
            AppSetup(
                name,
                PublishConfig(node.publish),
                node.post_interval_ms,
                frozenset(admins_of(settings)),
            ),
            self.peer,
            router,
            self._connection_info,
        )
        self._background_ms = 0
        self._due_ms = 0

    def _connection_info(self) -> dict[str, object]:
        days = self._shared.certificate_days
        links = {str(each): link.state.name.lower() for each, link in self.links.items()}
        known = {"inbound": len(self._connections), "links": links, "certificate_days": days}
        return {**known, **self._shared.counters}

    @property
    def now_ms(self) -> int:
        return self._shared.now_ms

    # ---- inbound connections ----

    def accept(self, session: PeerSession, connection: InboundStream) -> int:
        """Registers an authenticated connection; returns its number."""
        number = self.peer.accept(session)
        self._connections[number] = connection
        for link in self.links.values():
            # It may be the server that a link could not reach.
            self._has_work = link.retry_now() or self._has_work
        return number

    def _receive(self, event: FarmEvent) -> None:
        self._has_work = True
        self.peer.receive(event, self.now_ms)

    def on_requests(self, connection: InboundStream, data: bytes) -> None:
        assert connection.admitted is not None
        self._receive(Requests(connection.admitted.number, data))

    def _log_audits(self, policy: AppendPolicy) -> None:
        while policy.audits:
            user, what, is_accepted, address = policy.audits.popleft()
            self._shared.log("audit", farm=self.name, user=user, what=what, taken=is_accepted)
            arguments = {"farm": self.name, "what": what}
            result, sender = OK if is_accepted else REFUSED, Sender(user, address)
            record = AuditRecord(f"farm {what.partition(' ')[0]}", result, sender, arguments)
            if is_accepted:
                self._shared.audit_file.write(record)
            else:
                self._shared.audit_file.write_denied(record, self.now_ms)
        if policy.audits_lost:
            self._shared.log("audit-lost", farm=self.name, count=policy.audits_lost)
            self._shared.counters["audits_lost"] += policy.audits_lost
            policy.audits_lost = 0

    def on_closed(self, connection: InboundStream) -> None:
        assert connection.admitted is not None
        del self._connections[connection.admitted.number]
        self.peer.receive(ConnectionClosed(connection.admitted.number), self.now_ms)

    def disconnect_users(self, users: Collection[str]) -> None:
        for connection in list(self._connections.values()):
            if connection.admitted is not None and connection.admitted.user in users:
                self._shared.log("sent-away", farm=self.name, user=connection.admitted.user)
                connection.close_after_send()
                connection.update_poll()

    # ---- links ----

    def wake(self) -> None:
        self._has_work = True

    def on_link(self, event: LinkEvent, reason: str = "") -> None:
        if isinstance(event, LinkUp):
            self._shared.log("link-up", farm=self.name, server=event.server)
        if isinstance(event, LinkLost):
            self.counters["links_lost"] += 1
        if reason:
            self._shared.log("link-down", farm=self.name, server=event.server, why=reason)
        self._receive(event)

    def _send_requests(self, links: Mapping[int, Link]) -> None:
        """Keeps one connection for each link of the peer, at its endpoint, and sends its output."""
        for server_id in [each for each in self.links if each not in links]:
            self.links.pop(server_id).close()
        for server_id, link in links.items():
            own_link = self.links.get(server_id)
            if own_link is None:
                own_link = self.links[server_id] = FarmLink(self, server_id, link.endpoint)
            if link.failure:
                own_link.endpoint = link.endpoint
                own_link.fail(link.failure)
            own_link.step(self.now_ms)
            if link.out:
                own_link.send(link.out)

    # ---- the loop ----

    def run_once(self, now_ms: int) -> None:
        """Acts on all input, if there is any or a deadline has come."""
        if not self._has_work and now_ms < self.deadline_ms:
            return
        self._has_work = False
        report = None
        while report is None:
            self._send_requests(self.peer.wake(now_ms))
            audits, connections, report = self.peer.write()
            self._log_audits(audits)
            self._send_responses(connections)
        self._apply(now_ms)
        self._make_snapshot()
        self._run_background(now_ms)
        self._log_changes(report)
        self._due_ms = self._next_deadline_ms()

    def _apply(self, now_ms: int) -> None:
        """Runs the application, after the answers have left."""
        posted, error = self.app.posted, self.app.router_error
        self.app.wake(now_ms, time.time_ns() // 1_000_000)
        self._has_work = self._has_work or self.app.posted != posted
        if self.app.router_error != error:
            self._shared.log("router", farm=self.name, problem=self.app.router_error or "none")

    def _make_snapshot(self) -> None:
        interval, index = self._settings.snapshot_entries, self.app.state.index
        if interval and index - self.storage.snapshot.last_index >= interval:
            snapshot, chunks = self.app.snapshot()
            keep = self._settings.snapshot_trailing_entries
            self.storage.make_snapshot(snapshot, chunks, max(1, index - keep + 1))
            self.peer.on_own_snapshot(self.storage.snapshot, keep)
            self._shared.log(
                "snapshot", farm=self.name, index=index, size=self.storage.snapshot.size
            )

    def _run_background(self, now_ms: int) -> None:
        """A step of work on the disk that is not urgent."""
        if now_ms >= self._background_ms:
            busy = self.storage.run_background_step()
            self._background_ms = now_ms + BACKGROUND_MS[not busy]

    def render(self, view: ViewRequest) -> bytes:
        self._has_work = True
        return self.app.render(view)

    def _send_responses(self, connections: Mapping[int, InboundConnection]) -> None:
        """Sends answers; closes connections that FarmPeer has failed."""
        for number, inbound in connections.items():
            connection = self._connections[number]
            if inbound.failure and not connection.is_closing:
                user, address = inbound.session.user, inbound.session.address
                why = inbound.failure
                self._shared.log_rarely(
                    "refused", farm=self.name, user=user, address=address, why=why
                )
                connection.stream.out += inbound.out
                inbound.out.clear()
                connection.close_after_send()
            connection.set_load(inbound.is_full, inbound.partial)
            connection.send(inbound.out)

    @property
    def deadline_ms(self) -> int:
        """The latest time for the next run_once()."""
        return self.now_ms if self._has_work else self._due_ms

    def _next_deadline_ms(self) -> int:
        """The next deadline without input; only run_once() changes it."""
        times = [link.deadline_ms for link in self.links.values() if link.deadline_ms is not None]
        return min((self.peer.deadline_ms, self.app.deadline_ms, self._background_ms, *times))

    def _log_changes(self, report: FarmReport) -> None:
        """Logs a line when the role, term, leader or members change."""
        role, members, refusal = report
        if (role, members) != self._logged_state:
            self._logged_state = role, members
            ids = ",".join(map(str, members))
            self._shared.log("farm", farm=self.name, **role._asdict(), members=ids)
        logged, next_ms = self._logged_refusal
        if refusal != logged and self.now_ms >= next_ms:
            self._logged_refusal = refusal, self.now_ms + REFUSAL_LOG_MS
            way_out = f"if it was removed meanwhile, stop it and empty {self._data_dir}"
            self._shared.log("unwilling", farm=self.name, why=refusal, way_out=way_out)

    # ---- reports ----

    @property
    def has_pending_requests(self) -> bool:
        return self.peer.has_pending_requests

    def status(self) -> dict[str, Any]:
        return {
            **self.peer.status(),
            "applied_index": self.app.state.index,
            "snapshot_index": self.storage.snapshot.last_index,
            "links": sum(link.state is LinkState.UP for link in self.links.values()),
        }

    def close(self) -> None:
        for link in self.links.values():
            link.close()
        self.storage.close()
