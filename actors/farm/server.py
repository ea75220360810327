"""Servers of any number of farms in one process: Raft on Garlic Farm's wire, behind TLS and Digest.

What is decided is in protocols/garlicfarm; each farm's part is in farm/replica.py.
"""

import os
from pathlib import Path

from ...net.streams import StreamPoll
from ...protocols.garlicfarm.server.inbound import PeerSession
from ...protocols.garlicfarm.wire.authenticator import DigestAuthenticator
from ...protocols.garlicfarm.wire.handshake import ServerHandshake
from ...protocols.garlicfarm.wire.values import parse_address
from ..errors import OperatorError
from ..runtime.actor import Actor, main
from ..topology.farm import farm_home
from .links import Way
from .listener import Connection, ConnectionLimits, FarmListener, Inside
from .names import Names
from .replica import FarmReplica, PartPlace
from .router import RouterFiles
from .tls import FarmTls
from .users import FarmUsers, Secret

KEY_BYTES = 32
HALVES = 4  # So many of the largest requests may be here in part.


class FarmServer(Actor):
    """Speaks Garlic Farm's protocol (docs/protocols/garlic-farm.md).

    doors   TCP, with TLS or without   requests of servers and clients in, answers out (farm_doors)
    links   TCP, with TLS or without   requests to other servers out, answers in (farm_links)
    """

    role = "farm_server"

    def on_start(self) -> None:
        self._settings = self.options["farm"]
        self.poll = StreamPoll(self)
        self.names = Names()
        self.parts: dict[str, FarmReplica] = {}
        self._users: FarmUsers | None = None
        self._secret: Secret | None = None
        self._gate = DigestAuthenticator(os.urandom(KEY_BYTES), os.urandom)
        self._tls = FarmTls(self._settings, self._place)
        user, secret = "", ""
        if not self._settings["insecure_jraft"]:
            user = self._settings["user"]
            self._secret = Secret(self._settings["secret_file"], self._place("secret_file"))
            secret = self._secret.text
            self._users = FarmUsers(
                self._settings["passwords"], self._place("passwords"), self._settings["farms"]
            )
        proxy = parse_address(self._settings["proxy"]) if self._settings["proxy"] else None
        files = RouterFiles(self._settings["router_file"], self._settings["publish_file"])
        for name, options in self._settings["farms"].items():
            place = PartPlace(
                str(farm_home(Path(self.setup.data_dir), name)),
                self.setup.epoch,
                self.setup.bootstrap or name in self.options.get("farms_that_begin", ()),
                files.of(name),
                self._settings["publish"],
                self._settings["post_interval_ms"],
                user,
            )
            part = self.parts[name] = FarmReplica(name, self, options, place)
            part.way = Way(
                self._tls.client, self._settings["server_name"], proxy, name, user, secret
            )
        largest = max(part.entries_bytes_max for part in self.parts.values())
        room = ConnectionLimits(self._settings["connections_max"], HALVES * largest)
        self._doors = FarmListener(self, self.poll, self._tls.server, room)
        listen = self._settings["listen"]
        try:
            self._doors.listen(parse_address(listen))
        except OSError as error:
            raise OperatorError(
                self._place("listen"), f"{listen} can't be bound: {error.strerror}",
                "end the program that holds it, or choose another address",
            ) from error  # fmt: skip
        self.log("listens", address=listen, farms=",".join(self.parts))
        self.ready()

    def _place(self, key: str) -> str:
        return self.setup.places[f"farm.{key}"]

    # ---- who comes in ----

    def begin_handshake(self) -> ServerHandshake | None:
        if self._users is None:
            return None
        return ServerHandshake(self._gate, self._users.by_farm, self.now_ms, self.parts)

    def let_in(self, cluster: str, user: str, connection: Connection) -> Inside:
        if self._users is None:
            (part,) = self.parts.values()
            return Inside(part, user, part.accept(PeerSession(is_server=True), connection))
        part = self.parts[cluster]
        return Inside(part, user, part.accept(self._users.session(cluster, user), connection))

    def _look_at_users(self, now_ms: int) -> None:
        """Whoever has another password now, or none, is sent away."""
        if self._users is None:
            return
        try:
            gone = self._users.look(now_ms)
        except OperatorError as error:
            self.say(error)
            return
        for name, users in gone.items():
            self.parts[name].send_away(users)
            self.log("users", farm=name, count=len(self._users.by_farm[name].secrets))

    def _look_at_secret(self, now_ms: int) -> None:
        """Our own password, when it was changed: links that are made from then on have it."""
        if self._secret is None:
            return
        try:
            former = self._secret.text
            if not self._secret.changed(now_ms):
                return
        except OperatorError as error:
            self.say(error)
            return
        for part in self.parts.values():
            part.way = part.way._replace(password=self._secret.text, former_password=former)
        self.log("secret", user=self._settings["user"])

    def _look_at_tls(self, now_ms: int) -> None:
        try:
            if not self._tls.changed(now_ms):
                return
        except OperatorError as error:
            self.say(error)
            return
        self._doors.context = self._tls.server
        for part in self.parts.values():
            part.way = part.way._replace(context=self._tls.client)
        self.log("certificates", certificate=self._settings["certificate"])

    # ---- the loop ----

    def on_wake(self, now_ms: int) -> None:
        self.poll.read_on()
        self._look_at_users(now_ms)
        self._look_at_secret(now_ms)
        self._look_at_tls(now_ms)
        for part in self.parts.values():
            part.act(now_ms)
        self._doors.step(now_ms)

    def deadline_ms(self) -> int | None:
        if self.poll.has_more:
            return self.now_ms
        times = [part.deadline_ms for part in self.parts.values()]
        return min(times)

    def on_stop_asked(self) -> None:
        self._doors.refuse_new()

    def drained(self) -> bool:
        """Those who wait for a commit are still told, if it comes in time."""
        return not any(part.is_waited_for for part in self.parts.values())

    def on_stop(self) -> None:
        self._doors.close_all()
        for part in self.parts.values():
            part.close()
        self.poll.close()

    def status(self) -> dict[str, object]:
        """Of each farm what a peer of a Raft shows; of the first one also in the row itself."""
        farms = {name: part.status() for name, part in self.parts.items()}
        first = next(iter(farms.values()))
        return {**first, "connections": len(self._doors.connections), "farms": farms}


if __name__ == "__main__":
    main(FarmServer)
