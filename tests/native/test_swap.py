"""Contents go to host memory and come back (eviction/swap_space.cpp)."""

import threading

import pytest
from native_fixtures import on_threads, resident_bytes
from native_pool import DriverFailed, NativePool, OutOfMemory, lib
from stream_toy import CHUNK, LARGE, A, B
from toy import MUTATE, PAGE, WORD, WORDS, Toy, all_right, by_name, line, release

MANY = 1 << 30
WINDOW = 2  # how room is made
FAST, SLOW = 1e15, 1e3  # bytes per second: nothing, and more than any operator costs


def swapping(speed=FAST, pages=MANY // PAGE):
    return {"swap_bytes": pages * PAGE, "swap_out_bytes_per_s": speed, "swap_in_bytes_per_s": speed}


def constant(toy, seed=0, words=WORDS):
    """One that the engine knows: an operator has met it."""
    tensor = toy.unseen(words, seed=seed)
    toy.one("look", tensor, words=8).release()
    return tensor


class TestConstants:
    @pytest.fixture
    def toy(self, make_toy):
        return make_toy(**swapping())

    def test_a_swapped_result_becomes_a_constant_where_it_lies(self, toy):
        """When what it was computed from is overwritten it need not come back."""
        source, dear = line(toy, "f")
        toy.configure(swap_in_bytes_per_s=FAST * 2)  # cheaper than anything
        assert toy.evict(dear)
        assert toy.stats().swaps == 1
        toy.run("add_", (source, MUTATE), parameter=1)
        assert not toy.resident(dear)
        assert toy.recomputed == []
        assert all_right(toy, source, dear)

    def test_pinned_and_escaped_ones_stay(self, toy):
        pinned, escaped = constant(toy, seed=1), constant(toy, seed=2)
        toy.pin(pinned)
        toy.pin(escaped, escaped=True)
        assert not toy.evict(pinned)
        assert not toy.evict(escaped)


class TestCap:
    def test_a_search_passes_over_what_finds_no_room_there_until_there_is_some(self, make_toy):
        toy = make_toy(pages=7, **swapping(pages=1))
        sources = [constant(toy, seed=i) for i in range(6)]
        with pytest.raises(
            OutOfMemory, match=r"swapped to host memory 4.0 KiB \(4096 bytes\) of 4.0 KiB \("
        ):
            toy.unseen(3 * WORDS)
        toy.materialize_all()
        more = toy.unseen(2 * WORDS)
        assert toy.stats().host_bytes == PAGE
        more.release()
        assert all_right(toy, *sources)


class TestPrices:
    """Evicting goes the cheaper way."""

    def test_what_is_dear_to_compute_is_swapped_and_what_is_cheap_is_not(self, make_toy):
        toy = make_toy(price=by_name, **swapping(speed=1e9))
        source = toy.unseen(WORDS)
        dear, cheap = (toy.one(name, source) for name in ("dear", "cheap"))
        assert toy.evict(dear)
        assert toy.evict(cheap)
        assert (toy.stats().swaps, toy.stats().evictions) == (1, 1)
        assert all_right(toy, dear, cheap)
        assert toy.recomputed == ["cheap"]

    def test_a_constant_is_compared_with_results(self, make_toy):
        """The search takes what costs least, whichever way it would go."""
        for speed, swaps in ((FAST, 1), (SLOW, 0)):
            toy = make_toy(
                pages=4,
                price=by_name,
                heuristic="c=local,m=none,s=0",
                room=lib.DTR_ROOM_SINGLE,
                **swapping(speed),
            )
            source = constant(toy)
            results = [toy.one("cheap", source, words=WORDS, parameter=i) for i in range(3)]
            more = toy.unseen(WORDS, seed=1)
            assert toy.stats().swaps == swaps
            assert toy.stats().evictions == 1 - swaps
            assert all_right(toy, source, *results)
            release(source, more, *results)

    def test_a_result_whose_input_is_swapped_costs_nothing_but_itself(self, make_toy):
        """A swapped content is no history to be recomputed."""
        toy = make_toy(price=by_name, heuristic="marginal", **swapping(speed=1e9))
        _, dear, cheap = line(toy, "dear", "cheap")
        toy.evict(dear)
        assert toy.evict(cheap)
        assert toy.stats().evictions == 1
        assert all_right(toy, cheap)
        assert toy.recomputed == ["cheap"]


class TestRefusedHostMemory:
    """On the CPU host memory is a file, which the system may refuse."""

    @pytest.fixture(autouse=True)
    def no_file_can_be_made(self, monkeypatch):
        monkeypatch.setenv("TMPDIR", "/nonexistent")

    def test_what_can_be_recomputed_is_dropped_instead(self, make_toy):
        toy = make_toy(pages=5, price=by_name, **swapping())
        source = toy.unseen(WORDS)
        toy.pin(source)
        results = [toy.one("dear", source, words=WORDS, parameter=i) for i in range(8)]
        assert toy.stats().swaps == toy.stats().host_bytes == 0
        assert toy.stats().evictions >= 4
        assert all_right(toy, *results)
        toy.unpin(source)

    def test_a_constant_stays_and_the_operator_fails(self, make_toy):
        toy = make_toy(pages=3, **swapping())
        sources = [constant(toy, seed=i) for i in range(2)]
        with pytest.raises(DriverFailed, match="cannot go to host memory"):
            toy.one("f", sources[0], words=2 * WORDS)
        assert all_right(toy, *sources)


def test_a_content_that_moves_is_waited_for(make_toy):
    """Two threads need the same constants, which push each other out."""
    toy = make_toy(pages=9, **swapping())
    sources = [constant(toy, seed=i) for i in range(6)]
    results = []

    def work():
        for i in range(200):
            results.append(toy.one("f", sources[i % 6], words=WORDS, parameter=i))
            if len(results) > 20:
                results.pop(0).release()

    on_threads(work, work)
    assert toy.stats().swaps > 0
    assert all_right(toy, *sources, *results)


@pytest.mark.parametrize("_", range(20))
def test_a_victim_that_is_dropped_while_another_is_copied_goes_with_its_record(make_toy, _):
    """Several make room at once. Its dependent, too, is dropped by the other thread."""
    toy = make_toy(pages=24, dealloc="ignore", room=WINDOW, **swapping())
    sources = [constant(toy, seed=i) for i in range(8)]
    over = threading.Event()

    def make_room():
        try:
            i = 0
            while i < 600 or toy.stats().swaps == 0:  # the threads may take turns at first
                toy.one("large", words=12 * WORDS, parameter=i).release()
                toy.one("small", sources[i % 8], words=8).release()
                i += 1
        finally:
            over.set()

    def drop():
        while not over.is_set():
            kept = [toy.one("f", source) for source in sources[:6]]
            dependents = [toy.one("g", tensor, words=8) for tensor in kept]
            release(*kept, *dependents)

    on_threads(make_room, drop)
    toy.verify()


def test_on_the_cpu_the_process_holds_no_more_than_the_budget():
    """Host memory is a file there."""
    size = 64 << 20
    toy = Toy(NativePool("host", budget=size + PAGE), swap_bytes=8 * size, grain=PAGE // WORD)
    before = resident_bytes()
    sources = [constant(toy, seed=i, words=size // WORD) for i in range(4)]
    assert toy.stats().host_bytes == 3 * size
    assert resident_bytes() - before < 1.5 * size
    assert all_right(toy, *sources)
    assert resident_bytes() - before < 1.5 * size
    toy.finish()


class TestOnCuda:
    def test_a_copy_that_fails_leaves_no_member_of_a_window_locked(self, fake_cuda):
        """The engine locks the others while one of them is copied."""
        failures = 0
        for call in range(1, 33):
            pool = NativePool("cuda", budget=8 * CHUNK, fixed=1)
            options = {"heuristic": "lru", "room": WINDOW, **swapping()}
            toy = Toy(pool, device=(1, 0), grain=1024, **options)
            seed = toy.unseen(8)
            tensors = [toy.one("f", seed, words=CHUNK // WORD, parameter=i) for i in range(8)]
            with fake_cuda.failing(call) as said:
                tensors.append(toy.one("large", seed, words=3 * CHUNK // WORD))
            failures += len(said)
            toy.verify()
            assert all(tensor.evicted or toy.evict(tensor) for tensor in tensors)
            assert all_right(toy, *tensors)
            release(seed, *tensors)
            toy.finish()
        assert failures > 5

    def test_copies_come_behind_the_work_that_uses_the_block_and_before_the_next(
        self, make_stream_toy, fake_cuda
    ):
        toy = make_stream_toy(3, **swapping())
        with toy.on(A):
            source, x = line(toy, "x", words=LARGE)
            assert toy.evict(source)
            y = toy.one("y", x, words=LARGE)  # in the block of the source, or another one
            toy.one("more", y, words=LARGE)
        assert fake_cuda.unfinished(A) > 0, "nobody waited for the copies"
        # The job orders nothing: it only reads, and knows of no copies.
        with toy.on(B):
            toy.one("z", source, words=8)
        with toy.on(A):
            toy.one("w", source, words=8)
        assert toy.stats().swapped_in_bytes >= LARGE * WORD


class TestPrefetching:
    """Over streams that finish late: what was swapped begins its way back early."""

    def pass_over(self, toy, constants, step):
        for i, tensor in enumerate(constants):
            result = toy.one("use", tensor, words=LARGE, parameter=(step, i))
            assert toy.content(result) == result.expected()
            release(result)

    def test_what_came_back_in_this_order_before_comes_back_early(self, make_stream_toy, fake_cuda):
        toy = make_stream_toy(12, **swapping())
        fake_cuda.hold(2)
        with toy.on(A):
            constants = [constant(toy, seed=i, words=LARGE) for i in range(6)]
            for step in range(3):
                assert all(toy.evict(tensor) for tensor in constants)
                self.pass_over(toy, constants, step)
            stats = toy.stats()
            # The first pass learns the order; in the others all but the first are ahead.
            assert stats.prefetches == stats.prefetch_hits == 2 * 5
            assert all_right(toy, *constants)

    def test_nothing_is_evicted_for_a_guess(self, make_stream_toy, fake_cuda):
        toy = make_stream_toy(4, **swapping())
        fake_cuda.hold(2)
        with toy.on(A):
            constants = [constant(toy, seed=i, words=LARGE) for i in range(6)]
            for step in range(3):
                self.pass_over(toy, constants, step)
            assert toy.stats().swaps >= 6
            assert toy.stats().prefetches == 0  # memory was full whenever one was due
            assert all_right(toy, *constants)

    def test_one_that_goes_again_unused_is_no_hit(self, make_stream_toy, fake_cuda):
        toy = make_stream_toy(12, **swapping())
        fake_cuda.hold(2)
        with toy.on(A):
            first, second = [constant(toy, seed=i, words=LARGE) for i in range(2)]
            for step in range(2):
                assert toy.evict(first)
                assert toy.evict(second)
                self.pass_over(toy, [first, second] if step == 0 else [first], step)
            assert (toy.stats().prefetches, toy.stats().prefetch_hits) == (1, 0)
            assert toy.evict(second)
            self.pass_over(toy, [second], 2)
            assert toy.stats().prefetch_hits == 0


class TestWhatMustOutlastAnOverwrite:
    def overwritten(self, toy, results=8):
        """A constant, and results of it that are evicted."""
        source = constant(toy)
        evicted = [toy.one("f", source, words=WORDS, parameter=i) for i in range(results)]
        assert all(toy.evict(result) or result.evicted for result in evicted)
        return source, evicted

    def test_it_goes_to_host_memory_where_nothing_else_makes_room(self, make_toy):
        toy = make_toy(pages=5, settles_to_host=1)
        source, results = self.overwritten(toy)
        toy.run("add_", (source, MUTATE), parameter=1)
        assert 0 < toy.stats().host_bytes <= 5 * PAGE
        assert all_right(toy, source, *results)
        release(source, *results)
        assert toy.stats().host_bytes == 0

    @pytest.mark.parametrize(
        ("settles", "results", "message"), [(0, 8, "requested"), (1, 12, "swapped to host memory")]
    )
    def test_where_that_is_off_or_the_budget_bounds_it_nothing_is_overwritten(
        self, make_toy, settles, results, message
    ):
        toy = make_toy(pages=5, settles_to_host=settles)
        source, _results = self.overwritten(toy, results)
        before = source.bytes()
        with pytest.raises(OutOfMemory, match=message):
            toy.run("add_", (source, MUTATE), parameter=1)
        assert toy.stats().host_bytes == settles * 5 * PAGE
        toy.materialize(source)
        assert source.bytes() == before

    def test_what_was_resident_then_stays(self, make_toy):
        toy = make_toy(pages=5, settles_to_host=1)
        source = constant(toy)
        results = [toy.one("f", source, words=WORDS, parameter=i) for i in range(3)]
        toy.run("add_", (source, MUTATE), parameter=1)
        with pytest.raises(OutOfMemory):
            toy.one("g", *results, words=2 * WORDS)
        assert toy.stats().swaps == 0
