"""Password files in the format of `htdigest`: lines of user:realm:HA1.

A user has one line per algorithm. The length of HA1 tells them apart: 32 digits for MD5, 64 for
SHA-256. The caller reads and writes the file.
"""

from collections.abc import Iterable, Mapping
from hmac import compare_digest
from types import MappingProxyType
from typing import NamedTuple

from ...errors import ProtocolError
from .digest import make_ha1

FILE_BYTES_MAX = 1 << 20
NAME_BYTES_MAX = 128
_HASHES = {32: "md5", 64: "sha256"}  # By the number of HA1's digits.
_DIGITS = frozenset("0123456789abcdef")


class PasswordFileError(ProtocolError):
    """A malformed line, or a name that a line cannot hold; names the line."""


class PasswordLine(NamedTuple):
    user: str
    realm: str
    ha1: str

    @property
    def hash_name(self) -> str:
        return _HASHES[len(self.ha1)]


class Users(NamedTuple):
    """The users of one realm: HA1 by hash name, for each user.

    former   replaced passwords that are still accepted
    """

    realm: str
    secrets: Mapping[str, Mapping[str, str]]
    former: Mapping[str, Mapping[str, str]] = MappingProxyType({})

    @property
    def hash_names(self) -> frozenset[str]:
        """The hashes that at least one user has a line for. Only these are offered."""
        return frozenset(name for secrets in self.secrets.values() for name in secrets)


def parse_lines(text: str) -> list[PasswordLine]:
    """Parses a password file; skips empty lines and lines that begin with #.

    Raises PasswordFileError on a malformed line or a file that is too large.
    """
    if len(text) > FILE_BYTES_MAX:
        raise PasswordFileError(f"a password file of {len(text)} characters")
    lines = []
    for number, text_line in enumerate(text.splitlines(), 1):
        stripped = text_line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        parts = stripped.split(":")
        if len(parts) != 3 or not parts[0]:
            raise PasswordFileError(f"line {number} is not user:realm:HA1")
        user, realm, ha1 = parts[0], parts[1], parts[2].lower()
        if len(ha1) not in _HASHES or not _DIGITS.issuperset(ha1):
            raise PasswordFileError(f"line {number}: HA1 must have 32 or 64 hexadecimal digits")
        lines.append(PasswordLine(user, realm, ha1))
    return lines


def users_of(text: str, realm: str) -> Users:
    """The users of one realm. Other realms may share the file.

    Raises PasswordFileError as parse_lines() does, and on two lines for one user and algorithm.
    """
    secrets: dict[str, dict[str, str]] = {}
    for line in parse_lines(text):
        if line.realm != realm:
            continue
        of_user = secrets.setdefault(line.user, {})
        if line.hash_name in of_user:
            raise PasswordFileError(f"two {line.hash_name} lines for {line.user}")
        of_user[line.hash_name] = line.ha1
    return Users(realm, secrets)


def with_user(text: str, realm: str, user: str, password: str) -> str:
    """The file's text with this user's lines added or replaced.

    Raises PasswordFileError on a name that a line cannot hold.
    """
    for name, value in (("user", user), ("realm", realm)):
        is_plain = value.isprintable() and value == value.strip() and ":" not in value
        if not is_plain or value[:1] in ("", "#") or len(value.encode()) > NAME_BYTES_MAX:
            raise PasswordFileError(f"{value!r} is not a valid {name} name")
    made = [
        PasswordLine(user, realm, make_ha1(hash_name, user, realm, password))
        for hash_name in _HASHES.values()
    ]
    return _text([*_without(text, realm, user), *made])


def without_user(text: str, realm: str, user: str) -> str:
    """The file's text without this user. Raises PasswordFileError if the realm has no such user."""
    lines = parse_lines(text)
    left = _without(text, realm, user)
    if len(left) == len(lines):
        raise PasswordFileError(f"there is no user {user} in {realm}")
    return _text(left)


def is_password(users: Users, user: str, password: str) -> bool:
    """Whether every line of this user matches the password."""
    secrets = users.secrets.get(user, {})
    return bool(secrets) and all(
        compare_digest(ha1, make_ha1(hash_name, user, users.realm, password))
        for hash_name, ha1 in secrets.items()
    )


def _without(text: str, realm: str, user: str) -> list[PasswordLine]:
    return [line for line in parse_lines(text) if (line.realm, line.user) != (realm, user)]


def _text(lines: Iterable[PasswordLine]) -> str:
    return "".join(f"{line.user}:{line.realm}:{line.ha1}\n" for line in lines)
