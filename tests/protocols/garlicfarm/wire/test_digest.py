"""HTTP Digest: published examples and headers."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kelek.protocols.errors import RemoteProtocolError
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
