"""Builds the C core (build_ext.py) into one abi3 wheel; everything else is in pyproject.toml."""

import os
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from setuptools import setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

DEMO = "topology.yaml"
BUILD_ONLY = {"build_ext", "setup", "pyspark_kelek"}  # The last is beside the package.


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
    """Compiles the files of the C core on all processors: setuptools takes one after the other."""

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


def index_text(readme: str) -> str:
    """The README for a package index, which has no files of the repository: no pictures, and of
    links to files their text alone.
    """
    readme = re.sub(r"^!\[[^\]]*\]\((?!https?:)[^)]*\)\n\n?", "", readme, flags=re.M)
    return re.sub(r"(?<!!)\[([^\]]+)\]\((?!https?:)[^)]*\)", r"\1", readme)


setup(
    long_description=index_text(Path(__file__).with_name("README.md").read_text("utf-8")),
    long_description_content_type="text/markdown",
    cffi_modules=["build_ext.py:ffibuilder"],
    cmdclass={"build_ext": BuildCore, "build_py": BuildPackage},
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
