"""Clusters in processes of their own, for clients and peers that know only the wire."""

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from kelek.bench.ports import free_port
from kelek.console.admin import supervisor_client as asking
from kelek.console.cli_errors import CliError
from kelek.tests.interop.zmqraft import node_package
from kelek.tests.interop.zmqraft.plain import PlainLogClient

COMMAND = "from kelek.console.admin.supervisor_cli import main; main()"
STOP_S = 60.0
LOOK_S = 0.05
ASKED_MAX = 10


class InteropCluster:
    """A topology and its supervisor."""

    def __init__(
        self,
        folder: Path,
        dialects: dict[str, str],
        *options: str,
        log: str = "",
        zerodb: str = "",
        endpoints: dict[str, dict[str, str]] | None = None,  # Of ZeroDB, by node.
        election_timeout_ms: tuple[int, int] = (600, 1000),  # Calm on a busy machine.
    ) -> None:
        self.folder = folder
        self.urls = {name: f"tcp://127.0.0.1:{free_port()}" for name in dialects}
        self.peer_urls = {name: f"tcp://127.0.0.1:{free_port()}" for name in dialects}
        self.broadcast_urls = {name: f"tcp://127.0.0.1:{free_port()}" for name in dialects}
        self.path = folder / "topology.yaml"
        nodes = ""
        for name, dialect in dialects.items():
            nodes += f"  {name}: {{url: '{self.urls[name]}'"
            if dialect == "kelek":
                nodes += f", peer_url: '{self.peer_urls[name]}'"
                nodes += f", broadcast_url: '{self.broadcast_urls[name]}'"
                if endpoints is not None:
                    nodes += f", zerodb: {json.dumps(endpoints[name])}"  # JSON is YAML.
                nodes += "}\n"
            else:
                nodes += f", dialect: {dialect}}}\n"
        self.path.write_text(
            f"cluster: interop\ndata: {folder}/data\n"
            f"raft: {{election_timeout_ms: {list(election_timeout_ms)}}}\n"
            f"log: {{{log}}}\n{zerodb and f'zerodb: {{{zerodb}}}'}\n"
            f"nodes:\n{nodes}"
        )
        self.environment = {**os.environ, "XDG_RUNTIME_DIR": str(folder)}
        self.start(*options)

    def start(self, *options: str) -> None:
        """Starts the supervisor; again after stop()."""
        self.errors = (self.folder / "stderr").open("ab")
        self.process = subprocess.Popen(
            [sys.executable, "-c", COMMAND, "start", str(self.path), *options],
            env=self.environment,
            stdout=subprocess.DEVNULL,
            stderr=self.errors,
        )

    def status(self) -> list[dict[str, Any]]:
        """The rows of `supervisor status`, without a process for each question."""
        select.select([], [], [], LOOK_S)  # Who asks again leaves the others the processor.
        for _ in range(ASKED_MAX):
            with (
                mock.patch.dict(os.environ, self.environment),
                contextlib.suppress(CliError),  # A busy machine may hold up any supervisor.
            ):
                return asking.rows_of(str(self.path))
        raise AssertionError("the supervisor does not answer")

    def pid(self, node: str, role: str = "raft_peer") -> int:
        return next(int(r["pid"]) for r in self.status() if (r["node"], r["role"]) == (node, role))

    def client(self, ident: bytes | None = None) -> PlainLogClient:
        return PlainLogClient(self.urls, ident)

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(STOP_S)
        self.errors.close()
        assert code == 0, (self.folder / "stderr").read_text()


def new_folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="k", dir="/tmp"))


@pytest.fixture(scope="session")
def cluster() -> Iterator[InteropCluster]:
    """Three nodes of ours, one for all tests of this folder: no test may leave it changed."""
    folder = new_folder()
    dialects = {"n1": "kelek", "n2": "kelek", "n3": "kelek"}
    cluster = InteropCluster(
        folder, dialects, log="writer: process"
    )  # As many pipes as there can be.
    try:
        with cluster.client() as client:
            client.update(b"the cluster is up")
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(folder)


@pytest.fixture(scope="session")
def node_home() -> Path:
    """Where the npm package is installed."""
    try:
        return node_package.home()
    except node_package.PackageMissing as reason:
        pytest.skip(str(reason))


@pytest.fixture
def mixed() -> Iterator[Callable[[], InteropCluster]]:
    """Starts one node of ours; n2 and n3 are the test's own."""
    started: list[InteropCluster] = []

    def start() -> InteropCluster:
        dialects = {"n1": "kelek", "n2": "text", "n3": "text"}
        started.append(InteropCluster(new_folder(), dialects, "--bootstrap"))
        return started[-1]

    yield start
    for cluster in started:
        cluster.stop()
        shutil.rmtree(cluster.folder)
