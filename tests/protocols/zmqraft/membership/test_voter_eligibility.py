"""Voter eligibility: first starts, bootstrap, learners that catch up, damaged votes."""

from kelek.protocols.zmqraft.membership.voter_eligibility import Repair, VoterEligibility

GAP_MS, TRUST_MS = 200, 600


def eligibility(
    voter: bool, empty: bool, lost: int | None = None, boot: bool = False, name: str = "n1"
) -> VoterEligibility:
    made = VoterEligibility((name, 10), ("n1", "n2", "n3"), GAP_MS, TRUST_MS)
    made.restore(voter, empty, lost, boot)
    return made


def test_a_voter_stays_one() -> None:
    assert eligibility(voter=True, empty=False).may_vote


def test_first_start_needs_all_peers_empty() -> None:
    node = eligibility(voter=False, empty=True)
    assert not node.on_hello("n2", True, 20, ())
    assert not node.on_hello("stranger", True, 90, ())
    assert node.on_hello("n3", True, 30, ())
    assert node.state == "voter"
    assert node.bootstrap_witnesses == (("n1", 10), ("n2", 20), ("n3", 30))


def test_a_late_node_is_vouched_for_by_nodes_that_saw_all() -> None:
    witnessed = (("n2", 20), ("n1", 10), ("n3", 30))
    node = eligibility(voter=False, empty=True)
    assert node.on_hello("n2", False, 20, witnessed), "n2 has begun without waiting for us"
    assert node.bootstrap_witnesses == witnessed, "and we vouch for n3 in turn"


def test_a_wiped_peer_is_not_the_one_that_was_seen() -> None:
    node = eligibility(voter=False, empty=True)
    assert not node.on_hello("n2", False, 20, (("n1", 9), ("n2", 20), ("n3", 30)))


def test_one_used_peer_makes_a_learner() -> None:
    node = eligibility(voter=False, empty=True)
    node.on_hello("n2", False, 20, ())
    assert not node.on_hello("n3", True, 30, ())
    assert not node.on_hello("n2", True, 21, ()), "it was not empty once: its disk was wiped"
    assert node.state == "learner"


def test_entries_and_damage_end_emptiness() -> None:
    for node in (
        eligibility(voter=False, empty=False),
        eligibility(voter=False, empty=True, lost=3),
        eligibility(voter=False, empty=True),
    ):
        node.on_entries_received()
        assert not node.on_hello("n2", True, 20, ())
        assert not node.on_hello("n3", True, 30, ())


def test_bootstrap_counts_only_when_empty() -> None:
    assert eligibility(voter=False, empty=True, boot=True).may_vote
    assert not eligibility(voter=False, empty=False, boot=True).may_vote


def test_a_single_node_needs_no_other() -> None:
    node = VoterEligibility(("n1", 10), ("n1",), GAP_MS, TRUST_MS)
    node.restore(False, True, None, False)
    assert node.may_vote


def hear(node: VoterEligibility, term: int, durable: int, from_ms: int, to_ms: int) -> bool:
    """The leader is heard each 100 ms; its commit index is 10."""
    heard = [node.on_leader(term, 10, durable, ms) for ms in range(from_ms, to_ms, 100)]
    return any(heard)


def test_a_learner_votes_after_catching_up_with_a_lasting_leader() -> None:
    node = eligibility(voter=False, empty=True)
    assert not hear(node, 3, durable=9, from_ms=1000, to_ms=3000), "one entry is missing"
    assert node.on_leader(3, 10, 10, 3000)
    assert node.may_vote


def test_a_learner_does_not_trust_a_leader_with_gaps_or_many_terms() -> None:
    node = eligibility(voter=False, empty=True)
    assert not hear(node, 3, durable=10, from_ms=1000, to_ms=1600)
    assert not hear(node, 4, durable=10, from_ms=1600, to_ms=2200), "another leader"
    assert not hear(node, 4, durable=10, from_ms=2500, to_ms=3100), "silent for too long"
    assert hear(node, 4, durable=10, from_ms=3100, to_ms=3300)


def test_a_lost_vote_is_withheld_until_a_newer_term_leads() -> None:
    node = eligibility(voter=True, empty=False, lost=7)
    assert node.state == "vote withheld"
    assert not node.on_leader(7, 10, 10, 1000)
    assert node.on_leader(8, 10, 0, 1100)
    assert node.may_vote


def test_a_damaged_log_needs_what_it_had_and_a_lasting_leader() -> None:
    """Its commit index alone is not enough: more may have been acknowledged than it says."""
    node = eligibility(voter=True, empty=False)
    node.start_repair(Repair(12, "log/1.seg: offset 4128"))
    assert node.state == "repairing"
    assert not node.may_vote
    assert not hear(node, 3, durable=11, from_ms=1000, to_ms=3000)
    assert not hear(node, 4, durable=12, from_ms=3000, to_ms=3500), "a new leader"
    assert hear(node, 4, durable=12, from_ms=3500, to_ms=3700)
    assert node.repair is None


def test_no_bootstrap_of_a_log_that_is_lost_altogether() -> None:
    node = eligibility(voter=False, empty=True, boot=True)
    node.start_repair(Repair(0, "log: every segment is missing"))
    assert not node.on_hello("n2", True, 20, (("n1", 10),))
    assert not node.on_hello("n3", True, 30, ())
    assert not node.may_vote
