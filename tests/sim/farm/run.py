"""One random run of a farm: members change while servers are killed and connections fail. Then
everything heals, and the farm must come to rest without a loss. One seed determines the run.
"""

from collections import Counter

from kelek.protocols.garlicfarm.server import membership
from kelek.protocols.garlicfarm.wire.messages import MessageType, Request
from kelek.tests.protocols.garlicfarm.farm_cluster import FarmRequester, client_request, server
from kelek.tests.sim.checker import RuleBroken
from kelek.tests.sim.farm.cluster import FarmSim, Killed, SimWriter, Step, UnknownServer
from kelek.tests.sim.run import FaultRun

HEAL_MS = 120_000
MEMBERS_MIN = 3  # One of them may be lost.
QUIET_MS = 5_000  # Longer than a leave timeout.
SERVERS = (1, 2, 3, 4, 5)
STRANGERS = (
    MessageType.REQUEST_VOTE,
    MessageType.APPEND_ENTRIES,
    MessageType.JOIN_CLUSTER,
    MessageType.SYNC_LOG,
    MessageType.INSTALL_SNAPSHOT,
    MessageType.LEAVE_CLUSTER,
)


def rest(sim: FarmSim) -> None:
    """Removed servers stay silent."""
    leader = sim.elect()
    term = sim.peers[leader].core.term
    sim.run(QUIET_MS)
    if (sim.leader, sim.peers[leader].core.term) != (leader, term):
        raise RuleBroken(f"{leader} led term {term} in peace, and is disturbed: {sim.status()}")


class FarmRun(FaultRun):
    """Members change while servers are killed and connections fail."""

    def __init__(self, seed: int) -> None:
        self.sim = FarmSim(seed, everybody=len(SERVERS))
        super().__init__(self.sim.simulation, self.sim.network)
        self.random = self.sim.random
        self._values = 0
        self._doomed: dict[int, int] = {}  # Disk steps until a kill.
        self.sim.on_step = self._on_step
        self.plan = [
            (4, self._doom),
            (4, self._revive),
            (2, self._lose),
            (2, self._compact),
            (1, self._disturb),
            (2, self._wipe),
            (2, self.cut_pair),
            (1, self.cut_one),
            (1, self.cut_one_way),
            (1, self.cut_in_two),
            (1, self.reconnect),
        ]

    def seen(self) -> Counter[str]:
        counted = super().seen() + self.sim.steps
        counted["acknowledged"] = len(self.sim.acked)
        return counted

    def run_for(self, duration_ms: int) -> None:
        self.sim.run(duration_ms)

    def leader_name(self) -> str | None:
        return None if self.sim.leader is None else str(self.sim.leader)

    def server_names(self) -> list[str]:
        return [str(number) for number in SERVERS]

    def start(self) -> None:
        faults = self.network.faults
        faults.spike, self.sim.partial = self.random.choice((0.0, 0.02)), 0.5
        self.sim.run(3000)

    def before_fault(self) -> None:
        self._write()
        if self.random.random() < 0.4:
            self._change()

    def _on_step(self, step: Step) -> None:
        left = self._doomed.get(step.actor)
        if left is None:
            return
        if left:
            self._doomed[step.actor] = left - 1
        elif step.other is None:
            del self._doomed[step.actor]
            raise Killed(step)

    # Clients and administrators.

    def _anybody(self) -> int | None:
        running = sorted(self.sim.peers)
        leader = self.sim.leader
        if leader is not None and self.random.random() < 0.7:
            return leader
        return self.random.choice(running) if running else None

    def _write(self) -> None:
        to = self._anybody()
        if to is not None:
            self._values += 1
            value = b"value %d" % self._values
            SimWriter(self.sim, to, value).send(client_request(value))

    def _change(self) -> None:
        """Sometimes two at once."""
        to = self._anybody()
        if to is not None:
            count = self.random.choice((1, 1, 2))
            FarmRequester(self.sim, to).send(*(self._wish(to) for _ in range(count)))

    def _wish(self, to: int) -> Request:
        number = self.random.choice(SERVERS)
        if self.random.random() < 0.5:
            if number not in self.sim.disks:
                self.sim.start(number)
            request = membership.add_server_request(server(number))
        else:
            request = membership.remove_server_request(number)
        self.sim.simulation.trace_event(request.type.name, number, "asked of", to)
        return request

    # Faults.

    def _doom(self) -> None:
        """Kills a server at one of its next disk steps."""
        running = sorted(self.sim.peers)
        if running:
            self.simulation.fault("kill")
            self._doomed[self.random.choice(running)] = self.random.randrange(12)

    def _revive(self) -> None:
        self._doomed.clear()
        for number in sorted(set(self.sim.disks) - set(self.sim.peers)):
            self.sim.start(number)

    def _lose(self) -> None:
        pair = self.random.sample(SERVERS, 2)
        self.simulation.fault("lost", *pair)
        self.sim.lose(*pair)

    def _compact(self) -> None:
        running = sorted(self.sim.peers)
        if running:
            self.sim.compact(self.random.choice(running), self.random.choice((0, 0, 3)))

    def _disturb(self) -> None:
        for number in sorted(self.sim.peers):
            self.simulation.fault("unknown server", number)
            for kind in STRANGERS:
                if number in self.sim.peers:
                    UnknownServer(self.sim, number).disturb(kind)

    def _wipe(self) -> None:
        """Wipes the disk of a server that no Configuration includes, while all servers run."""
        sim = self.sim
        if set(sim.peers) != set(sim.disks) or not sim.has_converged():
            return
        counted = {each.id for peer in sim.peers.values() for each in peer.directory.latest.servers}
        left = [n for n, peer in sim.peers.items() if not peer.is_member and n not in counted]
        if left:
            self.simulation.fault("wiped")
            number = self.random.choice(sorted(left))
            sim.kill(number)
            sim.wipe(number)
            sim.start(number)

    # The end.

    def recover(self) -> None:
        sim = self.sim
        sim.partial = 0.0
        self._revive()
        sim.run_until(sim.has_converged, HEAL_MS)
        self._do_without(self.random.choice(sim.ids(sim.elect())))
        self._write_and_wait(b"last")
        rest(sim)
        sim.check_end()

    def _do_without(self, number: int) -> None:
        """Any one of three or more members may be lost in the end."""
        sim = self.sim
        if len(sim.ids(sim.elect())) < MEMBERS_MIN:
            return
        sim.kill(number)
        self._write_and_wait(b"without one", converges=False)
        sim.start(number)
        sim.run_until(sim.has_converged, HEAL_MS)

    def _write_and_wait(self, value: bytes, *, converges: bool = True) -> None:
        sim = self.sim
        writer = SimWriter(sim, sim.elect(), value)
        writer.send(client_request(value))
        sim.run_until(lambda: bool(writer.answers), HEAL_MS)
        if converges:
            sim.run_until(sim.has_converged, HEAL_MS)
