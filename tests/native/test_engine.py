"""The engine by example: operators, eviction and rematerialization on host memory.

Needs the native build. The fixture checks at the end that nothing was left behind.
"""

import math
import re
import threading

import pytest
from native_pool import DriverFailed, Invalid, NativePool, OutOfMemory, WrongState, check, ffi, lib
from toy import CONSTANT, INT64, MUTATE, SCRATCH, WRITE_ONLY, Toy, engine_options, release

PAGE = 4096
WORDS = PAGE // 8  # a tensor of one page


class Failure(Exception):
    """An operator's own error."""


def fail(operator):
    raise Failure(operator.name)


def fail_once():
    """A hook that fails the second run of an operator: its first replay."""
    runs = []

    def hook(operator):
        runs.append(operator)
        if len(runs) == 2:
            raise Failure(operator.name)

    return hook


def chain(toy, first, length, words=WORDS):
    """Operators one after another, of which only the last result is kept."""
    last = first
    for i in range(length):
        following = toy.one("link", last, words=words, parameter=i)
        if last is not first:
            last.release()
        last = following
    return last


def assert_no_locks(toy, *tensors):
    """Each of the tensors, resident and recomputable, can be evicted now."""
    for tensor in tensors:
        toy.materialize(tensor)
        assert toy.evict(tensor)


class TestMakingRoom:
    def test_eviction_makes_room_and_content_returns(self, make_toy):
        toy = make_toy(pages=8)
        x = toy.unseen(WORDS)
        results = [toy.one("f", x, parameter=i) for i in range(20)]
        assert toy.stats().evictions >= 13
        assert sum(not result.evicted for result in results) <= 7
        for result in results:
            assert toy.content(result) == result.expected()
            toy.verify()
        assert toy.stats().rematerializations >= 13
        release(x, *results)

    def test_chains_of_20000_operators_rematerialize_without_recursion(self, make_toy):
        toy = make_toy(pages=64)
        x = toy.unseen(128)
        # Kept while it grows: a dead history that outweighs its storage would be cut.
        links = [x]
        for i in range(20_000):
            links.append(toy.one("link", links[-1], words=128, parameter=i))
        last = links.pop()
        release(*links[1:])
        assert toy.evict(last)
        assert toy.stats().evicted_storages == 20_000
        toy.verify()
        assert toy.content(last) == last.expected()
        assert len(toy.replays) == 20_000
        toy.verify()
        release(x, last)

    def test_a_history_that_outweighs_its_storage_is_cut(self, make_toy):
        """A running average does not keep its whole past: its present becomes a constant."""
        toy = make_toy(pages=64)
        x = toy.unseen(128)
        last = chain(toy, x, 1_000, words=128)
        assert toy.stats().live_ops <= 64 + 7
        assert toy.content(last) == last.expected()
        release(x, last)

    def test_what_is_evicted_while_its_sibling_comes_back_comes_back_too(self, make_toy):
        """Two inputs of one operator whose own recomputations each need all the room."""
        toy = make_toy(pages=8)
        x = toy.unseen(WORDS)
        left, right = (toy.one("wide", x, parameter=i, words=2 * WORDS) for i in range(2))
        deep = [chain(toy, side, 5, words=2 * WORDS) for side in (left, right)]
        both = toy.one("join", *deep, words=WORDS)
        release(left, right, *deep)
        assert toy.content(both) == both.expected()
        toy.evict(both)
        assert toy.content(both) == both.expected()
        release(x, both)

    def test_evicting_by_hand_frees_the_block_and_says_whether_it_could(self, make_toy):
        toy = make_toy()
        x = toy.unseen(WORDS)
        y = toy.one("f", x)
        before = toy.pool.stats().live_blocks
        assert toy.resident(y)
        assert toy.evict(y)
        assert not toy.resident(y)
        assert y.data == ffi.NULL
        assert toy.pool.stats().live_blocks == before - 1
        assert not toy.evict(y)  # it is evicted already
        assert not toy.evict(x)  # a constant
        assert toy.resident(x)
        toy.verify()
        assert toy.content(y) == y.expected()
        release(x, y)

    def test_lowering_the_budget_evicts(self, make_toy):
        toy = make_toy(pages=64)
        x = toy.unseen(WORDS)
        results = [toy.one("f", x, parameter=i) for i in range(40)]
        toy.pool.set_budget(8 * PAGE)
        assert toy.pool.stats().reserved_bytes <= 8 * PAGE
        assert sum(result.evicted for result in results) >= 33
        for result in results:
            assert toy.content(result) == result.expected()
        release(x, *results)

    def test_small_storages_are_never_chosen_below_the_least_size(self, make_toy):
        toy = make_toy(pages=8)
        options = engine_options("dtr-eqclass", min_evict_bytes=PAGE + 1)
        check(lib.dtr_engine_configure(toy.engine, options))
        x = toy.unseen(WORDS)
        results = [toy.one("f", x, parameter=i) for i in range(6)]
        with pytest.raises(OutOfMemory):
            toy.one("f", x, words=3 * WORDS)
        assert toy.stats().evictions == 0
        release(x, *results)


class TestDeath:
    def test_a_dead_storage_without_dependents_vanishes(self, make_toy):
        toy = make_toy()
        x = toy.unseen(WORDS)
        y = toy.one("f", x)
        z = toy.one("g", y)
        assert toy.stats().live_storages == 3
        z.release()
        assert toy.stats().live_storages == 2
        assert toy.stats().live_ops == 1
        release(x, y)

    def test_a_dead_storage_with_dependents_gives_its_memory_back_at_once(self, make_toy):
        toy = make_toy()
        x = toy.unseen(WORDS)
        y = toy.one("f", x)
        z = toy.one("g", y)
        blocks = toy.pool.stats().live_blocks
        y.release()
        assert toy.pool.stats().live_blocks == blocks - 1
        assert toy.stats().live_storages == 3
        assert toy.evict(z)
        assert toy.content(z) == z.expected()
        assert toy.replays == ["f", "g"]
        release(x, z)

    def test_an_evicted_storage_may_die(self, make_toy):
        toy = make_toy()
        x = toy.unseen(WORDS)
        y = toy.one("f", x)
        z = toy.one("g", y)
        assert toy.evict(y)
        y.release()
        assert toy.stats().live_storages == 3
        toy.evict(z)
        assert toy.content(z) == z.expected()
        toy.evict(z)
        z.release()
        assert toy.stats().live_ops == 0
        x.release()

    def test_records_stay_few_over_many_steps(self, make_toy):
        toy = make_toy(pages=16)
        weight = toy.unseen(WORDS)
        for step in range(300):
            layers = [toy.one("embed", (weight, CONSTANT), parameter=step)]
            for _ in range(9):
                layers.append(toy.one("layer", layers[-1], (weight, CONSTANT)))
            toy.run("update", (weight, MUTATE | CONSTANT), layers[-1])
            release(*layers)
            assert toy.stats().live_storages <= 12
        assert weight.is_right()
        assert len(toy.closures) <= 200
        weight.release()

    def test_a_constant_that_dies_while_something_needs_it_is_kept_and_later_let_go(self, make_toy):
        toy = make_toy()
        x = toy.unseen(WORDS)
        results = [toy.one("f", x, parameter=i) for i in range(3)]
        toy.evict(results[0])
        blocks = toy.pool.stats().live_blocks
        x.release()
        assert toy.stats().kept_constant_bytes == PAGE
        assert toy.pool.stats().live_blocks == blocks
        toy.verify()
        assert toy.content(results[0]) == results[0].expected()
        release(*results)
        assert toy.stats().kept_constant_bytes == 0
        assert toy.pool.stats().live_blocks == 0

    def test_a_kept_constant_goes_when_what_needed_it_is_back(self, make_toy):
        """Each gradient was kept for an evicted momentum buffer, step after step."""
        toy = make_toy()
        x = toy.unseen(WORDS)
        momentum = toy.one("f", x)
        gradients = []
        for step in range(4):
            gradients.append(toy.unseen(WORDS, seed=step))
            toy.run("add", (momentum, MUTATE), gradients[-1])
            toy.evict(momentum)
            gradients[-1].release()
            toy.verify()
            assert toy.stats().kept_constant_bytes <= PAGE
            toy.materialize(momentum)
            assert toy.stats().kept_constant_bytes == 0
            assert momentum.is_right()
        toy.verify()
        release(x, momentum)

    def test_a_kept_constant_stays_if_what_needs_it_is_larger(self, make_toy):
        """As a constant in its place it would take more memory for good."""
        toy = make_toy()
        x = toy.unseen(WORDS)
        y = toy.one("f", x, words=2 * WORDS)
        assert toy.evict(y)
        x.release()
        for _ in range(2):
            toy.evict(y)
            toy.materialize(y)
            assert toy.stats().kept_constant_bytes == PAGE
            assert y.is_right()
        y.release()

    def test_a_kept_constant_is_let_go_when_room_is_short_and_nothing_evicted_needs_it(
        self, make_toy
    ):
        toy = make_toy(pages=8)
        x = toy.unseen(2 * WORDS)
        results = [toy.one("f", x, parameter=i) for i in range(3)]
        toy.evict(results[0])
        x.release()
        toy.materialize(results[0])
        for result in results:
            toy.pin(result)
        large = toy.unseen(5 * WORDS)
        assert toy.stats().kept_constant_bytes == 0
        toy.verify()
        release(large, *results)

    def test_a_constant_whose_dependents_can_do_without_it_goes_at_once(self, make_toy):
        toy = make_toy()
        x = toy.unseen(2 * WORDS)
        y = toy.one("f", x)
        with toy.no_failed_call():
            x.release()
        assert toy.stats().kept_constant_bytes == 0
        assert toy.stats().live_ops == 0
        assert not toy.evict(y)  # a constant now
        toy.verify()
        y.release()


DEALLOCS = ["eager", "banish", "ignore", "lazy"]


@pytest.mark.parametrize("dealloc", DEALLOCS)
class TestEveryDeallocationPolicy:
    def test_what_nothing_depends_on_goes_at_once(self, make_toy, dealloc):
        toy = make_toy(dealloc=dealloc)
        x = toy.unseen(WORDS)
        y = toy.one("f", x)
        y.release()
        assert toy.pool.stats().live_blocks == 1
        assert toy.stats().live_storages == 1
        x.release()
        assert toy.pool.stats().live_blocks == 0

    def test_contents_are_right_whatever_died(self, make_toy, dealloc):
        toy = make_toy(pages=16, dealloc=dealloc)
        x = toy.unseen(WORDS)
        heads = [x]
        for i in range(12):
            heads.append(toy.one("layer", heads[-1], parameter=i))
            if i % 3 == 2:
                toy.run("relu_", (heads[-1], MUTATE))
            toy.verify()
        kept = heads[::4]
        for tensor in heads:
            if tensor not in kept:
                tensor.release()
                toy.verify()
        for tensor in kept[1:]:
            toy.evict(tensor)
            toy.verify()
        for tensor in reversed(kept):
            assert toy.content(tensor) == tensor.expected()
            toy.verify()
        release(*kept)

    def test_evicting_and_materializing_by_hand_work(self, make_toy, dealloc):
        toy = make_toy(dealloc=dealloc)
        x = toy.unseen(WORDS)
        y = toy.one("f", x)
        z = toy.one("g", y)
        assert toy.evict(y)
        assert toy.evict(z)
        y.release()
        toy.verify()
        assert toy.content(z) == z.expected()
        assert toy.replays == ["f", "g"]
        # Under banish nothing is left that z could be computed from.
        assert toy.evict(z) == (dealloc != "banish")
        assert toy.content(z) == z.expected()
        release(x, z)

    def test_reset_gives_the_memory_of_ghosts_back(self, make_toy, dealloc):
        toy = make_toy(dealloc=dealloc)
        x = toy.unseen(WORDS)
        y = toy.one("f", x)
        z = toy.one("g", y)
        below = toy.one("h", z)
        toy.evict(z)
        release(x, y)
        toy.verify()
        toy.materialize_all()
        with toy.no_failed_call():
            toy.reset()
        assert toy.pool.stats().live_blocks == 2
        toy.verify()
        release(z, below)

    def test_overwritten_versions_leave_the_next_one_evictable(self, make_toy, dealloc):
        toy = make_toy(dealloc=dealloc)
        x = toy.unseen(WORDS)
        y = toy.one("f", x)
        toy.run("relu_", (y, MUTATE))
        toy.run("relu_", (y, MUTATE))
        for _ in range(2):
            assert toy.evict(y)
            assert toy.content(y) == y.expected()
            toy.verify()
        assert toy.pool.stats().live_blocks == 2
        release(x, y)

    def test_a_pin_ends_with_what_was_pinned(self, make_toy, dealloc):
        """A dead storage cannot be unpinned, so the ghost that it becomes must not be pinned."""
        toy = make_toy(pages=8, dealloc=dealloc)
        x = toy.unseen(WORDS)
        y = toy.one("f", x)
        z = toy.one("g", y)
        toy.pin(y)
        assert toy.evict(z)
        y.release()
        toy.verify()
        large = toy.unseen(7 * WORDS)
        large.release()
        assert toy.content(z) == z.expected()
        release(x, z)


class TestIgnore:
    def test_a_dead_storage_with_dependents_keeps_its_memory(self, make_toy):
        toy = make_toy(dealloc="ignore")
        x = toy.unseen(WORDS)
        y = toy.one("f", x)
        z = toy.one("g", y)
        y.release()
        toy.verify()
        assert toy.pool.stats().live_blocks == 3
        assert toy.evict(z)
        assert toy.content(z) == z.expected()
        assert toy.replays == ["g"]  # f's result was there
        z.release()
        assert toy.pool.stats().live_blocks == 1  # nothing depends on it any more
        x.release()

    def test_it_is_evicted_when_room_is_short(self, make_toy):
        toy = make_toy(pages=8, dealloc="ignore")
        x = toy.unseen(WORDS)
        y = toy.one("f", x)
        z = toy.one("g", y)
        y.release()
        toy.pin(z)
        large = toy.unseen(6 * WORDS)
        assert toy.stats().evictions == 1
        toy.verify()
        large.release()
        toy.unpin(z)
        assert toy.evict(z)
        assert toy.content(z) == z.expected()
        assert toy.replays == ["f", "g"]
        release(x, z)

    def test_a_ghost_that_a_replay_used_is_evicted_too(self, make_toy):
        toy = make_toy(pages=8, dealloc="ignore")
        x = toy.unseen(WORDS)
        y = toy.one("f", x)
        z = toy.one("g", y)
        y.release()
        toy.evict(z)
        toy.materialize(z)  # now y has a handle
        toy.pin(z)
        toy.unseen(6 * WORDS).release()
        assert toy.stats().evictions == 2
        toy.verify()
        toy.unpin(z)
        assert toy.evict(z)
        assert toy.content(z) == z.expected()
        release(x, z)

    def test_a_dead_constant_is_kept_while_something_depends_on_it(self, make_toy):
        toy = make_toy(dealloc="ignore")
        x = toy.unseen(WORDS)
        y = toy.one("f", x)
        x.release()
        assert toy.stats().kept_constant_bytes == PAGE
        assert toy.evict(y)
        assert toy.content(y) == y.expected()
        y.release()
        assert toy.stats().kept_constant_bytes == 0

    def test_what_an_operator_overwrote_when_its_buffer_went_is_not_kept(self, make_toy):
        toy = make_toy(dealloc="ignore")
        x = toy.unseen(WORDS)
        y = toy.one("f", x)
        z = toy.one("g", y)

        def resize(operator):
            toy.write(y, b"garbage!")
            check(lib.dtr_sim_replace_memory(y.pointer, 0))
            toy.write(y, b"12345678")

        toy.run("resize_", (y, MUTATE), fails=resize)
        y.store.expected[:] = b"12345678" * WORDS
        toy.verify()
        assert toy.evict(z)
        assert toy.content(z) == z.expected()
        release(x, y, z)


class TestBanish:
    def test_a_dead_storage_whose_dependents_are_resident_goes_for_good(self, make_toy):
        toy = make_toy(dealloc="banish")
        x = toy.unseen(WORDS)
        y = toy.one("f", x)
        z = toy.one("g", y)
        y.release()
        assert toy.stats().banished == 1
        assert toy.stats().live_ops == 0
        assert toy.stats().live_storages == 2
        assert toy.pool.stats().live_blocks == 2
        assert not toy.evict(z)  # a constant now
        release(x, z)

    def test_a_dead_constant_goes_too(self, make_toy):
        toy = make_toy(dealloc="banish")
        x = toy.unseen(WORDS)
        results = [toy.one("f", x, words=2 * WORDS, parameter=i) for i in range(3)]
        x.release()
        assert toy.pool.stats().live_blocks == 3
        assert toy.stats().kept_constant_bytes == 0
        assert not any(toy.evict(result) for result in results)
        release(*results)

    def test_an_evicted_dependent_keeps_it_as_a_ghost(self, make_toy):
        toy = make_toy(dealloc="banish")
        x = toy.unseen(WORDS)
        y = toy.one("f", x)
        first, second = toy.one("g", y), toy.one("h", y)
        for tensor in (first, second):
            assert toy.evict(tensor)
        y.release()
        toy.verify()
        assert toy.stats().banished == 0
        assert toy.pool.stats().live_blocks == 2
        toy.materialize(first)
        assert toy.stats().banished == 0  # the second is still evicted
        assert toy.replays == ["g"]
        toy.materialize(second)
        assert toy.stats().banished == 1
        assert toy.replays == ["g", "h"]
        assert toy.pool.stats().live_blocks == 3
        toy.verify()
        for tensor in (first, second):
            assert tensor.is_right()
            assert not toy.evict(tensor)
        release(x, first, second)

    def test_a_ghost_that_waits_may_be_evicted(self, make_toy):
        toy = make_toy(pages=8, dealloc="banish")
        x = toy.unseen(WORDS)
        y = toy.one("f", x)
        z = toy.one("g", y)
        assert toy.evict(z)
        y.release()
        toy.unseen(7 * WORDS).release()
        assert toy.stats().evictions == 2
        toy.verify()
        assert toy.content(z) == z.expected()
        assert toy.replays == ["f", "g"]
        assert toy.stats().banished == 1
        assert toy.pool.stats().live_blocks == 2
        release(x, z)

    def test_it_is_tried_again_when_the_evicted_dependent_dies(self, make_toy):
        toy = make_toy(dealloc="banish")
        x = toy.unseen(WORDS)
        y = toy.one("f", x)
        resident, evicted = toy.one("g", y), toy.one("h", y)
        assert toy.evict(evicted)
        y.release()
        assert toy.stats().banished == 0
        evicted.release()
        assert toy.stats().banished == 1
        assert not toy.evict(resident)
        assert toy.pool.stats().live_blocks == 2
        release(x, resident)

    def test_an_evicted_storage_that_dies_goes_as_well(self, make_toy):
        toy = make_toy(dealloc="banish")
        x = toy.unseen(WORDS)
        y = toy.one("f", x)
        z = toy.one("g", y)
        assert toy.evict(y)
        y.release()
        assert toy.stats().banished == 1
        assert toy.stats().evicted_storages == 0
        assert not toy.evict(z)
        release(x, z)

    def test_one_evicted_result_of_several_keeps_it(self, make_toy):
        toy = make_toy(dealloc="banish")
        x = toy.unseen(WORDS)
        y = toy.one("f", x)
        parts = toy.run("split", y, results=[WORDS] * 3)
        assert toy.evict(parts[1])
        y.release()
        assert toy.stats().banished == 0
        assert toy.evict(parts[0])
        toy.materialize(parts[0])  # brings both back
        assert toy.stats().banished == 1
        for part in parts:
            assert part.is_right()
            assert not toy.evict(part)
        release(x, *parts)

    def test_it_waits_for_a_dependent_that_an_operator_is_overwriting(self, make_toy):
        """As a constant, the old content would be lost for what else depends on it."""
        toy = make_toy(dealloc="banish")
        x = toy.unseen(WORDS)
        y = toy.one("f", x)
        z = toy.one("g", y)
        below = toy.one("h", z)
        assert toy.evict(below)
        seen = []

        def drop(operator):
            if not seen:
                y.release()
                seen.append(toy.stats().banished)

        toy.run("add_", (z, MUTATE), fails=drop)
        assert seen == [0]
        toy.verify()
        assert toy.content(below) == below.expected()
        assert z.is_right()
        assert toy.evict(z)
        assert toy.content(z) == z.expected()
        toy.verify()
        release(x, z, below)

    def test_chains_of_20000_are_banished_without_recursion(self, make_toy):
        toy = make_toy(pages=64, dealloc="banish")
        x = toy.unseen(128)
        links = [x]
        for i in range(20_000):
            links.append(toy.one("link", links[-1], words=128, parameter=i))
        for link in links:
            toy.evict(link)
        assert toy.stats().evicted_storages == 20_000
        last = links.pop()
        release(*links)  # each waits for the next
        assert toy.stats().banished == 0
        toy.materialize(last)
        assert last.is_right()
        assert toy.stats().banished == 20_000
        assert toy.stats().live_ops == 0
        assert toy.pool.stats().live_blocks == 1
        last.release()


class TestMutation:
    def test_a_mutation_makes_a_new_version_and_old_dependents_still_get_old_content(
        self, make_toy
    ):
        toy = make_toy()
        x = toy.unseen(WORDS)
        y = toy.one("f", x)
        before = toy.one("g", y)
        toy.run("add_", (y, MUTATE), parameter=1)
        toy.run("add_", (y, MUTATE), x, parameter=2)
        after = toy.one("g", y)
        assert before.expected() != after.expected()
        for tensor in (before, y, after):
            toy.verify()
            assert tensor.is_right()
            assert toy.evict(tensor)
        for tensor in (after, before, y):
            assert toy.content(tensor) == tensor.expected()
            toy.verify()
        release(x, y, before, after)

    def test_aliases_share_one_storage_and_its_versions(self, make_toy):
        toy = make_toy()
        x = toy.unseen(WORDS)
        whole = toy.one("f", x)
        left, right = toy.view(whole, 0, WORDS // 2), toy.view(whole, WORDS // 2, WORDS // 2)
        assert left.handle == right.handle == whole.handle
        sum_before = toy.one("sum", whole)
        toy.run("add_", (left, MUTATE), right)
        sum_after = toy.one("sum", whole)
        assert toy.evict(whole)
        assert left.evicted
        assert right.evicted
        assert toy.evict(sum_before)
        assert toy.evict(sum_after)
        for tensor in (right, left, whole, sum_before, sum_after):
            assert toy.content(tensor) == tensor.expected()
        whole.release()
        right.release()
        assert toy.evict(left)
        assert toy.content(left) == left.expected()
        release(x, left, sum_before, sum_after)

    def test_a_view_of_an_evicted_storage_needs_no_data(self, make_toy):
        toy = make_toy()
        x = toy.unseen(WORDS)
        y = toy.one("f", x)
        toy.evict(y)
        part = toy.view(y, 16, 32)
        assert part.evicted
        y.release()
        assert toy.replays == []
        assert toy.content(part) == part.expected()
        release(x, part)

    def test_one_operator_may_overwrite_two_views_of_one_storage(self, make_toy):
        toy = make_toy()
        x = toy.unseen(WORDS)
        whole = toy.one("f", x)
        left, right = toy.view(whole, 0, WORDS // 2), toy.view(whole, WORDS // 2, WORDS // 2)
        toy.run("swap_", (left, MUTATE), (right, MUTATE))
        toy.verify()
        toy.evict(whole)
        assert toy.content(whole) == whole.expected()
        release(x, whole, left, right)

    def test_an_overwrite_of_everything_forgets_the_old_content(self, make_toy):
        toy = make_toy()
        x = toy.unseen(WORDS)
        y = toy.one("f", x)
        toy.run("copy_", (y, WRITE_ONLY), x)
        assert toy.stats().live_ops == 1
        toy.evict(y)
        assert toy.content(y) == y.expected()
        assert toy.replays == ["copy_"]
        release(x, y)

    def test_an_overwrite_of_a_constant_makes_it_recomputable(self, make_toy):
        """What torch.empty gives is a constant; zero_ or normal_ on it is a beginning."""
        toy = make_toy()
        x = toy.unseen(WORDS)
        assert not toy.evict(x)
        toy.run("fill_", (x, WRITE_ONLY), parameter=3)
        assert toy.evict(x)
        assert toy.content(x) == x.expected()
        x.release()

    def test_an_overwrite_of_a_constant_in_parts_makes_it_recomputable(self, make_toy):
        toy = make_toy()
        x = toy.unseen(WORDS)
        y = toy.unseen(WORDS)
        left, right = toy.view(y, 0, WORDS // 2), toy.view(y, WORDS // 2, WORDS // 2)
        toy.run("copy_", (right, WRITE_ONLY), x)
        toy.verify()
        assert not toy.evict(y)
        other = toy.one("f", right)  # which is written
        toy.run("fill_", (left, WRITE_ONLY))
        toy.verify()
        assert toy.evict(y)
        assert toy.evict(other)
        assert toy.content(other) == other.expected()
        assert toy.replays == ["copy_", "f"]
        assert toy.content(y) == y.expected()
        assert toy.replays[2:] in (["fill_"], ["copy_", "fill_"])
        release(x, y, left, right, other)

    def test_what_was_read_before_it_was_written_is_kept(self, make_toy):
        toy = make_toy()
        x = toy.unseen(WORDS)
        left, right = toy.view(x, 0, WORDS // 2), toy.view(x, WORDS // 2, WORDS // 2)
        toy.run("fill_", (left, WRITE_ONLY))
        y = toy.one("f", x)
        assert toy.stats().live_ops == 1
        toy.run("fill_", (right, WRITE_ONLY))
        assert not toy.evict(x)
        assert not toy.evict(y)
        assert y.is_right()
        release(x, left, right, y)

    def test_a_copy_of_what_was_not_written_is_not_written(self, make_toy):
        toy = make_toy()
        x = toy.unseen(WORDS)
        quarters = [toy.view(x, WORDS // 4 * i, WORDS // 4) for i in range(4)]
        first, second, third, last = quarters
        toy.run("fill_", (first, WRITE_ONLY))
        toy.run("copy_", (second, WRITE_ONLY), third, copies=True)
        toy.run("copy_", (third, WRITE_ONLY), first, copies=True)
        toy.run("fill_", (last, WRITE_ONLY))
        toy.verify()
        assert not toy.evict(x)
        toy.run("copy_", (second, WRITE_ONLY), third, copies=True)
        assert toy.evict(x)
        release(x, *quarters)

    def test_an_overwrite_of_a_part_keeps_the_rest(self, make_toy):
        toy = make_toy()
        x = toy.unseen(WORDS)
        y = toy.one("f", x)
        half = toy.view(y, 0, WORDS // 2)
        toy.run("fill_", (half, WRITE_ONLY), parameter=3)
        toy.evict(y)
        assert toy.content(y) == y.expected()
        assert toy.replays == ["f", "fill_"]
        release(x, y, half)

    def test_a_replay_does_not_write_to_scratch_that_users_see(self, make_toy):
        toy = make_toy()
        x = toy.unseen(WORDS)
        statistics = toy.unseen(WORDS, seed=1)
        y = toy.one("norm", x, (statistics, SCRATCH))
        assert statistics.is_right()
        toy.evict(y)
        assert toy.content(y) == y.expected()
        assert statistics.is_right()
        assert not toy.evict(statistics)
        release(x, statistics, y)

    def test_a_mutation_that_cannot_be_replayed_makes_a_constant(self, make_toy):
        toy = make_toy()
        x = toy.unseen(WORDS)
        y = toy.one("f", x)
        z = toy.one("g", y)
        toy.run("receive_", (y, MUTATE), replayable=False)
        assert not toy.evict(y)
        assert toy.evict(z)
        assert toy.content(z) == z.expected()
        release(x, y, z)

    def test_a_mutation_of_an_evicted_storage_brings_it_back_first(self, make_toy):
        toy = make_toy()
        x = toy.unseen(WORDS)
        y = toy.one("f", x)
        toy.evict(y)
        toy.run("add_", (y, MUTATE))
        assert y.is_right()
        toy.evict(y)
        assert toy.content(y) == y.expected()
        release(x, y)


class TestWhatBecomesConstantWhileItIsOverwritten:
    """Found by the model: dependents read the new content at their next replay."""

    def test_because_its_history_is_too_long(self, make_toy):
        toy = make_toy()
        x = toy.unseen(WORDS)
        y = chain(toy, x, 10)
        z = toy.one("g", y)
        assert toy.evict(z)
        toy.keep_history(5)
        toy.run("add_", (y, MUTATE))
        toy.verify()
        assert toy.content(z) == z.expected()
        assert y.is_right()
        release(x, y, z)

    @pytest.mark.parametrize("weight_first", [True, False])
    def test_because_the_same_operator_overwrites_what_it_was_computed_from(
        self, make_toy, weight_first
    ):
        toy = make_toy()
        weight = toy.unseen(WORDS)
        y = toy.one("f", weight)
        z = toy.one("g", y)
        assert toy.evict(z)
        both = [(weight, MUTATE), (y, MUTATE)]
        toy.run("foreach_", *(both if weight_first else reversed(both)))
        toy.verify()
        assert toy.content(z) == z.expected()
        assert weight.is_right()
        assert toy.content(y) == y.expected()
        release(weight, y, z)

    def test_because_the_operator_makes_room(self, make_toy):
        toy = make_toy(pages=8)
        x = toy.unseen(WORDS)
        y, other = toy.one("f", x), toy.one("h", x)
        z = toy.one("g", y)
        assert toy.evict(z)
        assert toy.evict(other)
        x.release()
        assert toy.stats().kept_constant_bytes == PAGE
        toy.materialize(other)
        toy.pin(other)
        obstacle = toy.unseen(WORDS)
        with pytest.raises(OutOfMemory):  # unless x is let go, which y and so z hang on
            toy.run("pop_", (y, MUTATE), results=[5 * WORDS])
        toy.verify()
        obstacle.release()
        result = toy.one("pop_", (y, MUTATE), words=5 * WORDS)
        result.release()
        for tensor in (z, y):
            assert toy.content(tensor) == tensor.expected()
        release(y, z, other)


class TestKeepingWhatIsOverwritten:
    """DTR_OP_KEEPS_OLD: of a compiled graph that updates running statistics, say."""

    SMALL, LARGE = 512, 65536 // 8 + 512  # words

    def test_what_the_operator_gives_besides_can_be_computed_again(self, make_toy):
        toy = make_toy()
        x = toy.unseen(WORDS)
        running = toy.unseen(self.SMALL)
        first = toy.one("norm", x, (running, MUTATE), keeps_old=True)
        second = toy.one("norm", x, (running, MUTATE), keeps_old=True, parameter=2)
        toy.verify()
        for tensor in (first, second):
            assert toy.evict(tensor)
            assert toy.content(tensor) == tensor.expected()
            assert running.is_right()
        assert not toy.evict(running)
        release(x, first, second, running)

    def test_what_was_computed_from_the_old_content_is_still_evictable(self, make_toy):
        toy = make_toy()
        x, running = toy.unseen(WORDS), toy.unseen(self.SMALL)
        before = toy.one("scale", x, running)
        assert toy.evict(before)
        result = toy.one("norm", x, (running, MUTATE), keeps_old=True)
        assert before.evicted
        assert toy.content(before) == before.expected()
        release(x, before, result, running)
        toy.verify()

    def test_one_storage_may_be_read_and_overwritten_by_two_arguments(self, make_toy):
        toy = make_toy()
        x, running = toy.unseen(WORDS), toy.unseen(self.SMALL)
        result = toy.one("norm", x, running, (running, MUTATE), keeps_old=True)
        assert toy.evict(result)
        assert toy.content(result) == result.expected()
        again = toy.one("norm", (running, MUTATE), (running, MUTATE), keeps_old=True)
        assert toy.evict(again)
        assert toy.content(again) == again.expected()
        release(x, result, again, running)

    def test_the_copy_goes_with_the_last_that_needs_it(self, make_toy):
        toy = make_toy()
        x, running = toy.unseen(WORDS), toy.unseen(self.SMALL)
        blocks = toy.pool.stats().live_blocks
        result = toy.one("norm", x, (running, MUTATE), keeps_old=True)
        assert toy.stats().kept_constant_bytes == self.SMALL * 8
        result.release()
        assert toy.stats().kept_constant_bytes == 0
        assert toy.pool.stats().live_blocks == blocks
        release(x, running)

    def test_what_is_large_is_not_copied_and_makes_constants(self, make_toy):
        toy = make_toy()
        x, running = toy.unseen(WORDS), toy.unseen(self.LARGE)
        result = toy.one("norm", x, (running, MUTATE), keeps_old=True)
        assert not toy.evict(result)
        assert toy.stats().kept_constant_bytes == 0
        release(x, result, running)

    @pytest.mark.parametrize("started", [False, True])
    def test_an_operator_that_fails_leaves_no_copy(self, make_toy, started):
        toy = make_toy()
        x, running = toy.unseen(WORDS), toy.unseen(self.SMALL)
        blocks = toy.pool.stats().live_blocks
        buffer = lib.dtr_frame_buffer(toy.frame, 1)
        buffer[0] = running.number | MUTATE
        flags = lib.DTR_OP_REPLAYABLE | lib.DTR_OP_KEEPS_OLD
        assert lib.dtr_op_begin(toy.frame, 1, flags, 1) == 0
        lib.dtr_op_abort(toy.frame, started)
        assert toy.pool.stats().live_blocks == blocks
        toy.verify()
        release(x, running)


class TestConstants:
    def test_parameters_are_never_evicted(self, make_toy):
        toy = make_toy(pages=8)
        x = toy.unseen(WORDS)
        weight = toy.one("init", x)
        results = [toy.one("f", (weight, CONSTANT), parameter=i) for i in range(20)]
        assert not weight.evicted
        assert not toy.evict(weight)
        release(x, weight, *results)

    def test_a_parameter_that_was_evicted_comes_back_and_stays(self, make_toy):
        toy = make_toy()
        x = toy.unseen(WORDS)
        weight = toy.one("init", x)
        assert toy.evict(weight)
        y = toy.one("f", (weight, CONSTANT))
        assert weight.is_right()
        assert not toy.evict(weight)
        release(x, weight, y)

    def test_a_constant_that_is_overwritten_settles_its_dependents_first(self, make_toy):
        toy = make_toy()
        weight = toy.unseen(WORDS)
        resident, evicted, dead = (toy.one("f", weight, parameter=i) for i in range(3))
        below = toy.one("g", dead)
        dead.release()
        assert toy.evict(evicted)
        assert toy.evict(below)
        toy.run("update_", (weight, MUTATE))
        toy.verify()
        assert sorted(toy.replays) == ["f", "f", "g"]
        for tensor in (weight, resident, evicted, below):
            assert tensor.is_right()  # the evicted ones were brought back
            assert not toy.evict(tensor)  # and all are constants
        assert toy.stats().live_ops == 0
        release(weight, resident, evicted, below)

    def test_a_resident_dependent_ends_the_settling(self, make_toy):
        toy = make_toy()
        weight = toy.unseen(WORDS)
        y = toy.one("f", weight)
        z = toy.one("g", y)
        toy.run("update_", (weight, MUTATE))
        assert not toy.evict(y)
        assert toy.evict(z)
        assert toy.content(z) == z.expected()
        assert toy.replays == ["g"]
        release(weight, y, z)

    def test_an_update_that_also_reads_a_dependent_works(self, make_toy):
        """As an optimizer does: the gradient depends on the weight that it changes."""
        toy = make_toy(pages=16)
        weight = toy.unseen(WORDS)
        for _ in range(5):
            y = toy.one("forward", (weight, CONSTANT))
            gradient = toy.one("backward", y, (weight, CONSTANT))
            toy.evict(gradient)
            toy.evict(y)
            toy.run("step_", (weight, MUTATE | CONSTANT), gradient)
            assert weight.is_right()
            assert toy.content(y) == y.expected()
            release(y, gradient)
        weight.release()

    def test_tiny_results_are_constants(self, make_toy):
        toy = make_toy()
        x = toy.unseen(WORDS)
        mean = toy.one("mean", x, words=1)
        assert not toy.evict(mean)
        assert toy.stats().live_ops == 0
        release(x, mean)


class TestSeveralResults:
    def test_all_evicted_results_come_back_and_the_others_are_freed_at_once(self, make_toy):
        toy = make_toy()
        x = toy.unseen(WORDS)
        parts = toy.run("split", x, results=[WORDS] * 4)
        for part in parts[1:]:
            assert toy.evict(part)
        kept = toy.pool.stats().live_blocks
        assert toy.content(parts[2]) == parts[2].expected()
        assert toy.replays == ["split"]
        assert toy.pool.stats().live_blocks == kept + 3
        for part in parts:
            assert part.is_right()
        release(x, *parts)

    def test_results_of_dead_siblings_are_not_kept(self, make_toy):
        toy = make_toy()
        x = toy.unseen(WORDS)
        parts = toy.run("split", x, results=[WORDS] * 3)
        release(parts[0], parts[2])
        assert toy.evict(parts[1])
        assert toy.content(parts[1]) == parts[1].expected()
        assert toy.pool.stats().live_blocks == 2
        release(x, parts[1])

    def test_an_operator_may_overwrite_and_make_results_at_once(self, make_toy):
        toy = make_toy()
        x = toy.unseen(WORDS)
        y = toy.one("f", x)
        z = toy.one("pop_", (y, MUTATE), words=2 * WORDS)
        for first, second in ((y, z), (z, y)):
            toy.materialize(z)
            toy.materialize(y)
            assert toy.evict(first)
            assert toy.evict(second)
            assert toy.content(first) == first.expected()
            assert toy.content(second) == second.expected()
        release(x, y, z)

    @pytest.mark.parametrize("next_version_lives", [True, False])
    def test_an_old_version_that_a_replay_overwrote_is_not_taken_for_whole(
        self, make_toy, next_version_lives
    ):
        """Found by the model: only the second result of an overwriting operator comes back, and
        then another dependent of the old version."""
        toy = make_toy()
        x = toy.unseen(WORDS)
        y = toy.one("f", x)
        early = toy.one("g", y)
        second = toy.one("pop_", (y, MUTATE))
        both = toy.one("join", second, early)
        assert toy.evict(early)
        assert toy.evict(second)
        assert toy.evict(both)
        if not next_version_lives:
            y.release()
        release(early, second)
        assert toy.content(both) == both.expected()
        toy.verify()
        assert toy.evict(both)
        assert toy.content(both) == both.expected()
        release(x, both, y)


class TestPins:
    def test_pinned_storages_stay_until_unpinned_as_often(self, make_toy):
        toy = make_toy(pages=8)
        x = toy.unseen(WORDS)
        y = toy.one("f", x)
        toy.pin(y)
        toy.pin(y)
        others = [toy.one("g", x, parameter=i) for i in range(20)]
        assert not y.evicted
        assert not toy.evict(y)
        assert toy.unpin(y)
        assert not toy.evict(y)
        assert toy.unpin(y)
        assert not toy.unpin(y)
        assert toy.evict(y)
        release(x, y, *others)

    def test_a_pin_follows_the_buffer_to_its_next_version(self, make_toy):
        toy = make_toy()
        x = toy.unseen(WORDS)
        y = toy.one("f", x)
        toy.pin(y)
        toy.run("add_", (y, MUTATE))
        assert not toy.evict(y)
        assert toy.unpin(y)
        assert toy.evict(y)
        release(x, y)

    def test_an_escaped_storage_is_a_constant_for_good(self, make_toy):
        toy = make_toy()
        x = toy.unseen(WORDS)
        y = toy.one("f", x)
        toy.pin(y, escaped=True)
        assert not toy.evict(y)
        assert not toy.unpin(y)
        toy.run("add_", (y, MUTATE))
        assert not toy.evict(y)
        assert y.is_right()
        release(x, y)

    def test_inputs_of_a_running_operator_stay(self, make_toy):
        toy = make_toy(pages=8)
        x = toy.unseen(WORDS)
        inputs = [toy.one("f", x, parameter=i) for i in range(4)]
        others = [toy.one("g", x, parameter=i) for i in range(4)]
        seen = []

        def evict_inputs(operator):
            seen.extend(toy.evict(tensor) for tensor in inputs)

        result = toy.one("join", *inputs, words=3 * WORDS, fails=evict_inputs)
        assert seen == [False] * 4
        assert result.is_right()
        release(x, result, *inputs, *others)


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
            f"requested {5 * PAGE} bytes",
            f"budget {8 * PAGE} bytes",
            f"locked by running ops {PAGE} bytes",
            f"constants {2 * PAGE} bytes",
            f"pinned {PAGE} bytes",
            "evictable 0 bytes",
        ):
            assert part in text
        least = int(re.search(r"needs a budget of at least (\d+) bytes", text)[1])
        assert least > 8 * PAGE
        toy.verify()
        assert toy.evict(y)
        toy.unpin(pinned)
        assert toy.evict(pinned)
        toy.pool.set_budget(least)
        toy.one("large", y, words=5 * WORDS).release()
        release(x, y, pinned)

    def test_out_of_memory_within_a_rematerialization_leaves_no_lock(self, make_toy):
        toy = make_toy(pages=8)
        x = toy.unseen(WORDS)
        wide = toy.one("widen", x, words=4 * WORDS)
        y = toy.one("narrow", wide)
        wide.release()
        toy.evict(y)
        obstacle = toy.unseen(4 * WORDS)
        with pytest.raises(OutOfMemory):
            toy.materialize(y)
        toy.verify()
        obstacle.release()
        assert toy.content(y) == y.expected()
        assert_no_locks(toy, y)
        release(x, y)

    def test_making_room_within_a_replay_settles_nothing_that_the_replay_overwrites(self, make_toy):
        """Found by the model: the old version that a replay was about to overwrite became a
        constant, so that what else depended on it was lost."""
        toy = make_toy(pages=8)
        x = toy.unseen(WORDS)
        y = toy.one("f", x)
        early = toy.one("g", y)
        wide = toy.one("pop_", (y, MUTATE), words=4 * WORDS)
        for tensor in (early, wide, y):
            assert toy.evict(tensor)
        x.release()
        assert toy.stats().kept_constant_bytes == PAGE
        obstacle = toy.unseen(3 * WORDS)
        with pytest.raises(OutOfMemory):
            toy.materialize(y)
        toy.verify()
        obstacle.release()
        for tensor in (y, early, wide):
            assert toy.content(tensor) == tensor.expected()
            toy.verify()
        release(y, early, wide)

    def test_a_failing_operator_leaves_no_lock(self, make_toy):
        toy = make_toy()
        x = toy.unseen(WORDS)
        y = toy.one("f", x)
        blocks = toy.pool.stats().live_blocks
        with pytest.raises(Failure):
            toy.one("g", x, y, fails=fail)
        assert toy.pool.stats().live_blocks == blocks
        toy.verify()
        assert_no_locks(toy, y)
        toy.one("g", x, y).release()
        release(x, y)

    def test_what_a_failing_operator_overwrote_is_a_constant_of_unknown_content(self, make_toy):
        toy = make_toy()
        x = toy.unseen(WORDS)
        y = toy.one("f", x)
        z = toy.one("g", y)
        with pytest.raises(Failure):
            toy.run("add_", (y, MUTATE), fails=fail)
        toy.verify()
        assert not toy.evict(y)
        assert toy.evict(z)
        assert toy.content(z) == z.expected()  # of the old version
        release(x, y, z)

    @pytest.mark.parametrize("failing", range(4))
    def test_a_closure_that_fails_amid_a_rematerialization_leaves_everything_usable(
        self, make_toy, failing
    ):
        toy = make_toy()
        x = toy.unseen(WORDS)
        hooks = [fail_once() if i == failing else lambda operator: None for i in range(4)]
        a = toy.one("a", x, fails=hooks[0])
        b = toy.one("b", a, fails=hooks[1])
        early = toy.one("early", b)
        toy.run("add_", (b, MUTATE), a, fails=hooks[2])
        c = toy.one("c", b, fails=hooks[3])
        release(a, b)
        assert toy.evict(c)
        assert toy.evict(early)
        with pytest.raises(Failure):
            toy.materialize(c)
        toy.verify()
        assert c.evicted
        for tensor in (c, early, c):
            assert toy.content(tensor) == tensor.expected()
            assert_no_locks(toy, tensor)
        release(x, c, early)

    def test_a_replay_of_another_size_is_a_loud_error(self, make_toy):
        toy = make_toy()
        x = toy.unseen(WORDS)
        y = toy.one("f", x)
        toy.evict(y)
        (op_id,) = toy.closures
        right = toy.closures[op_id]
        toy.closures[op_id] = right._replace(results=(2 * WORDS,))
        with pytest.raises(WrongState, match=f"gave {2 * PAGE} bytes where it gave {PAGE}"):
            toy.materialize(y)
        toy.closures[op_id] = right._replace(results=())
        with pytest.raises(WrongState, match="fewer results"):
            toy.materialize(y)
        toy.verify()
        toy.closures[op_id] = right
        assert toy.content(y) == y.expected()
        release(x, y)

    def test_a_frame_has_one_operator_at_a_time(self, make_toy):
        toy = make_toy()
        assert lib.dtr_op_end(toy.frame, 0, 0, 1) == -lib.DTR_STATE
        assert lib.dtr_op_begin(toy.frame, 0, 0, 0) == 0
        assert lib.dtr_op_begin(toy.frame, 0, 0, 0) == -lib.DTR_STATE
        lib.dtr_op_abort(toy.frame, 1)
        lib.dtr_op_abort(toy.frame, 1)
        assert lib.dtr_remat_commit(toy.frame, 0, 0) == -lib.DTR_STATE
        assert lib.dtr_remat_next(toy.frame) == 0


class TestHistory:
    def test_more_operators_than_the_limit_settle_the_oldest(self, make_toy):
        toy = make_toy(history=10)
        average = toy.one("zeros")
        for i in range(50):
            toy.run("average_", (average, MUTATE), parameter=i)
            assert toy.stats().live_ops <= 11
            toy.verify()
        toy.evict(average)
        assert toy.content(average) == average.expected()
        assert len(toy.replays) <= 50
        average.release()

    def test_an_evicted_storage_beyond_the_limit_is_brought_back(self, make_toy):
        toy = make_toy(history=10)
        x = toy.unseen(WORDS)
        old = toy.one("f", x)
        assert toy.evict(old)
        results = [toy.one("g", x, parameter=i) for i in range(12)]
        assert not old.evicted
        assert not toy.evict(old)
        assert toy.stats().live_ops <= 11
        release(x, old, *results)

    def test_a_lower_limit_counts_from_the_next_operator_on(self, make_toy):
        toy = make_toy()
        x = toy.unseen(WORDS)
        results = [toy.one("f", x, parameter=i) for i in range(20)]
        for result in results[::2]:
            toy.evict(result)
        toy.keep_history(5)
        last = toy.one("f", x)
        assert toy.stats().live_ops <= 6
        toy.verify()
        for result in results:
            assert toy.content(result) == result.expected()
        release(x, last, *results)


class TestBehindTheEnginesBack:
    def test_an_escaped_content_that_changed_is_a_loud_error(self, make_toy):
        toy = make_toy()
        x = toy.unseen(WORDS)
        toy.pin(x, escaped=True)
        y = toy.one("f", x)
        assert toy.evict(y)
        toy.write(x, b"12345678")
        with pytest.raises(WrongState, match="changed by something other than an operator"):
            toy.materialize(y)
        toy.verify()
        release(x, y)

    def test_from_device_memory_that_others_share_nothing_is_computed_again(self, make_toy):
        """Nothing tells that they wrote. What reads it is a constant; what reads that is not."""
        toy = make_toy(device=(1, 0))
        x = toy.unseen(WORDS)
        before = toy.one("f", x)
        check(lib.dtr_pin(toy.engine, x.pointer, 2))
        after = toy.one("g", x)
        later = toy.one("h", after)
        toy.write(x, b"12345678")
        assert not toy.evict(before)
        assert not toy.evict(after)
        assert toy.evict(later)
        toy.materialize(later)
        assert all(tensor.is_right() for tensor in (before, after, later))
        toy.verify()
        release(x, before, after, later)

    def test_an_operator_that_reads_the_change_settles_what_it_can(self, make_toy):
        toy = make_toy()
        x = toy.unseen(WORDS)
        toy.pin(x, escaped=True)
        resident, evicted = toy.one("f", x), toy.one("g", x)
        toy.evict(evicted)
        toy.write(x, b"12345678")
        x.store.expected[:] = b"12345678" * WORDS
        after = toy.one("f", x)
        toy.verify()
        assert after.is_right()
        assert resident.is_right()
        assert toy.evict(after)
        assert toy.content(after) == after.expected()
        with pytest.raises(WrongState, match="behind the recorder's back"):
            toy.materialize(evicted)
        release(x, resident, evicted, after)

    def test_memory_of_others_is_held_while_something_depends_on_it(self, make_toy):
        toy = make_toy()
        memory = ffi.new("uint64_t[]", WORDS)
        x = self.foreign(toy, memory)
        y = toy.one("f", x)
        x.release()
        assert toy.evict(y)
        assert toy.content(y) == y.expected()
        y.release()

    def test_memory_of_others_that_changed_settles_what_hangs_on_it(self, make_toy):
        toy = make_toy()
        memory = ffi.new("uint64_t[]", WORDS)
        x = self.foreign(toy, memory)
        y = toy.one("f", x)
        memory[0] = 1
        x.store.expected[:8] = (1).to_bytes(8, "little")
        z = toy.one("f", x)
        toy.verify()
        assert y.is_right()
        assert not toy.evict(y)
        assert toy.evict(z)
        assert toy.content(z) == z.expected()
        release(x, y, z)

    def foreign(self, toy, memory):
        out = ffi.new("dtr_sim_tensor **")
        check(lib.dtr_sim_tensor_from(toy.sim, *toy.device, memory, INT64, WORDS, out))
        tensor = toy.unseen(WORDS)
        tensor.release()
        tensor.pointer = out[0]
        tensor.store.expected[:] = bytes(PAGE)
        return tensor

    def test_a_storage_that_got_other_memory_begins_anew(self, make_toy):
        toy = make_toy()
        x = toy.unseen(WORDS)
        y = toy.one("f", x)
        z = toy.one("g", y)
        check(lib.dtr_sim_replace_memory(y.pointer, 0))
        toy.write(y, b"12345678")
        y.store.expected[:] = b"12345678" * WORDS
        toy.verify()
        w = toy.one("g", y)
        for tensor in (z, w):
            assert toy.evict(tensor)
            assert toy.content(tensor) == tensor.expected()
        assert not toy.evict(y)
        release(x, y, z, w)

    def test_an_evicted_storage_may_get_other_memory(self, make_toy):
        toy = make_toy()
        x = toy.unseen(WORDS)
        y = toy.one("f", x)
        z = toy.one("g", y)
        assert toy.evict(y)
        check(lib.dtr_sim_replace_memory(y.pointer, 0))
        toy.verify()
        assert toy.resident(y)
        assert toy.evict(z)
        assert toy.content(z) == z.expected()
        release(x, y, z)


class TestReset:
    def test_reset_refuses_while_a_live_storage_is_evicted_and_changes_nothing(self, make_toy):
        toy = make_toy()
        x = toy.unseen(WORDS)
        y = toy.one("f", x)
        assert toy.evict(y)
        with pytest.raises(WrongState, match=f"{PAGE} bytes. is evicted"):
            toy.reset()
        toy.verify()
        assert toy.content(y) == y.expected()
        toy.reset()
        assert toy.stats().live_storages == 0
        assert y.is_right()
        release(x, y)

    def test_reset_returns_the_memory_that_only_the_engine_holds(self, make_toy):
        toy = make_toy()
        x = toy.unseen(WORDS)
        results = [toy.one("f", x, parameter=i) for i in range(3)]
        toy.evict(results[0])
        x.release()
        assert toy.stats().kept_constant_bytes == PAGE
        toy.materialize_all()
        with toy.no_failed_call():
            toy.reset()
        assert toy.pool.stats().live_blocks == 3
        assert toy.stats().kept_constant_bytes == 0
        toy.verify()
        release(*results)

    def test_all_evicted_storages_come_back_at_once(self, make_toy):
        toy = make_toy()
        x = toy.unseen(WORDS)
        results = [toy.one("f", x, parameter=i) for i in range(10)]
        for result in results:
            toy.evict(result)
        toy.materialize_all()
        assert all(result.is_right() for result in results)
        release(x, *results)

    def test_if_not_all_fits_that_is_an_error_and_no_endless_exchange(self, make_toy):
        toy = make_toy(pages=8)
        x = toy.unseen(WORDS)
        results = [toy.one("f", x, parameter=i) for i in range(10)]
        with pytest.raises(OutOfMemory):
            toy.materialize_all()
        assert toy.pool.stats().live_blocks == 8
        toy.verify()
        assert all(toy.content(result) == result.expected() for result in results)
        results, gone = results[:6], results[6:]
        release(*gone)
        toy.materialize_all()
        assert all(result.is_right() for result in results)
        release(x, *results)

    def test_records_keep_an_engine_from_being_destroyed(self, make_toy):
        toy = make_toy()
        x = toy.unseen(WORDS)
        y = toy.one("f", x)
        assert lib.dtr_engine_destroy(toy.engine) == lib.DTR_STATE
        assert lib.dtr_sim_destroy(toy.sim) == lib.DTR_STATE
        toy.verify()
        release(x, y)


class TestThreads:
    @pytest.mark.parametrize("dealloc", DEALLOCS)
    def test_frames_of_several_threads_work_in_parallel(self, make_toy, dealloc):
        toy = make_toy(pages=40, dealloc=dealloc)
        shared = toy.unseen(WORDS)
        errors = []

        def work(thread):
            try:
                for step in range(40):
                    layers = [toy.one("embed", shared, parameter=(thread, step))]
                    for _ in range(12):
                        layers.append(toy.one("layer", layers[-1], shared))
                    toy.run("add_", (layers[5], MUTATE), layers[4])
                    for layer in reversed(layers):
                        check_content(layer)
                    release(*layers)
            except BaseException as error:
                errors.append(error)

        def check_content(tensor):
            # Another thread may evict it between the two calls, so it is held by an operator.
            held = []
            toy.run("look", tensor, fails=lambda operator: held.append(tensor.is_right()))
            assert held == [True]

        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
        assert toy.stats().evictions > 0
        assert toy.stats().rematerializations > 0
        shared.release()


class TestArguments:
    @pytest.mark.parametrize(
        ("field", "value", "message"),
        [
            ("select", 3, "heuristic.select is 3; allowed: 0 to 2"),
            ("cost", 6, "heuristic.cost is 6; allowed: 0 to 5"),
            ("cost", -1, "heuristic.cost is -1; allowed: 0 to 5"),
            ("size", 3, "heuristic.size is 3; allowed: 0 to 2"),
            ("staleness_exponent", 1.5, "heuristic.staleness_exponent is 1.5.*; allowed: 0 to 1"),
            ("staleness_exponent", math.nan, "heuristic.staleness_exponent is .*nan; allowed"),
            ("recompute_factor", 0.5, "heuristic.recompute_factor is 0.5.*; allowed: 1 and more"),
            ("recompute_factor", math.inf, "heuristic.recompute_factor is inf; allowed"),
        ],
    )
    def test_a_part_of_a_heuristic_that_does_not_exist_is_named(self, field, value, message):
        out = ffi.new("dtr_engine **")
        options = engine_options("dtr-eqclass")
        setattr(options.heuristic, field, value)
        with pytest.raises(Invalid, match=message):
            check(lib.dtr_engine_create(options, out))
        assert out[0] == ffi.NULL

    def test_a_deallocation_policy_that_does_not_exist_is_named_with_what_is_allowed(self):
        options = engine_options("dtr-eqclass")
        name = ffi.new("char[]", b"never")
        options.dealloc = name
        out = ffi.new("dtr_engine **")
        with pytest.raises(Invalid, match=r"allowed: eager, banish, ignore, lazy"):
            check(lib.dtr_engine_create(options, out))

    @pytest.mark.parametrize(
        ("option", "value", "message"),
        [
            ("history_ops", 0, "history_ops is 0; allowed: 1 and more"),
            ("min_evict_share", 1.5, "min_evict_share is 1.5.*; allowed: 0 to 1"),
            ("sampling", 2, "sampling is 2; allowed: 0 to 1"),
        ],
    )
    def test_an_option_that_is_not_allowed_is_refused(self, make_toy, option, value, message):
        toy = make_toy()
        with pytest.raises(Invalid, match=message):
            check(lib.dtr_engine_configure(toy.engine, engine_options("lru", **{option: value})))

    def test_a_device_has_one_pool(self, make_toy):
        toy = make_toy()
        with pytest.raises(WrongState, match="device type 0, index -1 has a pool already"):
            check(lib.dtr_engine_add_pool(toy.engine, 0, -1, toy.pool.handle))

    def test_an_engine_has_one_framework(self, make_toy):
        toy = make_toy()
        out = ffi.new("dtr_sim **")
        with pytest.raises(WrongState, match="connected to a simulated framework already"):
            check(lib.dtr_sim_create(toy.engine, out))
        assert out[0] == ffi.NULL

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ((7, 0, 0, INT64, 1, [4]), "device_type 7, device_index 0 has no pool"),
            ((0, -1, 0, 99, 1, [4]), "scalar_type is 99; allowed"),
            ((0, -1, 0, INT64, -1, [4]), "ndim is -1; allowed"),
            ((0, -1, 0, INT64, 1, [-4]), r"sizes\[0\] is -4; allowed"),
            ((0, -1, 0, INT64, 1, None), "sizes is NULL; allowed"),
        ],
    )
    def test_a_tensor_that_cannot_be_made_names_the_argument(self, make_toy, arguments, message):
        toy = make_toy()
        *numbers, sizes = arguments
        sizes = ffi.NULL if sizes is None else ffi.new("int64_t[]", sizes)
        out = ffi.new("dtr_sim_tensor **")
        with pytest.raises(Invalid, match=message):
            check(lib.dtr_sim_make_tensor(toy.sim, *numbers, sizes, ffi.NULL, out))
        assert out[0] == ffi.NULL

    def test_a_view_stays_inside_its_storage(self, make_toy):
        toy = make_toy()
        x = toy.unseen(WORDS)
        toy.view(x, 1, WORDS - 1).release()
        with pytest.raises(Invalid, match=f"reach element {WORDS} of 8 bytes; allowed"):
            toy.view(x, 1, WORDS)
        x.release()

    def test_a_tensor_of_two_dimensions_keeps_its_order(self, make_toy):
        toy = make_toy()
        sizes, strides = ffi.new("int64_t[]", [16, 32]), ffi.new("int64_t[]", [1, 16])
        out = ffi.new("dtr_sim_tensor **")
        check(lib.dtr_sim_make_tensor(toy.sim, 0, -1, 0, INT64, 2, sizes, strides, out))
        assert lib.dtr_sim_storage_bytes(lib.dtr_sim_handle(out[0])) == 16 * 32 * 8
        assert lib.dtr_scalar_type_of(toy.engine, out[0]) == INT64
        assert lib.dtr_device_type_of(toy.engine, out[0]) == 0
        assert lib.dtr_handle_of(toy.engine, out[0]) == lib.dtr_sim_handle(out[0])
        lib.dtr_sim_release_tensor(out[0])


def test_a_failing_driver_call_is_a_driver_error_and_leaves_no_lock(fake_cuda):
    """On the stand-in for libcuda: the pool must map memory for the result, and whichever call
    of the driver fails, the operator fails or (an event that times it) does without."""
    toy = Toy(NativePool("cuda", budget=16 << 20), device=(1, 0), grain=1024)
    words = (2 << 20) // 8
    x = toy.unseen(words)
    y = toy.one("f", x, words=words)
    failures = 0
    # The first calls of an operator are timed, later ones are not.
    for n in [*range(1, 10), *range(1, 10)]:
        fake_cuda.fail_call(n, 999)
        try:
            release(toy.one("g", y, words=words, parameter=n))
        except DriverFailed:
            failures += 1
        fake_cuda.fail_call(0, 0)
        toy.verify()
        check(lib.dtr_pool_trim(toy.pool.handle, ffi.NULL))  # the next one maps anew
    assert failures > 0
    assert toy.evict(y)
    assert toy.content(y) == y.expected()
    release(x, y)
    assert toy.pool.stats().live_blocks == 0
    toy.close()
    toy.pool.destroy()
