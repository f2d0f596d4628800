"""Places for a request in one piece: windows.

check_invariants() compares, in every fourth step, the windows that the search finds for several
sizes with those that trying every run of blocks finds (native/policy/window_search.cpp).
"""

import pytest
from test_choice import Program
from toy import PAGE, WORDS, by_parameter

from dtr_alloc.heuristics import COSTS

AUTO, SINGLE, WINDOW = range(3)
HISTORY = 60


def filled(toy, sizes, words=8):
    """Evictable neighbors at rising addresses, of so many words each, behind a constant."""
    seed = toy.unseen(words)
    tensors = [toy.one("fill", seed, words=words, parameter=i) for i, words in enumerate(sizes)]
    addresses = [tensor.address for tensor in tensors]
    assert addresses == sorted(addresses)
    return [seed, *tensors]


def use(*tensors):
    for tensor in tensors:
        tensor.toy.one("use", tensor, words=8, parameter=1).release()


class TestExactness:
    @pytest.mark.parametrize("driver", ["host", "host-fixed"])
    @pytest.mark.parametrize("cost", COSTS)
    def test_the_search_finds_the_windows_that_trying_all_finds(self, make_toy, driver, cost):
        heuristic = f"c={cost},m={'size' if cost != 'component' else 'none'},s=0.5,r=1.5"
        toy = make_toy(pages=44, driver=driver, heuristic=heuristic, history=HISTORY)
        program = Program(toy, heuristic, check_every=4).run(240)
        stats = toy.stats()
        assert stats.window_searches > (20 if driver == "host-fixed" else 0)
        assert driver == "host" or stats.window_evictions > 20
        program.end()

    @pytest.mark.parametrize("chunk", [4, 16])
    def test_where_memory_is_mapped_by_many_pages_and_all_is_a_window(self, make_toy, chunk):
        toy = make_toy(pages=64, chunk=chunk * PAGE, room=WINDOW, history=HISTORY)
        program = Program(toy, chunk, check_every=4).run(300)
        assert toy.stats().window_evictions > 20
        program.end()

    def test_many_blocks_come_and_go(self, make_toy):
        """More than one block of columns, so that they are split and merged."""
        toy = make_toy(pages=300, driver="host-fixed", room=WINDOW, heuristic="lru")
        constant = toy.unseen(8)
        tensors = []
        for i in range(900):
            words = 64 + i * 7919 % (2 * WORDS)
            tensors.append(toy.one("link", constant, words=words, parameter=i))
            if i % 3 == 2:
                tensors.pop(i * 31 % len(tensors)).release()
            if i % 60 == 59:
                toy.verify()
        assert toy.stats().window_evictions > 100


def test_a_window_is_evicted_as_a_whole_and_the_request_has_its_place(make_toy):
    toy = make_toy(pages=8, driver="host-fixed", heuristic="lru", room=WINDOW)
    tensors = filled(toy, [WORDS - 128] + 7 * [WORDS])
    use(*tensors[4:])
    tensors.append(toy.one("large", tensors[0], words=2 * WORDS))
    stats = toy.stats()
    assert (stats.searches, stats.window_evictions) == (1, 2)
    assert [tensor.evicted for tensor in tensors[1:4]].count(True) == 2


@pytest.mark.parametrize(("room", "evictions"), [(AUTO, 1), (SINGLE, 2)])
def test_the_automatic_way_counts_free_bytes_beside_a_block(make_toy, room, evictions):
    """Only it sees, and without any window, that the neighbor of a hole makes the place alone."""
    toy = make_toy(pages=8, driver="host-fixed", heuristic="largest", room=room)
    tensors = filled(toy, [WORDS - 128] + 7 * [WORDS])
    assert toy.evict(tensors[4])
    before = toy.stats().evictions
    tensors.append(toy.one("large", tensors[0], words=2 * WORDS))
    stats = toy.stats()
    assert (stats.evictions - before, stats.window_searches) == (evictions, 0)


@pytest.mark.parametrize(("room", "cost_ns"), [(AUTO, 10), (AUTO, 10**9), (SINGLE, 10)])
def test_a_mapped_pool_remaps_for_what_is_dear_and_evicts_what_is_cheap(make_toy, room, cost_ns):
    """Every second page of many is free. Single evictions have no eye for places."""
    toy = make_toy(
        pages=24,
        chunk=PAGE,
        price=by_parameter,
        heuristic="c=local,m=size,s=0.5",
        room=room,
        moving=0,
        move_bytes_per_s=1e9,
    )
    seed = toy.unseen(WORDS)
    tensors = [toy.one("fill", seed, words=WORDS, parameter=cost_ns) for _ in range(23)]
    for tensor in tensors[1::2]:
        assert toy.evict(tensor)
    before = toy.stats().evictions
    mapped = toy.pool.stats().mapped_chunks
    toy.one("large", seed, words=8 * WORDS, parameter=cost_ns)
    stats = toy.stats()
    evicted = 4 if (room, cost_ns) == (AUTO, 10) else 0
    assert stats.window_evictions == stats.contiguity_evictions == evicted
    assert stats.evictions - before == evicted
    assert (toy.pool.stats().mapped_chunks > mapped) == (evicted == 0)
    assert toy.pool.stats().remaps == (evicted == 0)


@pytest.mark.parametrize(("pages", "layers"), [(48, 24), (64, 40)])
def test_a_step_that_repeats_maps_nothing(make_toy, pages, layers):
    """Results of 1 to 11 pages, used in the opposite order, of which the budget holds a part."""
    toy = make_toy(
        pages=pages, chunk=PAGE, price=by_parameter, heuristic="marginal", move_bytes_per_s=1e9
    )
    seed = toy.unseen(WORDS)
    mapped, evictions = [], []
    for _ in range(6):
        results = [seed]
        for i in range(layers):
            words = (1 + i * 7 % 11) * WORDS
            results.append(toy.one("layer", results[-1], words=words, parameter=1000))
        for result in reversed(results[1:]):
            use(result)
            result.release()
        mapped.append(toy.pool.stats().mapped_chunks)
        evictions.append(toy.stats().evictions)
    assert mapped[1:] == 5 * mapped[:1]
    assert evictions[-1] > evictions[-2] > 0


def test_members_that_would_be_recomputed_through_the_same_do_not_count_it_twice(make_toy):
    """Two neighbors hang on one dear evicted storage, two others on a storage each, which cost less
    but together more."""
    toy = make_toy(
        pages=8,
        price=by_parameter,
        driver="host-fixed",
        heuristic="c=ancestors,m=size,s=0",
        room=WINDOW,
    )
    seed = toy.unseen(64)
    toy.one("pad", seed, words=WORDS - 64, parameter=10**8)
    roots = [toy.one("root", seed, words=WORDS, parameter=c) for c in (10**5, 7 * 10**4, 7 * 10**4)]
    pairs = [toy.one("leaf", roots[i], words=WORDS, parameter=10 + i) for i in (0, 0, 1, 2)]
    for root in roots:
        assert toy.evict(root)
    wall = toy.one("wall", seed, words=3 * WORDS, parameter=10**9)
    toy.pin(wall)
    toy.one("large", seed, words=2 * WORDS, parameter=1)
    assert [pair.evicted for pair in pairs] == [True, True, False, False]
    assert toy.stats().window_evictions == 2
    toy.unpin(wall)
