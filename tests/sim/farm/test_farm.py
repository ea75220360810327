"""Simulated farms under faults, in a short form; campaign.py has the long one."""

import os
from collections.abc import Callable

import pytest

from kelek.protocols.garlicfarm.wire.messages import MessageType
from kelek.tests.sim.farm.cluster import FarmSim, UnknownServer
from kelek.tests.sim.farm.flows import FLOWS, Flow, FlowRun, interruptions_of_suite
from kelek.tests.sim.farm.run import STRANGERS, FarmRun, rest
from kelek.tests.sim.farm.scenarios import SCENARIOS

ONE = os.environ.get("KELEK_SEED")
SEEDS = [int(ONE)] if ONE else [1, 2, 3, 4]
FAULTS_MIN = 20
STRIKES_MIN = 8


@pytest.mark.parametrize("seed", SEEDS)
def test_farm(seed: int) -> None:
    run = FarmRun(seed)
    run.run()
    assert sum(run.simulation.faults.values()) >= FAULTS_MIN
    assert run.sim.acked


@pytest.mark.parametrize("flow", FLOWS, ids=lambda flow: flow.name)
def test_a_change_survives_its_steps(flow: Flow) -> None:
    """A change completes without a loss, whichever server is killed at a step."""
    chosen = interruptions_of_suite(flow)
    for interruption in chosen:
        FlowRun(flow, interruption, 1).run()
    assert len(chosen) >= STRIKES_MIN


@pytest.mark.parametrize("course", SCENARIOS)
def test_a_course_goes_well(course: Callable[[int], None]) -> None:
    for seed in SEEDS:
        course(seed)


def test_the_flows_have_all_messages() -> None:
    names: set[str] = set()
    for flow in FLOWS:
        run = FlowRun(flow)
        run.run()
        names |= {step.name for step in run.steps}
    of_clients = {
        MessageType.CLIENT_REQUEST,
        MessageType.ADD_SERVER,
        MessageType.ADD_SERVER_RESPONSE,
    }
    assert names >= {each.name for each in set(MessageType) - of_clients}


def test_unknown_servers_depose_no_leader() -> None:
    sim = FarmSim(1)
    leader = sim.elect()
    term = sim.peers[leader].core.term
    for number in (1, 2, 3):
        for kind in STRANGERS:
            stranger = UnknownServer(sim, number)
            for _ in range(3):
                stranger.disturb(kind)
                sim.run(100)
    rest(sim)
    assert (sim.leader, sim.peers[leader].core.term) == (leader, term)
