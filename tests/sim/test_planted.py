"""The simulation finds bugs: those that the issue names are planted and must be found.

planted.py beside this knows more of them, and runs them all.
"""

import pytest

from kelek.tests.sim.planted import PLANTS, SEEDS_MAX, find

NAMED = (
    "acknowledged before it is synced",
    "volatile vote",
    "old terms committed by count",
    "tail recovered without a sync",
    "no pre-vote",
    "writer restarted alone",
    "read answered without a round",
    "read answered before the term's own commit",
)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", NAMED)
def test_a_planted_bug_is_found(name: str) -> None:
    (bug,) = [plant for plant in PLANTS if plant.name == name]
    assert find(bug, SEEDS_MAX) is not None
