"""The interface of the runtime (dtr_alloc/torch/runtime.py) for the parts of a session."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor, UntypedStorage

from dtr_alloc.config import Config
from dtr_alloc.pools import Pools
from dtr_alloc.torch.bridge import Bridge
from dtr_alloc.torch.call_sites import CallSites
from dtr_alloc.torch.recorder import Recorder

if TYPE_CHECKING:
    from dtr_alloc.oplog.recorder import OpLogRecorder


class Session(Protocol):
    bridge: Bridge
    call_sites: CallSites
    config: Config
    device_type: str
    engine: Any
    is_active: bool
    log: OpLogRecorder | None
    notices_writes: bool
    pools: Pools
    recorder: Recorder

    def begin_capture(self, owner: Any) -> None: ...
    def bring_back(self, handle: Any) -> None: ...
    def give_away(self, tensor: Tensor) -> None: ...
    def handle(self, tensor: Tensor) -> Any: ...
    def has_ample_room(self) -> bool: ...
    def pin(self, tensor: Tensor) -> UntypedStorage: ...
    def pin_for_a_while(self, tensor: Tensor) -> Any: ...
    def pin_what_is_made(self, owners: list[Any]) -> None: ...
    def share(self, tensor: Tensor) -> None: ...
    def unpin(self, storage: UntypedStorage) -> bool: ...
    def unseen_writes(self) -> int: ...
