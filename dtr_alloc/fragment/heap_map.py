"""The map of a heap: events to the right, addresses upwards, a rectangle for each block.

Colors show the size of a block or the operator that asked for it; neighbors of one color differ in
shade. Reserved free memory is light gray, other memory white. A mark at the right edge of a block
is an eviction, at the left edge a recomputation; a move marks both of its blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dtr_alloc.config import format_size
from dtr_alloc.fragment import residency
from dtr_alloc.fragment.raster import Array, CutAxis, coverage
from dtr_alloc.fragment.residency import Residencies, Segment
from dtr_alloc.traces.trace import Kind, Trace

FREE = (0.87, 0.87, 0.87)
EVICTED = "#d55e00"
REMATERIALIZED = "#0072b2"
MOVED = "#cc79a7"
SIZE_LIMITS = tuple(1 << bits for bits in (12, 16, 20, 22, 24, 26, 28, 30))
"""Size classes end below these; the last has no end."""
OPERATORS = ("#56b4e9", "#e69f00", "#009e73", "#f0e442", "#5e3c99", "#8c564b", "#17becf", "#b8a300")
"""For the names that hold the most bytes for the longest time, in this order."""
OTHERS = "#7f7f7f"
MARK_PIXELS = 2.5
"""The width of a mark, and its least height."""


@dataclass
class HeapMap:
    """A picture of a heap as numbers.

    Attributes:
        image: (height, width, 3), colors from 0 to 1; row 0 has the lowest addresses.
        axis: the addresses of its rows.
        classes: labels and colors for a legend.
        marks: likewise for the marks.
    """

    image: Array
    axis: CutAxis
    classes: list[tuple[str, Any]]
    marks: list[tuple[str, str]]


def heap_map(
    trace: Trace,
    blocks: Residencies,
    *,
    segments: Sequence[Segment] | None = None,
    color: str = "size",
    shape: tuple[int, int] = (700, 1400),
) -> HeapMap:
    """Draws a map.

    Args:
        trace: of one device.
        blocks: the trace's own, or those of a model.
        segments: reserved memory, if not as in the trace.
        color: by ``size`` or by ``operator``.
        shape: height and width in pixels.
    """
    low = np.asarray(blocks.address, dtype=np.uint64)
    high = low + np.asarray(blocks.size_bytes, dtype=np.uint64)
    held = _segments(trace, segment_events(trace) if segments is None else segments)
    axis = CutAxis(np.concatenate((low, held[2])), np.concatenate((high, held[3])))
    scale = _scale(axis, len(trace), shape)
    boxes = scale(np.asarray(blocks.start), np.asarray(blocks.end), low, high)
    colors, classes = _by_operator(trace, blocks) if color == "operator" else _by_size(blocks)
    # Mixed with white in four steps, so that one block can be told from the next.
    white = (np.arange(len(colors)) * 5 % 4 * 0.09)[:, None]
    shaded = colors * (1 - white) + white
    painted = coverage(boxes, np.column_stack((shaded, np.ones(len(boxes)))), shape)
    ink, covered = painted[:, :, :3], np.clip(painted[:, :, 3:], 0, 1)
    held_boxes = scale(*held)
    if len(held_boxes):
        reserved = coverage(held_boxes, np.ones(len(held_boxes)), shape)
        reserved = np.clip(np.maximum(reserved, covered), 0, 1)
    else:  # from the first block on that lay there
        reserved = np.maximum.accumulate(covered, axis=1)
    image = ink + (reserved - covered) * np.array(FREE) + (1 - reserved)
    image, marks = _marked(np.clip(image, 0, 1), blocks, boxes)
    return HeapMap(image, axis, classes, marks)


def _marked(image: Array, blocks: Residencies, boxes: Array) -> tuple[Array, list[tuple[str, str]]]:
    from matplotlib.colors import to_rgb

    began, ended = np.asarray(blocks.began), np.asarray(blocks.ended)
    none = np.zeros(len(boxes), dtype=bool)
    found = []
    for label, color, left, right in (
        ("moved", MOVED, began == residency.MOVED_IN, ended == residency.MOVED_OUT),
        ("computed again", REMATERIALIZED, began == residency.REMATERIALIZED, none),
        ("evicted", EVICTED, none, ended == residency.EVICTED),
    ):
        begin, end = boxes[left, 0], boxes[right, 1]
        at_begin = np.column_stack((begin, begin + MARK_PIXELS, boxes[left, 2:]))
        at_end = np.column_stack((end - MARK_PIXELS, end, boxes[right, 2:]))
        marks = np.concatenate((at_begin, at_end))
        if not len(marks):
            continue
        found.append((label, color))
        lack = np.maximum(0, MARK_PIXELS - (marks[:, 3] - marks[:, 2])) / 2
        marks[:, 2] -= lack
        marks[:, 3] += lack
        part = np.clip(coverage(marks, np.ones(len(marks)), image.shape[:2]), 0, 1)
        image = image * (1 - part) + part * np.array(to_rgb(color))
    return image, found


def segment_events(trace: Trace) -> list[Segment]:
    rows = enumerate(zip(trace.kind, trace.address, trace.size_bytes, strict=True))
    return [
        Segment(event, address, size, kind == Kind.SEGMENT_ALLOCATE)
        for event, (kind, address, size) in rows
        if kind in (Kind.SEGMENT_ALLOCATE, Kind.SEGMENT_FREE)
    ]


def _segments(trace: Trace, events: Sequence[Segment]) -> list[Array]:
    """Physical memory as rectangles: columns of starts, ends, lowest and highest addresses. A part
    of a segment may be given back alone."""
    open_: dict[int, tuple[int, int]] = {}  # low -> since, high
    rows: list[tuple[int, int, int, int]] = []
    for event, low, size, taken in events:
        high = low + size
        if taken:
            open_[low] = (event, high)
            continue
        is_whole = open_.get(low, (0, 0))[1] == high
        for a in [low] if is_whole else [a for a in open_ if a < high and open_[a][1] > low]:
            since, b = open_.pop(a)
            rows.append((since, event, max(a, low), min(b, high)))
            if a < low:
                open_[a] = (since, low)
            if high < b:
                open_[high] = (since, b)
    rows += [(since, len(trace), a, b) for a, (since, b) in open_.items()]
    columns: list[Any] = list(zip(*rows, strict=True)) or [()] * 4
    kinds = (np.float64, np.float64, np.uint64, np.uint64)
    return [np.asarray(column, kind) for column, kind in zip(columns, kinds, strict=True)]


def _scale(
    axis: CutAxis, events: int, shape: tuple[int, int]
) -> Callable[[Array, Array, Array, Array], Array]:
    """From events and addresses to boxes in pixels."""
    height, width = shape

    def scale(start: Array, end: Array, low: Array, high: Array) -> Array:
        bottom = axis.place(low)
        top = bottom + (high - low).astype(np.float64)
        across = width / max(1, events)
        up = height / axis.length_bytes
        return np.column_stack((start * across, end * across, bottom * up, top * up))

    return scale


def _by_size(blocks: Residencies) -> tuple[Array, list[tuple[str, Any]]]:
    from matplotlib import colormaps

    of_block = np.searchsorted(SIZE_LIMITS, np.asarray(blocks.size_bytes), side="right")
    used = np.unique(of_block)
    palette = colormaps["viridis"](np.linspace(0.97, 0.0, max(2, len(used))))[: len(used), :3]
    colors = palette[np.searchsorted(used, of_block)]
    return colors, [
        (_class_name(which), tuple(color))
        for which, color in zip(used.tolist(), palette.tolist(), strict=True)
    ]


def _class_name(which: int) -> str:
    limits = [format_size(size).replace(".00 ", " ") for size in SIZE_LIMITS]
    if which == 0:
        return f"below {limits[0]}"
    if which == len(limits):
        return f"from {limits[-1]}"
    return f"{limits[which - 1]} to {limits[which]}"


def _by_operator(trace: Trace, blocks: Residencies) -> tuple[Array, list[tuple[str, Any]]]:
    from matplotlib.colors import to_rgb

    names = np.asarray(blocks.name, dtype=np.int64)
    events = np.asarray(blocks.end) - np.asarray(blocks.start)
    held = np.bincount(
        names, np.asarray(blocks.size_bytes, dtype=np.float64) * events, len(trace.names)
    )
    first = [int(name) for name in np.argsort(-held, kind="stable") if held[name]]
    shown = first[: len(OPERATORS)]
    palette = np.tile(np.array(to_rgb(OTHERS)), (len(trace.names), 1))
    classes: list[tuple[str, Any]] = []
    for name, color in zip(shown, OPERATORS, strict=False):
        palette[name] = to_rgb(color)
        label = trace.names[name].removesuffix(".default")
        classes.append((label or "(no name)", color))
    if len(first) > len(shown):
        classes.append((f"{len(first) - len(shown)} others", OTHERS))
    return palette[names], classes
