"""Jobs of frameworks with what dtr_alloc.integrations has for them, and the snippets of
docs/guides/frameworks.md. What needs a framework that is not installed is skipped; `make
frameworks` has them all."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import ROOT, command, python

import dtr_alloc

GUIDE = (ROOT / "docs/guides/frameworks.md").read_text()
SNIPPETS = {
    section.partition("\n")[0]: re.findall(r"^```python\n(.*?)^```", section, re.M | re.S)
    for section in GUIDE.split("\n## ")[1:]
}
BUDGETS = {"Lightning": "14MiB", "transformers": "32MiB", "accelerate": "12MiB"}
"""With which their snippets evict."""


def run(code: str, folder: Path) -> None:
    code += "\nimport dtr_alloc\nassert not dtr_alloc.is_enabled()\n" * ("integrations" in code)
    python("-W", "ignore", "-c", code, cwd=folder)


def logged(folder: Path) -> dict[str, list[float]]:
    """By the names of the scalars, without what a framework puts before ours."""
    reading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    values: dict[str, list[float]] = {}
    for path in folder.rglob("events.*"):
        events = reading.EventAccumulator(str(path)).Reload()
        for name in events.Tags()["scalars"]:
            key = name[name.find("dtr_alloc/") :] if "dtr_alloc/" in name else name
            values[key] = [event.value for event in events.Scalars(name)]
    return values


@pytest.mark.parametrize("framework", BUDGETS)
def test_a_job_of_the_guide_trains_in_its_budget_and_logs_what_it_costs(framework, tmp_path):
    pytest.importorskip(framework.lower())
    (snippet,) = SNIPPETS[framework]
    run(snippet.replace("8GiB", BUDGETS[framework]), tmp_path)
    values = logged(tmp_path)
    assert len(values["dtr_alloc/evictions"]) == 4, "one a step"
    assert max(values["dtr_alloc/evictions"]) > 0
    assert 0 < max(values["dtr_alloc/recompute_share"]) < 1
    budget = int(BUDGETS[framework].removesuffix("MiB")) << 20
    assert max(values["dtr_alloc/peak_allocated_bytes"]) <= budget


def test_the_snippet_of_compiled_layers_runs(tmp_path):
    (snippet,) = SNIPPETS["torch.compile"]
    run(snippet, tmp_path)


@pytest.mark.parametrize(("index", "framework"), enumerate(("transformers", "lightning")))
def test_a_job_of_the_guide_is_advised(index, framework, tmp_path):
    pytest.importorskip(framework)
    snippet = SNIPPETS["From an empty environment to an answer"][index]
    (tmp_path / "job.py").write_text(snippet)
    done = command("suggest", "job.py", cwd=tmp_path)
    assert "Advised: DTR_ALLOC_BUDGET=" in done.stdout
    assert re.search(r"layers\.\*|transformer\.h\.\*", done.stdout)


def test_a_fit_that_raises_ends_its_session():
    lightning = pytest.importorskip("lightning")
    from dtr_alloc.integrations.lightning import BudgetCallback

    class Job(lightning.LightningModule):
        def training_step(self, batch: Any, index: int) -> Any:
            assert dtr_alloc.is_enabled()
            raise LookupError

        def configure_optimizers(self) -> None:
            return None

    callback = BudgetCallback("64MiB", device="cpu")
    for _ in range(2):  # a second fit has a session of its own
        trainer = lightning.Trainer(
            accelerator="cpu", logger=False, enable_checkpointing=False, callbacks=[callback]
        )
        with pytest.raises(LookupError):
            trainer.fit(Job(), torch.utils.data.DataLoader(torch.ones(4, 1)))
        assert not dtr_alloc.is_enabled()


def out_of_memory() -> torch.OutOfMemoryError:
    with dtr_alloc.session("1MiB", device="cpu"):
        with pytest.raises(torch.OutOfMemoryError) as raised:
            torch.ones(1 << 20)
        return raised.value


def test_accelerate_tries_a_smaller_batch_after_our_error():
    """The Trainer's auto_find_batch_size is this, too."""
    accelerate = pytest.importorskip("accelerate")

    @accelerate.utils.find_executable_batch_size(starting_batch_size=8)
    def train(size: int) -> int:
        if size > 4:
            raise out_of_memory()
        return size

    assert train() == 4


def test_lightning_knows_our_error():
    pytest.importorskip("lightning")
    from lightning.pytorch.utilities.memory import is_oom_error

    assert is_oom_error(out_of_memory())
