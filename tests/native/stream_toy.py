"""The toy on streams of the stand-in for libcuda (tests/fake_cuda), which finish their work late.

It reports a violation, and the fixture fails, if work on one stream overlaps unfinished work of
another without an event in between.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any

import pytest
from native_pool import MIB, NativePool, lib
from toy import WORD, Tensor, Toy, toys

CHUNK = 2 * MIB
A, B = 16, 32
LARGE = CHUNK // WORD
CUDA = (1, 0)


class StreamToy(Toy):
    """Operators run on the current stream, and the stand-in hears what memory they touch."""

    def __init__(self, fake: Any, pool: NativePool, **options: Any):
        super().__init__(pool, device=CUDA, grain=4096, **options)
        self.fake = fake

    @contextmanager
    def on(self, stream: int):
        before, self.stream = self.stream, stream
        toys.dtr_toy_use_stream(stream)
        yield
        self.stream = before
        toys.dtr_toy_use_stream(before)

    def _execute(self, operator, tensors):
        everything = super()._execute(operator, tensors)
        for tensor in {t.pointer: t for t in [*tensors, *everything]}.values():
            self.fake.launch(self.stream, tensor.address, tensor.words * WORD)
        return everything

    def wait(self, stream: int, after: int) -> None:
        """What a job does: stream.wait_stream(after)."""
        assert lib.dtr_pool_order(self.pool.handle, stream, after) == lib.DTR_OK

    def on_a_before_b(self) -> tuple[Tensor, Tensor]:
        """A constant and x = f(it), made on stream A; B waits for that."""
        with self.on(A):
            source = self.unseen(LARGE)
            x = self.one("x", source, words=LARGE)
        self.wait(B, A)
        return source, x


@pytest.fixture
def make_stream_toy(fake_cuda):
    made = []

    def make(
        chunks: int, streams: tuple[int, ...] = (A, B), kind: type = StreamToy, **options: Any
    ) -> StreamToy:
        toy = kind(fake_cuda, NativePool("cuda", budget=chunks * CHUNK), **options)
        made.append(toy)
        # The pool knows them all: a new one would wait for everything, once.
        for stream in streams:
            toy.pool.free(toy.pool.allocate(100, stream))
        fake_cuda.hold(1)
        return toy

    yield make
    fake_cuda.hold(0)
    for toy in made:
        toy.finish()
    toys.dtr_toy_use_stream(0)
