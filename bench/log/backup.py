"""How fast are a backup and a restore, and what does a backup cost the writes meanwhile?

    python -m kelek.bench backup [--quick] [--rounds N] [-o json]

Three nodes with tables hold 256 MB of rows in a snapshot, and 768 MB of entries of 16 KiB in the
log after it. All run as commands, whose start counts. In each round, one after the other:

backup    `kelek backup --nice 0` of the idle cluster: it yields to nothing else on the machine
stream    a process sends the same bytes by sendfile() over a loopback connection; they are
          received, hashed with SHA-256, written and synced: what the machine can do at most
copy      the same from file to file, without a connection
restore   `kelek restore` of one node from the backup
writes    8 clients with 32 outstanding updates of 64 B for 8 s; and again while `kelek backup` runs
          over and over
"""

import hashlib
import os
import random
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import kelek
from kelek.bench.kelek_cluster import IDENT, NODES, Kelek
from kelek.bench.load.loadgen import Generator, Load, finish
from kelek.bench.machine import BenchError
from kelek.bench.ports import free_ports
from kelek.bench.question import ROW_HEAD, Question, row, say
from kelek.bench.report import Section, summed_up

ROUNDS = 5
STATE_BYTES = 256_000_000
LOG_BYTES = 768_000_000
ROW_BYTES = 1000
ENTRY_BYTES = 16 << 10
PIECE_BYTES = 1 << 20
LOAD = Load(8, 32, secs=8.0)
KELEK = [sys.executable, "-P", "-m", "kelek.console.kelek_cli"]
COMMAND_S_MAX = 300.0
SENDER = """
import socket, sys
to = socket.create_connection(("127.0.0.1", int(sys.argv[2])))
with to, open(sys.argv[1], "rb") as file:
    to.sendfile(file)
"""
BACKUP_SHARE, RESTORE_SHARE, WRITES_SHARE = 0.5, 0.4, 0.8


class Round(NamedTuple):
    """Speeds in MB/s; updates/s without and with backups, and MB/s of those."""

    backup: float
    stream: float
    copy: float
    restore: float
    idle: float
    busy: float
    beside: float


def fill(cluster: Kelek, tables: list[str]) -> None:
    """Fills the table and makes snapshots of it, and then the log. Values cannot be compressed."""
    rows = STATE_BYTES // ROW_BYTES
    noise = random.Random(1)
    with kelek.Table(tables, 1, timeout_ms=120_000) as table:
        table.open()
        table.put_many((b"%08d" % number, noise.randbytes(ROW_BYTES)) for number in range(rows))
    cluster.leader()
    for node in NODES:
        cluster.make_snapshot(node)
    with kelek.Log(list(cluster.urls.values()), IDENT, timeout_ms=120_000) as log:
        entry = noise.randbytes(ENTRY_BYTES)
        log.append_many(entry for _ in range(LOG_BYTES // ENTRY_BYTES))
    cluster.leader()


def run(*words: object) -> float:
    """Runs `kelek`; returns its seconds."""
    started = time.monotonic()
    command = [*KELEK, *map(str, words)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=COMMAND_S_MAX, check=False
    )
    if done.returncode:
        raise BenchError(f"kelek {words[0]}: {done.stderr.strip()}")
    return time.monotonic() - started


def stream(source: Path, target: Path) -> float:
    """The same over a connection from another process."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        command = [sys.executable, "-P", "-c", SENDER, str(source), str(listener.getsockname()[1])]
        with subprocess.Popen(command):
            connection, _ = listener.accept()
            with connection:
                return copy_from(lambda view: connection.recv_into(view), target)


def copy(source: Path, target: Path) -> float:
    """Reads, hashes, writes and syncs a file; returns the seconds."""
    with source.open("rb", buffering=0) as old:
        return copy_from(old.readinto, target)


def copy_from(read: Callable[[memoryview], int], target: Path) -> float:
    started = time.monotonic()
    hashed, piece = hashlib.sha256(), memoryview(bytearray(PIECE_BYTES))
    with target.open("wb", buffering=0) as new:
        while size := read(piece):
            hashed.update(piece[:size])
            new.write(piece[:size])
        os.fsync(new.fileno())
    hashed.hexdigest()
    took = time.monotonic() - started
    target.unlink()
    return took


def one_round(cluster: Kelek, generator: Generator, folder: Path, number: int) -> Round:
    file, target = folder / f"{number}.kbk", [*cluster.target, "--ident", IDENT]
    backup_s = run("backup", file, "-t", cluster.topology, "--nice", 0)
    size = file.stat().st_size / 1e6
    stream_s = stream(file, folder / "copy")
    copy_s = copy(file, folder / "copy")
    topology = folder / f"restored{number}.yaml"
    cluster.write_topology(topology, cluster.lines)
    text = topology.read_text().replace(f"cluster: {IDENT}", f"cluster: again{number}")
    topology.write_text(text.replace("data: data", f"data: data{number}"))
    restore_s = run("restore", file, "-t", topology, "--node", "n1")
    idle = generator.run(target, LOAD)["updates_s"]
    process = generator.start(target, LOAD)
    beside = folder / "beside.kbk"
    took_s = []
    while process.poll() is None:
        took_s.append(run("backup", beside, "-t", cluster.topology))
        beside.unlink()
    busy = finish(process, LOAD)["updates_s"]
    file.unlink()
    shutil.rmtree(folder / f"data{number}")
    cluster.leader()
    backup, streamed, copied, restored = (
        size / seconds for seconds in (backup_s, stream_s, copy_s, restore_s)
    )
    return Round(backup, streamed, copied, restored, idle, busy, size * len(took_s) / sum(took_s))


def measure(directory: Path, rounds: int) -> Section:
    directory.mkdir(parents=True)
    generator = Generator(directory)
    folder = directory / "files"
    folder.mkdir()
    cluster = Kelek(directory / "cluster")
    tables = [f"tcp://127.0.0.1:{port}" for port in free_ports(len(NODES))]
    cluster.lines = [
        line.replace("}", f", zerodb: {{url: {url}}}}}")
        for line, url in zip(cluster.lines, tables, strict=True)
    ]
    found = []
    try:
        cluster.start_fresh()
        cluster.leader()
        fill(cluster, tables)
        for number in range(rounds):
            found.append(one_round(cluster, generator, folder, number))
            say(f"round {number + 1} of {rounds}: {found[-1]}")
    except BenchError:
        say(cluster.last_words())
        raise
    finally:
        cluster.stop()
    return section(found)


def section(found: list[Round]) -> Section:
    backup = [one.backup / one.stream for one in found]
    restore = [one.restore / one.copy for one in found]
    writes = [one.busy / one.idle for one in found]
    figures = [
        summed_up("backup over the stream", backup, "x", BACKUP_SHARE, True),
        summed_up("restore over the copy", restore, "x", RESTORE_SHARE, True),
        summed_up("writes beside backups over writes alone", writes, "x", WRITES_SHARE, True),
        summed_up("backup", [one.backup for one in found], "MB/s", 200, True),
        summed_up("restore", [one.restore for one in found], "MB/s", 150, True),
    ]
    rows = [
        ROW_HEAD,
        row("stream with SHA-256 and fsync", [one.stream for one in found], "MB/s"),
        row("copy with SHA-256 and fsync", [one.copy for one in found], "MB/s"),
        row("8 x 32 alone", [one.idle for one in found], "updates/s"),
        row("8 x 32 beside backups", [one.busy for one in found], "updates/s"),
        row("backups beside 8 x 32", [one.beside for one in found], "MB/s"),
    ]
    note = (
        "Nodes, clients and commands share the machine's cores. `kelek backup` yields them to the "
        "writes, which makes it slower beside them."
    )
    return Section("Backup and restore", figures, rows, note)


QUESTION = Question("backup", __doc__, measure, ROUNDS)
