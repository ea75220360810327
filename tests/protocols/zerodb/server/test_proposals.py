"""Packs of writes in a session: when the leader's answer matters."""

from kelek.tests.protocols.zerodb.server.served import TABLE, led

PARTSYNC = b"\x31\x01\x20\x01"
READ = b"\x31\x01\x10"


def test_the_leaders_answer_may_wait_until_a_worker_has_applied_something() -> None:
    """One pack, and no read: only then nothing waits for the answer alone."""
    harness = led()
    session = harness.session

    def may_wait() -> bool:
        return session.may_wait

    harness.run(lambda: session.writes.proposals.is_idle)
    assert not may_wait()
    harness.applies = False
    harness.ask(b"c", PARTSYNC, TABLE, b"k", b"v")
    harness.act()
    assert may_wait()
    harness.ask(b"d", READ, TABLE, b"k")
    harness.act()
    assert not may_wait()
    harness.run(lambda: not len(harness.client.reads))
    harness.applies = True
    harness.run(lambda: len(harness.heard(b"c")) == 1)
    assert not may_wait()


def test_answers_for_two_packs_do_not_wait() -> None:
    harness = led()
    harness.applies = False
    for key in (b"k", b"l"):
        harness.ask(b"c", PARTSYNC, TABLE, key, b"v")
        harness.act()
    assert not harness.session.may_wait
