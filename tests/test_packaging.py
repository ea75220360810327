"""Builds a source distribution from the tree as it would be cloned, the wheel from that, and looks
at both as a stranger would.

It never builds inside the checkout: what an older build left in build/ would slip into the wheel.
"""

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath

import pytest

from kelek.bench.ports import free_ports
from kelek.tests.test_docs import blocks, commands

ROOT = Path(__file__).resolve().parent.parent
# Read by the build only: what runs needs none of it.
BUILD_ONLY = {"setup.py", "build_ext.py"}
BESIDE = {"pyspark_kelek.py"}  # The package, and not in it.
OUTSIDE = {"bench", "examples", "tests"}  # They run from a clone; the demo is an example.
PIP_S = 600  # It downloads, and compiles beside other tests.
RUN_S = 120
pytestmark = pytest.mark.timeout(2 * PIP_S + RUN_S)


def pip(*arguments: object, cwd: Path | None = None) -> None:
    options = ["--quiet", "--quiet", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", *options, *map(str, arguments)]
    subprocess.run(command, cwd=cwd, check=True, timeout=PIP_S)


def tracked() -> list[str]:
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    if listed.returncode != 0:
        pytest.skip("not a git checkout: what belongs to the tree is not known")
    names = listed.stdout.decode().split("\0")
    return [name for name in names if name and (ROOT / name).is_file()]


def copied(folder: Path, ignored: Sequence[str] = ()) -> Path:
    """A copy of the tree there, without top folders and files of these patterns."""
    for name in tracked():
        if not any(fnmatch(PurePosixPath(name).parts[0], pattern) for pattern in ignored):
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target)
    return folder


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that the source distribution makes."""
    source = copied(tmp_path_factory.mktemp("source") / "some name-1.0")
    out = tmp_path_factory.mktemp("sdist")
    command = f"from setuptools import build_meta; build_meta.build_sdist({str(out)!r})"
    subprocess.run([sys.executable, "-c", command], cwd=source, check=True, timeout=PIP_S)
    shutil.rmtree(source)
    [sdist] = out.iterdir()
    out = tmp_path_factory.mktemp("wheel")
    pip("wheel", "--no-deps", "-w", out, sdist)
    [built] = out.iterdir()
    return built


def test_an_image_builds_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    """By the Dockerfile's own command, from the files of the tree that it copies."""
    ignored = (ROOT / "examples/container/Dockerfile.dockerignore").read_text().split()
    copied(tmp_path / "source", ignored)
    text = (ROOT / "examples/container/Dockerfile").read_text()
    [command] = re.findall(r"^RUN pip (wheel .*)$", text, re.M)
    pip(*(f"{tmp_path}{word}" if word.startswith("/") else word for word in command.split()))
    [built] = (tmp_path / "wheels").iterdir()
    contents = []
    for path in (wheel, built):
        with zipfile.ZipFile(path) as archive:
            files = {name: archive.read(name) for name in archive.namelist()}
        contents.append(files)
        for name in [name for name in files if name.endswith((".so", "RECORD"))]:
            files[name] = b""  # Debug information has the folder of the build; RECORD has its hash.
    assert contents[0] == contents[1]
    assert built.name == wheel.name


def expected_files() -> set[str]:
    """The modules of every listed package, the data files, and the C core."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    settings = project["tool"]["setuptools"]
    files = {"kelek/_native.abi3.so", *BESIDE}
    for package, patterns in settings["package-data"].items():
        folder = ROOT.joinpath(*package.split(".")[1:])
        found = [path for pattern in patterns for path in folder.glob(pattern)]
        files |= {f"kelek/{path.relative_to(ROOT).as_posix()}" for path in found}
    if shutil.which("javac") and importlib.util.find_spec("pyspark"):
        files.add("kelek/pipeline/jvm/kelek.jar")
    for name in tracked():
        path = PurePosixPath(name)
        package = ".".join(("kelek", *path.parent.parts))
        if (
            path.suffix == ".py"
            and package in settings["packages"]
            and name not in BUILD_ONLY | BESIDE
        ):
            files.add(f"kelek/{name}")
    return files


def test_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    assert "-cp311-abi3-" in wheel.name, "one wheel serves every Python from 3.11 on"
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if not name.endswith("/")}
    about = {name for name in names if name.split("/")[0].endswith(".dist-info")}
    print("\n".join(sorted(names)), end="\n\n")
    assert names - about == expected_files()
    assert not {name.split("/")[1] for name in names - about - BESIDE} & OUTSIDE
    assert {"METADATA", "RECORD", "WHEEL", "entry_points.txt"} <= {Path(n).name for n in about}
    assert any(name.endswith("licenses/LICENSE") for name in about)


def test_wheel_fits_manylinux(wheel: Path) -> None:
    """The C core needs libc alone, so cibuildwheel's repair copies nothing into the wheel."""
    pytest.importorskip("auditwheel", reason="it is not installed")
    if sys.platform != "linux":
        pytest.skip("manylinux is of Linux")
    found = run(sys.executable, "-m", "auditwheel", "show", str(wheel), cwd=wheel.parent)
    words = " ".join(found.split())
    assert re.search(r'following platform tag: "manylinux_2_\d+_\w+"', words), words
    libraries = set(re.findall(r"(lib\w+)\.so\.\d+ with versions", words))
    assert libraries <= {"libc", "libdl", "libpthread"}, words


def test_metadata_is_complete_and_has_no_link_to_a_file(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        [name] = [each for each in archive.namelist() if each.endswith(".dist-info/METADATA")]
        text = archive.read(name).decode()
    head, _, description = text.partition("\n\n")
    for key in ("Summary", "Keywords", "Maintainer", "License-Expression", "Requires-Python"):
        assert re.search(rf"^{key}: \S", head, re.M), key
    assert head.count("\nClassifier: ") > 10
    assert "Description-Content-Type: text/markdown" in head
    assert description.startswith("# kelek\n")
    assert not re.search(r"\]\((?!https?:)", description)
    extras = set(re.findall(r"^Provides-Extra: (\S+)$", head, re.M))
    assert extras == {one for one in extras if f"extra == '{one}'" in head.replace('"', "'")}


def metadata_of(address: str, folder: Path) -> str:
    """The metadata that a release makes which names the address of the repository."""
    source = copied(folder / "source")
    command = (
        "from setuptools import build_meta as it; "
        f"it.prepare_metadata_for_build_wheel({str(folder)!r})"
    )
    environment = {**os.environ, "KELEK_REPOSITORY": address}
    done = subprocess.run(
        [sys.executable, "-c", command], cwd=source, env=environment, check=False, timeout=PIP_S,
        capture_output=True, text=True,
    )  # fmt: skip
    if done.returncode:
        raise ValueError(done.stderr)
    [metadata] = folder.glob("*.dist-info/METADATA")
    return metadata.read_text()


def test_a_release_links_to_its_repository(tmp_path: Path) -> None:
    """All links and pictures lead to files that are there."""
    address = "https://forge.example/one/kelek"
    text = metadata_of(f"{address}/", tmp_path)
    urls = dict(re.findall(r"^Project-URL: (\w+), (\S+)$", text, re.M))
    assert urls["Homepage"] == urls["Source"] == address
    assert {"Changelog", "Documentation", "Issues", "Security"} <= urls.keys()
    links = re.findall(rf"{address}/(blob|raw)/HEAD/([^)#\s]+)", text)
    assert {kind for kind, _ in links} == {"blob", "raw"}
    for _, path in links:
        assert (ROOT / path).exists(), path
    assert not re.search(r"\]\((?!https?:)", text.partition("\n\n")[2])


def test_an_address_of_another_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="KELEK_REPOSITORY=forge: write https://HOST/OWNER/NAME"):
        metadata_of("forge", tmp_path)


def first_commands() -> list[str]:
    """The commands with which the README begins."""
    return [command for command, _ in commands(next(iter(blocks("README.md"))))]


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of an environment that the README's first commands make in an empty folder."""
    folder = tmp_path_factory.mktemp("installed")
    make, install = first_commands()[:2]
    assert make.endswith("&& . .venv/bin/activate")
    assert install == "pip install ."
    make = make.replace("python3", shlex.quote(sys.executable), 1)
    install = f"pip install --quiet --disable-pip-version-check {shlex.quote(str(wheel))}"
    run("bash", "-ec", f"{make}\n{install}\ncommand -v supervisor kelek", cwd=folder)
    return folder / ".venv" / "bin"


def run(*command: str | Path, cwd: Path, **more: str) -> str:
    """Runs a command without our variables of Python. more   other variables"""
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(
        command, cwd=cwd, env={**environment, **more},
        capture_output=True, text=True, timeout=RUN_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_installed_wheel_imports(installed: Path, tmp_path: Path) -> None:
    code = (
        "import kelek, kelek.native.log.blocks as n; "
        "kelek.Entry, kelek.__version__; print(kelek.__file__, hex(n.crc32c(b'123456789')))"
    )
    where, checksum = run(installed / "python", "-c", code, cwd=tmp_path).split()
    assert Path(where).is_relative_to(installed.parent)
    assert checksum == "0xe3069283"


def test_a_wheel_has_the_topology_of_the_commit(tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    run("git", "clone", "-q", "--depth", "1", f"file://{ROOT}", clone, cwd=tmp_path)
    shutil.copy(ROOT / "setup.py", clone)
    kept = (clone / "topology.yaml").read_bytes()
    (clone / "topology.yaml").write_text("cluster: a-users-own\n")
    run(sys.executable, "setup.py", "-q", "build_py", "--build-lib", tmp_path / "lib", cwd=clone)
    assert (tmp_path / "lib/kelek/topology.yaml").read_bytes() == kept
    assert (clone / "topology.yaml").read_text() == "cluster: a-users-own\n"


@pytest.mark.parametrize("command", ["kelek", "supervisor"])
def test_installed_commands_run(installed: Path, tmp_path: Path, command: str) -> None:
    assert "Usage:" in run(installed / command, "--help", cwd=tmp_path)


def test_the_wheel_works_in_an_empty_folder(installed: Path, tmp_path: Path) -> None:
    """The README's next commands, a benchmark and the doctor: on ports that are free here."""
    shipped = [*installed.parent.glob("lib/python3*/site-packages/kelek/topology.yaml")]
    text = re.sub(r"(?m)^    zre: .*\n", "", shipped[0].read_text(encoding="utf-8"))
    known = sorted({*re.findall(r"127\.0\.0\.1:\d+", text)})
    for old, new in zip(known, free_ports(len(known)), strict=True):
        text = text.replace(old, f"127.0.0.1:{new}")
    (tmp_path / "topology.yaml").write_text(text, encoding="utf-8")
    lines = [*first_commands()[2:], "kelek bench --quick", "kelek doctor", "supervisor stop"]
    script = "\n".join([f". {shlex.quote(str(installed / 'activate'))}", *lines])
    script = script.replace("--detach", "--detach --one-process")
    found = run("bash", "-ec", script, cwd=tmp_path)
    assert "3 of 3 nodes" in found
    for unit in ("updates/s", "pairs/s", "requests/s"):
        assert unit in found, found
    assert "stopped nodes=n1,n2,n3" in found
    smoke = run(installed / "python", "-P", ROOT / "tests/supply/wheel_smoke.py", cwd=tmp_path)
    assert "three nodes replicate" in smoke


LOOKUP = """
import io
from pyspark.sql.worker import lookup_data_sources
found = io.BytesIO()
lookup_data_sources._main(io.BytesIO(), found)
name = found.getvalue()[8:13].decode()
import kelek, pyspark_kelek
print(name, kelek.__file__, pyspark_kelek.__file__)
"""


def test_spark_finds_the_format_by_itself(wheel: Path, tmp_path: Path) -> None:
    """What Spark's lookup runs in a worker. An editable install hides the module from it."""
    pytest.importorskip("pyspark", reason="the extra kelek[spark] is not installed")
    place = tmp_path / "site"
    pip("install", "--no-deps", "--target", place, wheel)
    found = run(sys.executable, "-c", LOOKUP, cwd=tmp_path, PYTHONPATH=str(place))
    name, package, module = found.split()
    assert name == "kelek"
    assert Path(package).parent == place / "kelek"
    assert Path(module).parent == place
