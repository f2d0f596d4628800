"""Pools in a process whose address space is limited (ulimit -v). Each test is a process."""

import os
import subprocess
import textwrap

import pytest
from commands import python_with_pools
from control_groups import control_group
from native_fixtures import ROOT, compile_cpp, resident_bytes
from native_pool import KIB, MIB, NativePool, fill

BEGIN = """
import contextlib, mmap, random, resource
from native_pool import *

def mapped_bytes():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[0]) * mmap.PAGESIZE

def leave(size):
    limit = mapped_bytes() + size
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))

before = mapped_bytes()
"""


def run_limited(script: str) -> None:
    if os.environ.get("DTR_ALLOC_BUILD") == "sanitize":
        pytest.skip("sanitizers need terabytes of addresses")
    python_with_pools(BEGIN + textwrap.dedent(script))


def test_a_pool_takes_addresses_as_it_takes_memory_and_gives_them_back():
    run_limited("""
        leave(512 * MIB)
        with NativePool("host", budget=256 * MIB) as pool:
            assert mapped_bytes() - before < 32 * MIB
            blocks = [pool.allocate(MIB) for _ in range(256)]
            for block in blocks:
                fill(block, MIB, 1)
            assert 256 * MIB < mapped_bytes() - before < 300 * MIB
            for block in blocks:
                pool.free(block)
            pool.trim()
            assert mapped_bytes() - before < 32 * MIB
            whole = pool.allocate(256 * MIB)
            assert read(whole, 64 * MIB) == {0}
        assert mapped_bytes() - before < 32 * MIB
    """)


def test_a_pool_without_a_limit_uses_what_there_is_and_then_says_what_is_lacking():
    run_limited("""
        leave(512 * MIB)
        with NativePool("host") as pool:
            blocks = []
            try:
                while True:
                    blocks.append(pool.allocate(8 * MIB))
            except OutOfMemory as error:
                assert "the driver refused memory within the budget: mmap of" in str(error), error
                assert "RLIMIT_AS, ulimit -v" in str(error), error
            pool.verify()
            assert len(blocks) * 8 > 512 - 128 - 64
            mmap.mmap(-1, 120 * MIB).close()  # the rest of the process has some left
            for block in blocks[::2]:
                pool.free(block)
            fill(pool.allocate(len(blocks[::2]) * 8 * MIB - 32 * MIB), 100 * MIB, 1)
    """)


def test_contents_stay_through_refusals_and_remaps():
    run_limited("""
        leave(256 * MIB)
        random.seed(1)
        live, refused = [], 0
        with NativePool("host", budget=120 * MIB) as pool:
            for i in range(1500):
                size = random.choice([300, 5000, 70_000, MIB, 5 * MIB, 17 * MIB])
                if i % 100 == 50:
                    with contextlib.suppress(OutOfMemory):  # more than that is in use
                        pool.set_budget(random.choice([90, 120, 400]) * MIB)
                while True:
                    try:
                        address = pool.allocate(size)
                        break
                    except OutOfMemory:
                        refused += 1
                        for _ in range(len(live) // 2 + 1):
                            victim, length, byte = live.pop(random.randrange(len(live)))
                            assert read(victim, length) == {byte}
                            pool.free(victim)
                        if i % 3 == 0:
                            pool.trim()
                live.append((address, size, i % 251))
                fill(address, size, i % 251)
                if i % 50 == 0:
                    pool.verify()
            for address, size, byte in live:
                assert read(address, size) == {byte}
            assert refused > 20
    """)


def test_pools_have_places_of_their_own_and_leave_them():
    run_limited("""
        leave(512 * MIB)
        for _ in range(300):
            with NativePool("host") as first, NativePool("host") as second:
                ours, theirs = first.allocate(MIB), second.allocate(MIB)
                fill(ours, MIB, 1)
                fill(theirs, MIB, 2)
                assert read(ours, MIB) == {1}
                assert not second.contains(ours)
        assert mapped_bytes() - before < 8 * MIB
    """)


@pytest.fixture(scope="module")
def granted(tmp_path_factory):
    """The memory that a process is granted by the files below a root."""
    folder = tmp_path_factory.mktemp("granted")
    source = folder / "main.cpp"
    source.write_text(
        '#include <cstdio>\n#include "granted_memory.h"\n'
        'int main(int, char** args) { std::printf("%lu\\n", dtr::granted_memory(args[1])); }\n'
    )
    sources = [source, ROOT / "allocator/granted_memory.cpp"]
    program = compile_cpp(sources, folder / "granted")

    def of(root, limits=""):
        line = f'{limits} exec "{program}" "{root}"'
        # A sanitizer that is preloaded needs more addresses than the limits leave.
        plain = {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"}
        command = ["bash", "-c", line]
        done = subprocess.run(command, env=plain, check=True, capture_output=True, text=True)
        return int(done.stdout)

    return of


NONE = 2**64 - 1
V2 = "30 20 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup rw\n"
V1 = (
    "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n"
    "32 31 0:29 {top} /sys/fs/cgroup/cpu rw shared:9 - cgroup cgroup rw,cpu\n"
    "35 31 0:32 {top} /sys/fs/cgroup/memory rw shared:10 master:1 - cgroup cgroup rw,memory\n"
)


@pytest.mark.parametrize(
    ("mounts", "groups", "files", "expected"),
    [
        ("", "", {}, NONE),
        (V2, "0::/\n", {"memory.max": "max"}, NONE),
        (V2, "0::/a/b\n", {"a/b/memory.max": "max", "a/memory.max": "max"}, NONE),
        (V2, "0::/a/b\n", {"a/b/memory.max": "1000", "a/memory.max": "max"}, 1000),
        (V2, "0::/a/b\n", {"a/b/memory.max": "2000", "a/memory.max": "1500"}, 1500),
        (V2, "0::/\n", {"memory.max": "700"}, 700),
        (V2, "0::/../other\n", {"memory.max": "700"}, 700),
        (V2, "0::/gone\n", {}, NONE),
        (
            V1.format(top="/"),
            "4:memory:/job\n1:cpu:/elsewhere\n",
            {"memory/job/memory.limit_in_bytes": "600", "memory/memory.limit_in_bytes": "9000"},
            600,
        ),
        (
            V1.format(top="/docker/1"),
            "4:memory:/docker/1\n1:cpu:/docker/1\n",
            {"memory/memory.limit_in_bytes": "500"},
            500,
        ),
        (
            V1.format(top="/docker/1") + V2.replace("cgroup rw", "cgroup/unified rw", 1),
            "4:cpuset,memory:/docker/1/sub\n0::/\n",
            {"memory/sub/memory.limit_in_bytes": "400", "memory/memory.limit_in_bytes": "500"},
            400,
        ),
    ],
)
def test_the_least_limit_of_a_process_and_the_groups_above_it_is_what_it_is_granted(
    tmp_path, granted, mounts, groups, files, expected
):
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/mountinfo").write_text(mounts)
    (tmp_path / "proc/self/cgroup").write_text(groups)
    for name, text in files.items():
        path = tmp_path / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    assert granted(tmp_path) == expected


def test_a_process_is_granted_no_more_than_its_own_limits(tmp_path, granted):
    assert granted(tmp_path, "ulimit -v 500000;") == 500_000 * 1024
    assert granted(tmp_path, "ulimit -d 300000;") == 300_000 * 1024


def test_a_control_group_of_the_system_limits_what_a_process_is_granted(granted):
    with control_group(300 << 20) as processes:
        assert granted("", f'echo $$ > "{processes}";') == 300 << 20


# ---- Host memory as a device. Needs the native build, on Linux ----


def touch(address: int, size: int) -> None:
    for at in range(address, address + size, 4 * KIB):
        fill(at, 1, 1)


def test_remapping_never_holds_more_pages_than_the_budget():
    with NativePool("host", budget=16 * MIB) as pool:
        before = resident_bytes()
        for _ in range(4):
            blocks = [pool.allocate(MIB) for _ in range(16)]
            for block in blocks:
                touch(block, MIB)
            for block in blocks[::2]:
                pool.free(block)
            large = pool.allocate(8 * MIB)
            touch(large, 8 * MIB)
            assert resident_bytes() - before < 20 * MIB
            for block in [large, *blocks[1::2]]:
                pool.free(block)
