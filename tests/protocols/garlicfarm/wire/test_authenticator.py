"""Verification of digests: nonces, counts, refusals."""

import hashlib
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kelek.protocols.garlicfarm.wire import htdigest
from kelek.protocols.garlicfarm.wire.authenticator import (
    MALFORMED,
    NONCE_COUNT_WINDOW,
    NONCE_TTL_MS,
    NONCES_MAX,
    REFUSED,
    STALE,
    WRONG,
    AuthResult,
    DigestAuthenticator,
)
from kelek.protocols.garlicfarm.wire.digest import parse_parameters, quoted

PATH = "/GarlicFarm/farm/1/websocket"
USERS = htdigest.users_of(htdigest.with_user("", "farm", "alice", "secret"), "farm")


class DigestPair:
    """An authenticator, and a client with its own digest code."""

    def __init__(self, users: htdigest.Users = USERS) -> None:
        dice = count(1)
        self.users = users
        self.authenticator = DigestAuthenticator(
            b"k" * 16, lambda size: next(dice).to_bytes(size, "big")
        )
        self.now_ms = 1000

    def challenge(self, number: int = 0) -> dict[str, str]:
        header = self.authenticator.challenges(self.users, self.now_ms)[number]
        return parse_parameters(header)[0].values

    def header(self, **others: str) -> dict[str, str]:
        challenge = self.challenge()
        fields = {
            "username": "alice",
            "realm": challenge["realm"],
            "nonce": challenge["nonce"],
            "uri": PATH,
            "algorithm": challenge["algorithm"],
            "qop": "auth",
            "nc": "00000001",
            "cnonce": "c",
            "opaque": challenge["opaque"],
        }
        return self.signed(fields | others)

    def signed(self, fields: dict[str, str], password: str = "secret") -> dict[str, str]:
        hash_name = "md5" if fields["algorithm"] == "MD5" else "sha256"

        def digest(*texts: str) -> str:
            return hashlib.new(hash_name, ":".join(texts).encode()).hexdigest()

        ha1 = digest(fields["username"], fields["realm"], password)
        ha2 = digest("GET", fields["uri"])
        middle = [fields[name] for name in ("nonce", "nc", "cnonce", "qop")]
        return fields | {"response": digest(ha1, *middle, ha2)}

    def verify(self, fields: dict[str, str], target: str = PATH) -> AuthResult:
        text = ", ".join(f"{name}={quoted(value)}" for name, value in fields.items())
        return self.authenticator.verify(
            self.users, f"Digest {text}".encode(), ("GET", target), self.now_ms
        )


WELCOME = AuthResult(200, "alice")


def test_the_offer() -> None:
    cluster = DigestPair()
    first, second = cluster.challenge(0), cluster.challenge(1)
    assert (first["algorithm"], second["algorithm"]) == ("SHA-256", "MD5")
    assert first["realm"] == second["realm"] == "farm"
    assert first["qop"] == "auth"
    assert first["nonce"] != second["nonce"], "another one for each answer"
    one, two = cluster.authenticator.challenges(USERS, 1)
    assert parse_parameters(one)[0].values["nonce"] == parse_parameters(two)[0].values["nonce"]


@pytest.mark.parametrize("name", ["md5", "sha256"])
def test_no_offer_without_a_line(name: str) -> None:
    cluster = DigestPair(htdigest.Users("farm", {"alice": {name: USERS.secrets["alice"][name]}}))
    algorithm = {"md5": "MD5", "sha256": "SHA-256"}[name]
    (header,) = cluster.authenticator.challenges(cluster.users, 0)
    assert f"algorithm={algorithm}," in header.decode()
    assert cluster.verify(cluster.header()) == WELCOME
    other = {"md5": "SHA-256", "sha256": "MD5"}[name]
    assert cluster.verify(cluster.header(algorithm=other)) == REFUSED


def test_the_right_password_is_accepted() -> None:
    cluster = DigestPair()
    assert cluster.verify(cluster.header()) == WELCOME
    assert cluster.verify(cluster.header(algorithm="MD5")) == WELCOME


def test_targets_of_a_proxy() -> None:
    cluster = DigestPair()
    absolute = f"http://localhost:7401{PATH}"
    for uri, target in ((PATH, absolute), (absolute, absolute), (absolute, PATH)):
        assert cluster.verify(cluster.header(uri=uri), target) == WELCOME


def test_an_unknown_user_is_refused_as_a_wrong_password_is() -> None:
    cluster = DigestPair()
    for algorithm in ("SHA-256", "MD5"):
        found = cluster.header(username="mallory", algorithm=algorithm)
        assert cluster.verify(found) == WRONG._replace(user="mallory")


@pytest.mark.parametrize(
    "changed",
    [
        {"realm": "other"},
        {"opaque": "other"},
        {"algorithm": "SHA-256-sess"},
        {"algorithm": "SHA-512-256"},
    ],
)
def test_an_answer_to_a_challenge_of_others_is_refused(changed: dict[str, str]) -> None:
    """It is no guess of a password: a server has other challenges after its restart."""
    cluster = DigestPair()
    assert cluster.verify(cluster.header(**changed)) == REFUSED


def test_what_was_signed_counts() -> None:
    cluster = DigestPair()
    fields = cluster.header()
    wrong = WRONG._replace(user=fields["username"])
    assert cluster.verify(cluster.signed(fields, "wrong")) == wrong
    for name in ("cnonce", "nc"):
        assert cluster.verify(fields | {name: "00000009"}) == wrong
    assert cluster.verify(fields | {"response": "é"}) == wrong
    assert cluster.verify(fields) == WELCOME, "nothing of that has used it up"


@pytest.mark.parametrize(
    "changed",
    [
        {"uri": "/GarlicFarm/other/1/websocket"},
        {"uri": f"http://a/b{PATH}"},
        {"qop": "auth-int"},
        {"nc": "1"},
        {"nc": "00000000"},
        {"nc": "0000000g"},
        {"cnonce": ""},
        {"username": ""},
    ],
)
def test_what_is_malformed(changed: dict[str, str]) -> None:
    cluster = DigestPair()
    assert cluster.verify(cluster.header(**changed)) == MALFORMED


@pytest.mark.parametrize("name", ["username", "realm", "nonce", "uri", "qop", "nc", "response"])
def test_what_is_missing(name: str) -> None:
    cluster = DigestPair()
    fields = cluster.header()
    del fields[name]
    assert cluster.verify(fields) == MALFORMED


def test_other_schemes() -> None:
    cluster = DigestPair()
    for header, result in (
        (b"Basic YWxpY2U6c2VjcmV0", REFUSED),
        (b"Basic YWxpY2U6c2VjcmV0MQ==", REFUSED),
        (b"Bearer token", REFUSED),
        (b"Digest", MALFORMED),
        (b"\xff", MALFORMED),
    ):
        assert cluster.authenticator.verify(USERS, header, ("GET", PATH), 0) == result


def test_a_nonce_becomes_stale() -> None:
    cluster = DigestPair()
    fields = cluster.header()
    cluster.now_ms += NONCE_TTL_MS - 1
    assert cluster.verify(fields) == WELCOME
    cluster.now_ms += 1
    assert cluster.verify(cluster.signed(fields | {"nc": "00000002"})) == STALE
    assert b"stale=true" in cluster.authenticator.challenges(USERS, 0, stale=True)[0]
    assert NONCE_TTL_MS >= 3600 * 1000


@pytest.mark.parametrize("nonce", ["abc", "", "é" * 44, "A" * 44, "A" * 43 + "="])
def test_nonces_of_others_are_stale(nonce: str) -> None:
    """A client with the right password needs only a new nonce: the server may have restarted."""
    cluster = DigestPair()
    result = cluster.verify(cluster.header(nonce=nonce))
    assert result == (STALE if nonce else MALFORMED)
    assert DigestPair().authenticator.verify(USERS, b"Digest", ("GET", PATH), 0) == MALFORMED


def test_a_nonce_is_of_one_realm_and_of_one_key() -> None:
    cluster, other = DigestPair(), DigestPair()
    other.authenticator = DigestAuthenticator(b"x" * 16, bytes)
    nonce = other.challenge()["nonce"]
    assert cluster.verify(cluster.header(nonce=nonce)) == STALE
    future = cluster.authenticator.challenges(USERS, cluster.now_ms + 5)[0]
    nonce = parse_parameters(future)[0].values["nonce"]
    assert cluster.verify(cluster.header(nonce=nonce)) == STALE


@given(st.lists(st.integers(1, 600) | st.integers(2**32 - 200, 2**32 - 1), max_size=60))
def test_a_count_is_good_once(counts: list[int]) -> None:
    """In any order within the window."""
    cluster = DigestPair()
    fields, used = cluster.header(), set[int]()
    for nc in counts:
        result = cluster.verify(cluster.signed(fields | {"nc": f"{nc:08x}"}))
        behind = max(used, default=0) - nc
        assert result == (STALE if nc in used or behind >= NONCE_COUNT_WINDOW else WELCOME)
        used.add(nc)


def test_nonces_that_are_kept_have_a_limit() -> None:
    cluster = DigestPair()
    for number in range(NONCES_MAX + 1):
        cluster.now_ms = number
        fields = cluster.header()
        assert cluster.verify(fields) == WELCOME
        if number == 0:
            first = fields
    assert cluster.verify(cluster.signed(first | {"nc": "00000002"})) == STALE
    assert cluster.verify(first) == STALE, "what is forgotten is not let in again"
    assert cluster.verify(cluster.signed(fields | {"nc": "00000002"})) == WELCOME
