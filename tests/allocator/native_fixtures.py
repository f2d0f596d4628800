"""What the tests of the core share: compiled helpers and the stand-in for libcuda."""

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from threading import Thread

import pytest
from cffi import FFI
from native_pool import (
    MIB,
    DriverFailed,
    NativePool,
    OutOfMemory,
    PoolError,
    check,
    ffi,
    lib,
    pools_of,
)

from dtr_alloc.traces import trace_file
from dtr_alloc.traces.recording import Recording

ROOT = Path(__file__).resolve().parents[2]
OUT_OF_MEMORY, UNKNOWN = 2, 999  # errors of the driver (CUresult)
DRIVERS = ("host", "simulated", "cuda", "host-fixed", "cuda-fixed")


def few_or_many(few: int, many: int):
    """Has a property tested with so many examples; with many only by `make test-all`."""
    found = [pytest.param(few, id="few"), pytest.param(many, id="many", marks=pytest.mark.long)]
    return pytest.mark.parametrize("examples", found)


def compile_cpp(sources, output: Path, *flags: str) -> Path:
    command = ["g++", "-std=c++20", "-O0", "-Wall", "-Wextra", "-Wno-unused-parameter"]
    command += [f"-I{ROOT / folder}" for folder in ("native", "native/include", "allocator")]
    command += [*map(str, sources), "-o", str(output), *flags]
    subprocess.run(command, check=True)
    return output


def on_threads(*works: Callable[[], object]) -> None:
    """Each on a thread of its own, at once; none may raise."""
    errors = []

    def run(work: Callable[[], object]) -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    threads = [Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def resident_bytes() -> int:
    """The memory of this process."""
    with open("/proc/self/smaps_rollup") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("Rss:"))


SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined")


def cpp_program(folder: Path, *sources, flags=()) -> Callable[..., str]:
    """Compiles a program; gives a function that runs it with arguments, and text on its standard
    input, and returns what it prints. The program must succeed."""
    program = compile_cpp([ROOT / source for source in sources], folder / "program", *flags)

    def run(*arguments, text: str | None = None) -> str:
        # A sanitizer that is preloaded for Python must not be loaded twice.
        environ = {"ASAN_OPTIONS": "detect_leaks=1"}
        command = [program, *map(str, arguments)]
        done = subprocess.run(command, input=text, env=environ, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


def load_cpp(sources, library: Path, declarations: str):
    """The FFI that knows the declarations, and the library that the sources become."""
    ffi = FFI()
    ffi.cdef(declarations)
    return ffi, ffi.dlopen(str(compile_cpp(sources, library, "-shared", "-fPIC")))


@pytest.fixture(scope="session")
def core_object(tmp_path_factory) -> Path:
    """All of allocator/, compiled as one file: several times faster than its parts."""
    folder = tmp_path_factory.mktemp("core")
    whole = folder / "core.cpp"
    parts = sorted((ROOT / "allocator").glob("*.cpp"))
    whole.write_text("".join(f'#include "{part}"\n' for part in parts))
    return compile_cpp([whole], folder / "core.o", "-c")


class FakeCuda:
    """The stand-in for libcuda (tests/fake_cuda), and what it saw."""

    is_stuck = False  # a test that failed left a pool behind: the core keeps the library

    def __init__(self, path: Path):
        self.path = path
        declarations = FFI()
        declarations.cdef("""
            void fake_cuda_reset(void);
            void fake_cuda_set_memory(uint64_t total);
            void fake_cuda_set_devices(int devices);
            void fake_cuda_set_vmm(int supported);
            void fake_cuda_fail_call(uint64_t n, int error);
            const char *fake_cuda_failed_call(void);
            uint64_t fake_cuda_calls(void);
            void fake_cuda_hold(int on);
            void fake_cuda_launch(uint64_t stream, unsigned long long address, uint64_t size);
            void fake_cuda_set_work_ns(uint64_t ns);
            void fake_cuda_capture(uint64_t stream, int on);
            int fake_cuda_step(uint64_t stream);
            uint64_t fake_cuda_unfinished(uint64_t stream);
            uint64_t fake_cuda_waits(void);
            uint64_t fake_cuda_physical_bytes(void);
            int fake_cuda_is_shown(unsigned long long address, uint64_t size, int device);
            const char *fake_cuda_violation(uint64_t i);
            uint64_t fake_cuda_leaks(void);
        """)
        self._ffi = declarations
        self._lib = declarations.dlopen(str(path))

    def __getattr__(self, name):
        return getattr(self._lib, f"fake_cuda_{name}")

    def failed(self) -> str:
        return self._ffi.string(self._lib.fake_cuda_failed_call()).decode()

    @contextmanager
    def failing(self, call: int, error: int = UNKNOWN) -> Iterator[list[PoolError]]:
        """While one of the next calls fails, by its number. Lists what the core says of that."""
        said: list[PoolError] = []
        self.fail_call(call, error)
        try:
            yield said
        except (DriverFailed, OutOfMemory) as failure:
            said.append(failure)
        finally:
            self.fail_call(0, 0)

    def violations(self) -> list[str]:
        found = []
        while (text := self._lib.fake_cuda_violation(len(found))) != self._ffi.NULL:
            found.append(self._ffi.string(text).decode())
        return found

    def finish(self, stream: int) -> None:
        while self.step(stream):
            pass


@cache  # one for the tests of all folders
def build_fake_cuda(folder: Path) -> FakeCuda:
    path = folder / "libfakecuda.so"
    compile_cpp([ROOT / "tests/fake_cuda/fake_cuda.cpp"], path, "-shared", "-fPIC")
    return FakeCuda(path)


@pytest.fixture(scope="session")
def fake_cuda_library(tmp_path_factory) -> FakeCuda:
    return build_fake_cuda(tmp_path_factory.getbasetemp())


@pytest.fixture
def fake_cuda(fake_cuda_library):
    """The stand-in, in use by the core; at the end it has seen no violation and no leak."""
    fake = fake_cuda_library
    fake.reset()
    if not fake.is_stuck:
        check(lib.dtr_cuda_set_library(ffi.new("char[]", str(fake.path).encode())))
    yield fake
    assert fake.violations() == []
    if not fake.is_stuck:
        unloaded = lib.dtr_cuda_set_library(ffi.NULL)
        fake.is_stuck = unloaded != lib.DTR_OK
        check(unloaded)
        assert fake.leaks() == 0


@pytest.fixture
def record(tmp_path):
    """record(pools): begins a recording; its stop() returns the checked trace."""

    class Here(Recording):
        def stop(self):
            super().stop()
            trace = trace_file.read(self.path)
            trace.validate()
            return trace

    def begin(*pools, name_of=str, only_at_oom=False):
        made = Here(pools_of(*pools), tmp_path / "some.trace", "light", name_of, only_at_oom)
        made.start()
        return made

    return begin


def held_pool(fake_cuda):
    """Of 8 chunks on the stand-in, where work is done only when a test says so."""
    fake_cuda.hold(1)
    with NativePool("cuda", budget=16 * MIB) as pool:
        yield pool
        fake_cuda.hold(0)
