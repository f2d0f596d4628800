"""A control group of the system, for tests, where the process may make one."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def control_group(memory_bytes: int) -> Iterator[Path]:
    """The file cgroup.procs of a new group below the process's own whose memory is limited, in
    version 1 or 2, whichever has the memory controller. Skips where there may be none."""
    group = _own_group() / f"dtr_alloc_test_{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    try:
        limits = [group / "memory.max", group / "memory.limit_in_bytes"]
        limit = next((path for path in limits if path.exists()), None)
        if limit is None:
            pytest.skip(f"the control groups in {group.parent} have no memory controller")
        limit.write_text(str(memory_bytes))
        yield group / "cgroup.procs"
    finally:
        group.rmdir()


def _own_group() -> Path:
    """Where the process's group of the memory controller is mounted."""
    groups = {}
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        groups |= dict.fromkeys(controllers.split(","), path.lstrip("/"))
    if "memory" in groups:
        return Path("/sys/fs/cgroup/memory") / groups["memory"]
    return Path("/sys/fs/cgroup") / groups.get("", "")
