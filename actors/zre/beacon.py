"""The beacons of a ZRE node: sends those of zre_node, and forwards received ones to it.

It is a process of its own, so that a flood of datagrams delays no other actor.
"""

from collections import OrderedDict

import zmq

from ...native.net.datagrams import Datagrams, ReceivedBeacon
from ...native.net.messages import Arena
from ...protocols.zre.limiter import Limiter, Rate
from ..errors import OperatorError
from ..runtime.actor import Actor
from .pipes import BEACON, HWM, NODE, encode_heard, interface_of

# From one address to zre_node: more than a whole network sends. Others are dropped.
RATE = Rate(burst=2048, per_s=2048)
KNOWN_MAX = 4096  # Recent beacons, which are not forwarded again at once.


class ZreBeacon(Actor):
    """Receives and sends at one UDP port, which other processes of the machine may share.

    udp       UDP     22 octets (docs/protocols/zre.md, "Beacon")   from and to any node
    heard     PUSH    zre_pipes                                     to zre_node
    sends     PULL    zre_pipes                                     from zre_node
    """

    role = BEACON

    def on_start(self) -> None:
        settings = self.settings.zre
        interface = interface_of(self.setup)
        try:
            self.udp = Datagrams(interface, settings.port)
        except OSError as error:
            place = self.setup.places["zre.port"]
            problem = f"UDP port {settings.port} can't be bound at {interface.address}"
            way_out = "choose another port or interface"
            raise OperatorError(place, f"{problem}: {error.strerror}", way_out) from error
        self._again_ms = settings.beacon_ms // 2
        self.limiter = Limiter(RATE)
        self._known: OrderedDict[ReceivedBeacon, int] = OrderedDict()  # When it was forwarded.
        self._passed: list[ReceivedBeacon] = []
        self._heard = self.connect_pipe(zmq.PUSH, NODE, "heard", hwm=HWM)
        self.pull("sends", self._on_sends, hwm=HWM)
        self.watch(self.udp.fileno(), self._on_udp)
        self.log("beacons", interface=interface.address, broadcast=interface.broadcast,
                 port=settings.port)  # fmt: skip
        self.ready()

    def _on_udp(self) -> None:
        """Receives one batch; the next poll shows whether more waits."""
        for beacon in self.udp.receive(self.now_ms):
            passed_ms = self._known.get(beacon)
            if passed_ms is not None and self.now_ms < passed_ms + self._again_ms:
                self.counters["repeated"] += 1
            elif not self.limiter.allows(beacon.source, self.now_ms):
                self.counters["refused"] += 1
            else:
                self._known[beacon] = self.now_ms
                self._known.move_to_end(beacon)
                self._passed.append(beacon)
        while len(self._known) > KNOWN_MAX:
            self._known.popitem(last=False)

    def _on_sends(self, arena: Arena) -> None:
        for frames in arena.messages():
            self.udp.send(frames[0])
            self.counters["sent"] += 1

    def on_wake(self, now_ms: int) -> None:
        if self._passed:
            self.counters["heard"] += len(self._passed)
            self.send(self._heard, encode_heard(self._passed))  # A node that hangs misses it.
            self._passed.clear()

    def on_stop(self) -> None:
        self.udp.close()

    def status(self) -> dict[str, object]:
        udp = self.udp
        return {
            "interface": udp.interface.address,
            "malformed": udp.malformed,
            "flooded": udp.flooded,
            "unsent": udp.unsent,
        }
