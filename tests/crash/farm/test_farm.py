"""Real farm processes, killed at each stage of a member change.

farm_drills.py has each stage with either side; tests/sim/farm/test_farm.py has all steps in virtual
time.
"""

from kelek.protocols.garlicfarm.server.membership import ChangeStage
from kelek.tests.crash.farm.farm_drills import SHORT, run


def test_a_farm_survives_kills_at_each_stage() -> None:
    assert {drill.stage for drill in SHORT} == set(ChangeStage)
    assert run(SHORT) >= len(SHORT)
