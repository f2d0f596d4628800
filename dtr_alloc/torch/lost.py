"""What a session that ends cannot bring back: a content that cannot be computed again.

That is so where something other than an operator overwrote what it was computed from, or where the
operator that made it fails now. The session ends all the same: the content is lost, and whoever
reads it meets an exception.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dtr_alloc import costs
from dtr_alloc.config import error_size
from dtr_alloc.core import ffi, lib, listed
from dtr_alloc.torch.live_objects import live_objects

_SHOWN = 8


class Lost(NamedTuple):
    """A storage that cannot be brought back.

    Attributes:
        id: the engine's number of it.
        handle: its address, as a number.
        operator: what made it; "" if none did, and it was in host memory.
        size_bytes: of the storage.
        error: what came of the attempt.
    """

    id: int
    handle: int
    operator: str
    size_bytes: int
    error: Exception


def bring_back_all(runtime: Any) -> list[Lost]:
    """Makes all that is evicted resident, but what it returns, in the order in which it was made.

    Raises torch.OutOfMemoryError where memory does not suffice: that is no reason to lose anything.
    """
    try:
        runtime.recorder.bring_back_all()
        return []
    except torch.OutOfMemoryError:
        raise
    except Exception:
        evicted = _evicted(runtime)  # tried one by one
    lost = []
    for storage, handle, op_key, size_bytes in evicted:
        try:
            runtime.bring_back(ffi.cast("void *", handle))
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            lost.append(Lost(storage, handle, costs.operator_name(op_key), size_bytes, error))
    return lost


def _evicted(runtime: Any) -> list[tuple[int, int, int, int]]:
    """Id, handle, key of the operator and bytes of live storages that are evicted."""
    return [
        (of.id, int(ffi.cast("intptr_t", of.handle)), of.op_key, of.size_bytes)
        for of in listed("dtr_evicted", partial(lib.dtr_engine_get_evicted, runtime.engine))
    ]


def message(runtime: Any, lost: Sequence[Lost]) -> str:
    """Names what was lost: bytes, operators, and the shapes of the tensors that Python knows."""
    shapes: dict[int, list[str]] = defaultdict(list)
    for tensor in live_objects(Tensor):
        if handle := runtime.handle(tensor):
            text = f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"
            shapes[int(ffi.cast("intptr_t", handle))].append(text)
    named = [
        f"{error_size(of.size_bytes)} of {of.operator or 'a constant in host memory'}"
        + "".join(f", {shape}" for shape in dict.fromkeys(shapes[of.handle]))
        for of in lost[:_SHOWN]
    ]
    if len(lost) > _SHOWN:
        named.append(f"and {len(lost) - _SHOWN} more")
    return (
        f"disable: the session has ended, and the content of {len(lost)} storages "
        f"of {error_size(sum(of.size_bytes for of in lost))} is lost, because it could not be "
        "computed again; reading it raises an error. "
        f"{'; '.join(named)}. The first error: {lost[0].error}"
    )
