"""Jobs on emulated CUDA, a process each. Needs a CUDA build of torch, and no GPU."""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import emulated
import pytest

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    emulated.skip(items, HERE, emulated.why_not)


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

    def __init__(self, folder: Path) -> None:
        self.folder, self.runs = folder, 0

    def run(
        self,
        script: str | Path,
        *arguments: object,
        budget: object = "none",
        devices: int = 1,
        chunk: int = 64 << 10,
        memory: int = 1 << 30,
        peers: bool = False,
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
        preloaded = [emulated.library()]
        own = {"DTR_ALLOC_SWAP": swap}
        if settings is not None:
            own["PYTORCH_CUDA_ALLOC_CONF"] = settings
            preloaded.append(emulated.management())
        environ = emulated.environment(preloaded, devices, chunk, memory, peers)
        done = subprocess.run(
            [sys.executable, "-W", "ignore", HERE / "start.py", report, str(budget), script]
            + [str(argument) for argument in arguments],
            env=environ | own,
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
def machine(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    return Machine(tmp_path_factory.mktemp("jobs"))
