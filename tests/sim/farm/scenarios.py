"""Scripted courses of events that random runs seldom reach. Each must succeed with any seed."""

from collections.abc import Callable

from kelek.protocols.garlicfarm.server import membership
from kelek.protocols.garlicfarm.server.membership import ChangeStage
from kelek.protocols.raft.messages import AppendResponse
from kelek.tests.protocols.garlicfarm.farm_cluster import FarmRequester, client_request, server
from kelek.tests.sim.checker import RuleBroken
from kelek.tests.sim.farm.cluster import FarmSim, Step
from kelek.tests.sim.farm.run import rest

WITHIN_MS = 20_000
SLOW = {"election_timeout_ms_min": 20_000, "election_timeout_ms_max": 30_000}


def _add(sim: FarmSim, number: int) -> None:
    """Runs until it knows that it is a member."""
    leader = sim.elect()
    FarmRequester(sim, leader).send(membership.add_server_request(server(number)))
    sim.run_until(lambda: sim.peers[number].is_member, WITHIN_MS)


def _cut_off_uncounted(sim: FarmSim, number: int) -> None:
    """A joining server has the entry that includes it, and never hears of its commit."""
    leader = sim.elect()
    newcomer, peer = sim.peers[number], sim.peers[leader]
    FarmRequester(sim, leader).send(membership.add_server_request(server(number)))
    sim.run_until(lambda: newcomer.core.leader == str(leader), WITHIN_MS)
    others = [other for other in sim.ids(leader) if other != leader]
    sim.cut_off(leader, others)
    sim.run_until(lambda: newcomer.directory.find(number) is not None, WITHIN_MS)
    if not others:  # Its vote is needed.
        sim.run_until(lambda: number in sim.ids(leader), WITHIN_MS)
    sim.network.heal()
    sim.cut_off(number, [other for other in sim.peers if other != number])
    assert not newcomer.is_member
    sim.run_until(lambda: peer.membership.change is None, WITHIN_MS)


def two_at_a_time(seed: int) -> None:
    """A second change is refused while a Configuration is not committed, and in the same wake."""
    sim = FarmSim(seed)
    leader = sim.elect()
    sim.start(4)
    sim.start(5)
    admin = FarmRequester(sim, leader)
    others = [number for number in (1, 2, 3) if number != leader]
    admin.send(
        membership.add_server_request(server(4)), membership.remove_server_request(others[0])
    )
    sim.run_until(lambda: len(admin.answers) == 2)
    sim.run_until(lambda: _is_at(sim, leader, ChangeStage.COMMIT), WITHIN_MS)
    sim.cut_off(leader, others)
    admin.send(membership.add_server_request(server(5)))
    sim.run(500)
    if [answer.is_accepted for answer in admin.answers] != [True, False, False]:
        raise RuleBroken(f"two changes at a time: {admin.answers}")
    sim.network.heal()
    sim.run_until(sim.has_converged, WITHIN_MS)
    sim.check_end()


def _is_at(sim: FarmSim, number: int, stage: ChangeStage) -> bool:
    change = sim.peers[number].membership.change
    return change is not None and change.stage is stage


def a_stranger_leads(seed: int) -> None:
    """The leader that a joining server knows is gone; it does not know the next one."""
    sim = FarmSim(seed)
    sim.start(4)
    sim.start(5)
    _cut_off_uncounted(sim, 4)
    _add(sim, 5)
    for number in (1, 2, 3):
        sim.kill(number)
    for number in (1, 2, 3):
        sim.start(number, (), **SLOW)
    assert sim.elect() == 5
    sim.network.heal_pair("4", "5")
    sim.run_until(sim.has_converged, WITHIN_MS)
    sim.check_end()


def a_stranger_asks(seed: int) -> None:
    """One of three is gone. The other two need each other; one of them knows neither its own
    membership nor the other server.
    """
    sim = FarmSim(seed, members=(1,))
    sim.start(2)
    sim.start(3)
    _cut_off_uncounted(sim, 2)
    _add(sim, 3)
    sim.kill(1)
    sim.network.heal()
    writer = FarmRequester(sim, sim.elect())
    writer.send(client_request(b"of two"))
    sim.run_until(lambda: bool(writer.answers) and writer.answers[0].is_accepted, WITHIN_MS)
    sim.start(1)
    sim.run_until(sim.has_converged, WITHIN_MS)
    sim.check_end()
    rest(sim)


def one_becomes_two(seed: int) -> None:
    """A leader without other members needs the joining server from the entry on that it has not
    sent yet.
    """
    sim = FarmSim(seed, members=(1,))
    sim.start(2)
    leader = sim.peers[sim.elect()]
    FarmRequester(sim, 1).send(membership.add_server_request(server(2)))
    sim.run_until(lambda: len(leader.directory.latest.servers) == 2, WITHIN_MS)
    assert sim.peers[2].directory.find(2) is None
    sim.kill(1)
    sim.start(1)
    sim.run_until(sim.has_converged, WITHIN_MS)
    assert sim.ids(sim.elect()) == [1, 2]
    rest(sim)


def back_again(seed: int) -> None:
    """A server that the same leader removed and added again votes and leads like any other."""
    sim = FarmSim(seed, members=(1, 2))
    leader = sim.elect()
    other = 3 - leader
    FarmRequester(sim, leader).send(membership.remove_server_request(other))
    sim.run_until(lambda: sim.peers[other].own_membership.is_waiting, WITHIN_MS)
    sim.run_until(sim.has_converged, WITHIN_MS)
    _add(sim, other)
    sim.kill(leader)
    sim.start(leader, (), **SLOW)
    if sim.elect() != other:
        raise RuleBroken(f"{other} was taken in anew, and lets others lead: {sim.status()}")
    sim.run_until(sim.has_converged, WITHIN_MS)
    rest(sim)


def outvoted(seed: int) -> None:
    """Entries of an isolated leader are replaced, then compacted by a snapshot: the index of its
    Configuration holds none now.
    """
    sim = FarmSim(seed)
    sim.start(4)
    leader = sim.elect()
    others = [number for number in (1, 2, 3) if number != leader]
    for other in others:
        sim.cut_off(leader, [other])
        sim.cut_off(4, [other])
    cut_off = sim.peers[leader]
    FarmRequester(sim, leader).send(client_request(b"1", b"2", b"3"))
    FarmRequester(sim, leader).send(membership.add_server_request(server(4)))
    sim.run_until(lambda: _is_at(sim, leader, ChangeStage.COMMIT), WITHIN_MS)
    index = cut_off.core.log.configurations.last_index
    sim.kill(4)
    sim.run_until(lambda: sim.leader in others and sim.settled, WITHIN_MS)
    assert sim.leader is not None
    FarmRequester(sim, sim.leader).send(client_request(*(b"%d" % at for at in range(9))))
    sim.run_until(lambda: sim.peers[others[0]].core.commit_index > index, WITHIN_MS)
    sim.network.heal()
    sim.run_until(sim.has_converged, WITHIN_MS)
    assert cut_off.core.log.configurations.last_index < index
    sim.compact(leader)
    rest(sim)
    assert sim.ids(leader) == [1, 2, 3]


def deposed_in_between(seed: int) -> None:
    """A leader receives a later term and, in the same wake, the answer that its change waits
    for.
    """
    sim = FarmSim(seed)
    sim.start(4)
    leader = sim.elect()
    core = sim.peers[leader].core
    other = next(number for number in (1, 2, 3) if number != leader)

    def depose(step: Step) -> None:
        if step.name == "SYNC_LOG_RESPONSE":
            sim.on_step = lambda step: None
            core.step(str(other), AppendResponse(core.term + 1, False, 0), sim.now_ms)

    sim.on_step = depose
    FarmRequester(sim, leader).send(membership.add_server_request(server(4)))
    sim.run_until(lambda: core.term > 1 and sim.settled, WITHIN_MS)
    sim.run_until(sim.has_converged, WITHIN_MS)
    assert sim.ids(sim.elect()) == [1, 2, 3]
    rest(sim)


SCENARIOS: tuple[Callable[[int], None], ...] = (
    two_at_a_time,
    a_stranger_leads,
    a_stranger_asks,
    one_becomes_two,
    back_again,
    outvoted,
    deposed_in_between,
)
