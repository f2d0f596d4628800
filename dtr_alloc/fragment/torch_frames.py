"""What stands beside an event of PyTorch's snapshots: stacks as short names, and marks of ours."""

from __future__ import annotations

import re
from typing import Any

from dtr_alloc.fragment.trace import Kind

OURS = "dtr_alloc"
"""The file name of frames that name an operator or an eviction."""

_TORCH = re.compile(r"[/\\](torch|functorch|torchgen)[/\\]|<frozen |<string>")
_MOVED = re.compile(r"move to 0x([0-9a-f]{1,16})")
_REMATERIALIZED = "remat"
EVICTED = "evict"


class Names:
    """Short names of stacks: the innermost function that is not PyTorch's, with its file and line;
    of a stack of nothing else, the innermost; ``""`` without a stack."""

    def __init__(self) -> None:
        # A snapshot keeps one list for all that share it; without the mark in front, or with it.
        self._of_stack: dict[tuple[int, bool], str] = {}

    def of(self, event: dict[str, Any]) -> str:
        """The name of an event or block. Frames that are none count as no stack."""
        stack = event.get("frames")
        if not isinstance(stack, list) or not stack:
            return ""
        is_marked = is_of_mark(event, stack[0])
        key = (id(stack), is_marked)
        if key not in self._of_stack:
            self._of_stack[key] = _name(stack[1:] if is_marked else stack)
        return self._of_stack[key]


def is_of_mark(event: dict[str, Any], frame: Any) -> bool:
    """Whether the innermost frame is a mark of ours and no operator. (A job may put any text in
    user_metadata.)"""
    return (
        isinstance(frame, dict)
        and frame.get("filename") == OURS
        and bool(frame.get("name"))
        and frame.get("name") == event.get("user_metadata")
    )


def _name(stack: list[Any]) -> str:
    frames = [frame for frame in stack if isinstance(frame, dict)]
    ours = [frame for frame in frames if frame.get("filename") == OURS]
    if ours:
        return str(ours[-1].get("name", ""))
    python = [frame for frame in frames if str(frame.get("filename", "")).endswith(".py")]
    chosen = next(
        (frame for frame in python if not _TORCH.search(str(frame["filename"]))),
        next(iter(python or frames), None),
    )
    if chosen is None:
        return ""
    file = str(chosen.get("filename", "")).replace("\\", "/").rsplit("/", 1)[-1]
    return f"{chosen.get('name', '')} ({file}:{chosen.get('line', 0)})"


def metadata(kind: Kind, name: str = "", to: int = 0) -> str:
    """What the viewer shows beside an event that a mark of ours belongs to: EVICT and MOVE_FROM at
    a FREE, REMATERIALIZE at an ALLOCATE."""
    if kind == Kind.EVICT:
        return EVICTED
    if kind == Kind.MOVE_FROM:
        return f"move to {to:#x}"
    return f"{_REMATERIALIZED}: {name}" if name else _REMATERIALIZED


def marks(event: dict[str, Any], kind: Kind, address: int) -> list[tuple[Kind, int]]:
    """The marks, and their addresses, that metadata() put beside an event."""
    text = event.get("user_metadata")
    if not isinstance(text, str) or not text:
        return []
    stack = event.get("frames")
    if not isinstance(stack, list) or not stack or not is_of_mark(event, stack[0]):
        return []
    if kind == Kind.FREE and text == EVICTED:
        return [(Kind.EVICT, address)]
    if kind == Kind.FREE and (moved := _MOVED.fullmatch(text)):
        return [(Kind.MOVE_FROM, address), (Kind.MOVE_TO, int(moved[1], 16))]
    if kind == Kind.ALLOCATE and text.partition(":")[0] == _REMATERIALIZED:
        return [(Kind.REMATERIALIZE, address)]
    return []
