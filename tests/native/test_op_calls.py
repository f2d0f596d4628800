"""Calls of operators: they fail, run in several threads, and leave no lock."""

import re
import threading

import pytest
from native_fixtures import on_threads
from native_pool import OutOfMemory, WrongState, ffi, lib
from toy import PAGE, WORDS, line


class TestFailure:
    def test_out_of_memory_says_the_numbers_and_leaves_no_lock(self, make_toy):
        toy = make_toy(pages=8)
        x = toy.unseen(2 * WORDS)
        y = toy.one("f", x)
        pinned = toy.one("g", x)
        toy.pin(pinned)
        with pytest.raises(OutOfMemory) as error:
            toy.one("large", y, words=5 * WORDS)
        text = str(error.value)
        for part in (
            f"requested 20.0 KiB ({5 * PAGE} bytes)",
            f"budget 32.0 KiB ({8 * PAGE} bytes)",
            f"locked by running ops 4.0 KiB ({PAGE} bytes)",
            f"constants 8.0 KiB ({2 * PAGE} bytes)",
            f"pinned 4.0 KiB ({PAGE} bytes)",
            "evictable 0 bytes",
        ):
            assert part in text
        least = int(re.search(r"needs a budget of at least .*?(\d+) bytes", text)[1])
        assert least > 8 * PAGE
        assert toy.evict(y)
        toy.unpin(pinned)
        assert toy.evict(pinned)
        toy.pool.set_budget(least)
        toy.one("large", y, words=5 * WORDS).release()

    def test_a_recomputation_of_another_size_is_a_loud_error(self, toy):
        _, y = line(toy, "f")
        toy.evict(y)
        (op_id,) = toy.closures
        right = toy.closures[op_id]
        toy.closures[op_id] = right._replace(results=(2 * WORDS,))
        with pytest.raises(WrongState, match=r"gave 8.0 KiB \(8192 bytes\) where it gave 4.0 KiB"):
            toy.materialize(y)
        toy.closures[op_id] = right._replace(results=())
        with pytest.raises(WrongState, match="fewer results"):
            toy.materialize(y)
        toy.closures[op_id] = right
        assert toy.content(y) == y.expected()

    def test_a_frame_has_one_operator_at_a_time(self, toy):
        core, frame = toy.core, toy.frame
        assert core.op_end(frame, 0, 0, 1, ffi.NULL) == -lib.DTR_STATE
        assert core.op_begin(frame, 0, 0, 0) == 0
        assert core.op_begin(frame, 0, 0, 0) == -lib.DTR_STATE
        core.op_abort(frame, 1)
        core.op_abort(frame, 1)
        assert core.remat_commit(frame, 0, 0) == -lib.DTR_STATE
        assert core.remat_next(frame) == 0


def test_frames_go_on_when_the_threads_that_used_them_have_ended(toy):
    """So many threads at once that their memory goes back to the system with them."""
    source = toy.unseen(WORDS)
    all_are_here = threading.Barrier(16)
    frames, made = [], []

    def use():
        made.append(toy.one("f", source))
        frames.append(toy.frame)
        all_are_here.wait()

    on_threads(*[use] * all_are_here.parties)
    for frame, tensor in list(zip(frames, made, strict=True)):
        other = threading.Thread(target=use)
        all_are_here = threading.Barrier(1)
        other.start()
        toy.frame = frame
        assert tensor.comes_back()
        made.append(toy.one("g", tensor))
        other.join()
