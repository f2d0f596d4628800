"""Memory that something other than an operator wrote or replaced."""

import pytest
from native_pool import WrongState, check, ffi, lib
from toy import MUTATE, WORDS, WRITE_ONLY, all_right, line


class TestBehindTheEnginesBack:
    def test_an_escaped_content_that_changed_is_a_loud_error(self, toy):
        x = toy.unseen(WORDS)
        toy.pin(x, escaped=True)
        y = toy.one("f", x)
        assert toy.evict(y)
        toy.write(x, b"12345678")
        with pytest.raises(WrongState, match="changed by something other than an operator"):
            toy.materialize(y)

    def test_from_device_memory_that_others_share_nothing_is_computed_again(self, make_toy):
        """Nothing tells that they wrote. What reads it is a constant; what reads that is not."""
        toy = make_toy(device=(1, 0))
        x, before = line(toy, "f")
        check(lib.dtr_pin(toy.engine, x.pointer, 2, 0))
        after = toy.one("g", x)
        later = toy.one("h", after)
        toy.write(x, b"12345678")
        assert not toy.evict(before)
        assert not toy.evict(after)
        assert toy.evict(later)
        toy.materialize(later)
        assert all(tensor.is_right() for tensor in (before, after, later))

    def test_an_operator_that_reads_the_change_settles_what_it_can(self, toy):
        x = toy.unseen(WORDS)
        toy.pin(x, escaped=True)
        resident, evicted = toy.one("f", x), toy.one("g", x)
        toy.evict(evicted)
        toy.write(x, b"12345678")
        x.store.expected[:] = b"12345678" * WORDS
        after = toy.one("f", x)
        assert after.is_right()
        assert resident.is_right()
        assert after.comes_back()
        toy.run("add_", (x, MUTATE), parameter=1)
        assert not toy.evict(after), "it was settled, unlike what cannot be any more"
        with pytest.raises(WrongState, match="changed by something other than an operator"):
            toy.materialize(evicted)

    def test_memory_of_others_is_held_while_something_depends_on_it(self, toy):
        _memory, x, _ = self.foreign(toy, 1)
        y = toy.one("f", x)
        x.release()
        assert y.comes_back()

    def test_memory_of_others_that_changed_settles_what_hangs_on_it(self, toy):
        memory, x, _ = self.foreign(toy, 1)
        y = toy.one("f", x)
        memory[0] = 1
        x.store.expected[:8] = (1).to_bytes(8, "little")
        z = toy.one("f", x)
        assert y.is_right()
        assert not toy.evict(y)
        assert z.comes_back()

    def test_a_write_to_what_no_operator_has_read_is_nobodys_matter(self, toy):
        memory, _x, batches = self.foreign(toy, 8, batches=range(2))
        results = [toy.one("f", batch) for batch in batches]
        memory[5 * WORDS] = 1
        results.append(toy.one("g", batches[0]))
        assert toy.stats().unseen_writes == 0
        for result in results:
            assert result.comes_back()

    @pytest.mark.parametrize("word", [0, WORDS - 1, WORDS, 2 * WORDS - 1])
    def test_a_write_to_any_word_that_an_operator_has_read_is_noticed(self, toy, word):
        memory, _x, batches = self.foreign(toy, 8, batches=range(2))
        results = [toy.one("f", batch) for batch in batches]
        assert all(toy.evict(result) for result in results)
        memory[word] = 1
        with pytest.raises(WrongState, match="changed by something other than an operator"):
            toy.materialize(results[word // WORDS])
        other = results[1 - word // WORDS]
        assert toy.content(other) == other.expected()
        assert toy.evict(other)
        memory[word] = 0
        assert all_right(toy, *results)

    def test_a_write_while_another_operator_reads_more_is_noticed_later(self, toy):
        memory, _x, batches = self.foreign(toy, 8, batches=range(2))
        y = toy.one("f", batches[0])
        assert toy.evict(y)
        z = toy.one("f", batches[1], fails=lambda _: memory.__setitem__(0, 1))
        with pytest.raises(WrongState, match="changed by something other than an operator"):
            toy.materialize(y)
        assert z.is_right()
        memory[0] = 0
        assert toy.content(y) == y.expected()

    def test_what_is_picked_from_much_memory_of_others_is_a_constant(self, toy):
        """To look through all of it would take longer than to pick anew."""
        memory, x, _ = self.foreign(toy, 64)
        toy.cost = lambda *_: 100
        picked = toy.one("f", x)
        computed = toy.one("g", picked)
        memory[3] = 1
        x.store.expected[24:32] = (1).to_bytes(8, "little")
        again = toy.one("f", x)
        assert toy.stats().unseen_writes == 0
        assert not toy.evict(picked)
        assert computed.comes_back()
        assert all(tensor.is_right() for tensor in (picked, again))

    def test_what_lies_between_two_batches_is_not_looked_at(self, toy):
        """It would be more than the operators are worth."""
        memory, _x, batches = self.foreign(toy, 64, batches=(0, 63))
        results = [toy.one("f", batch) for batch in batches]
        memory[32 * WORDS] = 1
        for result in results:
            assert result.comes_back()
        assert toy.stats().unseen_writes == 0

    @pytest.mark.parametrize("use", [MUTATE, WRITE_ONLY])
    def test_an_operator_that_overwrites_a_part_settles_what_has_read_it(self, toy, use):
        _memory, _x, batches = self.foreign(toy, 8, batches=range(3))
        results = [toy.one("f", batch) for batch in batches]
        both = toy.one("g", batches[0], batches[1])
        assert all(toy.evict(result) for result in (*results, both))
        toy.run("add_", (batches[1], use), parameter=1)
        assert [result.evicted for result in (*results, both)] == [True, False, True, False]
        assert not toy.evict(results[1])
        assert not toy.evict(both)
        assert all_right(toy, *results, both)

    def foreign(self, toy, pages, batches=()):
        """Memory, a tensor over all of it, and one over each of these pages."""
        memory = ffi.new("uint64_t[]", pages * WORDS)
        tensor = toy.unseen(pages * WORDS)
        tensor.release()
        tensor.pointer = toy.foreign(memory, pages * WORDS)
        toy.held[id(tensor)] = tensor
        toy.memory = memory  # which it outlives
        tensor.store.expected[:] = bytes(ffi.sizeof(memory))
        return memory, tensor, [toy.view(tensor, i * WORDS, WORDS) for i in batches]
