"""Jobs in processes of their own, over the stand-in for CUDA or on a device; what was seen there.

    python emulated.py REPORT BUDGET SCRIPT ARGUMENTS...    what such a process runs

BUDGET is one of dtr_alloc.enable(), or ``none``: PyTorch's own allocator. REPORT gets what the
stand-in saw, as JSON, also if the script fails: ``violations`` (work that could run beside other
work, memory used wrongly), ``refused`` (kernels that would have run, functions that are not
emulated), ``stats`` of dtr_alloc, ``skipped`` (why, if the script is a test that is), and the
script's global ``FACTS`` if it has one.
"""

import atexit
import contextlib
import ctypes
import json
import os
import runpy
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
BACKEND = os.environ.get("GPU_TESTS_DEVICE", "cuda")
DEVICE = "cpu" if BACKEND == "cpu" else "cuda"


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


@dataclass
class Run:
    """What a job left behind."""

    output: str
    status: int
    report: dict[str, Any]

    @property
    def stats(self) -> dict[str, Any]:
        return self.report["stats"]


def run(
    script: str | Path,
    *arguments: object,
    budget: object = "none",
    stand_in: bool = True,
    devices: int = 1,
    chunk: int = 64 << 10,
    memory: int = 1 << 30,
    peers: bool = False,
    clean: bool = True,
    settings: str | None = None,
    swap: str = "off",
    **own: str,
) -> Run:
    """Runs a script (its text, or a file) in a process that finds the same packages as this one.

    Over the stand-in queued work stays unfinished until somebody waits for it. `settings` are those
    of PyTorch's own allocator (PYTORCH_CUDA_ALLOC_CONF), for which there is a stand-in for NVML;
    `swap` and `own` are those of dtr_alloc. Unless `clean` is False, the script must end well, and
    the stand-in must have nothing to report.
    """
    import bench
    import dtr_alloc

    paths = [str(Path(package.__file__ or "").parents[1]) for package in (dtr_alloc, bench)]
    paths += [str(HERE), *(str(HERE.parent / name) for name in ("allocator", "gpu"))]
    paths += filter(None, [os.environ.get("PYTHONPATH")])
    kept = ("DTR_ALLOC_CACHE", "CXX")
    environ = {
        **{n: v for n, v in os.environ.items() if n in kept or not n.startswith("DTR_ALLOC_")},
        **{f"DTR_ALLOC_{name.upper()}": value for name, value in {"swap": swap, **own}.items()},
        "PYTHONPATH": os.pathsep.join(paths),
        "LD_PRELOAD": "",
        "OMP_NUM_THREADS": "1",
        # Read by cuBLAS when it is first used; PyTorch asks for it in deterministic mode.
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    }
    if stand_in:
        told = {"DEVICES": devices, "CHUNK": chunk, "MEMORY": memory, "PEERS": int(peers)}
        environ |= {f"CUDA_EMULATOR_{name}": str(value) for name, value in told.items()}
        environ |= {"CUDA_EMULATOR_HOLD": "1", "LD_PRELOAD": str(library())}
    if settings is not None:
        environ["PYTORCH_CUDA_ALLOC_CONF"] = settings
        environ["LD_PRELOAD"] += f" {management()}"
    with tempfile.TemporaryDirectory() as folder:
        report, path = Path(folder, "report.json"), Path(folder, "script.py")
        if isinstance(script, str):
            path.write_text(script)
            script = path
        line = [sys.executable, "-W", "ignore", __file__, report, budget, script, *arguments]
        done = subprocess.run(list(map(str, line)), env=environ, capture_output=True, text=True)
        found = json.loads(report.read_text()) if report.exists() else {}
    if clean:
        assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-4000:]
        assert (found["refused"], found["violations"]) == ([], [])
    return Run(done.stdout, done.returncode, found)


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


def main(report: str, budget: str, script: str) -> int:
    """Runs a script; the process's exit status."""
    import torch

    is_emulated = bool(os.environ["LD_PRELOAD"])
    found: dict[str, Any] = {"violations": [], "refused": []}
    stats: Callable[[], Any] = dict
    facts: dict[str, Any] = {}
    try:
        if is_emulated:
            prepare()
        if budget != "none":
            import dtr_alloc

            dtr_alloc.enable(budget=budget, device=DEVICE)
            stats = dtr_alloc.stats
        facts.update(runpy.run_path(script, {"FACTS": facts}, "__main__").get("FACTS", {}))
        if budget != "none":
            dtr_alloc.check_invariants()
    except BaseException as error:
        if type(error).__name__ != "Skipped":
            traceback.print_exc()
            return 1
        facts["skipped"] = str(error)
    finally:
        with contextlib.suppress(Exception):
            facts.setdefault("peak_bytes", torch.cuda.max_memory_allocated())
        if is_emulated:
            found |= seen()
        Path(report).write_text(json.dumps({**found, "stats": stats(), **facts}))
    return 0


if __name__ == "__main__":
    report, budget, *sys.argv = sys.argv[1:]
    sys.modules["emulated"] = sys.modules["__main__"]
    status = main(report, budget, sys.argv[0])
    if not os.environ["LD_PRELOAD"]:
        sys.exit(status)
    # Not as the interpreter ends: autograd's device threads, which run kernels in Python here, may
    # meet its end while they wait for the GIL, and abort, also without dtr_alloc.
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
