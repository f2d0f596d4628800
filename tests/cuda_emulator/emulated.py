"""The stand-in for CUDA: its libraries, the environment of a process over it, what it saw there."""

import atexit
import ctypes
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

HERE = Path(__file__).parent


@cache
def _folder() -> Path:
    folder = tempfile.TemporaryDirectory(prefix="cuda_emulator")
    atexit.register(folder.cleanup)
    return Path(folder.name)


def _compile(output: Path, *line: object) -> Path:
    from dtr_alloc import compiler

    cxx = compiler.find()
    assert cxx, "no C++ compiler"
    common = [cxx, "-std=c++20", "-O1", "-fPIC", "-shared", "-o", output]
    done = subprocess.run([*common, *line], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return output


@cache
def library() -> Path:
    """CUDA's driver and runtime, compiled against the headers that torch brought along."""
    from dtr_alloc.torch import bridge

    # The driver's part first: the other's begin() calls it.
    sources = [HERE.parent / "fake_cuda/fake_cuda.cpp"]
    sources += [HERE / f"{name}.cpp" for name in ("cudart", "runtime_common", "not_emulated")]
    return _compile(
        _folder() / "cuda_emulator.so",
        *("-fvisibility=hidden", "-Wl,-soname,libcuda.so.1"),
        *(f"-I{path}" for path in bridge._cuda_headers()),
        *(*sources, f"-Wl,--version-script={HERE / 'versions.map'}", "-ldl", "-lpthread"),
    )


@cache
def management() -> Path:
    """NVML, in a library of its own, as the real one is."""
    soname = "-Wl,-soname,libnvidia-ml.so.1"
    return _compile(_folder() / "nvml_stand_in.so", HERE / "nvml.cpp", soname)


def why_not() -> str | None:
    """What keeps jobs from running over the libraries here."""
    try:
        import dtr_alloc._core  # noqa: F401
        import torch
    except ImportError as error:
        return str(error)
    if torch.version.cuda is None:
        return "torch is built without CUDA here (make cuda-emulated CUDA_TORCH_PYTHONS=...)"
    return None


def skip(items: list[Any], folder: Path, why_not: Callable[[], str | None]) -> None:
    """Skips the tests of a folder if something keeps them from running."""
    import pytest

    own = [item for item in items if folder in item.path.parents]
    if own and (reason := why_not()) is not None:
        for item in own:
            item.add_marker(pytest.mark.skip(reason=reason))


def environment(
    preloaded: list[Path],
    devices: int = 1,
    chunk: int = 64 << 10,
    memory: int = 1 << 30,
    peers: bool = False,
) -> dict[str, str]:
    """The variables of a process over the libraries, which finds the same packages as this one.
    Queued work stays unfinished until somebody waits for it."""
    import bench
    import dtr_alloc

    paths = [str(Path(package.__file__ or "").parents[1]) for package in (dtr_alloc, bench)]
    paths += [str(HERE), str(HERE.parent / "allocator")]  # helpers that folders share
    paths += filter(None, [os.environ.get("PYTHONPATH")])
    kept = ("DTR_ALLOC_CACHE", "CXX")
    return {
        **{
            name: value
            for name, value in os.environ.items()
            if name in kept or not name.startswith("DTR_ALLOC_")
        },
        "PYTHONPATH": os.pathsep.join(paths),
        "LD_PRELOAD": " ".join(map(str, preloaded)),
        "CUDA_EMULATOR_DEVICES": str(devices),
        "CUDA_EMULATOR_CHUNK": str(chunk),
        "CUDA_EMULATOR_MEMORY": str(memory),
        "CUDA_EMULATOR_PEERS": str(int(peers)),
        "CUDA_EMULATOR_HOLD": "1",
        "OMP_NUM_THREADS": "1",
    }


# ---- In such a process.


def prepare() -> None:
    """Puts CPU kernels in the place of CUDA's, before anything is computed."""
    import kernels
    import torch

    torch.set_num_threads(1)
    kernels.install()
    # Their kernels are no operators of the CPU.
    torch.backends.cuda.enable_flash_sdp(False)
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    torch.backends.cuda.enable_cudnn_sdp(False)


def _texts(function: Any) -> list[str]:
    function.restype = ctypes.c_char_p
    function.argtypes = [ctypes.c_uint64]
    texts: list[str] = []
    while (text := function(len(texts))) is not None:
        texts.append(text.decode())
    return texts


def seen() -> dict[str, list[str]]:
    """``violations`` (work that could run beside other work, memory used wrongly) and ``refused``
    (kernels that would have run, functions that are not emulated)."""
    library = ctypes.CDLL("libcuda.so.1")
    return {
        "violations": _texts(library.fake_cuda_violation),
        "refused": _texts(library.cuda_emulator_refused),
    }


def leave(status: int) -> NoReturn:
    """Ends the process; not as the interpreter does. Autograd's device threads, which run kernels
    in Python here, may meet its end while they wait for the GIL, and abort, also without dtr_alloc.
    """
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
