"""A whole run: a cluster, its clients, random faults, and the rules for its recovery."""

from collections import Counter
from collections.abc import Callable
from functools import partial
from random import Random

from kelek.native.net.messages import Frames
from kelek.protocols.raft.core import Role
from kelek.protocols.raft.membership import is_majority
from kelek.protocols.raft.messages import RaftTuning
from kelek.protocols.zmqraft.server.values import SnapshotSetup, UpdateLimits
from kelek.protocols.zmqraft.wire.client_codec import Form, ReplyAddress
from kelek.protocols.zmqraft.wire.snapshot_codec import MAKE_SNAPSHOT_REQUEST, MakeSnapshot
from kelek.protocols.zmqraft.wire.transfer_codec import TRANSFER_REQUEST, RequestTransfer
from kelek.tests.sim.checker import Checker, RuleBroken
from kelek.tests.sim.config_rules import members_of
from kelek.tests.sim.log.client import ClientProcess, SimClient
from kelek.tests.sim.log.node import SimNode
from kelek.tests.sim.log.operator import Operator, choose
from kelek.tests.sim.log.reader import ReaderProcess
from kelek.tests.sim.network import Network
from kelek.tests.sim.run import FaultRun
from kelek.tests.sim.simulation import US_PER_MS, Simulation

FAULTLESS_MS = 800  # At the start, so that there is something to lose.
LATE_MS = 2_000  # After the last fault: its late effects (power comes back, processes start).
LEADER_WITHIN_MS = 3_000
DONE_WITHIN_MS = 20_000
FORMS: tuple[Form | None, ...] = (None, None, None, Form.NODE, Form.TEXT)


def peer_options(seed: int, random: Random) -> dict[str, object]:
    """Chooses the settings of all peers in a run."""
    return {
        "tuning": RaftTuning(
            append_bytes_max=random.choice([300, 300, 5_000, 1 << 20]),
            inflight_max=random.choice([1, 2, 4, 4]),
            lease_reads=seed % 3 > 0,
        ),
        # Some leaders have room for little: they drop what clients send beyond it.
        "updates": UpdateLimits(inflight_max=20 if seed % 7 in (0, 4) else 65_536),
        "snapshots": SnapshotSetup(
            random.choice([0, 30, 200]),
            trailing_entries=random.choice([0, 50, 1_000_000]),
        ),
    }


class SimCluster(FaultRun):
    """Builds everything from one seed, runs it, and raises RuleBroken with the last events."""

    def __init__(self, seed: int) -> None:
        simulation = Simulation(seed)
        super().__init__(simulation, Network(simulation))
        random = self.simulation.random
        size = random.choices([3, 5], [4, 1])[0]
        names = [f"n{number}" for number in range(1, size + 1)]
        # In every fourth run the members change; those that may join are there from the start.
        spares = ["m1", "m2"] if seed % 4 == 3 else []
        self.checker = self._make_checker([*names, *spares])
        self.simulation.after_event = self.checker.after_event
        options = peer_options(seed, random)
        self.nodes = {name: self._make_node(name, names, options) for name in names}
        for name in spares:
            self.nodes[name] = self._make_node(name, [*names, name], options)
        self.operator = Operator(self.network, self.nodes, self.leader_name)
        self.checker.on_leader = self._on_leader
        self._doomed = 0  # So many of the next leaders fall at once.
        self._script: list[Callable[[str], None]] = []  # What happens to the next leaders.
        self._apart = ""
        for node in self.nodes.values():
            node.others = {name: other for name, other in self.nodes.items() if other is not node}
        self.clients, self.readers = self._make_clients()
        self.plan = [
            (6, self.cut_one),
            (3, self.cut_one_way),
            (3, self.cut_in_two),
            (2, self.cut_pair),
            (2, self.cut_client),
            (4, self.unreliable_network),
            (4, self.reconnect),
            (6, self._kill_node),
            (6, self._power_loss),
            (5, self._power_loss_in_write),
            (4, self._kill_in_write),
            (4, self._kill_then_power_loss),
            (5, self._kill_next_leaders),
            (4, self._figure_8),
            (3, self._unsynced_tail),
            (3, self._kill_peer),
            (3, self._kill_writer),
            (3, self._restart_writer_alone),
            (2, self._kill_state_machine),
            (3, self._kill_sender),
            (5, self._snapshot),
            (6, self._transfer),
            (3, self._sync_failure),
            (3, self._slow_disk),
            (4, self._pause),
            (3, self._all_power_loss),
            (3, self._full_disk),
            (2, self._empty_disk),
            (2, self._damaged_vote),
        ]
        if spares:
            self.plan += [(18, self._change_members), (8, self._cut_while_joint)]

    def _make_checker(self, names: list[str]) -> Checker:
        return Checker(self.simulation, names)

    def _make_node(self, name: str, names: list[str], options: dict[str, object]) -> SimNode:
        return SimNode(name, names, self.network, self.checker, options)

    def _make_clients(self) -> tuple[list[SimClient], list[ReaderProcess]]:
        random = self.simulation.random
        clients: list[SimClient] = [
            ClientProcess(self.network, self.checker, self.nodes, number, random.choice(FORMS))
            for number in range(1, random.randint(2, 3) + 1)
        ]
        return clients, [ReaderProcess(self.network, self.checker, self.nodes)]

    def seen(self) -> Counter[str]:
        counted = super().seen()
        counted["entries"] = len(self.checker.applied)
        counted["acknowledged updates"] = len(self.checker.acked)
        return counted

    def run_for(self, duration_ms: int) -> None:
        self._run_for_us(duration_ms * US_PER_MS)

    def _run_for_us(self, duration_us: int) -> None:
        self.simulation.run_until(self.simulation.now_us + duration_us)

    def start(self) -> None:
        for node in self.nodes.values():
            self.simulation.after(self.simulation.between(0, 200) * US_PER_MS, node.start)
        self._run_until(lambda: self.leader_name() is not None, LEADER_WITHIN_MS, "no first leader")
        self.run_for(FAULTLESS_MS)

    def recover(self) -> None:
        """All faults have ended: the cluster must recover completely."""
        self._doomed = 0
        self._script = []
        for node in self.nodes.values():
            node.slow_until_us = 0
            node.disk.clear_faults()
            for process in node.processes():
                process.resume()
            if node.off:
                node.start_later(10)
        for reader in self.readers:
            reader.stopped = True
        for client in self.clients:
            client.stopped = True
            client.wake_after(0)
        self.run_for(LATE_MS)
        self._run_until(lambda: self.leader_name() is not None, LEADER_WITHIN_MS, "no leader")
        self._run_until(self._is_done, DONE_WITHIN_MS, "not everything was committed and applied")
        applied = {
            name: node.state_machine.applied_index
            for name, node in self.nodes.items()
            if node.state_machine is not None and name in self._members()
        }
        self.checker.acked.update(self.operator.done)
        self.checker.check_end(applied)
        self._cut_off_follower_disturbs_nobody()

    def _run_until(self, holds: Callable[[], bool], within_ms: int, otherwise: str) -> None:
        end_us = self.simulation.now_us + within_ms * US_PER_MS
        while not holds():
            if self.simulation.now_us >= end_us:
                raise RuleBroken(f"{otherwise} within {within_ms} ms: {self.status()}")
            self.run_for(20)

    def server_names(self) -> list[str]:
        return list(self.nodes)

    def client_names(self) -> list[str]:
        return [client.name for client in self.clients]

    def leader_name(self) -> str | None:
        """Returns the leader of the newest term, if a majority follows it."""
        for name, raft in self.checker.rafts.items():
            followers = [other for other, raft in self.checker.rafts.items() if raft.leader == name]
            if raft.role is Role.LEADER and is_majority(raft.configuration, followers):
                return name
        return None

    def _is_done(self) -> bool:
        if self.operator.wish is not None or not all(client.done for client in self.clients):
            return False
        members = self._members()
        if not members or not members <= self.checker.rafts.keys():
            return False
        applied = {
            node.state_machine.applied_index if node.state_machine is not None else -1
            for name, node in self.nodes.items()
            if name in members
        }
        last = {self.checker.rafts[name].log.last_index for name in members}
        return len(applied | last) == 1

    def _members(self) -> set[str]:
        """Returns the members by the leader's log; none while they are changing."""
        leader = self.leader_name()
        if leader is None or self.checker.rafts[leader].configuration.old:
            return set()
        return set(self.checker.rafts[leader].configuration.voters)

    def _cut_off_follower_disturbs_nobody(self) -> None:
        leader = self.leader_name()
        assert leader is not None, f"the leader is gone without a fault: {self.status()}"
        self.run_for(500)  # All peers have sent a hello again.
        assert self.leader_name() == leader, f"the leader changed without a fault: {self.status()}"
        term = self.checker.rafts[leader].term
        members = self._members()
        others = [name for name in self.nodes if name != leader and name in members]
        follower = self.simulation.random.choice(others)
        self.simulation.trace_event("CUT OFF", follower)
        self.cut(lambda source, target: follower in (source, target), "lose")
        self.run_for(1_500)
        self.network.heal()
        self.run_for(1_000)
        now = (
            self.leader_name(),
            self.checker.rafts[leader].term,
            self.checker.rafts[follower].leader,
        )
        assert now == (leader, term, leader), f"{follower} disturbed {leader}: {self.status()}"

    def status(self) -> str:
        """Every node in one line."""
        words = [
            f"{name}: {raft.role} term={raft.term} leader={raft.leader} "
            f"last={raft.log.last_index} durable={raft.durable_index} "
            f"commit={raft.commit_index} may_vote={raft.may_vote}"
            for name, raft in self.checker.rafts.items()
        ]
        for name, node in self.nodes.items():
            machine = node.state_machine
            words.append(f"{name} applied={machine.applied_index if machine else None}")
        words += [f"{client.name} {client.status()}" for client in self.clients]
        return "; ".join(words)

    def _random_node(self) -> SimNode:
        return self.nodes[self.random_server()]

    # Faults: processes and machines.

    def _down_ms(self) -> int:
        return self.simulation.random.choice([5, 50, 300, 1000])

    def _kill_node(self) -> None:
        node = self._random_node()
        self.simulation.fault("kill node", node.name)
        node.kill_all()
        node.start_later(self._down_ms())

    def _kill_next_leaders(self) -> None:
        """Kills the leader, and the next leaders as soon as they are elected (Raft, figure 8)."""
        self._doomed = self.simulation.between(1, 4)
        self.simulation.fault("doomed leaders", self._doomed)
        leader = self.leader_name()
        if leader is not None:
            self._on_leader(leader)

    def _on_leader(self, name: str) -> None:
        if self._script:
            self._script.pop(0)(name)
        elif self._doomed:
            self._doomed -= 1
            self.simulation.after(self.simulation.between(0, 3_000), self._kill_leader, name)

    def _figure_8(self) -> None:
        """Raft, figure 8: an entry of an old term reaches a majority under a leader of a newer one,
        while a third node holds an entry of a term between them.
        """
        leader = self.leader_name()
        if leader is None or len(self.nodes) > 3 or self._script:
            return
        self.simulation.fault("figure 8", leader)
        self._split_off(leader)
        self._script = [self._second_leader, self._third_leader]
        for _ in range(30):
            self.run_for(50)
            if not self._script:
                break
        self.run_for(300)
        self._script = []
        self.network.heal()

    def _split_off(self, name: str) -> None:
        """Cuts a node off from the others, with its messages in flight. Clients still reach it."""
        self.network.heal()
        self.cut(lambda a, b: name in (a, b) and {a, b} <= self.nodes.keys(), "lose")
        for connection in list(self.network.connections):
            if (
                name in (connection.host, connection.listener.host)
                and connection.host in self.nodes
            ):
                connection.close()

    def _second_leader(self, name: str) -> None:
        self._split_off(name)
        self._apart = name

    def _third_leader(self, name: str) -> None:
        others = [other for other in self.checker.rafts if other not in (name, self._apart)]
        if name != self._apart and others:
            lasts = {other: self.checker.rafts[other].durable_index for other in others}
            self._kill_third_leader(name, lasts)

    def _kill_third_leader(self, name: str, lasts: dict[str, int]) -> None:
        """Kills it as soon as another node has received an entry from it."""
        now = {other: raft.durable_index for other, raft in self.checker.rafts.items()}
        if name not in now or self.checker.rafts[name].role is not Role.LEADER:
            return
        if any(now.get(other, 0) > last for other, last in lasts.items()):
            self.simulation.after(self.simulation.between(0, 1_500), self._stop_third_leader, name)
        else:
            self.simulation.after(200, self._kill_third_leader, name, lasts)

    def _stop_third_leader(self, name: str) -> None:
        self.network.heal()
        self.nodes[name].kill_all()
        self.nodes[name].start_later(self.simulation.between(500, 1500))

    def _kill_leader(self, name: str) -> None:
        node = self.nodes[name]
        ways: list[Callable[[], None]] = [
            node.kill_all,
            node.power_off,
            partial(self._isolate, name),
        ]
        way = self.simulation.random.choice(ways)
        self.simulation.trace_event("the leader falls:", name)
        way()
        if node.off:
            node.start_later(self._down_ms())

    def _isolate(self, name: str) -> None:
        self.cut(lambda source, target: name in (source, target), "lose")
        self.simulation.after(self.simulation.between(200, 900) * US_PER_MS, self.network.heal)

    def _kill_peer(self) -> None:
        node = self._random_node()
        if node.peer is not None:
            self.simulation.fault("kill peer", node.name)
            node.on_exit(node.peer)

    def _kill_writer(self) -> None:
        node = self._random_node()
        if node.writer is not None:
            self.simulation.fault("kill writer", node.name)
            node.on_exit(node.writer)

    def _restart_writer_alone(self) -> None:
        node = self._random_node()
        if node.writer is not None:
            same_epoch = self.simulation.chance(0.5)
            self.simulation.fault("writer alone", node.name, f"same_epoch={same_epoch}")
            node.restart_writer_alone(same_epoch=same_epoch)

    def _kill_state_machine(self) -> None:
        node = self._random_node()
        self.simulation.fault("kill state machine", node.name)
        node.kill_state_machine()

    def _kill_sender(self) -> None:
        node = self._random_node()
        self.simulation.fault("kill sender", node.name)
        node.kill_sender()

    def _snapshot(self) -> None:
        """A client requests a snapshot."""
        node = self._random_node()
        if node.peer is not None and node.peer.peer is not None:
            self.simulation.fault("snapshot", node.name)
            self._make_snapshot(node)

    @staticmethod
    def _make_snapshot(node: SimNode) -> None:
        if node.peer is not None and node.peer.peer is not None:
            request = MAKE_SNAPSHOT_REQUEST.encode(MakeSnapshot(b"snapshot"), cluster=b"sim")
            node.peer.peer.snapshots.on_make_request(request, b"sim", ReplyAddress(Frames(), b""))
            node.peer.wake_after(0)

    def _transfer(self) -> None:
        """An operator requests another leader: a named one, or the one with the longest log."""
        leader = self.leader_name()
        peer = self.nodes[leader].peer if leader is not None else None
        if peer is None or peer.peer is None:
            return
        to = self.simulation.random.choice(["", *self.nodes])
        self.simulation.fault("transfer", leader, "to", to or "any")
        request = TRANSFER_REQUEST.encode(RequestTransfer(b"operator", to), cluster=b"sim")
        now_ms = peer.node.now_ms
        peer.peer.transfers.on_request(request, ReplyAddress(Frames(), b""), now_ms)
        peer.wake_after(0)

    def _pause(self) -> None:
        node = self._random_node()
        processes = node.processes()
        if processes:
            if self.simulation.chance(0.7):
                processes = [self.simulation.random.choice(processes)]
            duration_ms = self.simulation.random.choice([20, 150, 400, 1200])
            self.simulation.fault("pause", *(process.name for process in processes), duration_ms)
            for process in processes:
                process.pause(duration_ms * US_PER_MS)

    # Changes of the members.

    def _change_members(self) -> None:
        if (
            not self._all_may_vote()
        ):  # Two of three might be left that must not vote: docs/limits.md.
            return
        names = choose(self.simulation.random, list(self.nodes))
        self.simulation.fault("other members", *names)
        self.operator.request(names)

    def _cut_while_joint(self) -> None:
        """Old and new members are cut apart as soon as both are needed."""
        before = self._members()
        if not before or not self._all_may_vote():
            return
        names = choose(self.simulation.random, list(self.nodes))
        self.simulation.fault("cut while joint", *names)
        self.operator.request(names)
        rafts = self.checker.rafts
        self._run_until_true(lambda: any(raft.configuration.old for raft in rafts.values()), 900)
        leader = self.leader_name()
        if leader is not None and self.simulation.chance(0.4):
            half = {leader}  # No other peer has its entry, which will be replaced.
        else:
            self._run_for_us(self.simulation.between(0, 3_000))
            half = set(names) - before or set(self.simulation.random.sample(names, len(names) // 2))
            half |= set(
                self.simulation.random.sample(sorted(before), self.simulation.between(0, 1))
            )
        self.cut(
            lambda a, b: (a in half) != (b in half), self.simulation.random.choice(["lose", "hold"])
        )
        self.simulation.after(self.simulation.between(100, 1_500) * US_PER_MS, self.network.heal)

    # Faults: disks.

    def _power_loss(self) -> None:
        node = self._random_node()
        self.simulation.fault("power loss", node.name)
        node.power_off()
        node.start_later(self._down_ms())

    def _power_loss_in_write(self) -> None:
        node = self._random_node()
        self.simulation.fault("power loss in a write", node.name)
        node.disk.halt_in_sync(power=True, down_ms=self._down_ms())

    def _kill_in_write(self) -> None:
        node = self._random_node()
        self.simulation.fault("kill in a write", node.name)
        node.disk.halt_in_sync(power=False, down_ms=self._down_ms())

    def _kill_then_power_loss(self) -> None:
        """Kills a node with unsynced data, restarts it, and then its power fails."""
        node = self._random_node()
        self.simulation.fault("kill in a write, then power loss", node.name)
        node.disk.halt_in_sync(power=False, down_ms=5)
        delay_ms = self.simulation.between(20, 600)
        self.simulation.after(delay_ms * US_PER_MS, self._power_loss_later, node)

    def _power_loss_later(self, node: SimNode) -> None:
        node.power_off()
        node.start_later(self._down_ms())

    def _unsynced_tail(self) -> None:
        """A follower is killed with a write that no sync has covered, comes back, and loses power
        as soon as the leader has committed something; then the leader goes.
        """
        leader = self.leader_name()
        if leader is None or len(self.nodes) > 3:
            return
        self.simulation.fault("unsynced tail", leader)
        name, other = self.simulation.random.sample([n for n in self.nodes if n != leader], 2)
        node = self.nodes[name]
        self._split_off(other)
        node.disk.halt_in_sync(power=False, down_ms=5)
        self._run_until_true(lambda: node.off, 200)
        for client in self.clients:
            client.stopped = True
        last_index = self._last_index(leader)
        self._run_until_true(lambda: self._commit_index(leader) >= last_index, 300)
        node.power_off()
        node.start_later(5)
        self._split_off(leader)
        self.run_for(700)
        self.network.heal()
        for client in self.clients:
            client.stopped = False
            client.wake_after(0)

    def _last_index(self, name: str) -> int:
        raft = self.checker.rafts.get(name)
        return raft.log.last_index if raft is not None else 0

    def _commit_index(self, name: str) -> int:
        raft = self.checker.rafts.get(name)
        return raft.commit_index if raft is not None else 0

    def _run_until_true(self, holds: Callable[[], bool], within_ms: int) -> None:
        """Checks often, and stops silently at the time limit."""
        end_us = self.simulation.now_us + within_ms * US_PER_MS
        while not holds() and self.simulation.now_us < end_us:
            self.simulation.run_until(self.simulation.now_us + 200)

    def _all_power_loss(self) -> None:
        """The power of the whole cluster fails, on some nodes during a write."""
        self.simulation.fault("power loss everywhere")
        for node in self.nodes.values():
            if self.simulation.chance(0.3):
                node.disk.halt_in_sync(power=True, down_ms=self._down_ms())
            else:
                node.power_off()
                node.start_later(self._down_ms())

    def _sync_failure(self) -> None:
        node = self._random_node()
        self.simulation.fault("sync failure", node.name)
        node.disk.fail_next_sync()

    def _slow_disk(self) -> None:
        node = self._random_node()
        self.simulation.fault("slow disk", node.name)
        node.slow_until_us = self.simulation.now_us + self.simulation.between(200, 2000) * US_PER_MS

    def _full_disk(self) -> None:
        node = self._random_node()
        self.simulation.fault("full disk", node.name)
        node.disk.fill()
        self.simulation.after(self.simulation.between(100, 2_000) * US_PER_MS, node.disk.free_space)

    def _all_may_vote(self) -> bool:
        """Whether no node has forgotten anything: only one at a time may."""
        peers = {name: node.peer.peer for name, node in self.nodes.items() if node.peer is not None}
        voters = {name for name, peer in peers.items() if peer and peer.eligibility.may_vote}
        members = members_of(self.checker.rafts)  # Of no peer while none runs.
        return bool(members) and members <= voters

    def _empty_disk(self) -> None:
        """A disk is replaced by an empty one: only the others have its data."""
        if self._all_may_vote():
            node = self._random_node()
            self.simulation.fault("empty disk", node.name)
            node.kill_all()
            node.wipe()
            self.checker.on_wiped(node.name)
            node.start_later(self._down_ms())

    def _damaged_vote(self) -> None:
        if self._all_may_vote():
            node = self._random_node()
            self.simulation.fault("damaged vote", node.name)
            node.kill_all()
            node.disk.damage_vote()
            self.checker.on_wiped(node.name)
            node.start_later(self._down_ms())
