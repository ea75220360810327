"""`supervisor systemd-unit`."""

import shlex
import shutil
import subprocess
from configparser import ConfigParser
from pathlib import Path

import pytest
from click.testing import CliRunner

from kelek.console.admin import supervisor_cli
from kelek.console.admin.systemd import quoted

TOPOLOGY = """\
cluster: orders
nodes:
  n1: {url: 'ipc:///tmp/a', peer_url: 'ipc:///tmp/ap'}
  n2: {url: 'ipc:///tmp/b', peer_url: 'ipc:///tmp/bp'}
"""


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    """The unit of a node, in a folder whose name systemd must not split or expand."""
    folder = tmp_path / "it's 100% mine"
    folder.mkdir()
    (folder / "topology.yaml").write_text(TOPOLOGY)
    words = ["systemd-unit", str(folder / "topology.yaml"), "--node", "n1", "--user", "root"]
    done = CliRunner().invoke(supervisor_cli.main, words)
    assert done.exit_code == 0, done.output
    path = tmp_path / "kelek-orders-n1.service"
    path.write_text(done.stdout)
    return path


def test_the_unit_runs_these_nodes_and_reports_to_systemd(unit: Path) -> None:
    text = unit.read_text()
    parser = ConfigParser(interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(text)
    service = parser["Service"]
    assert (service["Type"], service["NotifyAccess"]) == ("notify", "main")
    assert int(service["WatchdogSec"]) >= 10
    words = shlex.split(service["ExecStart"].replace("%%", "%").replace("$$", "$"))
    assert Path(words[0]).is_absolute()
    assert words[-3:] == ["start", f"{unit.parent}/it's 100% mine/topology.yaml", "--node=n1"]
    assert service["ExecReload"].startswith(service["ExecStart"].partition(" start ")[0])
    assert service["WorkingDirectory"].endswith("/it's 100%% mine")
    assert "kelek n1 of cluster orders" in parser["Unit"]["Description"]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not here")
def test_systemd_accepts_the_unit(unit: Path) -> None:
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    problems = [line for line in done.stderr.splitlines() if unit.name in line]
    assert not problems, done.stderr


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("/usr/bin/supervisor", "/usr/bin/supervisor"),
        ("/a b", '"/a b"'),
        ("/50%", "/50%%"),
        ("/$x", "/$$x"),
        ('/"', '"/\\""'),
    ],
)
def test_words_are_quoted_for_systemd(word: str, expected: str) -> None:
    assert quoted(word) == expected
