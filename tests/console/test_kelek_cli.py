"""The command `kelek` as a shell sees it: on a cluster of real processes, and without one."""

import io
import json
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from kelek.console import cli_errors
from kelek.console.admin import supervisor_cli
from kelek.console.cli_errors import LazyGroup
from kelek.console.kelek_cli import main
from kelek.console.loading import LoadedFile, open_file, reporting_progress
from kelek.console.log.entry_output import entry_json, entry_line
from kelek.console.log.load import LoadRequest, committed_line, read_values
from kelek.protocols.zerodb.wire import ops
from kelek.protocols.zmqraft.wire.entry import Entry
from kelek.tests.console.kelek_runner import fails


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["log", "info", "-t", "nowhere.yaml"], "nowhere.yaml"),
        (["log", "info", "--nonsense"], "see `kelek log info --help`"),
        (["log", "entries", "-n", "0"], "'--count'"),
        (["log", "apend", "x"], "no such command 'apend'; did you mean 'append'?"),
        (["log", "qq", "x"], "no such command 'qq'; see `kelek log --help`"),
        (["table", "get", "1st", "k"], "a table's name has 1 to 128 characters"),
        (["log", "load", "/proc/self/mem", "--url", "ipc:///x", "--cluster", "c"], "/mem"),
        (["log", "info", "--url", "tcp://127.0.0.1:1"], "--cluster"),
        (["log", "info", "--url", "127.0.0.1:1", "--cluster", "c"], "tcp://HOST:PORT"),
        (["log", "info", "--url", "tcp://h:1", "--cluster", "c", "-t", "x"], "leave one"),
        (["log", "load", "nowhere.csv", "--url", "tcp://h:1", "--cluster", "c"], "nowhere.csv"),
        (["log", "append", "", "--url", "tcp://h:1", "--cluster", "c"], "DATA 1: 0 bytes"),
        (["log", "append", "x", "--url", "tcp://h", "--cluster", "c"], "write tcp://HOST:PORT"),
        (["log", "append", "x", "--url", "tcp://h:99999", "--cluster", "c"], "out of range"),
        (["log", "append", "x", "--url", "ipc:///nobody", "--cluster", "\udcff"], "not a name"),
        (["log", "append", "x", "--url", "ipc:///nobody", "--cluster", "c" * 33], "not a name"),
    ],
)
def test_what_can_not_work_is_one_line(words: list[str], said: str) -> None:
    code, line = fails(*words, "--timeout", "0.2")
    assert code == cli_errors.IMPOSSIBLE
    assert said in line


@pytest.mark.parametrize("words", [["append", "x"], ["members", "list"], ["entries"], ["transfer"]])
def test_an_unreachable_server_is_reported_soon_with_the_way_out(
    words: list[str], tmp_path: Path
) -> None:
    """Whatever the timeout, which is for a cluster that is there."""
    urls = "tcp://127.0.0.1:9", "ipc:///nobody"
    code, line = fails("log", *words, "--url", urls[0], "--url", urls[1], "--cluster", "c")
    assert (code, line) == (
        cli_errors.FAILED,
        f"kelek: no connection to {urls[0]}, {urls[1]} within 2 s; "
        "does a peer of cluster 'c' run there?",
    )
    path = tmp_path / "lone.yaml"
    node = "n1: {url: 'tcp://127.0.0.1:9', peer_url: 'tcp://127.0.0.1:10'}"
    path.write_text(f"cluster: c\ndata: data\nnodes: {{{node}}}\n")
    code, line = fails("log", *words, "-t", str(path), "--timeout", "0.2")
    assert (code, line) == (
        cli_errors.FAILED,
        f"kelek: {path}: no connection to tcp://127.0.0.1:9 within 0.2 s; "
        f"does a peer of cluster 'c' run there? start it: supervisor start {path}",
    )


@pytest.mark.parametrize(
    "words",
    [["table", "list"], ["stream", "list"], ["queue", "info", "q"], ["lock", "x"], ["elect", "x"]],
)
def test_commands_of_tables_end_soon_without_a_table_server(words: list[str]) -> None:
    """Also at a port of another kind, which takes the connection and does not answer; a slow server
    would do the same, and has longer."""
    with zmq.Context() as context, context.socket(zmq.ROUTER) as other:
        url = f"tcp://127.0.0.1:{other.bind_to_random_port('tcp://127.0.0.1', 20_000, 32_000)}"
        result = CliRunner().invoke(main, [*words, "--url", url, "--timeout", "2.1"])
    assert result.exit_code == cli_errors.FAILED
    slow = "no answer in 2 s, but the connection is not refused; waiting 2.1 s more"
    assert f"kelek: {slow}" in result.stderr.splitlines()
    line = f"kelek: no answer from {url} within 2.1 s; is it a table server?"
    assert result.stderr.splitlines()[-1] == line


TOPOLOGY = """
cluster: c
data: data
log: {writer: process}
nodes:
  n1: {url: 'tcp://127.0.0.1:9', peer_url: 'tcp://127.0.0.1:10'}
  n2: {url: 'tcp://127.0.0.1:11', peer_url: 'tcp://127.0.0.1:12'}
  other: {url: 'tcp://127.0.0.1:13', dialect: text}
"""


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("kelek log verify -t t.yaml --node ", {"n1", "n2"}),
        ("kelek log dump -t t.yaml --node n2", {"n2"}),
        ("kelek recover -t t.yaml --from ", {"n1", "n2"}),
        ("kelek table map 1 2 --node o", {"other"}),
        ("kelek log dump somewhere --node ", {"n1", "n2"}),
        ("kelek log members remove -t t.yaml ", {"n1", "n2", "other"}),
        ("kelek log transfer -t t.yaml o", {"other"}),
        ("kelek log transfer -t nowhere.yaml ", set()),
        ("supervisor status t.yaml --node ", {"n1", "n2"}),
        ("supervisor logs t.yaml --role raft", {"raft_peer"}),
        ("supervisor logs t.yaml --node n1 --role log", {"log_writer"}),
        ("supervisor restart t.yaml n", {"n1", "n2", *(f"{node}/{role}" for node in ("n1", "n2")
         for role in ("log_writer", "raft_peer", "snapshot_sender", "state_machine"))}),
        ("supervisor profile t.yaml n2/s", {"n2/snapshot_sender", "n2/state_machine"}),
    ],
)  # fmt: skip
def test_the_shell_completes_what_the_topology_knows(
    line: str, expected: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("t.yaml", "topology.yaml"):
        Path(name).write_text(TOPOLOGY)
    program, *words = line.split(" ")
    command = main if program == "kelek" else supervisor_cli.main
    complete = ShellComplete(command, {}, program, "_COMPLETE")
    found = complete.get_completions(words[:-1], words[-1])
    assert {item.value for item in found} == expected


def test_not_a_number_is_no_timeout() -> None:
    code, line = fails("log", "info", "--timeout", "nan")
    assert (code, "nan" in line) == (cli_errors.IMPOSSIBLE, True)


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("kelek_cli --version >/dev/full", "kelek: standard output: "),
        ("admin.supervisor_cli --version >/dev/full", "supervisor: standard output: "),
        (
            "kelek_cli log append - --url ipc:///x --cluster c <&-",
            "kelek: -: standard input is closed",
        ),
    ],
)
def test_streams_that_do_not_work_are_one_line(command: str, said: str) -> None:
    shell = f"{shlex.quote(sys.executable)} -m kelek.console.{command}"
    done = subprocess.run(shell, shell=True, capture_output=True, text=True, check=False)
    assert done.returncode in (cli_errors.FAILED, cli_errors.IMPOSSIBLE)
    assert done.stderr.startswith(said)
    assert done.stderr.count("\n") == 1


def test_info_without_answers_fails_and_still_shows_the_nodes() -> None:
    words = ["log", "info", "--url", "ipc:///nobody", "--cluster", "c", "--timeout", "0.1"]
    result = CliRunner().invoke(main, [*words, "-o", "json"])
    assert result.exit_code == cli_errors.FAILED
    (node,) = json.loads(result.stdout)["nodes"]
    assert node["answers"] is False
    assert {node[key] for key in ("role", "leader", "term", "commit_index")} == {None}
    shown = CliRunner().invoke(main, words)
    assert "no answer  -" in shown.stdout
    assert (
        shown.stderr
        == "kelek: ipc:///nobody: no node answers; does one run, and is 'c' its cluster?\n"
    )


def groups(group: LazyGroup, *path: str) -> Iterator[tuple[list[str], LazyGroup]]:
    """A group and all groups in it, with the words that select each."""
    yield [*path], group
    for name, inner in group.groups.items():
        assert isinstance(inner, LazyGroup)
        yield from groups(inner, *path, name)


def loaded_by(script: str) -> set[str]:
    """The modules that a process has imported at the end of a script."""
    script = f"import sys; {script}; print(*sys.modules)"
    command = [sys.executable, "-P", "-c", script]
    return {*subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()}


@pytest.mark.parametrize("program", ["kelek_cli", "admin.supervisor_cli"])
def test_help_loads_nothing_slow(program: str) -> None:
    """What makes it come at once: neither ZeroMQ nor the C core nor YAML is needed for it."""
    paths = [path for path, _ in groups(main)] if program == "kelek_cli" else [[]]
    loaded = loaded_by(
        "from click.testing import CliRunner;"
        f"from kelek.console.{program} import main;"
        f"shown = [CliRunner().invoke(main, [*path, '--help']).output for path in {paths}];"
        "assert all('Commands:' in text for text in shown)"
    )
    assert not {"zmq", "msgpack", "kelek._native", "yaml", "asyncio", "json", "socket"} & loaded


@pytest.mark.parametrize("area", ["broker", "lock", "log", "queue", "status", "stream", "table"])
def test_clients_load_no_event_loop(area: str) -> None:
    """The commands use the blocking clients: asyncio and ssl would cost a fifth of the time."""
    loaded = loaded_by(f"import kelek.console.{area}.commands")
    assert "kelek.console.render" in loaded
    assert not {"asyncio", "ssl", "concurrent.futures"} & loaded


@pytest.mark.parametrize(
    "words", ["table.commands", "stream.commands", "queue.commands", "lock.commands"]
)
def test_commands_of_tables_load_what_they_need(words: str) -> None:
    """Groups, the wire of the log, discovery and YAML are for others: a sixth of the time."""
    loaded = loaded_by(f"import kelek.console.{words}, kelek.actors.topology.client_topology")
    others = {
        "yaml", "textwrap", "base64",
        "kelek.actors.topology.schema",
        "kelek.clients.node.discovery",
        "kelek.clients.stream.group",
        "kelek.clients.stream.group_admin",
        "kelek.protocols.zmqraft.wire.values",
    }  # fmt: skip
    assert not others & loaded


def test_help_shows_whole_summaries() -> None:
    for path, group in groups(main):
        shown = " ".join(CliRunner().invoke(main, [*path, "--help"]).stdout.split())
        for name, outline in group.outline.commands.items():
            text = f"{name} {outline.get_short_help_str(1000)}"
            assert text in shown, path
            assert not text.endswith("..."), text


def test_the_package_is_the_command() -> None:
    command = [sys.executable, "-P", "-m", "kelek", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("python -m kelek ")


def test_a_group_says_of_its_commands_what_they_say() -> None:
    for path, group in groups(main):
        for name, outline in group.outline.commands.items():
            command = group.get_command(None, name)
            assert command is not None, (path, name)
            assert outline.get_short_help_str(1000) == command.get_short_help_str(1000)


# They answer from the supervisors' rows: neither a client nor the topology is loaded.
STATUS_NEEDS_NOT = (
    "asyncio logging ssl socket yaml dataclasses kelek._native kelek.protocols.wire "
    "kelek.protocols.raft kelek.actors.topology kelek.clients.log.log"
)
# What no command needs that asks a cluster: it answers in 150 ms.
NEEDS_NOT = (
    "asyncio logging numpy pandas pyarrow rocksdict tempfile concurrent.futures kelek.storage "
    "kelek.pipeline kelek.clients.node.node kelek.protocols.zre.node"
)
LOG_NEEDS_NOT = (
    "hashlib kelek.net.access.keys kelek.protocols.zre.values "
    "ssl http shutil kelek.protocols.raft.core kelek.protocols.zerodb.wire.ops "
    "kelek.clients.table.table"
)

TABLE_NEEDS_NOT = (
    "hashlib kelek.net.access.keys kelek.protocols.zre.values kelek.protocols.zmqraft.client.client"
)


@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("status.commands", STATUS_NEEDS_NOT),
        ("admin.status", STATUS_NEEDS_NOT),
        ("admin.processes", "yaml"),
        ("admin.reload", STATUS_NEEDS_NOT),
        ("logs.commands", "yaml"),
        ("log.commands", f"yaml {LOG_NEEDS_NOT}"),
        ("log.members", f"yaml {LOG_NEEDS_NOT}"),
        ("log.load", f"yaml {LOG_NEEDS_NOT}"),
        ("table.commands", f"yaml {TABLE_NEEDS_NOT}"),
        ("table.jobs", f"yaml {TABLE_NEEDS_NOT}"),
        ("broker.commands", "yaml kelek.clients.log.log kelek.clients.table.table"),
        ("broker.lists", "yaml kelek.clients.log.log kelek.clients.table.table"),
        ("lock.commands", "yaml zmq kelek.clients.table.table"),
        ("farm.commands", "yaml zmq cryptography"),
        ("keys", "yaml"),
    ],
)
def test_a_command_loads_little(module: str, heavy: str) -> None:
    """A command answers in 150 ms (bench/RESULTS.md); loading modules takes most of it."""
    loaded = loaded_by(f"import kelek.console.{module}")
    assert not {*heavy.split(), *NEEDS_NOT.split()} & loaded


def test_a_topology_loads_little() -> None:
    """Each command that has a topology, and each process, reads it."""
    loaded = loaded_by("from kelek.actors.topology import topology; topology.load('topology.yaml')")
    assert not {*NEEDS_NOT.split(), "zmq"} & loaded


def test_lines_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "file.csv"
    path.write_bytes(b"header\none\r\n\ntwo\nthree")
    for options, expected in (
        (LoadRequest(False, None, 0, "f"), [b"header", b"one", b"two", b"three"]),
        (LoadRequest(True, None, 0, "f"), [b"one", b"two", b"three"]),
        (LoadRequest(True, 2, 0, "f"), [b"one", b"two"]),
    ):
        with open_file(str(path)) as file:
            assert list(read_values(file, options)) == expected
            assert file.position == file.size or options.limit


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (cli_errors.CliError("f:9: too long"), cli_errors.FAILED, "f:9: too long"),
        (KeyboardInterrupt(), cli_errors.INTERRUPTED, "f: interrupted"),
    ],
)
def test_a_load_that_ends_early_reports_its_progress(
    error: BaseException, code: int, line: str
) -> None:
    def load() -> None:
        file = LoadedFile("f", io.BytesIO(), None)
        with reporting_progress(file, "updates", committed_line, skipped=34) as note:
            note(1200)
            raise error

    with pytest.raises(cli_errors.CliError) as ended:
        load()
    assert ended.value.code == code
    assert str(ended.value).startswith(f"{line}; at least the first 1,234 updates are committed: ")


def test_an_entry_is_one_line_whatever_is_in_it() -> None:
    entry = Entry(7, 2, 0, None, b"a\nb\x1b[31m\xff\tc")
    assert entry_line(entry) == "       7     2  a\\nb\\x1b[31m\\xff\tc"
    assert entry_json(entry)["data_base64"] == "YQpiG1szMW3/CWM="
    assert "(checkpoint)" in entry_line(Entry(1, 1, 2, None, b"\xc0"))


def test_an_entry_of_the_tables_is_shown_in_words() -> None:
    put = ops.pack([ops.Put(7, [b"a", b"b"], [b"1", b"2"]), ops.DeleteRange(7, b"", b"")])
    entry = Entry(7, 2, 0, None, put)
    assert entry_line(entry) == "       7     2  (tables) put 7 x 2, deleterange 7"
    assert entry_json(entry)["tables"] == "put 7 x 2, deleterange 7"
    assert entry_line(Entry(7, 2, 0, None, put[:-1])).endswith("(tables) malformed")


def test_log_commands_on_a_cluster(shell: Any) -> None:
    shell.ok("supervisor start topology.yaml --detach")
    indexes = json.loads(shell.ok("kelek log append one two -o json"))["indexes"]
    assert indexes[1] == indexes[0] + 1
    assert shell.ok("kelek log append -", b"from stdin").strip() == str(indexes[1] + 1)
    (shell.folder / "f.csv").write_text("h\na\nb\nc\n")
    loaded = json.loads(shell.ok("kelek log load f.csv --skip-header -o json"))
    assert loaded["updates"] == 3
    shell.ok("kelek log load - --skip 2 --limit 1", b"x\n\ny\nd\ne\n")
    shown = [json.loads(line) for line in shell.ok("kelek log entries -o json").splitlines()]
    assert [entry["data"] for entry in shown] == ["one", "two", "from stdin", *"abcd"]
    shown = shell.ok(f"kelek log entries --after {indexes[0]}").splitlines()
    assert [line.split(maxsplit=2)[2] for line in shown] == ["two", "from stdin", *"abcd"]
    assert len(shell.ok("kelek log entries -n 2").splitlines()) == 2
    with shell.start("kelek log tail -f -n 1") as followed:
        try:
            assert followed.stdout.readline().decode().split()[2:] == ["d"]
            shell.ok("kelek log append later")
            assert followed.stdout.readline().endswith(b"later\n")
            followed.send_signal(signal.SIGINT)
            assert followed.wait(20) == cli_errors.INTERRUPTED
        finally:
            followed.kill()
    with shell.start(f"kelek log watch --after {indexes[0]} -o json") as watched:
        try:
            first = [json.loads(watched.stdout.readline()) for _ in range(7)]
            assert [entry["data"] for entry in first] == ["two", "from stdin", *"abcd", "later"]
            index = int(shell.ok("kelek log append last"))
            last = json.loads(watched.stdout.readline())
            assert (last["data"], last["index"]) == ("last", index)
        finally:
            watched.kill()
    old = shell.run("kelek log put old")
    assert (old.returncode, int(old.stdout)) == (0, index + 1)
    assert old.stderr == "kelek log put is deprecated: use kelek log append\n"
    old = shell.run(f"kelek log tail --from {index + 1}")
    assert (old.returncode, old.stdout.split()[-1]) == (0, "old")
    assert old.stderr.splitlines() == [
        "kelek log tail: --from is deprecated: use --after",
        "kelek log tail is deprecated: use kelek log entries",
    ]
    found = json.loads(shell.ok("kelek log info -o json"))
    assert found["leader"] in ("n1", "n2", "n3")
    assert [node["answers"] for node in found["nodes"]] == [True] * 3
    shown = shell.ok("kelek log info")
    assert shown.count("follower") == 2
    assert max(map(len, shown.splitlines())) <= 60, "80 with indexes of eight digits"
    assert "updates/s" in shell.ok("kelek log bench --count 500 --alone 5")


def test_what_a_snapshot_took_the_place_of(shell: Any) -> None:
    """`entries` prints what is left; an error names the index to read after."""
    shell.ok("supervisor start topology.yaml --detach")
    shell.ok("kelek log append one two")
    shell.ok("kelek log snapshot")
    done = shell.run("kelek log entries")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.startswith("(a snapshot has the entries up to ")
    kept = shell.ok("kelek log append kept").strip()
    assert shell.ok("kelek log entries").split()[::2] == [kept, "kept"]
    for command in ("entries --after 0", "watch --after 0", "subscribe --from 1"):
        done = shell.run(f"kelek log {command}")
        found = re.search(r"read what follows: --after (\d+)\n", done.stderr)
        assert found is not None, done.stderr
        assert done.returncode == cli_errors.FAILED
        assert int(found[1]) < int(kept)
        assert shell.ok(f"kelek log entries --after {found[1]}").split()[::2] == [kept, "kept"]
