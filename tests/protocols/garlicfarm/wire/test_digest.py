"""HTTP Digest: published examples, password files, and verification."""

import hashlib
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kelek.protocols.errors import RemoteProtocolError
from kelek.protocols.garlicfarm.wire import htdigest
from kelek.protocols.garlicfarm.wire.authenticator import (
    MALFORMED,
    NONCE_COUNT_WINDOW,
    NONCE_TTL_MS,
    NONCES_MAX,
    REFUSED,
    STALE,
    AuthResult,
    DigestAuthenticator,
)
from kelek.protocols.garlicfarm.wire.digest import (
    ALGORITHMS,
    MD5,
    SHA_256,
    Algorithm,
    AuthParameters,
    DigestInput,
    algorithm_of,
    make_ha1,
    make_response,
    parse_parameters,
    quoted,
)

# RFC 2617, section 3.5.
RFC_2617 = (
    b'Digest username="Mufasa", realm="testrealm@host.com", '
    b'nonce="dcd98b7102dd2f0e8b11d0f600bfb0c093", uri="/dir/index.html", qop=auth, nc=00000001, '
    b'cnonce="0a4f113b", response="6629fae49393a05397450978507c4ef1", '
    b'opaque="5ccc069c403ebaf9f0171e9517f40e41"'
)
# RFC 7616, section 3.9.1.
RFC_7616 = (
    b'Digest username="Mufasa", realm="http-auth@example.org", uri="/dir/index.html", '
    b'algorithm=%s, nonce="7ypf/xlj9XXwfDPEoM4URrv/xwf94BcCAzFZH4GiTo0v", nc=00000001, '
    b'cnonce="f2/wE4q74E6zIJEtWaHKaf5wv/H5QzzpXusqGemxURZJ", qop=auth, response="%s", '
    b'opaque="FQhe/qaU925kfnzjCev0ciny7QMkPqMAFRtzCUYo5tdS"'
)
PUBLISHED = {
    "RFC 2617": (RFC_2617, "Circle Of Life"),
    "RFC 7616, MD5": (
        RFC_7616 % (b"MD5", b"8ca523f5e9506fed4657c9700eebdbec"),
        "Circle of Life",
    ),
    "RFC 7616, SHA-256": (
        RFC_7616
        % (b"SHA-256", b"753927fa0e85d155564e2e272a28d1802ca10daf4496794697cf8db5856cb6c1"),
        "Circle of Life",
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_digests(name: str) -> None:
    header, password = PUBLISHED[name]
    (parameters,) = parse_parameters(header)
    algorithm, said = algorithm_of(parameters), parameters.values
    assert algorithm is not None
    ha1 = make_ha1(algorithm.hash_name, said["username"], said["realm"], password)
    terms = DigestInput("GET", said["uri"], said["nonce"], said["nc"], said["cnonce"])
    assert make_response(algorithm, ha1, terms) == said["response"]


def test_published_ha1() -> None:
    """RFC 2617 states the intermediate value of its example, too."""
    assert make_ha1("md5", "Mufasa", "testrealm@host.com", "Circle Of Life") == (
        "939e7578ed9e3c518a452acee763bce9"
    )


@pytest.mark.parametrize("hash_name", ["md5", "sha256"])
def test_sessions_take_nonce_and_cnonce_in(hash_name: str) -> None:
    """RFC 7616, section 3.4.2: A1 = H(user:realm:password):nonce:cnonce."""

    def digest(text: str) -> str:
        return hashlib.new(hash_name, text.encode()).hexdigest()

    (algorithm,) = (each for each in ALGORITHMS if each[1:] == (hash_name, True))
    a1 = f"{digest('user:realm:secret')}:n:c"
    expected = digest(f"{digest(a1)}:n:0000000a:c:auth:{digest('GET:/path')}")
    ha1 = make_ha1(hash_name, "user", "realm", "secret")
    assert (
        make_response(algorithm, ha1, DigestInput("GET", "/path", "n", "0000000a", "c")) == expected
    )


def test_algorithms_by_name() -> None:
    def named(name: str) -> Algorithm | None:
        return algorithm_of(AuthParameters("digest", {"algorithm": name}))

    assert algorithm_of(AuthParameters("digest", {})) == MD5
    assert named("sha-256") == SHA_256
    assert named("md5-SESS") == Algorithm("MD5-sess", "md5", True)
    assert named("SHA-512-256") is None


# ---- headers ----


def test_headers_are_parsed() -> None:
    assert parse_parameters(b'Basic realm="a", DIGEST Realm = "b, \\"c\\"" ,qop=auth,, Other') == [
        ("basic", {"realm": "a"}),
        ("digest", {"realm": 'b, "c"', "qop": "auth"}),
        ("other", {}),
    ]


@given(st.text(st.characters(exclude_categories=["Cs", "Cc"])))
def test_quoted_values_come_back(value: str) -> None:
    (parameters,) = parse_parameters(f"Digest a={quoted(value)}, b=1".encode())
    assert parameters.values == {"a": value, "b": "1"}


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b" , ",
        b'Digest a="1',
        b"Digest a=1, A=2",
        b"Digest \xff=1",
        b"=1",
        b"Digest " + b",".join(b"a%d=1" % number for number in range(33)),
        b"a " * 33,
    ],
)
def test_headers_that_are_none(header: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        parse_parameters(header)


@given(st.binary(max_size=60) | st.text('Digest a="\\=, ', max_size=40).map(str.encode))
def test_junk_in_headers_raises_one_error(junk: bytes) -> None:
    try:
        parse_parameters(junk)
    except RemoteProtocolError:
        return


# ---- password files ----

MADE = htdigest.with_user("", "farm", "alice", "secret")


def test_a_password_file() -> None:
    """Lines of `htdigest`, and the same in SHA-256."""
    md5 = hashlib.md5(b"alice:farm:secret").hexdigest()
    sha256 = hashlib.sha256(b"alice:farm:secret").hexdigest()
    assert MADE.splitlines() == [f"alice:farm:{md5}", f"alice:farm:{sha256}"]
    users = htdigest.users_of(f"# who may come in\n\n{MADE}bob:other:{md5}\n", "farm")
    assert users.realm == "farm"
    assert users.secrets == {"alice": {"md5": md5, "sha256": sha256}}
    assert users.hash_names == {"md5", "sha256"}
    assert htdigest.is_password(users, "alice", "secret")
    assert not htdigest.is_password(users, "alice", "Secret")
    assert not htdigest.is_password(users, "bob", "secret")


def test_users_come_and_go() -> None:
    text = htdigest.with_user(MADE, "other", "alice", "1")
    text = htdigest.with_user(text, "farm", "bob", "2")
    text = htdigest.with_user(text, "farm", "alice", "3")
    assert htdigest.is_password(htdigest.users_of(text, "farm"), "alice", "3")
    assert len(htdigest.parse_lines(text)) == 6
    text = htdigest.without_user(text, "farm", "alice")
    assert [line[:2] for line in htdigest.parse_lines(text)] == [
        *[("alice", "other")] * 2,
        *[("bob", "farm")] * 2,
    ]
    with pytest.raises(htdigest.PasswordFileError, match="no user alice in farm"):
        htdigest.without_user(text, "farm", "alice")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("alice:farm\n", "line 1 is not user:realm:HA1"),
        ("\n:farm:" + "0" * 32, "line 2 is not user"),
        ("alice:farm:" + "0" * 31, "line 1: HA1 must have"),
        ("alice:farm:" + "g" * 32, "line 1: HA1 must have"),
        ("alice:farm:" + "0" * 32 + "\nalice:farm:" + "1" * 32, "two md5 lines for alice"),
        ("#" * (htdigest.FILE_BYTES_MAX + 1), "characters"),
    ],
)
def test_password_files_that_are_none(text: str, error: str) -> None:
    with pytest.raises(htdigest.PasswordFileError, match=error):
        htdigest.users_of(text, "farm")


@pytest.mark.parametrize("name", ["", "a:b", " a", "#a", "a\nb", "a" * 129])
def test_names_that_no_line_holds(name: str) -> None:
    with pytest.raises(htdigest.PasswordFileError, match="is not a valid"):
        htdigest.with_user("", "farm", name, "secret")


# ---- the authenticator ----

PATH = "/GarlicFarm/farm/1/websocket"
USERS = htdigest.users_of(MADE, "farm")


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


@pytest.mark.parametrize(
    "changed",
    [
        {"username": "mallory"},
        {"realm": "other"},
        {"opaque": "other"},
        {"algorithm": "SHA-256-sess"},
        {"algorithm": "SHA-512-256"},
    ],
)
def test_refusals(changed: dict[str, str]) -> None:
    cluster = DigestPair()
    assert cluster.verify(cluster.header(**changed)) == REFUSED


def test_what_was_signed_counts() -> None:
    cluster = DigestPair()
    fields = cluster.header()
    assert cluster.verify(cluster.signed(fields, "wrong")) == REFUSED
    for name in ("cnonce", "nc"):
        assert cluster.verify(fields | {name: "00000009"}) == REFUSED
    assert cluster.verify(fields | {"response": "é"}) == REFUSED
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
