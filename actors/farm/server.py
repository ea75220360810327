"""The process farm_server: servers of any number of farms, on Garlic Farm's wire with TLS and
Digest.

protocols/garlicfarm makes the decisions; replica.py runs one farm.
"""

import os
from functools import partial

from ...net.streams import StreamPoll
from ...protocols.garlicfarm.server.inbound import PeerSession
from ...protocols.garlicfarm.server.logins import LoginCheck, LoginDelays
from ...protocols.garlicfarm.wire.authenticator import DigestAuthenticator
from ...protocols.garlicfarm.wire.handshake import ServerHandshake
from ...protocols.garlicfarm.wire.values import parse_address
from ..errors import OperatorError
from ..runtime.actor import Actor
from .links import LinkSettings
from .listener import AdmittedConnection, ConnectionLimits, FarmListener, InboundStream
from .replica import FarmReplica
from .resolver import AddressResolver
from .router import RouterFiles
from .tls import FarmTls
from .users import FarmUsers, SecretFile

KEY_BYTES = 32
ADDRESS_SHARE_MIN = 64  # Connections of one address.
PARTIAL_REQUESTS = 4  # Limit of incomplete requests, in requests of the largest size.


class FarmServer(Actor):
    """Speaks Garlic Farm's protocol (docs/protocols/garlic-farm.md).

    listener   TCP or TLS   requests of servers and clients in, answers out (listener.py)
    links      TCP or TLS   requests to other servers out, answers in (links.py)
    """

    role = "farm_server"

    def on_start(self) -> None:
        farm = self.settings.farm
        assert farm is not None
        self._settings = farm.server
        self.poll = StreamPoll(self)
        self.resolver = AddressResolver()
        self.replicas: dict[str, FarmReplica] = {}
        self._users: FarmUsers | None = None
        self._secret: SecretFile | None = None
        self._authenticator = DigestAuthenticator(os.urandom(KEY_BYTES), os.urandom)
        self._delays = LoginDelays()
        self._tls = FarmTls(self._settings, self._location)
        user, secret = "", ""
        if not self._settings.insecure_jraft:
            user = self._settings.user
            self._secret = SecretFile(self._settings.secret_file, self._location("secret_file"))
            secret = self._secret.text
            self._users = FarmUsers(
                self._settings.passwords_file, self._location("passwords_file"), farm.farms
            )
        proxy = parse_address(self._settings.proxy) if self._settings.proxy else None
        files = RouterFiles(self._settings.router_file, self._settings.publish_file)
        for name in farm.farms:
            replica = self.replicas[name] = FarmReplica(name, self, files)
            replica.link_settings = LinkSettings(
                self._tls.client, self._settings.server_name, proxy, name, user, secret
            )
        largest = max(settings.entries_bytes_max for settings in farm.farms.values())
        connections_max = self._settings.connections_max
        is_tunnel = self._settings.i2p or self._settings.insecure_jraft
        share = connections_max if is_tunnel else max(ADDRESS_SHARE_MIN, connections_max // 4)
        limits = ConnectionLimits(connections_max, PARTIAL_REQUESTS * largest, share)
        self._listener = FarmListener(self, self.poll, self._tls.server, limits)
        listen = self._settings.url
        try:
            self._listener.listen(parse_address(listen))
        except OSError as error:
            raise OperatorError(
                self._location("url"), f"{listen} cannot be bound: {error.strerror}",
                "end the program that holds it, or choose another address",
            ) from error  # fmt: skip
        self.log("listens", address=listen, farms=",".join(self.replicas))
        self.ready()

    def _location(self, key: str) -> str:
        return self.setup.places[f"farm.{key}"]

    # ---- inbound connections ----

    def make_handshake(self, connection: InboundStream) -> ServerHandshake | None:
        if self._users is None:
            return None
        # All clients of a tunnel have its address: no delay, or one would delay the others.
        origin = "" if self._settings.i2p else connection.address
        session = partial(self._users.session, names=connection.certificate_names)
        check = LoginCheck(self._delays, origin, session)
        return ServerHandshake(
            self._authenticator, self._users.by_farm, self.now_ms, self.replicas, check
        )

    def admit(self, cluster: str, user: str, connection: InboundStream) -> AdmittedConnection:
        if self._users is None:
            (replica,) = self.replicas.values()
            session = PeerSession(is_server=True)
        else:
            names = connection.certificate_names
            replica, found = self.replicas[cluster], self._users.session(cluster, user, names)
            assert found is not None, "LoginCheck has refused the others"
            session = found
        session = session._replace(address=connection.address)
        return AdmittedConnection(replica, user, replica.accept(session, connection))

    def _reload_users(self, now_ms: int) -> None:
        """Disconnects users whose password was changed or removed."""
        if self._users is not None:
            for name, users in self._users.reload(now_ms).items():
                self.replicas[name].disconnect_users(users)
                self.log("users", farm=name, count=len(self._users.by_farm[name].secrets))

    def _reload_secret(self, now_ms: int) -> None:
        """Uses a changed password of ours for new links."""
        former = self._secret.text if self._secret is not None else ""
        if self._secret is None or not self._secret.reload(now_ms):
            return
        for replica in self.replicas.values():
            replica.link_settings = replica.link_settings._replace(
                password=self._secret.text, former_password=former
            )
        self.log("secret", user=self._settings.user)

    def _reload_tls(self, now_ms: int) -> None:
        if not self._tls.reload(now_ms):
            return
        self._listener.context = self._tls.server
        for replica in self.replicas.values():
            replica.link_settings = replica.link_settings._replace(context=self._tls.client)
        self.log("certificates", certificate=self._settings.certificate_file)

    @property
    def certificate_days(self) -> int | None:
        """The days until the certificate expires; None without TLS."""
        return self._tls.days_left

    def _log_expiry(self, now_ms: int) -> None:
        days = self._tls.expiry_notice(now_ms)
        if days is not None:
            path = self._settings.certificate_file
            self.log("certificate-expires", certificate=path, days=days, way_out="replace the file")

    # ---- the loop ----

    def on_wake(self, now_ms: int) -> None:
        self.poll.read_on()
        self._log_expiry(now_ms)
        for reload in (self._reload_users, self._reload_secret, self._reload_tls):
            try:
                reload(now_ms)
            except OperatorError as error:
                self.log_problem(error)
        for replica in self.replicas.values():
            replica.run_once(now_ms)
        self._listener.check(now_ms)

    def deadline_ms(self) -> int | None:
        if self.poll.has_more:
            return self.now_ms
        times = [replica.deadline_ms for replica in self.replicas.values()]
        return min(times)

    def on_stop_requested(self) -> None:
        self._listener.stop_accepting()

    def drained(self) -> bool:
        """Waits for requests whose commit is pending, up to the actor's limit."""
        return not any(replica.has_pending_requests for replica in self.replicas.values())

    def on_stop(self) -> None:
        self._listener.close_all()
        for replica in self.replicas.values():
            replica.close()
        self.poll.close()

    def status(self) -> dict[str, object]:
        """The status of each farm; the first farm's values also at the top level."""
        farms = {name: replica.status() for name, replica in self.replicas.items()}
        first = next(iter(farms.values()))
        own = {"connections": len(self._listener.connections), "farms": farms}
        if self.certificate_days is not None:
            own |= {"certificate_days": self.certificate_days, "certificate": self._tls.warning}
        return {**first, **own}
