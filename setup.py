"""Builds the compiled core; everything else about the package is in pyproject.toml."""

from setuptools import find_packages, setup

setup(
    packages=["dtr_alloc.native", *find_packages(include=["dtr_alloc*"], exclude=["*.native*"])],
    package_dir={"dtr_alloc": "dtr_alloc", "dtr_alloc.native": "native"},
    # The bridge is compiled on the user's machine, so its sources travel with the package.
    # Those that make wheel has compiled before are in dtr_alloc/bridges.
    package_data={
        "dtr_alloc": ["py.typed", "bridges/*.so"],
        "dtr_alloc.native": ["include/**/*.h", "bridge/*.h", "bridge/*.cpp"],
    },
    cffi_modules=["native/build_core.py:ffibuilder"],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
