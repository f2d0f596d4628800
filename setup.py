"""Builds the compiled core, and in a checkout the laboratory; everything else about the package is
in pyproject.toml."""

import os
import sys
from concurrent.futures import Future, ThreadPoolExecutor

from setuptools import find_packages, setup
from setuptools.command.build_ext import build_ext

MOST_COMPILERS = 8
"""At once: each takes up to a gigabyte."""


class BuildInParallel(build_ext):
    """Compiles several files at once, and says how far it is: setuptools compiles one after the
    other."""

    def run(self) -> None:
        if not (self.inplace or self.editable_mode):
            self.extensions = [each for each in self.extensions if each.name != "dtr_alloc._lab"]
        super().run()

    def build_extensions(self) -> None:
        compile_all, compile_one = self.compiler.compile, self.compiler._compile

        def compile_at_once(sources, *args, **options):
            running: list[Future[None]] = []
            with ThreadPoolExecutor(min(len(os.sched_getaffinity(0)), MOST_COMPILERS)) as pool:
                self.compiler._compile = lambda *one: running.append(pool.submit(compile_one, *one))
                objects = compile_all(sources, *args, **options)
                try:
                    for i, done in enumerate(running, 1):
                        done.result()
                        print(f"compiled {i} of {len(running)} files", file=sys.stderr, flush=True)
                except BaseException:
                    pool.shutdown(cancel_futures=True)
                    raise
            return objects

        self.compiler.compile = compile_at_once
        super().build_extensions()


setup(
    packages=["dtr_alloc.native", *find_packages(include=["dtr_alloc*"], exclude=["*.native*"])],
    package_dir={"dtr_alloc": "dtr_alloc", "dtr_alloc.native": "native"},
    # The bridge is compiled on the user's machine, so its sources travel with the package, and no
    # others. Those that make wheel has compiled before are in dtr_alloc/bridges.
    include_package_data=False,
    package_data={
        "dtr_alloc": ["py.typed", "bridges/*.so"],
        "dtr_alloc.native": ["include/**/*.h", "bridge/*.h", "bridge/*.cpp"],
    },
    cmdclass={"build_ext": BuildInParallel},
    cffi_modules=["native/build_core.py:ffibuilder", "native/build_core.py:lab"],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
