"""Contents go to other addresses of their pool (eviction/move.h)."""

import itertools
from functools import partial

import pytest
from native_fixtures import on_threads
from native_pool import OutOfMemory, lib
from stream_toy import LARGE, A, B
from toy import MUTATE, PAGE, WORD, WORDS, all_right, by_name, fan, line, release

CHUNKS = 64 << 10  # of the fixed pools


class TestWhatMoves:
    @pytest.mark.parametrize("dealloc", ["ignore", "lazy"])
    def test_dead_storages_that_came_back_do(self, make_toy, dealloc):
        toy = make_toy(dealloc=dealloc)
        source, first = line(toy, "first")
        assert toy.evict(first), "memory is short"
        x = toy.one("x", source)
        y = toy.one("y", x)
        x.release()
        assert toy.move_some(1, 20) == 20
        assert toy.evict(y)
        assert all_right(toy, y)
        assert toy.recomputed == ["y"], "x was there, wherever"

    def test_what_a_running_operator_uses_stays_and_others_move_meanwhile(self, toy):
        source, other = toy.unseen(WORDS), toy.unseen(WORDS, seed=1)
        seen = []

        def meanwhile(operator):
            seen.append((toy.move(source), toy.move(other), toy.move_some(len(seen), 5)))

        toy.one("look", other, words=8).release()
        x = toy.one("x", source, words=WORDS, fails=meanwhile)
        y = toy.one("y", x, source, words=WORDS, fails=meanwhile)
        z = toy.one("z", y, x, source, words=WORDS, fails=meanwhile)
        for tensor in (x, y, z):
            assert toy.evict(tensor)
        assert all_right(toy, z)
        assert len(seen) == 6
        assert all(of[:2] == (False, True) for of in seen)
        assert all_right(toy, source, other, x, y)

    def test_nothing_does_while_a_graph_is_captured_nor_what_it_touched(self, make_stream_toy):
        toy = make_stream_toy(8, streams=())
        source, other = toy.unseen(LARGE), toy.unseen(LARGE, seed=1)
        x = toy.one("x", source, words=LARGE)
        toy.one("look", other, words=8).release()
        with toy.capturing():
            assert not toy.move(x)
            toy.one("inside", x, words=LARGE)
        assert not toy.move(x)
        assert toy.move(other)


class TestPlaces:
    def test_none_is_made(self, make_toy):
        toy = make_toy(pages=4)
        source = toy.unseen(2 * WORDS)
        x = toy.one("f", source, words=2 * WORDS)
        assert not toy.move(x)
        assert toy.stats().evictions == 0

    def test_a_range_is_avoided(self, toy):
        _, x = line(toy, "f")
        low = min(block.address for block in toy.pool.snapshot())
        assert toy.move(x, low, low + 20 * PAGE)
        assert x.address >= low + 20 * PAGE
        assert toy.move(x, low + 10 * PAGE, 2**63)
        assert x.address < low + 10 * PAGE
        assert all_right(toy, x)

    def test_small_ones_have_theirs(self, toy):
        _, x = line(toy, "f", words=128)
        assert not toy.move(x)


def test_compacting_gathers_what_is_free_at_the_end(make_chunked_toy):
    toy = make_chunked_toy(16)
    kept = every_other(toy, 16)
    assert toy.pool.stats().largest_free_bytes == CHUNKS
    assert toy.compact() == 4 * CHUNKS
    assert toy.pool.stats().largest_free_bytes == 8 * CHUNKS
    assert toy.compact() == 0
    assert all_right(toy, *kept)


@pytest.fixture
def make_chunked_toy(make_toy):
    """Engines on pools with a budget in chunks; unless told otherwise fixed ones, whose addresses
    are as many as its bytes."""

    def make(chunks, fixed=1, **options):
        driver = "host-fixed" if fixed else "host"
        return make_toy(chunks * CHUNKS // PAGE, driver=driver, chunk=CHUNKS, **options)

    return make


def every_other(toy, count, words=CHUNKS // WORD):
    """Constants with holes of their size between them."""
    tensors = [toy.unseen(words, seed=i) for i in range(count)]
    for tensor in tensors:
        toy.run("touch", (tensor, MUTATE))
    release(*tensors[::2])
    return tensors[1::2]


class TestRescue:
    """Where nothing can be evicted and what is free is not in one piece."""

    @pytest.mark.parametrize("fixed", [1, 0])
    def test_moving_turns_out_of_memory_into_copies(self, make_chunked_toy, fixed):
        """Of one chunk, or of one half for each of two chunks."""
        words = CHUNKS // WORD // (1 if fixed else 2)
        for moving in (0, 1):
            toy = make_chunked_toy(16 if fixed else 8, fixed=fixed, moving=moving)
            kept = every_other(toy, 16, words=words)
            if not moving:
                with pytest.raises(OutOfMemory):
                    toy.unseen((3 if fixed else 4) * words)
            else:
                large = toy.unseen((3 if fixed else 4) * words, seed=99)
                assert toy.stats().moved_bytes == CHUNKS, "no more than needed"
                assert toy.stats().move_ns > 0
                toy.run("touch", (large, MUTATE))
                largest = toy.unseen((5 if fixed else 4) * words, seed=100)
                assert all_right(toy, large)
                release(large, largest)
            assert toy.stats().evictions == 0
            assert all_right(toy, *kept)
            release(*kept)

    def test_what_is_in_the_way_may_slide_within_the_hole(self, make_chunked_toy):
        """There is no other place: the hole begins where the content was."""
        toy = make_chunked_toy(16, moving=1)
        low, mover, high = (toy.unseen(n * CHUNKS // WORD, seed=n) for n in (7, 1, 8))
        toy.run("touch", (mover, MUTATE))
        release(low, high)
        toy.unseen(14 * CHUNKS // WORD)
        assert toy.stats().moves == 1
        assert all_right(toy, mover)

    def test_pinned_ones_end_a_run(self, make_chunked_toy):
        toy = make_chunked_toy(16, moving=1)
        kept = every_other(toy, 16)
        for tensor in kept[::2]:
            toy.pin(tensor)
        with pytest.raises(OutOfMemory):
            toy.unseen(5 * CHUNKS // WORD)
        toy.unseen(3 * CHUNKS // WORD)
        assert all_right(toy, *kept)

    @pytest.mark.parametrize("closes", [False, True])
    def test_what_an_arena_keeps_is_no_part_of_a_hole(self, make_chunked_toy, closes):
        """Of one that closed it is, once the device is done."""
        toy = make_chunked_toy(16, moving=1)
        arena = toy.pool.arena_open()
        blocks = [toy.pool.arena_allocate(arena, 6 * CHUNKS)]
        kept = every_other(toy, 8)
        toy.pool.free(blocks.pop())
        if closes:
            toy.pool.arena_close(arena)
            release(toy.unseen(9 * CHUNKS // WORD))
        else:
            with pytest.raises(OutOfMemory):
                toy.unseen(8 * CHUNKS // WORD)
            assert toy.stats().moves == 0
        assert all_right(toy, *kept)

    def test_an_eviction_is_not_for_a_place_where_an_arena_keeps_the_free_bytes(
        self, make_chunked_toy
    ):
        toy = make_chunked_toy(8)
        arena = toy.pool.arena_open()
        toy.pool.free(toy.pool.arena_allocate(arena, 4 * CHUNKS))
        words = CHUNKS // WORD
        source, *results = fan(toy, 4, words=words)
        assert toy.stats().evictions == 1
        assert toy.stats().contiguity_evictions == 0
        assert all_right(toy, source, *results)

    def test_what_only_waits_moves_before_it_yields(self, make_chunked_toy):
        toy = make_chunked_toy(8, moving=1)
        words = CHUNKS // WORD
        source, *parts = fan(toy, 4, "part", words=words)
        wide = toy.one("wide", parts[0], words=2 * words)
        assert toy.evict(wide)
        last = toy.one("last", *parts, wide, words=words)
        assert all_right(toy, source, *parts, wide, last)


class TestInsteadOfEvicting:
    """Where a request finds no hole that is large enough."""

    @pytest.mark.parametrize(
        ("name", "fixed", "options", "moves"),
        [
            *(("dear", 1, {}, True), ("dear", 1, {"moving": 0}, False), ("cheap", 1, {}, False)),
            *(("dear", 0, {}, True), ("cheap", 0, {}, False)),
            ("dear", 1, {"room": lib.DTR_ROOM_SINGLE}, False),
        ],
    )
    def test_what_is_dear_to_compute_is_copied_and_what_is_cheap_is_not(
        self, make_chunked_toy, name, fixed, options, moves
    ):
        """Results with holes of their size between them: chunks of a fixed pool, or half ones."""
        options = {"price": by_name, "moving": 1, "move_bytes_per_s": 1e9} | options
        toy = make_chunked_toy(16 if fixed else 8, fixed=fixed, **options)
        words = CHUNKS // WORD // (1 if fixed else 2)
        source = toy.unseen(words)
        results = [toy.one(name, source, words=words, parameter=i) for i in range(15)]
        release(*results[::2])
        results = results[1::2]
        toy.unseen((3 if fixed else 2) * CHUNKS // WORD, seed=9)
        assert (toy.stats().moves > 0) == moves
        assert (toy.stats().evictions > 0) != moves
        assert all_right(toy, source, *results)
        assert (len(toy.recomputed) > 0) != moves

    def test_in_one_window_some_move_and_others_are_evicted(self, make_chunked_toy):
        """There is one place to move to; more is needed than is free."""
        toy = make_chunked_toy(
            8, price=by_name, moving=1, move_bytes_per_s=1e9, room=lib.DTR_ROOM_WINDOW
        )
        words = CHUNKS // WORD
        source = toy.unseen(words)
        wall = toy.unseen(words, seed=1)
        hole = toy.unseen(words)
        end = toy.unseen(words, seed=2)
        results = [toy.one("cheap", source, words=words, parameter=i) for i in range(2)]
        dear = toy.one("dear", source, words=words)
        results.append(toy.one("cheap", source, words=words, parameter=2))
        hole.release()
        for tensor in (source, wall, end):
            toy.pin(tensor)
        large = toy.unseen(4 * words, seed=3)
        assert (toy.stats().moves, toy.stats().evictions) == (1, 3)
        assert toy.resident(dear)
        large.release()
        assert all_right(toy, source, wall, end, dear, *results)
        assert "dear" not in toy.recomputed


class TestEmptyingChunks:
    """Where memory is mapped by chunks, and each is half in use."""

    WORDS = CHUNKS // 2 // WORD

    @pytest.mark.parametrize("pinned", [7, 8])
    def test_a_chunk_that_a_pinned_one_touches_stays(self, make_chunked_toy, pinned):
        """And the last one alone has nowhere to go to, if that is to help."""
        toy = make_chunked_toy(8, fixed=0, moving=1)
        kept = every_other(toy, 16, words=self.WORDS)
        for tensor in kept[:pinned]:
            toy.pin(tensor)
        if pinned < 8:
            release(toy.unseen(2 * self.WORDS))
            assert toy.stats().moves == 1
        with pytest.raises(OutOfMemory):
            toy.unseen(4 * self.WORDS)
        assert all_right(toy, *kept)

    def test_nothing_moves_where_no_gap_is_large_enough(self, make_chunked_toy):
        """A free chunk is no place: the move would take as much as it gives."""
        toy = make_chunked_toy(8, fixed=0, moving=1)
        words = 3 * self.WORDS // 2
        kept = [toy.unseen(words, seed=i) for i in range(10)]
        for tensor in kept:
            toy.run("touch", (tensor, MUTATE))
        with pytest.raises(OutOfMemory):
            toy.unseen(4 * self.WORDS)
        assert toy.stats().moves == 0
        assert all_right(toy, *kept)

    def test_nothing_moves_back_and_forth_where_nothing_helps(self, make_chunked_toy):
        """A hole for three chunks needs two places, and there is one; a free chunk of the small
        region is none. Half of the moves would be undone by emptying that one again."""
        toy = make_chunked_toy(9, fixed=0, moving=1)
        small = [toy.unseen(64) for _ in range(2 * CHUNKS // 512)]
        chunk = CHUNKS // WORD
        sizes = [chunk, chunk, chunk * 11 // 8, chunk, chunk, chunk, chunk * 5 // 8]
        large = [toy.unseen(words, seed=i) for i, words in enumerate(sizes)]
        for tensor in (large[3], large[4]):
            toy.run("touch", (tensor, MUTATE))
        release(large.pop(5), large.pop(0), *small[1:])
        with pytest.raises(OutOfMemory):
            toy.unseen(3 * chunk)
        assert toy.stats().moves == 0
        assert all_right(toy, *large)


def test_other_threads_find_their_contents(make_toy):
    """One moves whatever it can while others compute, drop and read."""
    toy = make_toy(pages=128)
    sources = [toy.unseen(WORDS, seed=i) for i in range(4)]
    done = []

    def work(first):
        results = []
        try:
            for i in range(150):
                results.append(toy.one("f", sources[i % 4], parameter=(first, i)))
                toy.run("g", (results[-1], MUTATE))
                if len(results) > 5:
                    oldest = results.pop(0)
                    toy.pin(oldest)
                    toy.materialize(oldest)
                    assert oldest.is_right()
                    oldest.release()
        finally:
            done.append(first)

    def move():
        for seed in itertools.count():
            toy.move_some(seed, 3)
            if len(done) == 2:
                return

    on_threads(partial(work, 0), partial(work, 1), move)
    assert toy.stats().moves > 0
    assert all_right(toy, *sources)


class TestOnStreams:
    """Over streams that finish late."""

    def test_the_copy_comes_behind_the_last_use_and_before_the_next(
        self, make_stream_toy, fake_cuda
    ):
        toy = make_stream_toy(12)
        source, x = toy.on_a_before_b()
        with toy.on(B):
            toy.run("add_", (x, MUTATE))
        with toy.on(A):
            # A knows nothing of B's change, and moves what B used last.
            assert toy.move(x)
        assert fake_cuda.unfinished(B) > 0, "nobody waited"
        toy.wait(A, B)
        with toy.on(A):
            toy.one("y", x, words=LARGE)
            for i in range(6):
                toy.one("other", source, words=LARGE, parameter=i)
        assert toy.pool.stats().host_waits == 0

    def test_what_was_recorded_to_use_the_block_is_waited_for(self, make_stream_toy, fake_cuda):
        """A library writes on a stream of its own, and says so by record_stream."""
        toy = make_stream_toy(12)
        with toy.on(A):
            _, x = line(toy, "x", words=LARGE)
            toy.wait(B, A)
            fake_cuda.launch(B, x.address, LARGE * WORD)
            toy.pool.record_stream(x.address, B)
            assert toy.move(x)  # its copy would overlap B's work otherwise
            assert fake_cuda.unfinished(B) > 0
            toy.one("y", x, words=LARGE)

    def test_a_hole_between_what_several_streams_freed_serves_and_nobody_waits(
        self, make_stream_toy, fake_cuda
    ):
        toy = make_stream_toy(8, moving=1)
        tensors = []
        for i, stream in enumerate((A, B) * 4):
            with toy.on(stream):
                tensors.append(toy.unseen(LARGE, seed=i))
                toy.run("touch", (tensors[i], MUTATE))
        below, other, _moved, above, *_ = sorted(tensors, key=lambda tensor: tensor.address)
        release(below, other, above)
        waits = toy.pool.stats().host_waits
        with toy.on(A):
            toy.run("touch", (toy.unseen(3 * LARGE, seed=9), MUTATE))
        assert toy.stats().moves == 1
        assert fake_cuda.unfinished(B) > 0
        assert toy.pool.stats().host_waits == waits

    def test_moves_are_timed_on_the_device_and_nobody_waits(self, make_stream_toy, fake_cuda):
        toy = make_stream_toy(24)
        with toy.on(A):
            source, *made = fan(toy, 4, words=LARGE)
            for seed in range(8):
                toy.move_some(seed, 2)
            fake_cuda.hold(0)
            made += [toy.one("g", source, words=8, parameter=i) for i in range(40)]
        assert toy.pool.times() == {}, "all were read"
        assert toy.pool.stats().host_waits == 0
