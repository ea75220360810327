"""The end of a certificate's validity, beside the library that made it."""

from base64 import b64encode
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest
import trustme
from hypothesis import given
from hypothesis import strategies as st

from kelek.protocols.errors import RemoteProtocolError
from kelek.protocols.garlicfarm.wire.validity import expires_ms

AUTHORITY = trustme.CA()


def pem_of(der: bytes) -> str:
    text = b64encode(der).decode()
    return f"-----BEGIN CERTIFICATE-----\n{text}\n-----END CERTIFICATE-----\n"


@pytest.mark.parametrize("year", [1999, 2026, 2049, 2050, 2126])
def test_the_end_of_a_certificate(year: int) -> None:
    """Years from 2050 on have four digits."""
    end = datetime(year, 2, 3, 4, 5, 6, tzinfo=UTC)
    begin = datetime(1990, 1, 1, tzinfo=UTC)
    leaf = AUTHORITY.issue_cert("localhost", not_before=begin, not_after=end)
    text = leaf.cert_chain_pems[0].bytes().decode()
    assert expires_ms(text) == int(end.timestamp()) * 1000


def test_the_first_end_of_several_counts() -> None:
    ends = [datetime(2030, 1, 1, tzinfo=UTC) + timedelta(days=days) for days in (5, 2, 9)]
    chain = [AUTHORITY.issue_cert("localhost", not_after=end).cert_chain_pems[0] for end in ends]
    text = "".join(f"some text\n{blob.bytes().decode()}" for blob in chain)
    assert expires_ms(text) == int(ends[1].timestamp()) * 1000


@pytest.mark.parametrize("text", ["", "no PEM", pem_of(b""), pem_of(b"0"), "\0"])
def test_what_is_no_certificate(text: str) -> None:
    with pytest.raises(RemoteProtocolError, match="no certificate"):
        expires_ms(text)


END = b"\x17\x0d490203040506Z"
DER = b"0\x290\x27\x02\x01\x010\x000\x000\x1e" + 2 * END


def test_the_least_certificate() -> None:
    assert (
        expires_ms(pem_of(DER)) == int(datetime(2049, 2, 3, 4, 5, 6, tzinfo=UTC).timestamp()) * 1000
    )


@given(st.binary(max_size=80) | st.tuples(st.integers(0, len(DER) - 1), st.integers(0, 255)))
def test_any_bytes_are_refused_or_have_an_end(data: bytes | tuple[int, int]) -> None:
    if isinstance(data, tuple):
        data = DER[: data[0]] + bytes((data[1],)) + DER[data[0] + 1 :]
    with suppress(RemoteProtocolError):
        assert isinstance(expires_ms(pem_of(data)), int)
