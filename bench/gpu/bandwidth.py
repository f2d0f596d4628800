"""How fast contents move: within the device, to pinned host memory, and back, by size.

Moving is the copy that our core makes (cuMemcpyDtoDAsync, within one device), swapping copies
from and to pinned memory on a stream. Bytes are counted once, so a copy within the device reads
and writes as many again. In the dry run, memory is copied by memmove and by PyTorch.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from bench.gpu.device import best_seconds
from bench.gpu.part import Options, Row, run
from bench.results import MIB

SIZES_MIB = (1, 4, 16, 64, 256, 1024)
TINY_SIZES_MIB = (1, 4)


def mover(options: Options, to: Tensor, source: Tensor) -> Callable[[], None]:
    """What copies within the device, by addresses."""
    size = ctypes.c_size_t(source.nbytes)
    if options.device != "cuda":

        def move_host() -> None:
            ctypes.memmove(to.data_ptr(), source.data_ptr(), source.nbytes)

        return move_host
    driver = ctypes.CDLL("libcuda.so.1")
    target, begin = ctypes.c_uint64(to.data_ptr()), ctypes.c_uint64(source.data_ptr())
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)

    def move() -> None:
        result = driver.cuMemcpyDtoDAsync_v2(target, begin, size, stream)
        if result != 0:
            raise RuntimeError(f"cuMemcpyDtoDAsync failed with {result}")

    return move


def rows(options: Options) -> Iterator[Row]:
    repeats = 3 if options.tiny else 20
    for size_mib in TINY_SIZES_MIB if options.tiny else SIZES_MIB:
        size = size_mib * MIB
        a = torch.ones(size, dtype=torch.uint8, device=options.device)
        b = torch.zeros_like(a)
        host = torch.empty(size, dtype=torch.uint8, pin_memory=options.device == "cuda")
        ways: dict[str, Callable[[], object]] = {
            "move": mover(options, b, a),
            "out to the host": partial(host.copy_, a, non_blocking=True),
            "in from the host": partial(b.copy_, host, non_blocking=True),
        }
        for way, copy in ways.items():
            seconds = best_seconds(options.device, copy, repeats)
            row = {"way": way, "size_mib": size_mib, "seconds": seconds}
            yield row | {"gigabytes_per_second": size / seconds / 1e9}
        if not torch.equal(b, a):
            raise RuntimeError(f"copies of {size} bytes differ")


if __name__ == "__main__":
    run(rows)
