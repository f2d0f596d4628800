"""What a session went through is counted step by step, and shown on a page of its own."""

import re
import threading

import pytest
import torch
from harness import python

import dtr_alloc
from dtr_alloc.torch import api, timeline


def take_steps(count: int) -> None:
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters())
    for _ in range(count):
        optimizer.zero_grad()
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()


def test_stats_are_of_the_session_and_count_its_steps():
    for steps in (3, 2):
        with dtr_alloc.session(budget="64MiB", device="cpu"):
            assert dtr_alloc.stats()["recorded_ops"] == 0
            assert dtr_alloc.stats()["step_seconds"] == 0
            take_steps(steps)
            assert dtr_alloc.stats()["steps"] == steps
            assert dtr_alloc.stats()["step_seconds"] > 0
    ended = dtr_alloc.stats()
    take_steps(1)
    assert dtr_alloc.stats()["steps"] == ended["steps"] == 2
    assert dtr_alloc.stats()["session_seconds"] == ended["session_seconds"] > 0


def test_a_long_session_keeps_few_rows(monkeypatch):
    monkeypatch.setattr(timeline, "MOST", 8)
    with dtr_alloc.session(budget="64MiB", device="cpu"):
        take_steps(41)
        found = api.active().timeline
        assert found is not None
        assert [row.steps for row in found.steps] == [8, 16, 24, 32, 40]


def test_what_may_be_evicted_is_part_of_what_is_allocated_at_each_moment():
    with dtr_alloc.session(budget="64MiB", device="cpu"):
        found = api.active().timeline
        assert found is not None
        is_over = threading.Event()

        def work() -> None:
            while not is_over.is_set():
                torch.ones(1 << 20) * 2

        job = threading.Thread(target=work)
        job.start()
        moments = [found._moment() for _ in range(2000)]
        is_over.set()
        job.join()
    for each in moments:
        assert each.evictable_bytes <= each.allocated_bytes
        assert each.allocated_bytes + each.scattered_bytes + each.whole_bytes == each.reserved_bytes


JOB = """
import time
import torch
from dtr_alloc.torch import api
names = ("cost_$", "half \\udc80", "bell \\x07", "日本", "<b>", *map(str, range(11)))
model = torch.nn.Sequential()
for name in names:
    model.add_module(name, torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.Tanh()))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(12):
    optimizer.zero_grad()
    model(torch.ones(1024, 256)).sum().backward()
    optimizer.step()

# Free memory in pieces, until a sample has seen it.
kept = [torch.ones(1 << 17) for _ in range(8)]
del kept[::2]
timeline = api.active().timeline
for _ in range(10_000):
    if timeline.worst_heap:
        break
    time.sleep(0.01)
"""


@pytest.mark.parametrize(
    ("ending", "status", "words"),
    [("", 0, "The budget costs"), ("torch.ones(64 << 20) + 1", 1, "Raise the budget")],
)
def test_the_page_of_a_run(tmp_path, ending, status, words):
    """It has its pictures whatever modules are called."""
    (tmp_path / "job_$.py").write_text(JOB + ending)
    settings = {"budget": "16MiB", "report": "{pid}.html", "heuristic": "marginal"}
    line = ("-W", "error::UserWarning", "job_$.py")
    done = python(*line, cwd=tmp_path, status=status, **settings)
    assert (done.stderr == "") == (status == 0)
    (path,) = tmp_path.glob("*.html")
    text = path.read_text()
    assert "<script" not in text
    assert "<b>" not in text
    assert not re.search(r"""(src|href)="?[^"#]|url\((?!#)""", text), "it needs nothing else"
    assert "#000000" not in text
    assert text.count("<svg") == text.count("</svg>") == 6
    for said in ("dtr_alloc: job_$.py", words, "16.00 MiB", "aten.tanh.default", "Steps"):
        assert said in text, said
    assert "free, in" in text
    assert "could not be drawn" not in text
    assert ("The last error was OutOfMemoryError: " in text) == (status == 1)
    drawn = "".join(re.findall("<svg.*?</svg>", text, re.DOTALL))
    for name in ("cost_$", "half \\udc80", "bell \\x07", "日本", "&lt;b&gt;"):
        assert name in drawn, name
