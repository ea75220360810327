"""The two files of a router: reading, writing and errors."""

import json
import os
import re
from pathlib import Path

import pytest

from kelek.actors.farm.router import RouterFiles
from kelek.protocols.garlicfarm.app.documents import DOCUMENT_BYTES_MAX, encode_status
from kelek.protocols.garlicfarm.app.router import Publication, RouterStatus
from kelek.protocols.garlicfarm.app.state import Leaf, SharedState

LEAF = Leaf(2, "h", {"destination": "d", "uptime": 5})
PUBLISHED = {"server": 2, "hash": "h", "destination": {"destination": "d", "uptime": 5}}


def test_the_status_file_of_the_router(tmp_path: Path) -> None:
    """Values for all farms and for one; other keys are ignored."""
    file = tmp_path / "router.json"
    router = RouterFiles(str(file), "")
    document = {
        "router": {"uptime": 5},
        "destinations": [],
        "more": 1,
        "farms": {"farm": {"destinations": [{"destination": "a"}]}},
    }
    file.write_text(json.dumps(document))
    expected = {"router": {"uptime": 5}, "destinations": [{"destination": "a"}]}
    assert router.status("farm") == RouterStatus(expected)
    file.write_text(json.dumps({**document, "router": {"uptime": 6}}))
    assert router.status("other") == RouterStatus({"router": {"uptime": 6}, "destinations": []})


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (None, "No such file"),
        (b"", "not a document"),
        (b"[]", "not a document"),
        (b'{"router":', "JSON"),
        (b'{"farms":[]}', "farms"),
        (b'{"farms":{"farm":1}}', "farm"),
        (b" " * DOCUMENT_BYTES_MAX + b"{}", "not a document"),
    ],
    ids=range(7),
)
def test_an_invalid_status_file_is_reported(tmp_path: Path, data: bytes | None, error: str) -> None:
    file = tmp_path / "router.json"
    if data is not None:
        file.write_bytes(data)
    status = RouterFiles(str(file), "").status("farm")
    assert status.document == {}
    assert str(file) in status.error
    assert error in status.error


@pytest.mark.parametrize("kind", ["pipe", "folder"])
def test_a_path_that_is_no_file_is_reported(tmp_path: Path, kind: str) -> None:
    """A pipe without a writer does not block."""
    file = tmp_path / "router.json"
    if kind == "pipe":
        os.mkfifo(file)
    else:
        file.mkdir()
    status = RouterFiles(str(file), str(file)).status("farm")
    assert status.document == {}
    assert str(file) in status.error


def test_the_publish_file_has_an_entry_for_each_farm(tmp_path: Path) -> None:
    """Each farm has its entry; an entry from before the start stays until the farm changes it."""
    file = tmp_path / "publish.json"
    files = RouterFiles("", str(file))
    files.publish("one", None)
    assert json.loads(file.read_text()) == {}
    files.publish("one", Publication(7, (LEAF,)))
    files.publish("two", Publication(0, ()))
    both = {"one": {"order": 7, "contents": [PUBLISHED]}, "two": {"order": 0, "contents": []}}
    assert json.loads(file.read_text()) == both
    RouterFiles("", str(file)).publish("two", None)
    assert json.loads(file.read_text()) == {"one": both["one"]}
    assert [each.name for each in tmp_path.iterdir()] == ["publish.json"]


def test_a_publish_file_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    """A later attempt writes it."""
    folder = tmp_path / "folder"
    router = RouterFiles("", str(folder / "publish.json"))
    router.publish("farm", None)
    assert "No such file" in router.status("farm").error
    folder.mkdir()
    router.publish("farm", Publication(0, ()))
    assert router.status("farm") == RouterStatus({})


def test_the_examples_of_the_documentation_are_valid(tmp_path: Path) -> None:
    """docs/guides/farm.md."""
    text = (Path(__file__).resolve().parents[3] / "docs/guides/farm.md").read_text(encoding="utf-8")
    status_file, publish_file = re.findall(r"```json\n(.*?)```", text, re.S)
    (tmp_path / "router.json").write_text(status_file)
    files = RouterFiles(str(tmp_path / "router.json"), str(tmp_path / "publish.json"))
    status = files.status("farm")
    assert status == RouterStatus(json.loads(status_file))
    state = SharedState("farm")
    state.apply(1, encode_status({"cluster": "farm", "date": 1, "id": 1, **status.document}))
    files.publish("farm", Publication(0, tuple(state.contents([1]))))
    assert json.loads((tmp_path / "publish.json").read_text()) == json.loads(publish_file)


def test_a_farm_without_files_has_an_empty_status() -> None:
    router = RouterFiles("", "")
    router.publish("farm", Publication(0, ()))
    router.publish("farm", None)
    assert router.status("farm") == RouterStatus({})
