"""Builds the C core (build_ext.py) into one abi3 wheel; everything else is in pyproject.toml."""

from setuptools import setup

setup(
    cffi_modules=["build_ext.py:ffibuilder"],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
