"""Each C function that parses bytes of peers, clients or disks is called by a fuzz target."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BYTES = re.compile(r"const (uint8_t|char|uint32_t|struct klk_messages) \*|klk_drain|\bint fd\b")
# These take bytes, but parse none that another program chose.
NO_PARSERS = {
    "klk_block_encode": "writes what this process counted",
    "klk_bundle_add": "writes",
    "klk_bundle_count": "klk_drain_receive calls it",
    "klk_bundle_measure": "the same",
    "klk_bundle_open": "the same",
    "klk_budget_queued": "looks up a routing id",
    "klk_budget_send": "sends",
    "klk_connections_drained": "counts the bytes of a descriptor",
    "klk_connections_known": "notes the key of a descriptor",
    "klk_crc32c_sliced": "the same sum as klk_crc32c",
    "klk_exchange_service_workers": "looks up a name",
    "klk_header_read": "copies 32 bytes; klk_block_check calls it",
    "klk_record_head": "writes",
    "klk_reqids_find": "looks up 12 bytes; klk_updates_receive calls it",
    "klk_reqids_keep": "stores 12 bytes; klk_reqids_add calls it",
    "klk_segment_free": "gives blocks back",
    "klk_segment_write": "writes",
    "klk_steady_propose": "klk_updates_receive, and klk_updates_block for what it took",
    "klk_shares_take": "counts messages by what identifies their clients",
    "klk_segment_write_back": "writes",
    "klk_segment_zero": "writes",
    "klk_send": "sends",
    "klk_zre_receive": "klk_drain_receive and klk_zre_take",
    "klk_zre_say": "writes",
    "klk_zre_whisper": "writes",
}


def declared() -> dict[str, str]:
    """The parameters of all functions in the headers that build_ext.py lists: cffi reads them."""
    listed = (ROOT / "build_ext.py").read_text(encoding="utf-8")
    found: dict[str, str] = {}
    for path in (ROOT / "csrc").rglob("*.h"):
        if f'"{path.name}"' not in listed:
            continue
        text = re.sub(r"/\*.*?\*/", "", path.read_text(encoding="utf-8"), flags=re.S)
        found |= dict(re.findall(r"\b(klk_\w+)\(([^(){};]*)\);", text))
    return found


def unfuzzed(functions: dict[str, str], targets: str) -> set[str]:
    return {
        name
        for name, parameters in functions.items()
        if BYTES.search(parameters) and not re.search(rf"\b{name}\(", targets)
    }


def test_each_parser_has_a_fuzz_target() -> None:
    folder = ROOT / "tests/csrc"
    sources = [folder / "fuzz.h", *folder.glob("*/fuzz_*.c")]
    targets = "".join(path.read_text(encoding="utf-8") for path in sources)
    assert len(declared()) > 100
    assert unfuzzed(declared(), targets) == set(NO_PARSERS)


def test_a_parser_without_a_target_is_noticed() -> None:
    functions = {"klk_new": "const uint8_t *data, size_t size", "klk_count": "uint32_t count"}
    assert unfuzzed(functions, "klk_renew(data);") == {"klk_new"}
    assert not unfuzzed(functions, "klk_new(data, size);")
