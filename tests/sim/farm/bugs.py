"""Defects of farm servers; the runs of test_farm.py find each of them (planted.py)."""

from functools import partial

from kelek.tests.sim.patches import CORE, SAFETY_BROKEN, Patch, PlantedBug

MEMBERS = "protocols/garlicfarm/server/membership.py"
PEER = "protocols/garlicfarm/server/peer.py"
OWN = "protocols/garlicfarm/server/own_membership.py"
STUCK = "not within"

_bug = partial(PlantedBug, runs="farm-suite", seeds=4)  # Those of the suite.

FARM_BUGS = (
    _bug(
        "a vote is not saved",
        (Patch(PEER, "        self._save(ready.hard_state)\n", ""),),
        expected="vote forgotten|term went back",
    ),
    _bug(
        "two changes at a time",
        (
            Patch(
                MEMBERS,
                "            and core.commit_index >= core.log.configurations.last_index\n",
                "",
            ),
            Patch(MEMBERS, "            and self.change is None\n", ""),
            Patch(
                MEMBERS,
                "            if self._core.commit_index >= change.index and ",
                "            if ",
            ),
        ),
        expected="two changes at a time|more than one|another history",
    ),
    _bug(
        "strangers are given votes",
        (
            Patch(
                OWN,
                "        return counts and self._core.leaderless_ms(now_ms) > "
                "self.leave_timeout_ms\n",
                "        return True\n",
            ),
            Patch(CORE, "not message.transfer and self._is_sticky(now_ms):", "False:"),
        ),
        expected="a stranger's REQUEST_VOTE",
    ),
    _bug(
        "anybody invites anybody",
        (
            Patch(
                OWN,
                "if request.term >= core.term and (is_waiting or",
                "if request.term >= core.term or (is_waiting or",
            ),
        ),
        expected=f"a stranger's JOIN|{SAFETY_BROKEN}",
    ),
    _bug(
        "a newcomer does not vote",
        (
            Patch(
                OWN,
                "        may_vote = self.is_member or core.log.last_index > 0\n",
                "        may_vote = self.is_member or self._is_in_latest\n",
            ),
        ),
        expected=STUCK,
    ),
    _bug(
        "a leader is heard for ever",
        (
            Patch(
                OWN,
                "            or core.leaderless_ms(now_ms) > self._setup.election_timeout_ms_max\n",
                "",
            ),
        ),
        expected=STUCK,
    ),
    _bug(
        "who does not know that it counts votes for no stranger",
        (
            Patch(
                OWN,
                "counts = self.is_member or self._is_in_latest\n",
                "counts = self.is_member\n",
            ),
        ),
        expected=STUCK,
    ),
    _bug(
        "who is taken in anew is still on its leave",
        (Patch(OWN, "self._left_in_term = self._departure = None", "self._left_in_term = None"),),
        expected="was taken in anew",
    ),
    _bug(
        "a replaced Configuration hides the one in force",
        (
            Patch(
                "protocols/host/configurations.py",
                "keep = self.history.entry_at(index)\n",
                "keep = max((at for at in self._entries if at <= index), default=0)\n",
            ),
        ),
        expected="ends by KeyError",
    ),
    _bug(
        "old Configurations count who is taken in anew",
        (
            Patch(
                OWN,
                "self.is_member = self.is_member or committed.log_index > "
                "self._member_above_index\n",
                "self.is_member = True\n",
            ),
        ),
        expected=STUCK,
    ),
    _bug(
        "a leader that was deposed goes on with its change",
        (
            Patch(
                MEMBERS,
                "            return  # Deposed by a message just before: step() ends the change.\n",
                "            pass\n",
            ),
        ),
        expected="only a leader proposes",
    ),
    _bug(
        "who has handed over asks nobody, all the time",
        (
            Patch(
                MEMBERS, "(change.stage is ChangeStage.ASK and self._core.leader is None)", "False"
            ),
        ),
        expected="is busy",
    ),
)
