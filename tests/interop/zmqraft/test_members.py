"""Members that come and go while the cluster works: real processes, raw ConfigUpdates."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from click.testing import CliRunner, Result

from kelek import Log
from kelek.bench.ports import free_port
from kelek.clients.errors import MembersRefused
from kelek.console.kelek_cli import main
from kelek.protocols.zmqraft.wire.config_codec import (
    CONFIG_UPDATE_ANSWER,
    ConfigStatus,
    ConfigUpdateAnswer,
)
from kelek.protocols.zmqraft.wire.values import encode_members
from kelek.tests.interop.conftest import COMMAND, STOP_S, InteropCluster, new_folder
from kelek.tests.interop.zmqraft.plain import DEADLINE_S, Dealer, reqid

IDENT = b"interop"
OURS = {"n1": "kelek", "n2": "kelek", "n3": "kelek"}


class Joiner:
    """One more node with a topology and a supervisor of its own; the others do not know of it."""

    def __init__(self, cluster: InteropCluster, name: str) -> None:
        self.folder = new_folder()
        self.name = name
        self.url, peer_url = (f"tcp://127.0.0.1:{free_port()}" for _ in range(2))
        path = self.folder / "topology.yaml"
        text = cluster.path.read_text().replace(str(cluster.folder), str(self.folder))
        path.write_text(f"{text}  {name}: {{url: '{self.url}', peer_url: '{peer_url}'}}\n")
        self.process = subprocess.Popen(
            [sys.executable, "-c", COMMAND, "start", str(path), "--node", name],
            env={**os.environ, "XDG_RUNTIME_DIR": str(self.folder)},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )

    def wait_ready(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(b"all-ready"):
                return
        raise AssertionError("it did not start")

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.communicate(timeout=STOP_S)
        shutil.rmtree(self.folder)


@pytest.fixture
def alone() -> Iterator[InteropCluster]:
    """A cluster for one test, that may change it."""
    cluster = InteropCluster(new_folder(), OURS)
    try:
        with cluster.client() as client:
            client.update(b"the cluster is up")
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(cluster.folder)


def change(cluster: InteropCluster, members: dict[str, str]) -> ConfigUpdateAnswer:
    """Asks one peer after the other until one of them leads; returns its last word."""
    request = reqid()
    until = time.monotonic() + DEADLINE_S
    with cluster.client() as client:
        while time.monotonic() < until:
            for peer in client.peers.values():
                peer.send(request, b"&", IDENT, encode_members(tuple(members.items())))
                answer = last_word(peer)
                if answer.status not in (ConfigStatus.NOT_LEADER, ConfigStatus.BUSY):
                    return answer
    raise AssertionError("nobody leads")


def leader_of(cluster: InteropCluster) -> str:
    with cluster.client() as client:
        client.find_leader()
        return client.leader


def last_word(peer: Dealer) -> ConfigUpdateAnswer:
    while True:
        frames = peer.receive()
        answer = CONFIG_UPDATE_ANSWER.decode(frames)
        if answer.status is not ConfigStatus.ACCEPTED or answer.log_index is not None:
            return answer


def test_a_fourth_node_joins_under_load_and_leaves_again(alone: InteropCluster) -> None:
    joiner = Joiner(alone, "n4")
    try:
        joiner.wait_ready()
        with Log(list(alone.urls.values()), "interop") as log:
            assert log.append_many(b"before %d" % number for number in range(3000)) == 3000
            answer = change(alone, {**alone.urls, "n4": joiner.url})
            assert answer.status is ConfigStatus.ACCEPTED
            assert log.append_many(b"with %d" % number for number in range(3000)) == 3000
            leader = leader_of(alone)
            assert change(alone, alone.urls).status is ConfigStatus.ACCEPTED
            assert log.append_many(b"after %d" % number for number in range(3000)) == 3000
            assert leader_of(alone) == leader, "the leader is the same"
    finally:
        joiner.stop()


def test_members_from_a_shell_and_a_program(alone: InteropCluster) -> None:
    joiner = Joiner(alone, "n4")
    try:
        joiner.wait_ready()
        joined = shell(alone, "add", "n4", joiner.url)
        assert joined.exit_code == 0, joined.output
        assert json.loads(joined.stdout)["index"] > 0
        with Log(joiner.url, "interop") as log:  # It knows the others.
            assert log.members() == {**alone.urls, "n4": joiner.url}
            with pytest.raises(MembersRefused, match="n4 is a member already"):
                log.add_member("n4", "tcp://127.0.0.1:1")
            with pytest.raises(MembersRefused, match="nobody is no member"):
                log.remove_member("nobody")
            listed = json.loads(shell(alone, "list").stdout)
            assert listed == {"leader": log.config().leader, "members": log.members()}
        drift = f"drift n4 at {joiner.url} is a member, but not in the topology (n1, n2, n3)"
        for command in ("status", "check"):
            until = time.monotonic() + DEADLINE_S  # Nodes report now and then.
            while drift not in " ".join((said := supervisor(alone, command)).split()):
                assert time.monotonic() < until, said
        again = shell(alone, "add", "n4", joiner.url)
        assert (again.exit_code, again.stdout) == (1, "")
        assert "n4 at" in again.stderr
        assert "is a member already" in again.stderr
        gone = shell(alone, "remove", "n4")
        assert gone.exit_code == 0, gone.output
        with alone.client() as client:
            assert json.loads(shell(alone, "list").stdout)["members"] == alone.urls
            client.update(b"and goes on")
    finally:
        joiner.stop()


def supervisor(cluster: InteropCluster, command: str) -> str:
    """What supervisor status or check says of the cluster."""
    words = [sys.executable, "-c", COMMAND, command, str(cluster.path)]
    done = subprocess.run(
        words, env=cluster.environment, capture_output=True, text=True, check=True
    )
    return done.stdout


def shell(cluster: InteropCluster, *words: str) -> Result:
    """kelek log members ... -o json"""
    options = ["-t", str(cluster.path), "-o", "json"]
    return CliRunner().invoke(main, ["log", "members", *words, *options], prog_name="kelek")


def test_the_leader_leaves_and_another_one_leads(alone: InteropCluster) -> None:
    with Log(list(alone.urls.values()), "interop") as log:
        log.append(b"before")
        leader = leader_of(alone)
        others = {name: url for name, url in alone.urls.items() if name != leader}
        assert change(alone, others).status is ConfigStatus.ACCEPTED
        assert log.append_many(b"after %d" % number for number in range(100)) == 100
        assert leader_of(alone) in others


@pytest.mark.parametrize(
    ("members", "name"),
    [
        ([], "Empty"),
        ([("n1", "tcp://127.0.0.1:1"), ("n1", "tcp://127.0.0.1:2")], "Doubled"),
        ([("n1", "tcp://127.0.0.1:1"), ("n2", "tcp://127.0.0.1:1")], "Doubled"),
        ([("n1", "somewhere")], "Malformed"),
    ],
)
def test_refused_with_the_reason(
    cluster: InteropCluster, members: list[tuple[str, str]], name: str
) -> None:
    with cluster.client() as client:
        leader = client.find_leader()
        leader.send(reqid(), b"&", IDENT, encode_members(members))
        answer = last_word(leader)
        assert (answer.status, answer.name) == (ConfigStatus.ERROR, name)


def test_a_server_that_does_not_answer_is_not_chosen(cluster: InteropCluster) -> None:
    absent = {**cluster.urls, "n9": f"tcp://127.0.0.1:{free_port()}"}
    answer = change(cluster, absent)
    assert (answer.status, answer.name) == (ConfigStatus.ERROR, "Unreachable")
    assert "n9" in answer.message
