"""Builds the C core (build_ext.py) and the jar of Spark's catalogue into one abi3 wheel; everything
else is in pyproject.toml.
"""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from setuptools import setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

DEMO = "topology.yaml"
BUILD_ONLY = {"build_ext", "setup", "pyspark_kelek"}  # The last is beside the package.


JAVA = Path("pipeline", "jvm", "java")
JAR = Path("pipeline", "jvm", "kelek.jar")
JAVA_RELEASE = 17  # The oldest that Spark 4 runs on.
JAR_TIME = (1980, 1, 1, 0, 0, 0)  # The same sources make the same bytes.


class BuildPackage(build_py):
    """The repository is the package; modules that only build it are left out."""

    def find_package_modules(self, package: str, package_dir: str) -> list[tuple[str, str, str]]:
        modules: list[tuple[str, str, str]] = super().find_package_modules(package, package_dir)
        if package != "kelek":
            return modules
        return [module for module in modules if module[1] not in BUILD_ONLY]

    def build_package_data(self) -> None:
        """In a clone the demo is that of the commit: its user may have made it a cluster's own."""
        super().build_package_data()
        command = ["git", "show", f"HEAD:./{DEMO}"]
        try:
            kept = subprocess.run(
                command, cwd=Path(__file__).parent, capture_output=True, check=True
            ).stdout
        except (OSError, subprocess.CalledProcessError):  # No git, or no clone.
            return
        Path(self.build_lib, "kelek", DEMO).write_bytes(kept)


class BuildCore(build_ext):
    """Compiles the files of the C core on all processors: setuptools takes one after the other.
    Then it compiles the jar, which needs Java and Spark on the machine.
    """

    def run(self) -> None:
        super().run()
        target = Path(__file__).parent if self.inplace else Path(self.build_lib, "kelek")
        try:
            build_jar(target / JAR)
        except JarError as error:
            sys.stderr.write(f"kelek: without the jar of Spark's catalogue: {error}\n")

    def build_extension(self, ext: Any) -> None:
        compiler = self.compiler
        compile_all, compile_one = compiler.compile, compiler._compile

        def compile_parallel(*args: Any, **options: Any) -> list[str]:
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                jobs = []
                compiler._compile = lambda *file: jobs.append(pool.submit(compile_one, *file))
                objects: list[str] = compile_all(*args, **options)
            for job in jobs:
                job.result()
            return objects

        compiler.compile = compile_parallel
        super().build_extension(ext)


class JarError(Exception):
    """The jar cannot be built here."""


def build_jar(target: Path) -> None:
    """Compiles pipeline/jvm/java against the Spark that is installed. Raises JarError."""
    sources = sorted(map(str, (Path(__file__).parent / JAVA).rglob("*.java")))
    # A build in an environment of its own does not import pyspark, but the packages of the Python
    # that runs it are there.
    places = [os.environ.get("SPARK_HOME", ""), f"{sysconfig.get_path('purelib')}/pyspark"]
    jars = next((f"{it}/jars" for it in places if it and os.path.isdir(f"{it}/jars")), None)
    javac = find_javac()
    if jars is None:
        raise JarError(f"no Spark in SPARK_HOME or {places[-1]}")
    with tempfile.TemporaryDirectory() as folder:
        command = [javac, "-proc:none", "-nowarn", "--release", str(JAVA_RELEASE), "-d", folder]
        done = subprocess.run(
            [*command, "-cp", f"{jars}/*", *sources], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise JarError(f"{javac} failed: {done.stderr}")
        target.parent.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as jar:
            for path in sorted(Path(folder).rglob("*.class")):
                name = path.relative_to(folder).as_posix()
                jar.writestr(zipfile.ZipInfo(name, JAR_TIME), path.read_bytes())


def find_javac() -> str:
    """A compiler of Java 17 or later: JAVA_HOME's, else the one on PATH. Raises JarError."""
    home = os.environ.get("JAVA_HOME", "")
    for javac in (f"{home}/bin/javac" if home else None, shutil.which("javac")):
        if javac is None or not os.path.exists(javac):
            continue
        asked = subprocess.run([javac, "-version"], capture_output=True, text=True, check=False)
        version = re.search(r"javac (\d+)", asked.stdout + asked.stderr)
        if version and int(version[1]) >= JAVA_RELEASE:
            return javac
    raise JarError(f"no javac of Java {JAVA_RELEASE} or later in JAVA_HOME or on PATH")


def public_address() -> str:
    """The address of the repository, which a release names by KELEK_REPOSITORY; "": none."""
    address = os.environ.get("KELEK_REPOSITORY", "").rstrip("/")
    if address and not address.startswith("https://"):
        raise SystemExit(f"kelek: KELEK_REPOSITORY={address}: write https://HOST/OWNER/NAME")
    return address


def project_urls(address: str) -> dict[str, str]:
    """What a package index links to."""
    if not address:
        return {}
    files = {"Documentation": "docs/tutorial/first-steps.md", "Changelog": "CHANGELOG.md",
             "Security": "SECURITY.md"}  # fmt: skip
    urls = {"Homepage": address, "Source": address, "Issues": f"{address}/issues"}
    return urls | {name: f"{address}/blob/HEAD/{path}" for name, path in files.items()}


def index_text(readme: str, address: str) -> str:
    """The README for a package index, which has no files of the repository: its links and pictures
    lead to the repository. Without an address there are no pictures, and of links their text alone.
    """
    picture, link = (
        r"!\[([^\]]*)\]\((?!https?:)([^)]*)\)",
        r"(?<!!)\[([^\]]+)\]\((?!https?:)([^)]*)\)",
    )
    if address:
        readme = re.sub(picture, rf"![\1]({address}/raw/HEAD/\2)", readme)
        return re.sub(link, rf"[\1]({address}/blob/HEAD/\2)", readme)
    readme = re.sub(rf"^{picture}\n\n?", "", readme, flags=re.M)
    return re.sub(link, r"\1", readme)


ADDRESS = public_address()
setup(
    long_description=index_text(Path(__file__).with_name("README.md").read_text("utf-8"), ADDRESS),
    long_description_content_type="text/markdown",
    project_urls=project_urls(ADDRESS),
    cffi_modules=["build_ext.py:ffibuilder"],
    cmdclass={"build_ext": BuildCore, "build_py": BuildPackage},
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
