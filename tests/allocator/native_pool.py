"""A pool for tests: the C functions with exceptions, and every block's content checked."""

from collections import namedtuple
from random import Random
from typing import Any

from dtr_alloc import _core
from dtr_alloc.pools import Pools

ffi, lib = _core.ffi, _core.lib

NO_LIMIT = 2**64 - 1
KIB = 1 << 10
MIB = 1 << 20

FREE, IN_USE, PENDING = 0, 1, 2


class PoolError(Exception):
    """A status that is not DTR_OK, with its message."""

    def __init__(self, code: int, message: str):
        super().__init__(message)
        self.code = code


NAMES = ("OutOfMemory", "Invalid", "DriverFailed", "WrongState")
ERRORS = {code: type(name, (PoolError,), {}) for code, name in enumerate(NAMES, 1)}
OutOfMemory, Invalid, DriverFailed, WrongState = ERRORS.values()


def check(code: int) -> None:
    if code != lib.DTR_OK:
        raise ERRORS[code](code, ffi.string(lib.dtr_last_error()).decode())


Block = namedtuple("Block", "address size_bytes requested_bytes stream state is_small arena")
"""A dtr_block."""


class NativePool:
    """A dtr_pool; use it in a with statement, which checks it and gives it back."""

    def __init__(self, driver="host", budget=NO_LIMIT, **options):
        """Options are fields of dtr_pool_options, without `_bytes`."""
        if driver.endswith("-fixed"):
            driver, options = driver.removesuffix("-fixed"), {"fixed": 1, **options}
        name = ffi.new("char[]", driver.encode())
        known = {
            field.removesuffix("_bytes"): field for field in dir(ffi.new("dtr_pool_options *"))
        }
        given = {known[option]: value for option, value in {"budget": budget, **options}.items()}
        options = ffi.new("dtr_pool_options *", {"driver": name, **given})
        out = ffi.new("dtr_pool **")
        check(lib.dtr_pool_create(options, out))
        self.handle = out[0]
        self._room = ffi.NULL

    def __enter__(self):
        return self

    def __exit__(self, kind, error, traceback):
        if kind is None:
            self.verify()
        for block in self.snapshot():
            if block.state == IN_USE:
                self.free(block.address)
        self.destroy()

    def destroy(self):
        check(lib.dtr_pool_destroy(self.handle))
        self.handle = None

    def __getattr__(self, name: str):
        """A function of the pool. What is not given is 0, or is where it writes what it gives."""
        function = getattr(lib, f"dtr_pool_{name}")
        kinds = ffi.typeof(function).args[1:]

        def call(*given):
            arguments = [
                *map(ffi.cast, kinds, given),
                *(ffi.new(kind) if kind.kind == "pointer" else 0 for kind in kinds[len(given) :]),
            ]
            check(function(self.handle, *arguments))
            if len(given) == len(kinds) or kinds[-1].kind != "pointer":
                return None
            found = arguments[-1][0]
            return found if isinstance(found, int) else int(ffi.cast("uintptr_t", found))

        self.__dict__[name] = call
        return call

    def try_outside(
        self, size: int, begin: int = 0, end: int = 0, stream: int = 0, packed: bool = False
    ) -> int:
        bounds = [ffi.cast("void *", address) for address in (begin, end)]
        out = ffi.new("void **")
        check(lib.dtr_pool_try_outside(self.handle, size, stream, *bounds, packed, out))
        return int(ffi.cast("uintptr_t", out[0]))

    def try_at(
        self, size: int, address: int, stream: int = 0, capacity: int = 16
    ) -> tuple[int, list[int], int]:
        """Returns the block, or 0; those in the way, up to capacity; and how many there are."""
        in_the_way, count = ffi.new("void *[]", capacity), ffi.new("uint64_t *")
        out = ffi.new("void **")
        at = ffi.cast("void *", address)
        arguments = size, stream, at, in_the_way, capacity, count, out
        check(lib.dtr_pool_try_at(self.handle, *arguments))
        named = [int(ffi.cast("uintptr_t", in_the_way[i])) for i in range(min(count[0], capacity))]
        return int(ffi.cast("uintptr_t", out[0])), named, count[0]

    def allocate_hinted(self, size: int, hint: int, stream: int = 0) -> int:
        out = ffi.new("void **")
        check(lib.dtr_pool_allocate_hinted(self.handle, size, stream, hint, out))
        return int(ffi.cast("uintptr_t", out[0]))

    def set_room(self, room) -> None:
        """room(size, stream) -> bool, or None."""
        if room is None:
            self._room = ffi.NULL
        else:
            self._room = ffi.callback(
                "int32_t(void *, uint64_t, uint64_t)",
                lambda context, size, stream: int(room(size, stream)),
            )
        lib.dtr_pool_set_room(self.handle, self._room, ffi.NULL)

    def block_bytes(self, address: int) -> int:
        return lib.dtr_pool_block_bytes(self.handle, ffi.cast("void *", address))

    def block_start(self, address: int) -> int:
        found = lib.dtr_pool_block_start(self.handle, ffi.cast("void *", address))
        return int(ffi.cast("uintptr_t", found))

    def contains(self, address: int) -> bool:
        return lib.dtr_pool_contains(self.handle, ffi.cast("void *", address)) == 1

    def time_drop(self, timer: int) -> None:
        lib.dtr_pool_time_drop(self.handle, timer)

    def times(self, capacity: int = 1000) -> dict[int, int]:
        timers, ns = ffi.new("uint64_t[]", capacity), ffi.new("int64_t[]", capacity)
        count = lib.dtr_pool_times(self.handle, timers, ns, capacity)
        return {timers[i]: ns[i] for i in range(count)}

    def stats(self):
        stats = ffi.new("dtr_pool_stats *")
        lib.dtr_pool_get_stats(self.handle, stats)
        return stats

    def reset_peak(self) -> None:
        lib.dtr_pool_reset_peak(self.handle)

    def snapshot(self) -> list[Block]:
        count = ffi.new("uint64_t *")
        check(lib.dtr_pool_snapshot(self.handle, ffi.NULL, 0, count))
        blocks = ffi.new("dtr_block[]", count[0])
        check(lib.dtr_pool_snapshot(self.handle, blocks, len(blocks), count))
        fields = Block._fields
        return [Block(*(getattr(block, name) for name in fields)) for block in blocks]

    def verify(self) -> None:
        check(lib.dtr_pool_check_invariants(self.handle))


def pools_of(*pools: NativePool) -> Pools:
    """These as the pools of a process."""
    made = Pools.__new__(Pools)
    made.device_type, made.handles = "host", [pool.handle for pool in pools]
    return made


def move_some(engine: Any, pool: Any, seed: int, count: int) -> int:
    """Moves contents of a pool's blocks elsewhere, each drawn anew. Returns how many moved."""
    random = Random(seed)
    length = ffi.new("uint64_t *")
    for moved in range(count):
        check(lib.dtr_pool_snapshot(pool, ffi.NULL, 0, length))
        blocks = ffi.new("dtr_block[]", length[0])
        check(lib.dtr_pool_snapshot(pool, blocks, len(blocks), length))
        used = [each.address for each in blocks if each.state == lib.DTR_BLOCK_IN_USE]
        for address in random.sample(used, len(used)):
            where = ffi.cast("void *", address)
            if done := lib.dtr_engine_relocate(engine, where, ffi.NULL, ffi.NULL):
                check(-min(done, 0))
                break
        else:
            return moved
    return count


def fill(address: int, size: int, value: int) -> None:
    """Writes a block's first and last bytes, which a wrong mapping would not survive."""
    for at in {address, address + size - 1}:
        ffi.cast("uint8_t *", at)[0] = value


def read(address: int, size: int) -> set[int]:
    return {ffi.cast("uint8_t *", at)[0] for at in {address, address + size - 1}}
