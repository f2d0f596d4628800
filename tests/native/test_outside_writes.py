"""Memory that something other than an operator wrote or replaced.

Needs the native build. The fixture checks at the end that nothing was left behind.
"""

import pytest
from native_pool import WrongState, check, ffi, lib
from toy import INT64, PAGE, WORDS, release


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
