"""Files with passwords of farms: errors name the file and the way out."""

from pathlib import Path

import pytest

from kelek.actors.errors import OperatorError
from kelek.actors.farm.users import SECRET_BYTES_MAX, FarmUsers, SecretFile
from kelek.protocols.garlicfarm.wire.htdigest import with_user

LOCATION = "t.yaml:3:4: nodes.n1.farm.secret_file"


def private(path: Path, data: bytes) -> str:
    path.touch(0o600)
    path.write_bytes(data)
    return str(path)


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", "is empty; write the password into it"),
        (b"\r\n", "is empty"),
        (b"\xff", "is not UTF-8"),
        (b"x" * (SECRET_BYTES_MAX + 1), "has more than 4096 bytes; replace it"),
    ],
)
def test_an_invalid_secret_is_refused(tmp_path: Path, data: bytes, error: str) -> None:
    path = private(tmp_path / "secret", data)
    with pytest.raises(OperatorError, match=f"^{LOCATION}: {path} {error}"):
        SecretFile(path, LOCATION)


def test_a_missing_secret_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match="No such file or directory; correct the path"):
        SecretFile(str(tmp_path / "secret"), LOCATION)


def test_a_secret_without_its_line_end_is_the_password(tmp_path: Path) -> None:
    secret = SecretFile(private(tmp_path / "secret", b"pass word\r\n"), LOCATION)
    assert secret.text == "pass word"
    assert not secret.reload(0), "the file has not changed"
    private(tmp_path / "secret", b"another one")
    assert not secret.reload(999), "the file is checked once a second"
    assert secret.reload(1000)
    assert secret.text == "another one"


def test_an_invalid_line_of_the_password_file_is_refused(tmp_path: Path) -> None:
    path = private(tmp_path / "passwords", b"no colons\n")
    with pytest.raises(OperatorError, match="correct the line"):
        FarmUsers(path, LOCATION, {"farm": None})  # type: ignore[dict-item]
    private(tmp_path / "passwords", with_user("", "other", "alice", "secret").encode())
    with pytest.raises(OperatorError, match="has no user of the farm farm; kelek farm user add"):
        FarmUsers(path, LOCATION, {"farm": None})  # type: ignore[dict-item]
