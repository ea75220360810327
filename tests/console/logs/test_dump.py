"""`supervisor dump`: what the archive has, and that no secret is in it."""

import json
import tarfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from kelek.console.admin import supervisor_cli
from kelek.console.logs import dump
from kelek.console.logs.dump import without_secrets
from kelek.tests.console import kelek_runner

PEM = "-----BEGIN EC PRIVATE KEY-----\nMHcCAQEEIPlantedPem\n-----END EC PRIVATE KEY-----\n"


def secret_of(path: Path) -> str:
    [line] = [line for line in path.read_text().splitlines() if "secret-key" in line]
    return line.split('"')[1]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A node with keys, data and logs. Its secret key, a password and a PEM key are planted."""
    url = f"url: 'ipc://{tmp_path}/n1', peer_url: 'ipc://{tmp_path}/p1'"
    text = f"cluster: c\ndata: data\nsecurity: {{mode: allow}}\nnodes:\n  n1: {{{url}}}\n"
    kelek_runner.ok("keys", "new", "n1", tmp_path / "keys")
    node = tmp_path / "data/n1"
    (node / "logs").mkdir(parents=True)
    secret = secret_of(tmp_path / "keys/n1.key_secret")
    (tmp_path / "topology.yaml").write_text(f"{text}# password: planted-1\n# {secret}\n")
    (node / "logs/raft_peer.log").write_text(
        f"2026-01-01T00:00:01.000Z recovered last=7\nan error with {secret} in it\n{PEM}"
        '2026-01-01T00:00:02.000Z login user=a password="planted-2 x" ok=1\n'
    )
    (node / "logs/n1.key_secret").write_text(f'secret-key = "{secret}"\n')
    (node / "users.password").write_text("a:planted-3\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def dumped(*words: str) -> dict[str, str]:
    """The files of the archive that the command makes."""
    done = CliRunner().invoke(supervisor_cli.main, ["dump", "-o", "made.tar.gz", *words])
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("made.tar.gz: ")
    with tarfile.open("made.tar.gz") as tar:
        return {
            name.partition("/")[2]: file.read().decode()
            for name in tar.getnames()
            if (file := tar.extractfile(name))
        }


def test_no_secret_is_in_the_archive(folder: Path) -> None:
    found = dumped()
    secret = secret_of(folder / "keys/n1.key_secret")
    assert all(text.count(secret) == 0 for text in found.values())
    assert not [text for text in found.values() if "planted" in text or "PlantedPem" in text]
    assert found.keys() == {
        "topology.yaml", "status.json", "versions.json", "machine.json", "n1/files.txt",
        "n1/raft_peer.log",
    }  # fmt: skip
    assert (folder / "made.tar.gz").stat().st_mode & 0o777 == 0o600


@pytest.mark.usefixtures("folder")
def test_what_a_bug_report_needs_is_in_it() -> None:
    found = dumped()
    assert "recovered last=7" in found["n1/raft_peer.log"]
    assert "an error with [removed] in it" in found["n1/raft_peer.log"]
    assert "user=a password=[removed] ok=1" in found["n1/raft_peer.log"]
    assert "cluster: c" in found["topology.yaml"]
    assert json.loads(found["status.json"])["nodes"][0]["state"] == "down"
    assert {each["part"] for each in json.loads(found["versions.json"])} >= {"kelek", "python"}
    assert json.loads(found["machine.json"])["processors"] > 0
    assert any(line.endswith(" logs/n1.key_secret") for line in found["n1/files.txt"].splitlines())


@pytest.mark.usefixtures("folder")
def test_a_large_log_is_cut(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dump, "LOG_BYTES_MAX", 100)
    (folder / "data/n1/logs/broker.log").write_text("".join(f"line {it}\n" for it in range(100)))
    lines = dumped()["n1/broker.log"].splitlines()
    assert lines[-1] == "line 99"
    assert 5 < len(lines) < 20
    assert all(line.startswith("line ") for line in lines)


@pytest.mark.usefixtures("folder")
def test_no_file_is_overwritten() -> None:
    dumped()
    done = CliRunner().invoke(supervisor_cli.main, ["dump", "-o", "made.tar.gz"])
    assert done.exit_code == 2
    assert done.stderr == "supervisor: made.tar.gz: exists; give another file with -o\n"


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ('secret-key = "abc"\n', "secret-key = [removed]\n"),
        ("a PASSWORD: 'x y', b", "a PASSWORD: [removed], b"),
        ('{"api_token": "x", "y": 1}', '{"api_token": [removed], "y": 1}'),
        ("key_file: keys/admin.key_secret", "key_file: keys/admin.key_secret"),
        (" server_key: 'x'", " server_key: 'x'"),
        (PEM, "[removed]\n"),
        (PEM[:50], "[removed]"),
    ],
)
def test_what_looks_like_a_secret_is_removed(text: str, left: str) -> None:
    assert without_secrets(f" {text}", set())[0] == f" {left}"
