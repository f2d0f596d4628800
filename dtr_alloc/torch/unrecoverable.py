"""Contents that a session cannot bring back when it ends.

A content is unrecoverable if something other than an operator overwrote its inputs, or if the
operator that made it fails now. The session ends nevertheless, and reading the content raises.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from dtr_alloc import costs
from dtr_alloc.config import error_size
from dtr_alloc.core import ffi, lib, listed
from dtr_alloc.torch.live_objects import live_objects
from dtr_alloc.torch.session import Session

_SHOWN = 8


class Unrecoverable(NamedTuple):
    """A storage that cannot be brought back.

    Attributes:
        id: the engine's number of it.
        handle: its address, as a number.
        operator: that made it; "" for a constant in host memory.
        size_bytes: of the storage.
        error: of the attempt to bring it back.
    """

    id: int
    handle: int
    operator: str
    size_bytes: int
    error: Exception


def bring_back_all(runtime: Session) -> list[Unrecoverable]:
    """Makes all evicted storages resident, in the order in which they were made. Returns those that
    cannot be brought back.

    Raises torch.OutOfMemoryError if the memory does not suffice; then no content is given up.
    """
    try:
        runtime.recorder.bring_back_all()
        return []
    except torch.OutOfMemoryError:
        raise
    except Exception:  # they are tried one by one
        evicted = [
            (of.id, int(ffi.cast("intptr_t", of.handle)), of.op_key, of.size_bytes)
            for of in listed("dtr_evicted", partial(lib.dtr_engine_get_evicted, runtime.engine))
        ]
    unrecoverable = []
    for storage, handle, op_key, size_bytes in evicted:
        try:
            runtime.bring_back(ffi.cast("void *", handle))
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            name = costs.operator_name(op_key)
            unrecoverable.append(Unrecoverable(storage, handle, name, size_bytes, error))
    return unrecoverable


def message(runtime: Session, unrecoverable: Sequence[Unrecoverable]) -> str:
    """Bytes, operators, and the shapes of tensors that Python knows."""
    shapes: dict[int, list[str]] = defaultdict(list)
    for tensor in live_objects(Tensor):
        if handle := runtime.handle(tensor):
            text = f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"
            shapes[int(ffi.cast("intptr_t", handle))].append(text)
    named = [
        f"{error_size(of.size_bytes)} of {of.operator or 'a constant in host memory'}"
        + "".join(f", {shape}" for shape in dict.fromkeys(shapes[of.handle]))
        for of in unrecoverable[:_SHOWN]
    ]
    if len(unrecoverable) > _SHOWN:
        named.append(f"and {len(unrecoverable) - _SHOWN} more")
    return (
        f"disable: the session has ended, and the content of {len(unrecoverable)} storages "
        f"of {error_size(sum(of.size_bytes for of in unrecoverable))} is unrecoverable, because it "
        "could not be recomputed; reading it raises an error. "
        f"{'; '.join(named)}. The first error: {unrecoverable[0].error}"
    )
