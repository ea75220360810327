"""`kelek farm`: output, changes and refusals, with running servers."""

import json
import os
import pty
import re
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import Result

import kelek
from kelek.bench.ports import free_port
from kelek.clients.farm.values import TlsFiles
from kelek.console.cli_errors import CliError
from kelek.console.farm.target import FarmTarget, report_farm_errors
from kelek.console.kelek_cli import main
from kelek.protocols.garlicfarm.wire import htdigest
from kelek.tests.actors.farm.farm_servers import FarmServers, issue_certificate
from kelek.tests.console.kelek_runner import fails
from kelek.tests.console.kelek_runner import ok as ok_kelek
from kelek.tests.console.kelek_runner import run as run_kelek

HASH = "a" * 42 + "Y="


@pytest.fixture(scope="module")
def farm() -> Iterator[FarmServers]:
    """Servers 1 and 2 are the initial members; 3 waits for an invitation, 4 never gets one."""
    with FarmServers(ids=(1, 2, 3, 4), initial=(1, 2), node="post_interval_ms: 0") as made:
        made.start()
        made.append(b"begun")  # Both know who leads.
        yield made


def run(*words: object, stdin: str | None = None) -> Result:
    return run_kelek("farm", *words, stdin=stdin)


def ok(*words: object, stdin: str | None = None) -> str:
    return ok_kelek("farm", *words, stdin=stdin)


def refused(code: int, *words: object, stdin: str | None = None) -> str:
    found, line = fails("farm", *words, stdin=stdin)
    assert found == code, line
    return line


def here(farm: FarmServers, *words: object, admin: bool = False) -> list[object]:
    secret = ["--secret-file", farm.folder / "demo.secret"] if admin else []
    return [*words, "-t", farm.path, "--timeout", "60", *secret]


def test_what_there_is(farm: FarmServers) -> None:
    found = json.loads(ok(*here(farm, "status"), "-o", "json"))
    assert (found["cluster"], found["state"], len(found["members"])) == ("farm", "leader", 2)
    assert found["asked_by"] == {"user": "peer", "admin": False}
    shown = ok(*here(farm, "status"))
    assert f"farm farm: server {found['leader']} leads, term " in shown
    assert farm.endpoint(1) in shown
    for number in (1, 2):  # The current leader.
        with farm.connect(number) as client:
            client.sock.sendall(bytes(45))
            assert not client.sock.recv(1)
    line = r"^counted: (?!.*\bstatus\b).*\blet_in [1-9].*\bmalformed 1\b"
    assert re.search(line, ok(*here(farm, "status")), re.MULTILINE)
    rows = [json.loads(line) for line in ok(*here(farm, "servers"), "-o", "json").splitlines()]
    assert {(row["id"], row["problem"]) for row in rows} == {(1, ""), (2, "")}
    assert "leader" in ok(*here(farm, "servers"))
    assert "no server has posted its status yet" in ok(*here(farm, "documents"))


def by_urls(farm: FarmServers, *numbers: int) -> list[object]:
    urls = [f"--url=tls://127.0.0.1:{farm.ports[number]}" for number in numbers]
    secret = farm.folder / "demo.secret"
    return [*urls, "--user", "demo", "--secret-file", secret, "--ca", farm.ca, "--timeout", "60"]


def test_a_server_that_is_no_member(farm: FarmServers) -> None:
    """The command asks a member instead; without one it fails."""
    assert "leads, term" in ok("status", *by_urls(farm, 4, 1))
    assert "log: 0 of 0" not in ok("status", *by_urls(farm, 4, 1))
    assert "server 4 is not a member" in refused(1, "status", *by_urls(farm, 4))
    assert "server 99 is no member" in refused(1, *here(farm, "publish", 99, admin=True))


def test_a_joining_server_that_does_not_answer(farm: FarmServers) -> None:
    """It blocks other changes for a while; its removal cancels that."""
    endpoint = f"tcp://127.0.0.1:{free_port()}"
    said = refused(1, *here(farm, "add", 9, endpoint, admin=True), "--timeout", 1)
    assert "kelek farm remove 9 cancels it" in said
    assert ok(*here(farm, "remove", 9, admin=True)) == "server 9 is removed\n"
    assert json.loads(ok(*here(farm, "status"), "-o", "json"))["change"] is None
    assert ok(*here(farm, "remove", 9, admin=True)) == "server 9 is not a member\n"


def test_entries(farm: FarmServers) -> None:
    assert "at least one byte" in refused(2, *here(farm, "append", "fine", ""))
    said = json.loads(ok(*here(farm, "append", "one", "0x00ff", '{"n": 1}'), "-o", "json"))
    assert said["appended"] == 3
    ok(*here(farm, "append", "-"), stdin="two\nthree\n")
    shown = [line.split("  ", 2)[2] for line in ok(*here(farm, "entries")).splitlines()]
    posted = ["one", "0x00ff", '{"n": 1}', "two", "three"]
    assert shown == ["demo  begun", *(f"peer  {each}" for each in posted)]
    rows = [
        json.loads(line)
        for line in ok(*here(farm, "entries", "--all-kinds"), "-o", "json").splitlines()
    ]
    assert rows[0]["kind"] == "configuration"
    values = [row for row in rows if row["kind"] == "application"]
    assert [row["document"] for row in values if "document" in row] == [{"n": 1}]
    assert [row["user"] for row in values] == ["demo", *["peer"] * 5]
    assert ok(*here(farm, "entries", "--after", rows[-1]["index"])) == ""


def test_members(farm: FarmServers) -> None:
    """One by one, including the leader."""
    three = farm.endpoint(3)
    assert ok(*here(farm, "add", 3, three, admin=True)) == "server 3 is added\n"
    assert ok(*here(farm, "add", 3, three, admin=True)) == "server 3 is already a member\n"
    elsewhere = refused(1, *here(farm, "add", 3, "tcp://127.0.0.1:1", admin=True))
    assert f"server 3 is already a member, at {three}" in elsewhere
    leader = farm.leader()
    assert ok(*here(farm, "remove", leader, admin=True)) == f"server {leader} is removed\n"
    assert ok(*here(farm, "remove", leader, admin=True)) == f"server {leader} is not a member\n"
    assert json.loads(ok(*here(farm, "remove", 9, admin=True), "-o", "json")) == {"changed": False}
    endpoint = farm.endpoint(leader)
    assert ok(*here(farm, "add", leader, endpoint, admin=True)) == f"server {leader} is added\n"


def test_orders(farm: FarmServers, tmp_path: Path) -> None:
    assert ok(*here(farm, "publish", "none", admin=True)) == "no server publishes\n"
    old = run(*here(farm, "publish", "nobody", admin=True))
    assert (old.exit_code, old.stdout) == (0, "no server publishes\n")
    assert old.stderr == "kelek farm publish nobody is deprecated: use none\n"
    assert ok(*here(farm, "publish", 2, admin=True)) == "server 2 publishes\n"
    assert ok(*here(farm, "exclude", HASH, "--server", 1, admin=True)) == "2 excluded\n"
    export = ok(*here(farm, "export"))
    found = json.loads(export)
    assert found["publish"] == 2
    assert found["excluded"] == {"hashes": [HASH], "servers": [1]}
    assert f"excluded: {HASH}" in ok(*here(farm, "documents"))
    ok(*here(farm, "publish", "auto", admin=True))
    ok(*here(farm, "include", HASH, "--server", 1, admin=True))
    assert json.loads(ok(*here(farm, "export"), "-o", "json"))["publish"] == "auto"
    kept = tmp_path / "export.json"
    kept.write_text(export, encoding="utf-8")
    assert ok(*here(farm, "import", kept, admin=True)) == "the configuration is set\n"
    assert json.loads(ok(*here(farm, "export"))) == found


def test_users_without_the_right(farm: FarmServers, tmp_path: Path) -> None:
    secret = farm.folder / "secret"
    said = refused(1, *here(farm, "publish", 1), "--user", "peer", "--secret-file", secret)
    assert "user peer is no administrator of the farm farm; name it under" in said
    wrong = tmp_path / "wrong"
    wrong.write_text("wrong\n", encoding="utf-8")
    wrong.chmod(0o600)
    said = refused(1, *here(farm, "status"), "--user", "demo", "--secret-file", wrong)
    assert "user demo or the password is wrong for the farm farm; the password file of" in said
    wrong.chmod(0o644)
    said = refused(2, *here(farm, "status"), "--user", "demo", "--secret-file", wrong)
    assert "(mode 0644); chmod 600" in said
    assert "there is no terminal" in refused(2, *here(farm, "publish", 1))


def test_urls(farm: FarmServers) -> None:
    url = farm.endpoint(1).replace("tcp", "tls")
    secret = farm.folder / "demo.secret"
    known = ["--url", url, "--user", "demo", "--secret-file", secret, "--ca", farm.ca]
    assert "leads" in ok("status", *known)
    assert "leads" in ok("status", *known[:4], "--secret-file", "-", *known[6:], stdin="demo\n")
    said = refused(1, "status", *known[:-2])
    assert "is not trusted" in said
    assert "name its CA with ca_file or --ca" in said
    assert "it has no farm barn; is this its name?" in refused(
        1, "status", *known, "--farm", "barn"
    )
    nobody = f"tls://127.0.0.1:{free_port()}"
    said = refused(1, "status", "--url", nobody, *known[2:], "--timeout", "0.2")
    assert "does a server of farm 'farm' run there?" in said


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (kelek.FarmUnavailable("refused; is it up?"), "is it up? start it"),
        (kelek.FarmUnavailable("denied; add a key"), "denied; add a key"),
        (kelek.FarmNoLeader("does a majority run?"), "run? see kelek farm servers"),
        (kelek.FarmUntrusted("bad"), "bad"),
        (kelek.FarmTimeout("late; it may still happen"), "late; it may still happen"),
        (kelek.FarmCompacted(70), "the entries before 70 are no longer kept"),
    ],
)
def test_what_goes_wrong_is_one_line(error: Exception, said: str) -> None:
    tuning = kelek.FarmTuning()
    found = FarmTarget("t.yaml", (), "farm", "u", None, TlsFiles(), tuning, " start it")
    with (
        pytest.raises(CliError, match=r"^t\.yaml: farm farm: ") as ending,
        report_farm_errors(found),
    ):
        raise error
    assert said in str(ending.value)
    assert ending.value.code == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["status", "--url", "nowhere", "--user", "u", "--secret-file", "-"], "write tls://HOST"),
        (["status", "--url", "tls://h:1"], "--user: missing"),
        (["status", "--url", "tls://h:1", "-t", "y"], "remove one of the options"),
        (
            [
                "status",
                "--url",
                "tls://h:1",
                "--user",
                "u",
                "--secret-file",
                "-",
                "--own-key",
                "k",
                "--server-key",
                "x",
            ],
            "are for zre:// urls",
        ),
        (["status", "-t", "nowhere.yaml"], "nowhere.yaml"),
        (["status", "--i2p", "-t", "t.yaml"], "--i2p: valid only with --url"),
        (["add", "4", "nowhere", "-t", "t.yaml"], "write tcp://HOST:PORT"),
        (["publish", "first", "-t", "t.yaml"], "give a server's id, auto or none"),
        (["exclude", "-t", "t.yaml"], "HASH: missing"),
        (["exclude", "xyz", "-t", "t.yaml"], "'xyz' is not a destination"),
        (["import", "nowhere.json", "-t", "t.yaml"], "nowhere.json: No such file"),
        (["append", "-", "--secret-file", "-", "-t", "t.yaml"], "cannot be both"),
    ],
)
def test_what_is_no_command(words: list[str], said: str) -> None:
    assert said in refused(2, *words, stdin="secret\n")


def test_a_topology_and_its_farms(farm: FarmServers, tmp_path: Path) -> None:
    bare = tmp_path / "bare.yaml"
    node = "  n1: {url: 'ipc:///tmp/x', peer_url: 'ipc:///tmp/y'}\n"
    bare.write_text(f"cluster: a\nnodes:\n{node}", encoding="utf-8")
    assert "it has no farm; add `farms:`" in refused(2, "status", "-t", bare)
    away = tmp_path / "away.yaml"
    farms = "farms: {barn: {servers: {1: 'tcp://127.0.0.1:1'}}}\n"
    away.write_text(f"cluster: a\n{farms}nodes:\n{node}", encoding="utf-8")
    assert "no node serves the farm barn" in refused(2, "status", "-t", away)
    said = refused(2, "status", "-t", farm.path, "--farm", "barn")
    assert "has no farm 'barn'; it has farm" in said


# ---- files ----


def test_password_files(tmp_path: Path) -> None:
    path = tmp_path / "passwords"
    assert "added" in ok("user", "add", path, "ann", "--secret-file", "-", stdin="one\n")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    ok("user", "add", path, "bob", "--farm", "barn", "--secret-file", "-", stdin="two\n")
    users = htdigest.users_of(path.read_text(encoding="utf-8"), "farm")
    assert htdigest.is_password(users, "ann", "one")
    assert users.hash_names == {"md5", "sha256"}
    rows = [json.loads(line) for line in ok("user", "list", path, "-o", "json").splitlines()]
    assert [(row["farm"], row["user"]) for row in rows] == [("farm", "ann"), ("barn", "bob")]
    before = path.stat().st_ino
    ok("user", "passwd", path, "ann", "--secret-file", "-", stdin="three\n")
    assert path.stat().st_ino != before  # The file was replaced.
    assert "is the password of ann" in ok(
        "user", "check", path, "ann", "--secret-file", "-", stdin="three\n"
    )
    assert "not the password" in refused(
        1, "user", "check", path, "ann", "--secret-file", "-", stdin="one\n"
    )
    assert "good, 1 users" in ok("user", "check", path)
    assert "already exists" in refused(
        2, "user", "add", path, "ann", "--secret-file", "-", stdin="x\n"
    )
    assert "no user eve" in refused(
        1, "user", "passwd", path, "eve", "--secret-file", "-", stdin="x\n"
    )
    ok("user", "remove", path, "ann")
    assert "no user of the farm farm" in refused(1, "user", "check", path)
    assert [each.name for each in tmp_path.iterdir()] == ["passwords"]  # Nothing is left over.


def test_password_files_that_no_server_takes(tmp_path: Path) -> None:
    path = tmp_path / "passwords"
    ok("user", "add", path, "ann", "bob", "--make", tmp_path)
    secret = (tmp_path / "ann.secret").read_text(encoding="utf-8")
    assert stat.S_IMODE((tmp_path / "ann.secret").stat().st_mode) == 0o600
    ok("user", "check", path, "ann", "--secret-file", tmp_path / "ann.secret")
    assert len(secret) > 20
    path.chmod(0o640)
    assert "others may read it (mode 0640)" in refused(1, "user", "check", path)
    path.write_text("ann:farm\n", encoding="utf-8")
    path.chmod(0o600)
    assert "line 1 is not user:realm:HA1" in refused(2, "user", "check", path)
    assert "line 1" in refused(2, "user", "add", path, "eve", "--make", tmp_path)
    assert path.read_text(encoding="utf-8") == "ann:farm\n"
    old = "ann:farm:" + "0" * 32
    path.write_text(old, encoding="utf-8")
    assert "ann has only a md5 line" in ok("user", "check", path)
    assert "No such file" in refused(2, "user", "list", tmp_path / "nowhere")
    assert "'a:b' is not a valid user name" in refused(
        2, "user", "add", path, "a:b", "--make", tmp_path
    )
    assert "--make: missing" in refused(2, "user", "add", path, "a", "b")
    place = tmp_path / "nowhere"
    assert "nowhere" in refused(2, "user", "add", path, "eve", "--make", place)
    assert path.read_text(encoding="utf-8") == old


def test_commands_of_files_in_json(tmp_path: Path) -> None:
    """One JSON object each, and nothing else."""
    path = tmp_path / "passwords"
    known = {"file": str(path), "farm": "barn"}

    def said(command: str, *words: object) -> dict[str, object]:
        found = json.loads(ok("user", command, path, *words, "--farm", "barn", "-o", "json"))
        assert {key: found.pop(key) for key in known} == known
        return dict(found)

    secret = str(tmp_path / "ann.secret")
    made = {"secret_files": {"ann": secret}}
    assert said("add", "ann", "--make", tmp_path) == {"added": ["ann"], **made}
    assert said("passwd", "ann", "--make", tmp_path) == {"changed": "ann", **made}
    assert said("passwd", "ann", "--secret-file", secret) == {"changed": "ann", "secret_files": {}}
    assert said("check") == {"users": ["ann"], "lacking": []}
    assert said("check", "ann", "--secret-file", secret) == {"user": "ann", "right": True}
    assert said("remove", "ann") == {"removed": ["ann"]}
    place = tmp_path / "farm"
    files = {"ca": "ca.pem", "certificate": "server.pem", "key": "server.key"}
    assert json.loads(ok("cert", place, "::1", "-o", "json")) == {
        **{key: str(place / name) for key, name in files.items()}, "hosts": ["::1"], "days": 365,
    }  # fmt: skip


def test_every_command_has_json() -> None:
    """As docs/guides/farm.md says."""
    found = main.get_command(click.Context(main), "farm")
    groups = [found]
    while groups:
        group = groups.pop()
        assert isinstance(group, click.Group)
        for name in group.list_commands(click.Context(group)):
            command = group.get_command(click.Context(group), name)
            if isinstance(command, click.Group):
                groups.append(command)
            else:
                assert command is not None
                assert any("-o" in each.opts for each in command.params), command.name


def test_a_password_is_asked_for_and_not_shown(tmp_path: Path) -> None:
    path = tmp_path / "passwords"
    command = [sys.executable, "-P", "-m", "kelek.console.kelek_cli"]
    pid, terminal = pty.fork()
    if not pid:
        os.execv(sys.executable, [*command, "farm", "user", "add", str(path), "ann"])
    said = b""
    for prompt in (b"New password of ann: ", b"Repeat the password: "):
        while not said.endswith(prompt):
            said += os.read(terminal, 1000)
        os.write(terminal, b"very secret\n")
    try:
        while more := os.read(terminal, 1000):
            said += more
    except OSError:
        pass  # EIO marks the end of a terminal.
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, said
    assert b"very secret" not in said
    users = htdigest.users_of(path.read_text(encoding="utf-8"), "farm")
    assert htdigest.is_password(users, "ann", "very secret")


def test_a_client_certificate_is_shown() -> None:
    """With a topology the commands show the servers' certificate as the servers' user."""
    with FarmServers(ids=(1,), node="client_ca_file: ca.pem") as farm:
        issue_certificate(farm.folder, common_name="demo", stem="demo.")
        farm.start()
        found = ["-t", farm.path]
        assert "farm farm: " in ok("status", *found)
        demo = [*found, "--user", "demo", "--secret-file", farm.folder / "demo.secret"]
        assert "certificate required" in refused(1, "append", *demo, "one")
        certificate = ["--certificate", farm.folder / "demo.cert.pem"]
        key = ["--key", farm.folder / "demo.key.pem"]
        assert "appended 1 entries" in ok("append", *demo, *certificate, *key, "one")
        (farm.folder / "demo.key.pem").chmod(0o644)
        assert "(mode 0644); chmod 600" in refused(2, "append", *demo, *certificate, *key, "one")


def test_certificates(tmp_path: Path) -> None:
    from cryptography import x509

    place = tmp_path / "farm"
    shown = ok("cert", place)
    assert "the CA" in shown
    assert stat.S_IMODE((place / "ca.key").stat().st_mode) == 0o600
    assert stat.S_IMODE((place / "server.key").stat().st_mode) == 0o600
    assert "already exists" in refused(2, "cert", place)
    authority = (place / "ca.pem").read_bytes()
    ok("cert", place, "--name", "n2", "::1", "host.example", "10.0.0.2")
    assert (place / "ca.pem").read_bytes() == authority
    made = x509.load_pem_x509_certificate((place / "n2.pem").read_bytes())
    names = made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(each.value) for each in names] == ["::1", "host.example", "10.0.0.2"]
    made.verify_directly_issued_by(x509.load_pem_x509_certificate(authority))
    ok("cert", place, "--user", "ann")
    made = x509.load_pem_x509_certificate((place / "ann.pem").read_bytes())
    assert made.subject.rfc4514_string() == "CN=ann"
    uses = made.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(uses) == [x509.oid.ExtendedKeyUsageOID.CLIENT_AUTH]
    assert "a user's certificate has no HOST" in refused(2, "cert", place, "--user", "ann", "::1")
    assert "neither a name nor an address" in refused(2, "cert", place, "--name", "x", "a b")
    assert "is not usable as a file name" in refused(2, "cert", place, "--name", "../x")
    (place / "ca.key").unlink()
    assert "cannot sign" in refused(2, "cert", place, "--name", "x")
    assert "Not a directory" in refused(1, "cert", place / "ca.pem" / "x")


def test_without_the_package_for_certificates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.x509", None)
    monkeypatch.setitem(sys.modules, "cryptography", None)
    said = refused(1, "cert", tmp_path / "farm")
    assert "pip install 'kelek[farm]', or make certificates with openssl" in said
    assert not (tmp_path / "farm").exists()


def test_completion(farm: FarmServers) -> None:
    """Names from the topology, without asking a server."""
    from click.shell_completion import ShellComplete

    def words(*before: str, incomplete: str = "") -> list[str]:
        shell = ShellComplete(main, {}, "kelek", "_KELEK_COMPLETE")
        found = shell.get_completions(["farm", *before], incomplete)
        return [item.value for item in found]

    where = ["-t", str(farm.path)]
    assert words("remove", *where) == ["1", "2", "3", "4"]
    assert words("publish", *where, incomplete="a") == ["auto"]
    assert words("status", *where, "--farm") == ["farm"]
    assert {"status", "user", "cert"} <= set(words())
