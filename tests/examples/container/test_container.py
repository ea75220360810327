"""examples/container: its files agree, and its commands work outside of containers."""

import json
import re
import select
import shlex
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import yaml

from kelek.bench.ports import free_ports
from kelek.tests.conftest import ROOT, Shell

FOLDER = ROOT / "examples" / "container"
PAGE = ROOT / "docs" / "operations" / "service.md"
DEADLINE_S = 60.0


def load(name: str) -> Any:
    return yaml.safe_load((FOLDER / name).read_text())


def docker_lines() -> dict[str, list[str]]:
    """The instructions of the image's last stage."""
    stage = (FOLDER / "Dockerfile").read_text().rpartition("\nFROM ")[2]
    found: dict[str, list[str]] = {}
    for line in stage.splitlines()[1:]:
        word, _, rest = line.partition(" ")
        found.setdefault(word, []).append(rest)
    return found


def test_services_networks_ports_and_health_checks_agree_with_the_topology() -> None:
    compose, nodes = load("compose.yaml"), load("topology.yaml")["nodes"]
    assert list(compose["services"]) == list(nodes)
    subnet = compose["networks"]["cluster"]["ipam"]["config"][0]["subnet"]
    image = docker_lines()
    for name, service in compose["services"].items():
        node = nodes[name]
        urls = [node["url"], node["peer_url"], node["zerodb"]["url"]]
        address = service["networks"]["cluster"]["ipv4_address"]
        assert address.rpartition(".")[0] == subnet.rpartition(".")[0]
        assert [f"tcp://{address}:{port}" for port in service["expose"]] == urls
        assert service["command"] == ["start", "topology.yaml", "--node", name]
        assert service["healthcheck"]["test"] == [
            "CMD", "supervisor", "status", "topology.yaml", "--node", name
        ]  # fmt: skip
        [volume] = service["volumes"]
        assert volume == f".:{image['WORKDIR'][0]}", "commands find topology.yaml there"
        assert service["image"] in PAGE.read_text()
    assert json.loads(image["ENTRYPOINT"][0]) == ["supervisor"]
    assert "kelek-*.whl" in image["RUN"][0]
    ignored = (FOLDER / "Dockerfile.dockerignore").read_text().split()
    assert not {"csrc", "actors", "pyproject.toml", "build_ext.py"} & {*ignored}


def test_the_commands_of_the_containers_run_three_nodes(tmp_path: Path) -> None:
    """Each service's command as a process, its health check and its end by STOPSIGNAL."""
    text = re.sub(r"\n    zerodb: .*", "", (FOLDER / "topology.yaml").read_text())
    found = sorted({*re.findall(r"10\.77\.0\.\d+:\d+", text)})
    addresses = {
        old: f"127.0.0.1:{port}" for old, port in zip(found, free_ports(len(found)), strict=True)
    }
    run_dir = Path(f"/tmp/kc{tmp_path.stat().st_ino}")
    run_dir.mkdir()
    shell = Shell(tmp_path, run_dir, {})
    for old, new in addresses.items():
        text = text.replace(old, new)
    (tmp_path / "topology.yaml").write_text(text)
    page = PAGE.read_text()
    for line in re.findall(r"^\$ ((?:for|kelek keys) .*)$", page, re.M):
        shell.ok(line)
    services = load("compose.yaml")["services"]
    stop = getattr(signal, docker_lines()["STOPSIGNAL"][0])
    running: list[subprocess.Popen[bytes]] = []
    try:
        for service in services.values():
            running.append(shell.start(shlex.join(["supervisor", *service["command"]])))
        until = time.monotonic() + DEADLINE_S
        for service in services.values():
            check = shlex.join(service["healthcheck"]["test"][1:])
            while (done := shell.run(check)).returncode:
                assert time.monotonic() < until, done.stdout + done.stderr
                select.select([], [], [], 0.2)
        assert shell.ok("kelek log append hello").strip().isdecimal()
        for process in running:
            process.send_signal(stop)
        assert [process.wait(DEADLINE_S) for process in running] == [0, 0, 0]
    finally:
        for process in running:
            process.kill()
            process.communicate()
        shutil.rmtree(run_dir, ignore_errors=True)
