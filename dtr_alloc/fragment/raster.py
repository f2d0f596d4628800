"""Rectangles to pixels: exact coverage, in time proportional to rectangles plus pixels.

A heap of a million blocks has no room for outlines. Each pixel gets the mean color of the
rectangles that it shows, so a picture is exact at its resolution.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = Any
"""numpy.ndarray."""


_LONGEST_GAP = 0.02
"""The longest unused range that an axis keeps, relative to the used bytes."""


def coverage(boxes: Array, values: Array, shape: tuple[int, int]) -> Array:
    """The part of each pixel that boxes cover, times their values, summed over the boxes.

    Args:
        boxes: (n, 4): left, right, bottom, top in pixels; cut off at the borders.
        values: (n, channels): of a wholly covered pixel.
        shape: height and width in pixels.

    Returns (height, width, channels); row 0 is the bottom.

    A box covers pixel (y, x) by the product of two lengths. Each length, as a function of its
    pixel, is the running sum of four numbers (two at either end), so a box is the running sum, in
    both directions, of sixteen.
    """
    height, width = shape
    boxes = np.asarray(boxes, dtype=np.float64).reshape(-1, 4)
    values = np.asarray(values, dtype=np.float64).reshape(len(boxes), -1)
    columns = _ends(np.clip(boxes[:, :2], 0, width))
    rows = _ends(np.clip(boxes[:, 2:], 0, height))
    stride = width + 2  # an edge at the far border, and what follows it, need a place
    pixels = np.zeros((values.shape[1], (height + 2) * stride))
    for y, y_part in rows:
        for x, x_part in columns:
            at, part = y * stride + x, y_part * x_part
            for channel, total in enumerate(pixels):
                total += np.bincount(at, part * values[:, channel], len(total))
    found = pixels.reshape(-1, height + 2, stride).cumsum(axis=1).cumsum(axis=2)
    return np.moveaxis(found[:, :height, :width], 0, -1)


def _ends(spans: Array) -> list[tuple[Array, Array]]:
    """The positions at which the running sum changes, and by how much."""
    found = []
    for edge, sign in ((spans[:, 0], 1.0), (spans[:, 1], -1.0)):
        whole = np.floor(edge).astype(np.int64)
        rest = edge - whole
        found += [(whole, sign * (1 - rest)), (whole + 1, sign * rest)]
    return found


class CutAxis:
    """Addresses as offsets, with long unused ranges cut out.

    Attributes:
        starts, ends: the addresses of each piece that is kept, ascending.
        offsets: of each piece's start on the axis, in bytes.
        length_bytes: of all pieces.
    """

    def __init__(self, starts: Array, ends: Array) -> None:
        """starts, ends: of all ranges in use (any order, overlaps allowed, at least one)."""
        order = np.argsort(starts, kind="stable")
        low = np.asarray(starts, dtype=np.uint64)[order]
        high = np.maximum.accumulate(np.asarray(ends, dtype=np.uint64)[order])
        gaps = np.where(low[1:] > high[:-1], low[1:] - high[:-1], 0).astype(np.float64)
        used = float(high[-1] - low[0]) - gaps.sum()
        cuts = np.flatnonzero(gaps > _LONGEST_GAP * used)
        self.starts = low[np.concatenate(([0], cuts + 1))]
        self.ends = high[np.concatenate((cuts, [len(high) - 1]))]
        lengths = (self.ends - self.starts).astype(np.float64)
        self.offsets = np.concatenate(([0.0], lengths.cumsum()[:-1]))
        self.length_bytes = float(lengths.sum())

    def place(self, addresses: Array) -> Array:
        """Offsets of addresses that are in a piece, or at its end."""
        addresses = np.asarray(addresses, dtype=np.uint64)
        piece = np.maximum(np.searchsorted(self.starts, addresses, side="right") - 1, 0)
        return self.offsets[piece] + (addresses - self.starts[piece]).astype(np.float64)
