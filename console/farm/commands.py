"""`kelek farm status`, `servers`, `documents`, `entries`, `watch` and `append`."""

import sys
from collections.abc import Iterator
from typing import Any

from ...clients.errors import FarmTooLarge
from ...clients.farm.values import FarmEntry
from ..cli_errors import FAILED, CliError
from ..options import DATA, FOLLOW, after_option, argument, command, option
from ..render import data_json, printer, show, show_json, show_table, stdin, table_lines
from .target import FarmOptions, open_farm

DATE_MS_MAX = 253_402_300_799_999  # The end of the year 9999, the last one of datetime.

# Counters of normal operation; `status` does not print them.
NORMAL_COUNTERS = frozenset(("inbound", "certificate_days", "status", "order", "other", "foreign"))


@command
def status(options: FarmOptions) -> None:
    """Shows the leader, how far the log is committed, the publisher, and the members as the
    leader sees them.
    """
    with open_farm(options) as farm:
        found = farm.status()
    if found.get("state") == "waiting":
        way_out = "add it with kelek farm add, or ask a member with --url"
        raise CliError(f"server {found.get('id')} is not a member of its farm: {way_out}", FAILED)
    leader, publisher = found.get("leader"), found.get("publisher")
    leads = "no leader" if leader is None else f"server {leader} leads"
    lines = [
        f"farm {found.get('cluster')}: {leads}, term {found.get('term')}",
        f"log: {found.get('commit')} of {found.get('last')} entries are committed",
        "publisher: " + ("none" if publisher is None else f"server {publisher}"),
    ]
    if change := found.get("change"):
        lines.append(f"change in progress: server {change.get('server')}, {change.get('stage')}")
    if counted := counts_of(found):
        lines.append(f"counted: {', '.join(f'{name} {n}' for name, n in counted.items())}")
    days = (found.get("connections") or {}).get("certificate_days")
    if isinstance(days, int):
        lines.append(f"certificate of server {found.get('id')}: {max(days, 0)} days left")
    if found.get("state") != "leader":
        lines.append(f"seen by server {found.get('id')}, which is {found.get('state')}")
    keys = "id", "endpoint", "link", "match"
    rows = [[each.get(key) for key in keys] for each in found.get("members", [])]
    show(options.output, found, *lines, *table_lines((*keys[:3], "entries"), rows))


def counts_of(found: dict[str, Any]) -> dict[str, int]:
    """The counters of problems that are not zero, by name."""
    groups = (found.get("connections"), found.get("counters"))
    pairs = [pair for group in groups if isinstance(group, dict) for pair in group.items()]
    return {
        name: n for name, n in pairs if name not in NORMAL_COUNTERS and isinstance(n, int) and n
    }


@command
def servers(options: FarmOptions) -> None:
    """Shows the members, each with its own status or the reason why there is none."""
    with open_farm(options) as farm:
        found = farm.servers()
    if options.output == "json":
        for each in found:
            show_json(each._asdict())
        return
    rows: list[tuple[object, ...]] = [
        (each.id, each.endpoint, None, None, None, each.problem)
        if each.problem
        else (each.id, each.endpoint, each.state, each.term, each.commit_index, "")
        for each in found
    ]
    show_table(("id", "endpoint", "state", "term", "committed", ""), rows)


@command
def documents(options: FarmOptions) -> None:
    """Shows the last status of each server and the publisher; -o json prints everything."""
    with open_farm(options) as farm:
        found = farm.documents()
    publisher, excluded = found.get("publisher"), found.get("excluded") or {}
    rows = [_document_line(each, publisher) for each in found.get("documents", [])]
    headers = ("id", "date", "uptime", "publishes", "destinations", "publisher")
    lines = table_lines(headers, rows) if rows else ["no server has posted its status yet"]
    lines += [f"excluded: server {each}" for each in excluded.get("servers", [])]
    lines += [f"excluded: {each}" for each in excluded.get("hashes", [])]
    show(options.output, found, *lines)


def _document_line(posted: dict[str, Any], publisher: object) -> tuple[object, ...]:
    document = posted.get("document") or {}
    meta, router = document.get("meta", {}), document.get("router", {})
    uptime = router.get("uptime")
    return (
        posted.get("id"),
        date_text(document.get("date")),
        None if uptime is None else f"{uptime / 3_600_000:.1f} h",
        meta.get("publishConfig", "auto"),
        len(document.get("destinations", [])),
        "yes" if posted.get("id") == publisher else "",
    )


def date_text(date_ms: object) -> str | None:
    import datetime

    if not isinstance(date_ms, int) or not 0 <= date_ms <= DATE_MS_MAX:
        return None
    found = datetime.datetime.fromtimestamp(date_ms / 1000, datetime.UTC)
    return found.strftime("%Y-%m-%d %H:%M:%S")


ALL_KINDS = option(
    "--all-kinds", is_flag=True,
    help="Also the farm's own entries: configurations, and which user appends.",
)  # fmt: skip


@command
def entries(
    options: FarmOptions,
    after: int = after_option("Print the entries after this index (default: all).", 0),
    follow: bool = FOLLOW,
    all_kinds: bool = ALL_KINDS,
) -> None:
    """Prints committed entries, one a line: index, term, user and value.

    The user is the one that appended the entry, `-` if unknown.
    """
    show_entries(options, after, follow, all_kinds)


@command
def watch(
    options: FarmOptions,
    after: int = after_option("Print the entries after this index first (default: all).", 0),
    all_kinds: bool = ALL_KINDS,
) -> None:
    """Prints entries as `kelek farm entries` does, then each new one, until it is interrupted."""
    show_entries(options, after, True, all_kinds)


def show_entries(options: FarmOptions, after: int, follow: bool, all_kinds: bool) -> None:
    show_entry = printer(options.output, entry_json, entry_line)
    with open_farm(options) as farm:
        read = farm.watch if follow else farm.entries
        for entry in read(after=after, all_kinds=all_kinds):
            show_entry(entry)
            if follow:
                sys.stdout.flush()


def entry_json(entry: FarmEntry) -> dict[str, object]:
    document = entry.document
    value = data_json("value", entry.value) if document is None else {"document": document}
    head = {"index": entry.index, "term": entry.term, "kind": entry.kind, "user": entry.user}
    return {**head, **value}


def entry_line(entry: FarmEntry) -> str:
    text = entry.value.decode(errors="replace")
    if not text.isprintable():
        text = f"0x{entry.value.hex()}"
    return f"{entry.index}  {entry.term}  {entry.user or '-'}  {text}"


@command
def append(
    options: FarmOptions,
    values: tuple[str, ...] = argument(metavar="DATA...", nargs=-1, required=True),
) -> None:
    """Appends each DATA as an entry, in order, and ends when they are committed.

    DATA is UTF-8, or hexadecimal after 0x; `-` reads standard input, a line an entry.
    """

    def read() -> Iterator[bytes]:
        for value in values:
            if value == "-":
                yield from (line.rstrip(b"\r\n") for line in stdin())
            else:
                yield DATA.convert(value, None, None)

    if "-" in values and options.secret_file == "-":
        raise CliError("-: standard input cannot be both the password and the data")
    data = None if "-" in values else list(read())  # Report mistakes before asking for a password.
    count = 0

    def counted() -> Iterator[bytes]:
        nonlocal count
        for value in read() if data is None else data:
            count += 1
            yield value

    with open_farm(options) as farm:
        try:
            last_index = farm.append_many(counted())
        except (FarmTooLarge, ValueError) as error:
            raise CliError(str(error)) from error
    figures = {"appended": count, "last_index": last_index, "next_index": last_index + 1}
    show(options.output, figures, f"appended {count} entries; the last has index {last_index}")
