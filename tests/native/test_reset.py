"""The engine forgets its records, once nothing needs them."""

import pytest
from native_pool import OutOfMemory, WrongState, lib
from toy import PAGE, WORDS, all_right, fan, line, op_key, release, toys


class TestReset:
    def test_reset_refuses_while_a_live_storage_is_evicted_and_changes_nothing(self, toy):
        _, y = line(toy, "f")
        assert toy.evict(y)
        with pytest.raises(WrongState, match=f"{PAGE} bytes., is evicted"):
            toy.reset()
        assert toy.content(y) == y.expected()
        toy.reset()
        assert toy.stats().live_storages == 0
        assert y.is_right()

    def test_what_is_lost_keeps_its_record_until_it_dies(self, toy):
        x, y, z = line(toy, "f", "g")
        assert toy.evict(y)
        assert toy.evict(z)
        of_y, of_z = toy.evicted()
        assert of_y[1:] == (y.handle, op_key("f"), PAGE)
        assert of_z[1:] == (z.handle, op_key("g"), PAGE)
        with pytest.raises(WrongState, match=f"storage {of_z.id}, .* is evicted"):
            toy.reset(lost=[of_y.id])
        toy.materialize(y)
        toy.reset(lost=[of_z.id, of_y.id, 12345])
        assert y.is_right()
        assert toy.evicted() == []
        assert not toy.resident(z)
        assert not toy.evict(z)
        assert toy.stats().live_storages == 1
        with pytest.raises(WrongState, match=f"storage {of_z.id}, .* is lost"):
            toy.one("f", z)
        toy.materialize_all()
        release(x, y)
        toy.reset()
        assert toy.stats().live_storages == 1
        release(z)
        assert toy.stats().live_storages == 0

    def test_what_is_in_host_memory_can_be_lost(self, make_toy):
        toy = make_toy(swap_bytes=1 << 20)
        x, y = line(toy, "f")
        assert toy.evict(x)
        (of_x,) = toy.evicted()
        assert of_x[1:] == (x.handle, 0, PAGE)
        assert toy.stats().host_bytes == PAGE
        toy.reset(lost=[of_x.id])
        assert toy.stats().host_bytes == 0
        assert y.is_right()

    def test_if_not_all_fits_that_is_an_error_and_no_endless_exchange(self, make_toy):
        toy = make_toy(pages=8)
        _, *results = fan(toy, 10)
        with pytest.raises(OutOfMemory):
            toy.materialize_all()
        assert toy.pool.stats().live_blocks == 8
        assert all_right(toy, *results)
        results, gone = results[:6], results[6:]
        release(*gone)
        toy.materialize_all()
        assert all(result.is_right() for result in results)

    def test_records_keep_an_engine_from_being_destroyed(self, toy):
        x = toy.unseen(WORDS)
        toy.one("f", x)
        assert lib.dtr_engine_destroy(toy.engine) == lib.DTR_STATE
        assert toys.dtr_toy_destroy(toy.framework) > 0
