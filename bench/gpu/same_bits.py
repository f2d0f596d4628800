"""Whether jobs compute the same bits under smaller and smaller budgets as without dtr_alloc.

The jobs of bench/models, and three models of transformers, under deterministic settings.
Every tensor that a user could compare is: losses, parameters, gradients, buffers, optimizer state,
the positions of generators. The reference runs twice, in one process, which says whether the job
repeats itself at all; the budgeted runs have a process of their own.

Where cuDNN's workspace does not fit, PyTorch takes another algorithm, and keeps to it in that
process. Rows count the requests that were refused so far ("refused"): behind one, other bits are no
error.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bench.gpu.part import Options, Row, Wrong, run
from bench.gpu.remote import Died, Remote
from bench.models import JOBS

FRACTIONS = (None, 1.0, 0.6, 0.3)
"""Of the activation memory; None: unlimited, which also measures it."""
SCALE = 16.0
"""Of the batches on a GPU, so that activations are more than a few chunks."""
TINY_JOBS = ("mlp", "resnet", "transformer", "inplace")
LIBRARY_JOBS = ("gpt2", "llama", "swin")
"""Of bench/foreign."""


class Pair:
    """The two processes. One that died, or met an error, is not trusted with the next job."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._running: dict[str, Remote] = {}

    def ask(self, way: str, **arguments: Any) -> dict[str, Any]:
        if way not in self._running:
            given = ("--way", way, "--device", self._options.device)
            self._running[way] = Remote("bench.gpu.bits", *given)
        try:
            answer = self._running[way].ask("train", **arguments)
        except Died as died:
            answer = {"error": str(died)}
        if "error" in answer:
            self._running.pop(way).close()
        return answer

    def close(self) -> None:
        for process in self._running.values():
            process.close()


def rows(options: Options) -> Iterator[Row]:
    pair = Pair(options)
    wrong = []
    names = [*(TINY_JOBS if options.tiny else JOBS), *LIBRARY_JOBS]
    try:
        for job in names:
            for row in compare(job, pair, options):
                yield row
                others = row.get("outcome") == "other bits" and not row["refused"]
                if others and row["repeats_itself"]:
                    wrong.append(f"{job} at {row['fraction']}")
    finally:
        pair.close()
    if wrong:
        raise Wrong("other bits than without dtr_alloc: " + ", ".join(wrong))


def compare(job: str, pair: Pair, options: Options) -> Iterator[Row]:
    """The rows of one job."""
    given: dict[str, Any] = {"job": job, "steps": 2 if options.tiny else 3}
    given["scale"] = 1.0 if options.tiny or job in LIBRARY_JOBS else SCALE
    given["warn_only"] = False
    reference = pair.ask("plain", **given)
    if "deterministic" in reference.get("error", ""):
        # Some operator has no deterministic form; the row will name it.
        given["warn_only"] = True
        reference = pair.ask("plain", **given)
    if "skipped" in reference:
        yield {"job": job, "skipped": reference["skipped"]}
        return
    again = {} if "error" in reference else pair.ask("plain", **given)
    if "bits" not in reference or "bits" not in again:
        said = reference.get("error") or again.get("error") or reference.get("outcome")
        yield {"job": job, "error": f"without dtr_alloc: {said}"}
        return
    repeats = reference["bits"] == again["bits"]
    for fraction in FRACTIONS:
        row = {"job": job, "fraction": fraction, "repeats_itself": repeats}
        row["warnings"] = reference["warnings"]
        found = pair.ask("dtr_alloc", **given, fraction=fraction)
        if "error" in found:
            yield row | {"error": found["error"]}
            return
        if "bits" in found:
            differ = differing(reference["bits"], found.pop("bits"))
            found["outcome"] = "other bits" if differ else "same bits"
            found |= {"tensors": len(reference["bits"]), "differing": len(differ)}
            found["examples"] = differ[:8]
        found.pop("warnings")
        yield row | found


def differing(reference: dict[str, str], other: dict[str, str]) -> list[str]:
    """The names whose hashes differ, or that only one side has."""
    return sorted(
        name for name in reference.keys() | other.keys() if reference.get(name) != other.get(name)
    )


if __name__ == "__main__":
    run(rows)
