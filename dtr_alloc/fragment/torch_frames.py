"""The parts of an event of PyTorch's snapshots beside its numbers: stacks, as short names, and our
marks."""

from __future__ import annotations

import re
from typing import Any

from dtr_alloc.bounded import shown
from dtr_alloc.traces.trace import Kind

OURS = "dtr_alloc"
"""The file name of frames that name an operator or an eviction."""

_TORCH = re.compile(r"[/\\](torch|functorch|torchgen)[/\\]|<frozen |<string>")
_MOVED = re.compile(r"move to 0x([0-9a-f]{1,16})")
_REMATERIALIZED = "remat"
_MOST_TEXT = 4096
EVICTED = "evict"


class Names:
    """Short names of stacks: the innermost function outside of PyTorch, with its file and line; in
    a stack of PyTorch alone, the innermost; ``""`` without a stack."""

    def __init__(self) -> None:
        # A snapshot keeps one list for all that share it; without the mark in front, or with it.
        self._of_stack: dict[tuple[int, bool], str] = {}

    def of(self, event: dict[str, Any]) -> str:
        """The name of an event or block."""
        stack = event.get("frames")
        if not isinstance(stack, list) or not stack:
            return ""
        is_marked = is_of_mark(event, stack[0])
        key = (id(stack), is_marked)
        if key not in self._of_stack:
            self._of_stack[key] = _name(stack[1:] if is_marked else stack)
        return self._of_stack[key]


def is_of_mark(event: dict[str, Any], frame: Any) -> bool:
    """Whether the innermost frame is our mark and not an operator. (A job may put any text in
    user_metadata.)"""
    name = text_of(frame, "name") if isinstance(frame, dict) else ""
    return bool(name) and frame.get("filename") == OURS and name == text_of(event, "user_metadata")


def text_of(of: dict[str, Any], key: str) -> str:
    """The first _MOST_TEXT characters of a text, with "?" for characters that no file can hold; ""
    for any other value. Without the cut, a text that a million frames share would be copied a
    million times."""
    value = of.get(key)
    if not isinstance(value, str):
        return ""
    value = value[:_MOST_TEXT]
    return value if value.isascii() else value.encode(errors="replace").decode()


def _name(stack: list[Any]) -> str:
    frames = [
        (text_of(frame, "name"), text_of(frame, "filename"), frame.get("line"))
        for frame in stack
        if isinstance(frame, dict)
    ]
    ours = [name for name, file, _ in frames if file == OURS]
    if ours:
        return ours[-1]
    python = [frame for frame in frames if frame[1].endswith(".py")]
    chosen = next(
        (frame for frame in python if not _TORCH.search(frame[1])),
        next(iter(python or frames), None),
    )
    if chosen is None:
        return ""
    name, file, line = chosen
    file = file.replace("\\", "/").rsplit("/", 1)[-1]
    return f"{name} ({file}:{shown(line) if isinstance(line, int) else 0})"


def metadata(kind: Kind, name: str = "", to: int = 0) -> str:
    """The text that the viewer shows beside an event with our mark: EVICT and MOVE_FROM at a FREE,
    REMATERIALIZE at an ALLOCATE."""
    if kind == Kind.EVICT:
        return EVICTED
    if kind == Kind.MOVE_FROM:
        return f"move to {to:#x}"
    return f"{_REMATERIALIZED}: {name}" if name else _REMATERIALIZED


def marks(event: dict[str, Any], kind: Kind, address: int) -> list[tuple[Kind, int]]:
    """The marks, and their addresses, that metadata() put beside an event."""
    text = text_of(event, "user_metadata")
    if not text:
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
