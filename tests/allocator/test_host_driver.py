"""Host memory as a device. Needs the native build, on Linux."""

from native_pool import KIB, MIB, NativePool, fill, read


def resident_bytes() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * 4 * KIB


def touch(address: int, size: int) -> None:
    for at in range(address, address + size, 4 * KIB):
        fill(at, 1, 1)


def test_trimmed_pages_go_back_to_the_system():
    with NativePool("host", budget=64 * MIB) as pool:
        before = resident_bytes()
        address = pool.allocate(32 * MIB)
        touch(address, 32 * MIB)
        assert resident_bytes() - before > 30 * MIB
        pool.free(address)
        assert pool.trim() == 32 * MIB
        assert resident_bytes() - before < 4 * MIB


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


def test_memory_that_comes_back_is_zeroed_by_the_system():
    with NativePool("host", budget=MIB) as pool:
        address = pool.allocate(MIB)
        fill(address, MIB, 9)
        pool.free(address)
        pool.trim()
        assert pool.allocate(MIB) == address
        assert read(address, MIB) == {0}
