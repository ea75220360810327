"""Password files of HTTP Digest."""

import hashlib

import pytest

from kelek.protocols.garlicfarm.wire import htdigest

MADE = htdigest.with_user("", "farm", "alice", "secret")


def test_a_password_file() -> None:
    """Lines of `htdigest`, and the same in SHA-256."""
    md5 = hashlib.md5(b"alice:farm:secret").hexdigest()
    sha256 = hashlib.sha256(b"alice:farm:secret").hexdigest()
    assert MADE.splitlines() == [f"alice:farm:{md5}", f"alice:farm:{sha256}"]
    users = htdigest.users_of(f"# who may come in\n\n{MADE}bob:other:{md5}\n", "farm")
    assert users.realm == "farm"
    assert users.secrets == {"alice": {"md5": md5, "sha256": sha256}}
    assert users.hash_names == {"md5", "sha256"}
    assert htdigest.is_password(users, "alice", "secret")
    assert not htdigest.is_password(users, "alice", "Secret")
    assert not htdigest.is_password(users, "bob", "secret")


def test_users_come_and_go() -> None:
    text = htdigest.with_user(MADE, "other", "alice", "1")
    text = htdigest.with_user(text, "farm", "bob", "2")
    text = htdigest.with_user(text, "farm", "alice", "3")
    assert htdigest.is_password(htdigest.users_of(text, "farm"), "alice", "3")
    assert len(htdigest.parse_lines(text)) == 6
    text = htdigest.without_user(text, "farm", "alice")
    assert [line[:2] for line in htdigest.parse_lines(text)] == [
        *[("alice", "other")] * 2,
        *[("bob", "farm")] * 2,
    ]
    with pytest.raises(htdigest.PasswordFileError, match="no user alice in farm"):
        htdigest.without_user(text, "farm", "alice")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("alice:farm\n", "line 1 is not user:realm:HA1"),
        ("\n:farm:" + "0" * 32, "line 2 is not user"),
        ("alice:farm:" + "0" * 31, "line 1: HA1 must have"),
        ("alice:farm:" + "g" * 32, "line 1: HA1 must have"),
        ("alice:farm:" + "0" * 32 + "\nalice:farm:" + "1" * 32, "two md5 lines for alice"),
        ("#" * (htdigest.FILE_BYTES_MAX + 1), "characters"),
    ],
)
def test_password_files_that_are_none(text: str, error: str) -> None:
    with pytest.raises(htdigest.PasswordFileError, match=error):
        htdigest.users_of(text, "farm")


@pytest.mark.parametrize("name", ["", "a:b", " a", "#a", "a\nb", "a" * 129])
def test_names_that_no_line_holds(name: str) -> None:
    with pytest.raises(htdigest.PasswordFileError, match="is not a valid"):
        htdigest.with_user("", "farm", name, "secret")
