"""The files of CURVE keys: the format that czmq and pyzmq read and write."""

import contextlib
from pathlib import Path

import pytest
import zmq
import zmq.auth
from hypothesis import given
from hypothesis import strategies as st
from zmq.utils import z85

from kelek.protocols.access.certificates import (
    FILE_BYTES_MAX,
    Certificate,
    CertificateError,
    check_name,
    decode_key,
    encode_key,
    format_certificate,
    parse_certificate,
)

KEY = bytes(range(32))
TEXT = encode_key(KEY)


@given(st.binary(min_size=32, max_size=32))
def test_keys_are_the_z85_of_pyzmq(key: bytes) -> None:
    assert encode_key(key).encode() == z85.encode(key)
    assert decode_key(encode_key(key)) == key


@pytest.mark.parametrize("text", ["", TEXT[:-1], TEXT + "0", TEXT[:-1] + "~", "#" * 40, "é" * 40])
def test_text_that_is_no_key(text: str) -> None:
    with pytest.raises(CertificateError, match="40 characters"):
        decode_key(text)


names = st.text("abcXYZ019._@-", min_size=1, max_size=20).map(lambda rest: f"k{rest}")
values = st.text(st.characters(codec="utf-8", exclude_characters='"')).filter(str.isprintable)


@given(st.binary(min_size=32, max_size=32), st.sampled_from([b"", KEY[::-1]]), names, values)
def test_a_certificate_survives_its_file(
    public: bytes, secret: bytes, name: str, grants: str
) -> None:
    certificate = Certificate(public, secret, {"name": name, "grants": grants})
    assert parse_certificate(format_certificate(certificate)) == certificate


def test_pyzmq_reads_our_files_and_we_read_its_files(tmp_path: Path) -> None:
    public, secret = zmq.curve_keypair()
    ours = Certificate(z85.decode(public), z85.decode(secret), {"name": "n1"})
    path = tmp_path / "ours.key_secret"
    path.write_text(format_certificate(ours))
    assert zmq.auth.load_certificate(path) == (public, secret)

    _, theirs = zmq.auth.create_certificates(tmp_path, "theirs", {"name": "n2"})
    public, theirs_secret = zmq.auth.load_certificate(theirs)
    assert theirs_secret is not None
    found = parse_certificate((tmp_path / "theirs.key_secret").read_text())
    assert (found.name, found.public_key, found.secret_key) == (
        "n2",
        z85.decode(public),
        z85.decode(theirs_secret),
    )


GOOD = f'metadata\n    name = "n1"\ncurve\n    public-key = "{TEXT}"\n'


@pytest.mark.parametrize(
    "text",
    [
        GOOD,
        f"# a comment\n\n{GOOD}",
        GOOD.replace('"', "'"),
        GOOD.replace('"n1"', "n1  # the first node"),
        GOOD + "other\n    whatever\n",
        GOOD.replace("    ", "\t"),
    ],
)
def test_forms_of_a_file(text: str) -> None:
    assert parse_certificate(text) == Certificate(KEY, b"", {"name": "n1"})


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "no public-key"),
        ("metadata\n    name = n1\n", "no public-key"),
        (GOOD.replace("    name", "    name n1"), 'line 2: expected name = "value"'),
        (GOOD.replace('"n1"', '"n1'), 'line 2: expected name = "value"'),
        (GOOD + f'    public-key = "{TEXT}"\n', "line 5: public-key stands twice"),
        (GOOD.replace("n1", "-n1"), "a key's name has"),
        (GOOD.replace("name", "role"), "a key's name has"),
        (GOOD.replace(TEXT, TEXT[1:]), "40 characters"),
        (GOOD + "    secret-key = short\n", "40 characters"),
        ("#" * (FILE_BYTES_MAX + 1), "at most"),
    ],
)
def test_malformed_files(text: str, problem: str) -> None:
    with pytest.raises(CertificateError, match=problem):
        parse_certificate(text)


@given(st.text())
def test_any_text_is_a_certificate_or_an_error(text: str) -> None:
    with contextlib.suppress(CertificateError):
        parse_certificate(text)


def test_a_secret_key_stays_out_of_texts() -> None:
    certificate = Certificate(KEY, b"s" * 32, {"name": "n1"})
    for shown in (f"{certificate}", f"{certificate!r}", f"{[certificate]}"):
        assert "ssss" not in shown
        assert encode_key(b"s" * 32) not in shown
    broken = format_certificate(certificate).replace("secret-key = ", "secret-key = \x00")
    with pytest.raises(CertificateError) as error:
        parse_certificate(broken)
    assert encode_key(b"s" * 32)[:8] not in str(error.value)


@pytest.mark.parametrize("value", ['a"b', "a\nb", "\x00"])
def test_values_that_a_file_cannot_hold(value: str) -> None:
    with pytest.raises(CertificateError, match="can't stand"):
        format_certificate(Certificate(KEY, b"", {"name": "n1", "grants": value}))


@pytest.mark.parametrize("name", ["", "a b", "a/b", ".a", "x" * 129, "é"])
def test_names_that_no_key_can_have(name: str) -> None:
    with pytest.raises(CertificateError):
        check_name(name)
