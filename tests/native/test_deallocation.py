"""What becomes of a storage that the framework let go of, under each policy."""

import pytest
from toy import CONSTANT, DEALLOCS, MUTATE, PAGE, WORDS, fan, line, release


class TestDeath:
    def test_a_dead_storage_with_dependents_gives_its_memory_back_at_once(self, toy):
        _, y, z = line(toy, "f", "g")
        blocks = toy.pool.stats().live_blocks
        y.release()
        assert toy.pool.stats().live_blocks == blocks - 1
        assert toy.stats().live_storages == 3
        assert z.comes_back()
        assert toy.recomputed == ["f", "g"]

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

    def test_a_constant_that_dies_while_something_needs_it_is_kept_and_later_let_go(self, toy):
        x, *results = fan(toy, 3)
        toy.evict(results[0])
        blocks = toy.pool.stats().live_blocks
        x.release()
        assert toy.stats().kept_constant_bytes == PAGE
        assert toy.pool.stats().live_blocks == blocks
        assert toy.content(results[0]) == results[0].expected()
        release(*results)
        assert toy.stats().kept_constant_bytes == 0
        assert toy.pool.stats().live_blocks == 0

    def test_a_kept_constant_goes_when_what_needed_it_is_back(self, toy):
        """Each gradient was kept for an evicted momentum buffer, step after step."""
        _, momentum = line(toy, "f")
        gradients = []
        for step in range(4):
            gradients.append(toy.unseen(WORDS, seed=step))
            toy.run("add", (momentum, MUTATE), gradients[-1])
            toy.evict(momentum)
            gradients[-1].release()
            assert toy.stats().kept_constant_bytes <= PAGE
            toy.materialize(momentum)
            assert toy.stats().kept_constant_bytes == 0
            assert momentum.is_right()

    def test_a_kept_constant_stays_if_what_needs_it_is_larger(self, toy):
        """As a constant in its place it would take more memory for good."""
        x = toy.unseen(WORDS)
        y = toy.one("f", x, words=2 * WORDS)
        assert toy.evict(y)
        x.release()
        for _ in range(2):
            toy.evict(y)
            toy.materialize(y)
            assert toy.stats().kept_constant_bytes == PAGE
            assert y.is_right()

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
        toy.unseen(5 * WORDS)
        assert toy.stats().kept_constant_bytes == 0

    def test_a_constant_whose_dependents_can_do_without_it_goes_at_once(self, toy):
        x = toy.unseen(2 * WORDS)
        y = toy.one("f", x)
        with toy.no_failed_call():
            x.release()
        assert toy.stats().kept_constant_bytes == 0
        assert toy.stats().live_ops == 0
        assert not toy.evict(y)  # a constant now


@pytest.mark.parametrize("dealloc", DEALLOCS)
class TestEveryDeallocationPolicy:
    def test_reset_gives_the_memory_of_dead_storages_back(self, make_toy, dealloc):
        toy = make_toy(dealloc=dealloc)
        x, y, z = line(toy, "f", "g")
        toy.one("h", z)
        toy.evict(z)
        release(x, y)
        toy.materialize_all()
        with toy.no_failed_call():
            toy.reset()
        assert toy.pool.stats().live_blocks == 2

    def test_a_pin_ends_with_what_was_pinned(self, make_toy, dealloc):
        """A dead storage cannot be unpinned, so the ghost that it becomes must not be pinned."""
        toy = make_toy(pages=8, dealloc=dealloc)
        _, y, z = line(toy, "f", "g")
        toy.pin(y)
        assert toy.evict(z)
        y.release()
        large = toy.unseen(7 * WORDS)
        large.release()
        assert toy.content(z) == z.expected()


class TestIgnore:
    def test_a_dead_storage_with_dependents_keeps_its_memory(self, make_toy):
        toy = make_toy(dealloc="ignore")
        _, y, z = line(toy, "f", "g")
        y.release()
        assert toy.pool.stats().live_blocks == 3
        assert z.comes_back()
        assert toy.recomputed == ["g"]  # f's result was there
        z.release()
        assert toy.pool.stats().live_blocks == 1  # nothing depends on it any more

    @pytest.mark.parametrize("is_used", [False, True])
    def test_it_is_evicted_when_room_is_short(self, make_toy, is_used):
        toy = make_toy(pages=8, dealloc="ignore")
        _, y, z = line(toy, "f", "g")
        y.release()
        if is_used:
            assert z.comes_back()  # now y has a handle
        toy.pin(z)
        toy.unseen(6 * WORDS).release()
        assert toy.stats().evictions == 1 + is_used
        toy.unpin(z)
        assert z.comes_back()
        assert toy.recomputed == ["g"] * is_used + ["f", "g"]

    def test_what_an_operator_overwrote_when_its_buffer_went_is_not_kept(self, make_toy):
        toy = make_toy(dealloc="ignore")
        _, y, z = line(toy, "f", "g")

        def resize(operator):
            toy.write(y, b"garbage!")
            toy.replace_memory(y)
            toy.write(y, b"12345678")

        toy.run("resize_", (y, MUTATE), fails=resize)
        y.store.expected[:] = b"12345678" * WORDS
        assert z.comes_back()


class TestBanish:
    @pytest.fixture
    def toy(self, make_toy):
        return make_toy(dealloc="banish")

    @pytest.mark.parametrize("is_evicted", [False, True])
    def test_a_dead_storage_whose_dependents_are_resident_goes_for_good(self, toy, is_evicted):
        _, y, z = line(toy, "f", "g")
        if is_evicted:
            assert toy.evict(y)
        y.release()
        assert toy.stats().banished == 1
        assert toy.stats().live_ops == 0
        assert (toy.stats().live_storages, toy.stats().evicted_storages) == (2, 0)
        assert toy.pool.stats().live_blocks == 2
        assert not toy.evict(z)  # a constant now

    def test_an_evicted_dependent_keeps_it_as_a_ghost(self, toy):
        _, y = line(toy, "f")
        first, second = toy.one("g", y), toy.one("h", y)
        for tensor in (first, second):
            assert toy.evict(tensor)
        y.release()
        assert toy.stats().banished == 0
        assert toy.pool.stats().live_blocks == 2
        toy.materialize(first)
        assert toy.stats().banished == 0  # the second is still evicted
        assert toy.recomputed == ["g"]
        toy.materialize(second)
        assert toy.stats().banished == 1
        assert toy.recomputed == ["g", "h"]
        assert toy.pool.stats().live_blocks == 3
        for tensor in (first, second):
            assert tensor.is_right()
            assert not toy.evict(tensor)

    def test_it_is_tried_again_when_the_evicted_dependent_dies(self, toy):
        _, y = line(toy, "f")
        resident, evicted = toy.one("g", y), toy.one("h", y)
        assert toy.evict(evicted)
        y.release()
        assert toy.stats().banished == 0
        evicted.release()
        assert toy.stats().banished == 1
        assert not toy.evict(resident)
        assert toy.pool.stats().live_blocks == 2

    def test_chains_of_20000_are_banished_without_recursion(self, make_toy):
        toy = make_toy(pages=64, dealloc="banish")
        x = toy.unseen(128)
        links = [x]
        toy.verifies = False
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
