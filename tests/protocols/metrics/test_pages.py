"""The HTTP pages: each request gets one answer, whatever its bytes are."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kelek.protocols.garlicfarm.wire.handshake import HEAD_BYTES_MAX
from kelek.protocols.metrics.pages import Page, PageRequest

PAGES = {"/metrics": lambda: Page(200, b"numbers\n"), "/readyz": lambda: Page(503, b"not ready\n")}


def ask(data: bytes, pieces: int = 1) -> tuple[int, bytes]:
    """(status, body) of the answer to a request in so many pieces."""
    request = PageRequest(PAGES, 0)
    step = -(-len(data) // pieces)
    for at in range(0, len(data), step):
        reply = request.feed(data[at : at + step], 0)
        if reply is not None:
            head, _, body = reply.data.partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 %d " % reply.status)
            assert b"Connection: close" in head
            return reply.status, body
    return 0, b""


@pytest.mark.parametrize("pieces", [1, 7])
@pytest.mark.parametrize(
    ("line", "status", "body"),
    [
        (b"GET /metrics HTTP/1.1", 200, b"numbers\n"),
        (b"GET /metrics?verbose HTTP/1.1", 200, b"numbers\n"),
        (b"GET /metrics HTTP/1.0", 200, b"numbers\n"),
        (b"HEAD /metrics HTTP/1.1", 200, b""),
        (b"GET /readyz HTTP/1.1", 503, b"not ready\n"),
        (b"GET / HTTP/1.1", 404, b"/metrics\n/readyz\n"),
        (b"POST /metrics HTTP/1.1", 405, b"Method Not Allowed\n"),
        (b"what?", 400, b"Bad Request\n"),
    ],
)
def test_answers(line: bytes, status: int, body: bytes, pieces: int) -> None:
    assert ask(line + b"\r\nHost: h\r\n\r\n", pieces) == (status, body)


@pytest.mark.parametrize(
    "junk",
    [
        b"GET /metrics HTTP/1.1\r\nHost: h\r\nX: " + b"x" * HEAD_BYTES_MAX,
        b"GET /metrics HTTP/1.1\r\nHost: h\r\n" + b"X: y\r\n" * 100 + b"\r\n",
        b"x" * HEAD_BYTES_MAX,
    ],
)
def test_long_heads_are_refused(junk: bytes) -> None:
    assert ask(junk)[0] in (400, 431)


def test_a_late_head_is_refused() -> None:
    assert PageRequest(PAGES, 0).on_timeout().status == 408


@given(st.binary(max_size=200), st.integers(1, 20))
def test_junk_never_raises(junk: bytes, pieces: int) -> None:
    for data in (junk, b"GET /metrics HTTP/1.1\r\n" + junk + b"\r\n\r\n"):
        if data:
            ask(data, pieces)
