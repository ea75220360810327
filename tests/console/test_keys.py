"""`kelek keys`: key files, and the directory of allowed keys."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import zmq.auth

from kelek.protocols.access.certificates import encode_key, parse_certificate
from kelek.tests.console.kelek_runner import fails, ok, run


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def rows(*words: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in ok("keys", *words, "-o", "json").splitlines()]


def test_a_new_key_is_two_files_that_pyzmq_reads(folder: Path) -> None:
    (made,) = rows("new", "n1")
    assert made["public"] == "keys/n1.key"
    assert made["secret"] == "keys/n1.key_secret"
    public, secret = zmq.auth.load_certificate(made["secret"])
    assert public.decode() == made["key"]
    assert secret is not None
    assert zmq.auth.load_certificate(made["public"]) == (public, None)
    assert os.stat(made["secret"]).st_mode & 0o777 == 0o600
    assert os.stat("keys").st_mode & 0o777 == 0o700
    shown = ok("keys", "show", made["secret"])
    assert made["key"] in shown
    assert secret.decode() not in shown


def test_a_key_is_never_overwritten(folder: Path) -> None:
    (made,) = rows("new", "n1")
    code, line = fails("keys", "new", "n1")
    assert code == 2
    assert "keys/n1.key: already exists" in line
    assert rows("show", "keys/n1.key")[0]["key"] == made["key"]


def test_allowed_keys_are_listed_with_their_grants(folder: Path) -> None:
    for name, grants in (("ann", ["log.read"]), ("bob", ["tables:7-9:rw", "services:mail.*"])):
        ok("keys", "new", name)
        words = [word for grant in grants for word in ("--grant", grant)]
        assert name in ok("keys", "allow", "allow", f"keys/{name}.key", *words)
    found = rows("list", "allow")
    assert [(row["name"], row["grants"]) for row in found] == [
        ("ann", "log.read"),
        ("bob", "tables:7-9:rw services:mail.*"),
    ]
    lines = ok("keys", "list", "allow").splitlines()
    assert lines[0].split() == ["name", "key", "grants", "since"]
    assert "tables:7-9:rw" in lines[2]
    assert max(map(len, lines)) <= 80


def test_allowing_a_key_again_changes_its_grants(folder: Path) -> None:
    ok("keys", "new", "ann")
    for grant in ("log.read", "log.append"):
        ok("keys", "allow", "allow", "keys/ann.key", "--grant", grant)
    assert [row["grants"] for row in rows("list", "allow")] == ["log.append"]
    assert os.listdir("allow") == ["ann.key"]


def test_the_secret_key_stays_out_of_the_directory(folder: Path) -> None:
    ok("keys", "new", "ann")
    ok("keys", "allow", "allow", "keys/ann.key_secret", "--grant", "log.read")
    assert "secret" not in (folder / "allow/ann.key").read_text()


def test_a_rotated_key_has_the_grants_of_the_old_one(folder: Path) -> None:
    (old,) = rows("new", "ann")
    ok("keys", "allow", "allow", "keys/ann.key", "--grant", "log.read")
    (made,) = rows("rotate", "allow", "keys/ann.key_secret")
    assert made["old"] == old["key"] != made["key"]
    found = {row["key"]: (row["name"], row["grants"]) for row in rows("list", "allow")}
    assert found == dict.fromkeys((old["key"], made["key"]), ("ann", "log.read"))
    secret = parse_certificate((folder / "keys/ann.key_secret").read_text())
    assert encode_key(secret.public_key) == made["key"]
    assert secret.secret_key

    assert old["key"] in ok("keys", "revoke", "allow", old["key"])
    assert [row["key"] for row in rows("list", "allow")] == [made["key"]]


def test_a_name_is_revoked_with_all_its_keys(folder: Path) -> None:
    rows("new", "ann")
    ok("keys", "allow", "allow", "keys/ann.key", "--grant", "log.read")
    ok("keys", "rotate", "allow", "keys/ann.key_secret")
    (done,) = rows("revoke", "allow", "ann")
    assert len(done["revoked"]) == 2
    assert os.listdir("allow") == []


@pytest.mark.parametrize(
    ("words", "code", "line"),
    [
        ("new a/b", 2, "a key's name has 1 to 128"),
        ("show missing.key", 2, "missing.key: No such file"),
        ("show text.key", 2, "text.key: it has no public-key"),
        ("show bytes.key", 2, "bytes.key: not a key: it is not UTF-8"),
        ("show open.key_secret", 2, "others can read open.key_secret (mode 0644); chmod 600"),
        ("list missing", 2, "missing: No such file"),
        ("allow allow keys/ann.key --grant boss", 2, "--grant: boss: no such grant; use log.read"),
        ("revoke allow bob", 1, "allow: no key bob; it has no keys"),
        ("rotate allow keys/ann.key", 2, "give the file NAME.key_secret"),
        ("rotate allow keys/ann.key_secret", 1, "it does not allow the key of"),
    ],
)
def test_what_can_go_wrong(folder: Path, words: str, code: int, line: str) -> None:
    ok("keys", "new", "ann")
    (folder / "allow").mkdir()
    (folder / "text.key").write_text("hello\n")
    (folder / "bytes.key").write_bytes(b"\xff\xfe")
    (folder / "open.key_secret").write_text("hello\n")
    (folder / "open.key_secret").chmod(0o644)
    found_code, found_line = fails("keys", *words.split())
    assert (found_code, line in found_line) == (code, True), found_line


def test_allow_needs_a_grant(folder: Path) -> None:
    ok("keys", "new", "ann")
    done = run("keys", "allow", "allow", "keys/ann.key")
    assert done.exit_code == 2
    assert "--grant" in done.stderr
