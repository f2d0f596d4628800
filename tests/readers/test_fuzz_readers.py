"""Every reader of files with files that nobody should write. Needs the native build."""

import faulthandler
import os
import signal
import time

import fuzz_readers
import pytest
from fuzz_readers import TARGETS, Target, fuzz


def test_what_is_mutated_is_read_or_refused_by_name(tmp_path):
    ran, found = fuzz(tmp_path, cases=12)
    assert not found
    assert ran == dict.fromkeys(TARGETS, 12)


@pytest.mark.long
def test_what_is_mutated_for_a_minute_is_read_or_refused_by_name(tmp_path):
    ran, found = fuzz(tmp_path, 60, jobs=2, seed=10_000)
    assert not found
    assert ran.keys() == TARGETS.keys()
    assert min(ran.values()) > 0


def crash(*_):
    faulthandler.disable()
    os.kill(os.getpid(), signal.SIGSEGV)


def hang(*_):
    while True:
        time.sleep(1)


def fill(*_):
    raise MemoryError(len(bytearray(1 << 40)))


def refuse(_, path):
    with fuzz_readers.named(path, ValueError):
        raise ValueError("something is wrong somewhere")


@pytest.mark.parametrize(
    ("use", "story"),
    [
        (crash, "the process ended with -11"),
        (hang, "silent for 1 seconds"),
        (fill, "MemoryError"),
        (refuse, "Fault: ValueError that is not as it should be: something is wrong"),
        (lambda *_: {}["nothing"], "KeyError: 'nothing'"),
        (lambda *_: fuzz_readers.command("simulate", "/dev/null", "--jobs", "0"), None),
    ],
)
def test_a_reader_that_does_worse_is_found_with_its_case(monkeypatch, tmp_path, use, story):
    if use is hang:
        monkeypatch.setattr(fuzz_readers, "SILENCE_S", 1)
    monkeypatch.setattr(fuzz_readers, "TARGETS", {"bad": Target(lambda _: b"data", use)})
    ran, found = fuzz(tmp_path, cases=2)
    if story is None:  # a status of 2 is what it should be
        assert not found
        assert ran == {"bad": 2}
        return
    assert found.keys() == {"bad:0", "bad:1"}
    assert all(story in told for told in found.values())
