"""DTR_ALLOC_DEBUG=guard finds who keeps a pointer past a tensor's eviction. Each test is a process:
the setting is fixed when a process gets its memory."""

import os
import subprocess
import textwrap
from typing import Any

import pytest
from harness import python

BEGIN = """
import ctypes, torch, dtr_alloc
from torch._C import _data_address

# As a kernel of C++ reads it: nobody hears of it.
address = getattr(_data_address, "__wrapped__", _data_address)
tensor = torch.ones(1000)
dtr_alloc.enable("64MiB", device="cpu", debug="guard")
tensor = tensor * 3
kept = (ctypes.c_float * 1000).from_address(address(tensor))
print(kept[0])
"""


def run(script: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return python("-X", "faulthandler", "-c", BEGIN + textwrap.dedent(script), **options)


@pytest.mark.skipif(
    os.environ.get("DTR_ALLOC_BUILD") == "sanitize", reason="a sanitizer handles SIGSEGV itself"
)
@pytest.mark.parametrize(
    "leaves",
    [
        "dtr_alloc.evict(tensor)",
        "dtr_alloc.evict(tensor); dtr_alloc.materialize(tensor)",
        "del tensor",
    ],
    ids=["evicted", "recomputed", "dead"],
)
@pytest.mark.parametrize("use", ["kept[0]", "kept[0] = 7"], ids=["read", "written"])
def test_a_kept_pointer_ends_the_process_with_a_line_that_says_so(leaves, use):
    done = run(f"{leaves}\nprint('left', flush=True)\n{use}\nprint('behind')\n", status=-11)
    assert done.stdout.splitlines() == ["3.0", "left"]
    assert "dtr_alloc: memory was used by a pointer that was kept" in done.stderr


def test_a_pinned_tensor_stays_where_the_pointer_says():
    done = run("""
        dtr_alloc.pin(tensor)
        dtr_alloc.evict(tensor)
        print(kept[0])
        dtr_alloc.check_invariants()
    """)
    assert done.stdout.splitlines() == ["3.0", "3.0"]


def test_there_is_no_heap_to_make():
    last = run("", status=1, pool="chunk:64KiB").stderr.splitlines()[-1]
    assert "pool is 'chunk:65536,keep:all'; allowed: the default beside guard" in last
