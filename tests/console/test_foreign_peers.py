"""What is said at peers of another make, which know node's form alone and drop all that is ours."""

import threading
import time
from collections.abc import Iterator

import pytest
import zmq
from click.testing import CliRunner

import kelek
from kelek.console.kelek_cli import main
from kelek.protocols.zmqraft.wire.client_codec import CONFIG_ANSWER, ConfigAnswer
from kelek.protocols.zmqraft.wire.values import REQUEST_CONFIG

IDENT = b"foreign"
POLL_MS = 50


def serve(socket: zmq.Socket[bytes], ended: threading.Event) -> None:
    """Answers RequestConfig in node's form, as the only member and leader, and nothing else."""
    url = socket.getsockopt_string(zmq.LAST_ENDPOINT)
    while not ended.is_set():
        if not socket.poll(POLL_MS):
            continue
        routing_id, reqid, *rest = socket.recv_multipart()
        if rest[:2] == [REQUEST_CONFIG, IDENT]:
            answer = ConfigAnswer(True, "f1", (("f1", url),))
            socket.send_multipart([routing_id, *CONFIG_ANSWER.encode(answer, reqid)])


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as socket:
        socket.linger = 0
        socket.bind("tcp://127.0.0.1:*")
        ended = threading.Event()
        thread = threading.Thread(target=serve, args=(socket, ended))
        thread.start()
        yield socket.getsockopt_string(zmq.LAST_ENDPOINT)
        ended.set()
        thread.join()


def test_a_snapshot_is_refused_at_once(url: str) -> None:
    with kelek.Log([url], IDENT.decode(), timeout_ms=30_000) as log:
        begun = time.monotonic()
        for where in (url, None):
            with pytest.raises(kelek.SnapshotRefused, match="it is no kelek"):
                log.make_snapshot(where)
        assert time.monotonic() - begun < 10


def test_the_command_names_peers_that_make_no_snapshot(url: str) -> None:
    words = ["log", "snapshot", "--url", url, "--cluster", IDENT.decode(), "--timeout", "30"]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 1
    assert "it is no kelek" in done.stdout
    assert "no node is kelek" in done.stderr


def test_a_client_in_text_form_learns_that_the_peer_uses_node_form(url: str) -> None:
    with (
        kelek.Log([url], IDENT.decode(), timeout_ms=1500, form="text") as log,
        pytest.raises(kelek.LogNoLeader, match=r"answers in node form only: leave out form='text'"),
    ):
        log.append(b"never sent")
