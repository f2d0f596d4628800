"""The C interface under misuse: each call that can be told to be wrong is refused, none crashes or
hangs, and afterwards the rules hold (misuse.py, which runs in processes of its own).

To run it for longer, from the repository's root:

    PYTHONPATH=.:tests/allocator python tests/native/misuse.py LOG sequences FIRST LAST

with the first seed and the one behind the last, ten or so a second; LOG is a file, whose last
line is the call at which the process died. The same under sanitizers:

    make sanitize SANITIZED_TESTS=tests/native/test_misuse.py PYTEST_ARGS="-m 'long or not long'"
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from commands import python
from native_pool import Invalid, NativePool, WrongState, check, ffi, lib
from toy import line

ROOT = Path(__file__).resolve().parent.parent.parent
HANG = 900  # seconds: nobody waits that long for a call that returns


def run(tmp_path, *arguments):
    """Runs misuse.py; what it printed. Fails with the last call if it died."""
    log = tmp_path / "calls"
    script = ROOT / "tests/native/misuse.py"
    line = ("-X", "faulthandler", script, log, *arguments)
    try:
        done = python(*line, status=None, timeout=HANG, PYTHONPATH=os.pathsep.join(sys.path))
        why = f"exit status {done.returncode}\n{done.stderr[-3000:]}"
    except subprocess.TimeoutExpired:
        why = f"a call has not returned for {HANG} s"
    else:
        if done.returncode == 0:
            return done.stdout
    last = log.read_text().splitlines()[-10:] if log.exists() else []
    pytest.fail("the last calls were\n" + "\n".join(last) + f"\n{why}")


def test_every_wrong_pointer_of_every_function_is_refused(tmp_path):
    """NULL, destroyed, of another kind, of another engine, made up: each in each parameter."""
    assert int(run(tmp_path, "arguments").split()[0]) > 1800


@pytest.mark.parametrize(
    ("first", "count"),
    [
        (0, 40),
        *(pytest.param(first, 200, marks=pytest.mark.long) for first in range(1000, 1800, 200)),
    ],
)
def test_random_sequences_keep_the_rules(tmp_path, first, count):
    run(tmp_path, "sequences", first, first + count)


def refused(status, error=WrongState, match=""):
    with pytest.raises(error, match=match):
        check(abs(status))


class TestHandles:
    def test_a_destroyed_handle_is_refused_though_another_object_was_made_since(self):
        with NativePool() as one:
            old = one.handle
        with NativePool() as other:
            refused(lib.dtr_pool_destroy(old), Invalid, "dtr_pool that was destroyed")
            check(lib.dtr_pool_check_invariants(other.handle))

    def test_what_is_in_use_is_not_destroyed(self, toy):
        refused(lib.dtr_pool_destroy(toy.pool.handle), match="in use by 1 others")
        with toy.capturing():
            refused(lib.dtr_engine_destroy(toy.engine), match="in use by 1 others")

    def test_a_log_that_a_pool_writes_to_is_not_destroyed(self):
        log = ffi.new("dtr_event_log **")
        check(lib.dtr_event_log_create(log))
        with NativePool() as pool:
            check(lib.dtr_pool_set_log(pool.handle, log[0], 0))
            refused(lib.dtr_event_log_destroy(log[0]), match="written to by 1 pools")
        check(lib.dtr_event_log_destroy(log[0]))

    def test_a_pool_serves_one_engine(self, make_toy):
        toy, other = make_toy(), make_toy()
        refused(lib.dtr_engine_add_pool(other.engine, 3, 0, toy.pool.handle), match="in use")


def test_a_pin_of_an_evicted_tensor_holds_once_it_is_back(toy):
    _, y = line(toy, "f")
    assert toy.evict(y)
    check(lib.dtr_pin(toy.engine, y.pointer, 0, 0))
    assert not toy.resident(y)
    toy.materialize(y)
    assert not toy.evict(y)
    assert toy.unpin(y)
