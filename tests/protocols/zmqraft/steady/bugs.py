"""Defects of csrc/steady/steady.c; the twins find each of them."""

import ctypes
import shlex
import subprocess
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import kelek
from kelek._native import ffi, lib
from kelek.native.log import steady

CSRC = Path(kelek.__file__).parent / "csrc"
FOLDERS = (".", "broker", "log", "net", "steady", "tables")
NEEDED = (
    "crc32c",
    "frame",
    "latency",
    "reads",
    "reqids",
    "segment",
    "syncer",
    "updates",
)  # Of csrc/log.

# The name of a bug: a piece of the source, which must occur once, and its replacement.
LEADER_BUGS = {
    "our own entries count before they are durable": (
        "values[count++] = leader->log.durable_index;",
        "values[count++] = leader->log.last_index;",
    ),
    "one voter commits": ("values[(count - 1) / 2]", "values[count - 1]"),
    "an answer counts for all that was sent": (
        "*match_index = klk_get_u64(numbers);",
        "*match_index = leader->log.last_index;",
    ),
    "an answer of another term counts": (
        "|| uint_read(term, size) != leader->log.term",
        "",
    ),
    "a match index after our last entry": ("*match_index <= leader->log.last_index && ", ""),
    "the window is not kept": ("|| peer->window_count >= peer->window_max", ""),
    "a message names the wrong previous index": (
        "klk_put_u64(numbers + 8, peer->next_index - 1);",
        "klk_put_u64(numbers + 8, peer->next_index);",
    ),
    "a message carries an older commit index": (
        "klk_put_u64(numbers + 24, leader->commit_index);",
        "klk_put_u64(numbers + 24, peer->sent_commit_index);",
    ),
    "a round of reads that does not start": ("++leader->round, now_ms", "leader->round, now_ms"),
    "an answer of the newest round": ("peer->answered_round = found.round;", "leader->round;"),
    "a commit notice that is never due": (
        "is_behind ? leader->commit_notice_ms : leader->heartbeat_ms",
        "leader->heartbeat_ms",
    ),
    "a heartbeat of no round": ("if (result == KLK_OK) peer->sent_round = leader->round;", ""),
    "a follower whose clients wait learns of a commit late": (
        "leader->commit_index == leader->log.last_index)\n        result",
        "0)\n        result",
    ),
    "a wait of clients is not noted": ("peer->clients_wait = clients_wait;", ""),
    "a wait of clients never ends": (
        "peer->clients_wait = clients_wait;",
        "peer->clients_wait |= clients_wait;",
    ),
    "a lease that lasts longer than its promises": (
        "return round->started_ms + leader->lease_ms;",
        "return round->started_ms + 3 * leader->lease_ms;",
    ),
    "a lease of answers that one follower gave": (
        "values[count++] = peer->promises ? peer->answered_round : 0;",
        "values[count++] = leader->round;",
    ),
    "a lease of a newer round than was answered": (
        "if (round->number <= promised) return",
        "return",
    ),
    "a lease before an entry of the term is committed": (
        " || leader->commit_index < leader->term_start) return 0;",
        ") return 0;",
    ),
    "a read of what is not applied": ("readers[KLK_READS_APPLIED].waiting ||", ""),
    "a read by an earlier commit": (
        "leader->round,\n                            leader->commit_index, out);",
        "leader->round,\n                            leader->began_index, out);",
    ),
    "an answered read keeps its round": ("    leader->round++;\n", ""),
    "packs are written as data": (
        "view->unix_s = unix_s;",
        "view->unix_s = unix_s; view->kind = 0;",
    ),
    "table servers get no answers": (
        "for (uint32_t i = 0; i < KLK_STEADY_INTAKES; i++)\n        if (klk_updates_commit",
        "for (uint32_t i = 0; i < 1; i++)\n        if (klk_updates_commit",
    ),
    "a heartbeat that confirms nothing": (
        ": peer->next_index - 1;\n    pending_add",
        ": 0;\n    pending_add",
    ),
    "clients are answered before the commit": (
        "klk_updates_commit(leader->intakes[i].updates, leader->commit_index, outs[i])",
        "klk_updates_commit(leader->intakes[i].updates, leader->log.last_index, outs[i])",
    ),
}
BUGS = {
    "acknowledged before it is durable": (
        "if (waits->last_index > follower->log.durable_index) break;",
        "",
    ),
    "a heartbeat acknowledges what is not durable": (
        "uint64_t match = log->last_index < log->durable_index ? log->last_index\n"
        "                                                              : log->durable_index;",
        "uint64_t match = log->last_index;",
    ),
    "commits what the leader has not sent": (
        "append->commit_index < append->last_index ? append->commit_index : append->last_index",
        "append->commit_index",
    ),
    "the previous index is not compared": (
        "klk_get_u64(numbers + 8) != log->last_index ||",
        "",
    ),
    "the previous term is not compared": ("klk_get_u64(numbers + 16) != log->term ||", ""),
    "a message of another term": ("klk_get_u64(numbers) != log->term ||", ""),
    "a message of another leader": (
        "!klk_messages_is(arena, message, 4, follower->leader, follower->leader_size)",
        "0",
    ),
    "a configuration is taken for data": (
        "return kind == KIND_STATE || kind == KIND_TABLES;",
        "return kind <= KIND_TABLES;",
    ),
    "a block is not checked": (
        "if (klk_block_check(data, size, header) != (ssize_t)size) return 0;",
        "klk_header_read(data, header);",
    ),
    "a block after a gap": ("if (header->first_index != last_index + 1) return 0;", ""),
    "a sync counts for blocks that came later": (
        "log->durable = log->written;",
        "log->durable = log->written = log->count;",
    ),
    "clients that wait are not told": ("follower->clients_wait ? SUCCESS_WAITS : SUCCESS", "1"),
    "missed heartbeats are not counted": (
        "follower->missed += gap_ms / follower->heartbeat_ms - 1;",
        ";",
    ),
    "answers in the wrong order": (
        "(follower->first + follower->waiting++) % KLK_STEADY_ANSWERS_MAX",
        "(follower->first + ++follower->waiting) % KLK_STEADY_ANSWERS_MAX",
    ),
}


def compile_objects(folder: Path) -> list[Path]:
    """Compiles what steady.c calls."""
    sources = [CSRC / "log" / f"{name}.c" for name in NEEDED]
    _compile(["-c", *map(str, sources)], folder)
    return sorted(folder.glob("*.o"))


def _compile(arguments: list[str], folder: Path) -> None:
    compiler = shlex.split(sysconfig.get_config_var("CC") or "cc")
    includes = [f"-I{CSRC / name}" for name in FOLDERS]
    command = [*compiler, "-std=c11", "-O1", "-fPIC", *includes, *arguments]
    subprocess.run(command, cwd=folder, check=True)


# The functions of steady.c that the twins call.
FUNCTIONS = {
    "klk_steady_follow": "int (*)(struct klk_steady_follower *, const struct klk_messages *, "
    "uint32_t *, uint64_t, struct klk_messages *)",
    "klk_steady_answer": "int (*)(struct klk_steady_follower *, struct klk_messages *)",
    "klk_steady_start": "void (*)(struct klk_steady_log *)",
    "klk_steady_finish": "void (*)(struct klk_steady_log *)",
    "klk_steady_reqids": "int (*)(struct klk_steady_log *)",
    "klk_steady_tick": "void (*)(struct klk_steady_leader *, uint64_t)",
    "klk_steady_propose": "int (*)(struct klk_steady_leader *, uint32_t, "
    "const struct klk_messages *, uint64_t, uint32_t, uint64_t, struct klk_messages *)",
    "klk_steady_reads": "int (*)(struct klk_steady_leader *, uint64_t, struct klk_messages *)",
    "klk_steady_send": "int (*)(struct klk_steady_leader *, uint32_t, uint64_t)",
    "klk_steady_beat": "int (*)(struct klk_steady_leader *, uint64_t)",
    "klk_steady_answers": "int (*)(struct klk_steady_leader *, uint32_t, "
    "const struct klk_messages *, uint32_t *, uint64_t)",
    "klk_steady_commit": "int (*)(struct klk_steady_leader *, uint64_t, "
    "struct klk_messages *const *)",
    "klk_steady_due_ms": "uint64_t (*)(const struct klk_steady_leader *)",
    "klk_steady_lease_ms": "uint64_t (*)(const struct klk_steady_leader *)",
}


class _PatchedLibrary:
    """The library with some functions of another one."""

    def __init__(self, library: Any, path: Path) -> None:
        self._library = library
        loaded = ctypes.CDLL(str(path))
        for name, kind in FUNCTIONS.items():
            address = ctypes.cast(getattr(loaded, name), ctypes.c_void_p).value
            setattr(self, name, ffi.cast(kind, address))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._library, name)


@contextmanager
def planted(name: str, folder: Path, objects: list[Path]) -> Iterator[None]:
    """Replaces the functions of steady.c by some with this bug; '': with none."""
    text = (CSRC / "steady" / "steady.c").read_text()
    if name:
        old, new = (BUGS | LEADER_BUGS)[name]
        assert text.count(old) == 1, f"{name}: steady.c has changed, mend its patch: {old!r}"
        text = text.replace(old, new)
    source, library = folder / "planted.c", folder / "planted.so"
    source.write_text(text)
    # Its own functions, not those that the process has loaded.
    flags = ["-shared", "-Wl,-Bsymbolic", "-lpthread"]
    _compile([str(source), *map(str, objects), "-o", str(library), *flags], folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(steady, "lib", _PatchedLibrary(lib, library))
        yield
