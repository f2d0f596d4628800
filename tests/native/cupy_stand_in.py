"""A stand-in for the few calls of CuPy 14 that dtr_alloc.cupy makes, for tests without a device."""

import types


class Stream:
    """What get_current_stream() returns."""

    def __init__(self, ptr, capturing=False):
        self.ptr = ptr
        self.capturing = capturing

    def is_capturing(self):
        return self.capturing


class Situation:
    """The current device and stream, which both players ask for here."""

    def __init__(self):
        self.device = 0
        self.stream = Stream(0)
        self.gave_back = 0

    def free_all_blocks(self):
        self.gave_back += 1


def _no_device(size):
    raise AssertionError("CuPy's own allocator was asked")


def stand_in():
    """A module with the calls of CuPy 14 that dtr_alloc.cupy makes, as cupy/cuda/memory.pyx."""

    class UnownedMemory:
        def __init__(self, ptr, size, owner, device_id=-1):
            self.ptr, self.size, self.device_id = ptr, size, device_id
            self._owner = owner

    class MemoryPointer:
        def __init__(self, mem, offset):
            assert mem.ptr != 0 or offset == 0
            self.ptr, self.mem = mem.ptr + offset, mem

        def __add__(self, offset):
            return MemoryPointer(self.mem, self.ptr - self.mem.ptr + offset)

    class OutOfMemoryError(MemoryError):
        def __init__(self, size, total, limit=0):
            super().__init__(f"{size} {total} {limit}")

    allocator = [_no_device]
    cuda = types.SimpleNamespace(
        UnownedMemory=UnownedMemory,
        MemoryPointer=MemoryPointer,
        get_allocator=lambda: allocator[0],
        set_allocator=lambda function: allocator.__setitem__(0, function),
        alloc=lambda size: allocator[0](size),
        memory=types.SimpleNamespace(OutOfMemoryError=OutOfMemoryError),
    )
    module = types.ModuleType("cupy")
    module.cuda = cuda
    return module
