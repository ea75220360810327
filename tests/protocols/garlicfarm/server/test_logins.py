"""Delays after wrong passwords, in virtual time."""

import pytest

from kelek.protocols.garlicfarm.server import logins
from kelek.protocols.garlicfarm.server.inbound import PeerSession
from kelek.protocols.garlicfarm.server.logins import (
    ADDRESSES_MAX,
    DELAY_MS_FIRST,
    DELAY_MS_MAX,
    FORGET_MS,
    WRONG_MAX,
    LoginCheck,
    LoginDelays,
    names_of,
    network_of,
)
from kelek.protocols.garlicfarm.wire.authenticator import MALFORMED, STALE, WRONG, AuthResult
from kelek.protocols.garlicfarm.wire.http_api import VIEW_NAMES

HERE, THERE = "10.0.0.1", "10.0.0.2"
SESSIONS = {
    "ann": PeerSession("ann", is_admin=True),
    "two": PeerSession("two", 2, is_admin=False),
    "servers": PeerSession("servers", is_admin=False, is_server=True),
}
PATHS = ("websocket", *VIEW_NAMES)
READER, WRITER, CHIEF = (
    PeerSession(name, None, name == "admin", False, name == "read", name == "append")
    for name in ("read", "append", "admin")
)


def guess(delays: LoginDelays, count: int, now_ms: int = 0, address: str = HERE) -> None:
    for _ in range(count):
        delays.on_wrong(address, now_ms)


def test_the_delay_doubles_up_to_a_limit() -> None:
    delays = LoginDelays()
    guess(delays, WRONG_MAX - 1)
    assert not delays.delay_ms(HERE, 0), "mistypings cost nothing"
    now_ms, found = 0, []
    for _ in range(8):
        guess(delays, 1, now_ms)
        found.append(delays.delay_ms(HERE, now_ms))
        now_ms += found[-1]
        assert not delays.delay_ms(HERE, now_ms), "it is over"
    assert found == [min(DELAY_MS_FIRST << n, DELAY_MS_MAX) for n in range(8)]
    assert found[-1] == DELAY_MS_MAX


def test_an_address_delays_no_other_one_and_is_forgotten() -> None:
    delays = LoginDelays()
    guess(delays, 20)
    assert delays.delay_ms(HERE, 0)
    assert not delays.delay_ms(THERE, 0)
    guess(delays, 1, FORGET_MS - 1)
    assert delays.delay_ms(HERE, FORGET_MS - 1) == DELAY_MS_MAX
    guess(delays, 1, 2 * FORGET_MS - 1)
    assert not delays.delay_ms(HERE, 2 * FORGET_MS - 1)


def test_the_table_of_addresses_is_bounded() -> None:
    delays = LoginDelays()
    guess(delays, WRONG_MAX)
    guess(delays, WRONG_MAX, address=THERE)
    for number in range(ADDRESSES_MAX - 1):
        guess(delays, 1, address=f"10.1.{number >> 8}.{number & 255}")
    assert not delays.delay_ms(HERE, 0), "the oldest one is forgotten"
    assert delays.delay_ms(THERE, 0)


@pytest.mark.parametrize(
    ("host", "network"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("2001:db8:0:1:2:3:4:5", "2001:db8:0:1::"),
        ("fe80::1%eth0", "fe80::"),
        ("no address", "no address"),
    ],
)
def test_an_address_of_ipv6_is_its_network(host: str, network: str) -> None:
    assert network_of(host) == network


def test_the_names_of_a_certificate() -> None:
    certificate = {
        "subject": ((("countryName", "TR"),), (("commonName", "ann"),)),
        "subjectAltName": (
            ("DNS", "n1.example"), ("email", "ann@example"), ("URI", "spiffe://farm/ann"),
            ("IP Address", "10.0.0.1"), ("IP Address", "0:0:0:0:0:0:0:1"), ("DirName", "other"),
        ),
    }  # fmt: skip
    names = {"ann", "n1.example", "ann@example", "spiffe://farm/ann", "10.0.0.1", "::1"}
    assert names_of(certificate) == names
    assert names_of({}) == frozenset()


def test_a_certificate_of_another_user_is_refused() -> None:
    check = LoginCheck(LoginDelays(), HERE, lambda cluster, user: None)
    for name in PATHS:
        assert check.check("farm", name, AuthResult(200, "ann"), 0) == AuthResult(403)
    assert check.check("farm", "status", WRONG, 0) == WRONG


def check_of(delays: LoginDelays, address: str = HERE) -> LoginCheck:
    return LoginCheck(delays, address, lambda cluster, user: SESSIONS.get(user, READER))


def test_wrong_passwords_of_others_delay_all_logins_but_those_of_servers() -> None:
    delays = LoginDelays()
    check, other = check_of(delays), check_of(delays, THERE)
    ann, two, servers = (AuthResult(200, user) for user in SESSIONS)
    for result in [AuthResult(401), STALE, MALFORMED, ann] * WRONG_MAX:
        assert check.check("farm", "websocket", result, 0) == result, "no guess"
    for _ in range(WRONG_MAX):
        assert check.check("farm", "websocket", WRONG, 0) == WRONG
    for result in (WRONG, STALE, MALFORMED, ann):
        assert check.check("farm", "websocket", result, 1) == AuthResult(429, retry_after_s=1)
        assert other.check("farm", "websocket", result, 1) == result
    for result in (two, servers):
        assert check.check("farm", "websocket", result, 1) == result, "Raft links stay possible"
    assert check.check("farm", "websocket", ann, DELAY_MS_FIRST) == ann
    assert check.check("farm", "websocket", WRONG, DELAY_MS_FIRST) == WRONG
    assert check.check("farm", "websocket", ann, DELAY_MS_FIRST + 1).retry_after_s == 2


@pytest.mark.parametrize("user", ["two", "servers"])
def test_guesses_of_a_servers_password_delay_it(user: str) -> None:
    """Of that user at that address alone; also while guesses of others delay the address."""
    delays = LoginDelays()
    check, other = check_of(delays), check_of(delays, THERE)
    right, wrong = AuthResult(200, user), WRONG._replace(user=user)
    for _ in range(WRONG_MAX):
        check.check("farm", "websocket", WRONG, 0)
    for _ in range(WRONG_MAX):
        assert check.check("farm", "websocket", right, 1) == right
        assert check.check("farm", "websocket", wrong, 1).status == 429
    assert check.check("farm", "websocket", right, 2) == AuthResult(429, retry_after_s=1)
    assert other.check("farm", "websocket", right, 2) == right
    for each in SESSIONS.keys() - {user, "ann"}:
        login = AuthResult(200, each)
        assert check.check("farm", "websocket", login, 2) == login
    assert check.check("farm", "websocket", right, 1 + DELAY_MS_FIRST) == right


def test_an_answer_does_not_tell_which_users_are_servers() -> None:
    """Wrong passwords of any name get the same answers."""
    answers = []
    for user in ("servers", "ann", "unknown"):
        check = check_of(LoginDelays())
        wrong = WRONG._replace(user=user)
        times = [*range(0, 40 * DELAY_MS_FIRST, DELAY_MS_FIRST // 3)]
        found = [check.check("farm", "websocket", wrong, now_ms) for now_ms in times]
        answers.append([each._replace(user="") for each in found])
    assert answers[0] == answers[1] == answers[2]
    assert 429 in {each.status for each in answers[0]}


def test_guesses_during_a_delay_do_not_extend_it() -> None:
    """A client that repeats its login would never get in."""
    delays = LoginDelays()
    check = check_of(delays)
    for now_ms in range(0, 50, 10):
        check.check("farm", "websocket", WRONG, now_ms)
    ends_ms = 40 + DELAY_MS_FIRST
    for now_ms in range(50, ends_ms, 10):
        assert check.check("farm", "websocket", WRONG, now_ms).status == 429
    assert not delays.delay_ms(HERE, ends_ms)


@pytest.mark.parametrize(
    ("session", "refused"),
    [
        (READER, set()),
        (WRITER, {"documents", "entries", "configuration"}),
        (CHIEF, {"documents", "entries"}),
        (PeerSession("none", None, False, False, False, False), set(PATHS)),
        (PeerSession("two", 2, False, False, False, False), set(PATHS) - {"websocket", "status"}),
    ],
)
def test_each_path_needs_a_right(session: PeerSession, refused: set[str]) -> None:
    check = LoginCheck(LoginDelays(), HERE, lambda cluster, user: session)
    result = AuthResult(200, session.user)
    found = {name: check.check("farm", name, result, 0) for name in PATHS}
    assert {name for name, each in found.items() if each == AuthResult(403)} == refused
    assert {name for name, each in found.items() if each == result} == set(PATHS) - refused


def test_clients_of_a_tunnel_do_not_delay_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logins, "WRONG_MAX", 1)
    check = check_of(LoginDelays(), "")
    for _ in range(10):
        assert check.check("farm", "websocket", WRONG, 0) == WRONG
