"""Jobs on emulated CUDA, a process each. Needs a CUDA build of torch, and no GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent


def _reason() -> str | None:
    try:
        import torch
    except ImportError:
        return "torch is not installed here"
    if torch.version.cuda is None:
        return "torch is built without CUDA here (make cuda-emulated CUDA_TORCH_PYTHONS=...)"
    try:
        import dtr_alloc._core  # noqa: F401
    except ImportError as error:
        return f"the core is not built here: {error}"
    return None


REASON = _reason()


def _package_folder() -> Path:
    """Where the dtr_alloc that these tests import lies."""
    import dtr_alloc

    return Path(dtr_alloc.__file__).parent.parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if REASON is not None:
        for item in items:
            if HERE in item.path.parents:
                item.add_marker(pytest.mark.skip(reason=REASON))


@dataclass
class Run:
    """What a job left behind."""

    output: str
    errors: str
    status: int
    report: dict[str, Any]

    @property
    def stats(self) -> dict[str, Any]:
        return self.report["stats"]


class Machine:
    """A machine with emulated devices."""

    def __init__(self, library: Path, folder: Path, management: Path) -> None:
        self.library, self.folder, self.management = library, folder, management
        self.runs = 0

    def run(
        self,
        script: str | Path,
        *arguments: object,
        budget: object = "none",
        devices: int = 1,
        chunk: int = 64 << 10,
        memory: int = 1 << 30,
        clean: bool = True,
        swap: str = "off",
        settings: str | None = None,
    ) -> Run:
        """Runs a script (its text, or a file) in a process.

        Queued work stays unfinished until somebody waits for it. `settings` are those of PyTorch's
        own allocator (PYTORCH_CUDA_ALLOC_CONF), for which there is a stand-in for NVML. Unless
        `clean` is False, the script must end well, and the stand-in must have nothing to report.
        """
        self.runs += 1
        report = self.folder / f"report-{self.runs}.json"
        if isinstance(script, str):
            path = self.folder / f"script-{self.runs}.py"
            path.write_text(script)
            script = path
        environ = {
            name: value for name, value in os.environ.items() if not name.startswith("DTR_ALLOC_")
        }
        environ |= {
            name: os.environ[name] for name in ("DTR_ALLOC_CACHE", "CXX") if name in os.environ
        }
        preloaded = [self.library]
        if settings is not None:
            environ["PYTORCH_CUDA_ALLOC_CONF"] = settings
            preloaded.append(self.management)
        done = subprocess.run(
            [sys.executable, "-W", "ignore", HERE / "start.py", report, str(budget), script]
            + [str(argument) for argument in arguments],
            env={
                **environ,
                "PYTHONPATH": f"{_package_folder()}{os.pathsep}{HERE}",
                "LD_PRELOAD": " ".join(map(str, preloaded)),
                "CUDA_EMULATOR_DEVICES": str(devices),
                "CUDA_EMULATOR_CHUNK": str(chunk),
                "CUDA_EMULATOR_MEMORY": str(memory),
                "CUDA_EMULATOR_HOLD": "1",
                "OMP_NUM_THREADS": "1",
                "DTR_ALLOC_SWAP": swap,
            },
            capture_output=True,
            text=True,
            check=False,
        )
        found = json.loads(report.read_text()) if report.exists() else {}
        run = Run(done.stdout, done.stderr, done.returncode, found)
        if clean:
            assert run.status == 0, run.errors[-4000:]
            assert found["refused"] == []
            assert found["violations"] == []
        return run


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stand-in for CUDA, compiled against the headers that torch brought along."""
    from dtr_alloc import compiler
    from dtr_alloc.torch import bridge

    folder = tmp_path_factory.mktemp("cuda")
    output = folder / "cuda_emulator.so"
    cxx = compiler.find()
    assert cxx, "no C++ compiler"
    # The driver's part first: the other's begin() calls it.
    sources = [
        HERE.parent / "fake_cuda/fake_cuda.cpp",
        HERE / "cudart.cpp",
        HERE / "runtime_common.cpp",
        HERE / "not_emulated.cpp",
    ]
    line = [cxx, "-std=c++17", "-O1", "-fPIC", "-shared", "-fvisibility=hidden"]
    line += [f"-I{path}" for path in bridge._cuda_headers()]
    line += [*map(str, sources), "-o", str(output), "-Wl,-soname,libcuda.so.1"]
    line += [f"-Wl,--version-script={HERE / 'versions.map'}", "-ldl", "-lpthread"]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return output


@pytest.fixture(scope="session")
def management(library: Path) -> Path:
    """The stand-in for NVML, in a library of its own, as the real one is."""
    from dtr_alloc import compiler

    output = library.with_name("nvml_stand_in.so")
    cxx = compiler.find()
    assert cxx, "no C++ compiler"
    line = [cxx, "-std=c++17", "-O1", "-fPIC", "-shared", str(HERE / "nvml.cpp")]
    line += ["-o", str(output), "-Wl,-soname,libnvidia-ml.so.1"]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return output


@pytest.fixture(scope="session")
def machine(library: Path, management: Path, tmp_path_factory: pytest.TempPathFactory) -> Machine:
    return Machine(library, tmp_path_factory.mktemp("jobs"), management)
