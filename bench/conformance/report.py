"""What the results say, as JSON and as the page of the docs. Knows reports only."""

from __future__ import annotations

from typing import Any

from bench.peers.report import table

KINDS = ("operators", "modules", "optimizers")
OUTCOMES = ("all", "some", "none", "no results")
LIMITS = {"64": "64 bytes (default)", "0": "none (`tiny:0`)"}


def _outcome(report: dict[str, Any], limit: str) -> str:
    """How many of a case's results were evicted, over its samples."""
    evicted, resident = report["evicted"][limit], report["resident"][limit]
    if not evicted + resident:
        return "no results"
    return "none" if not evicted else "some" if resident else "all"


def summary(reports: list[dict[str, Any]]) -> dict[str, Any]:
    """The reports of cases, each with its kind and name, as far as the page needs them.

    Returns:
        ``counts``: cases by kind, limit and outcome; ``kept``: for each reason and kind, the
        operators that made what is kept, the number of results, and the cases; ``no results``,
        ``other bits`` and ``errors``: the cases of that kind, with what was wrong.
    """
    ran = [report for report in reports if "error" not in report]
    counts = {
        kind: {
            limit: {
                outcome: sum(
                    report["kind"] == kind and _outcome(report, limit) == outcome for report in ran
                )
                for outcome in OUTCOMES
            }
            for limit in LIMITS
        }
        for kind in KINDS
    }
    kept: dict[tuple[str, str], dict[str, Any]] = {}
    for report in ran:
        for reason, operator, number in report["kept"]:
            of = kept.setdefault(
                (reason, report["kind"]), {"results": 0, "made_by": set(), "cases": {}}
            )
            of["results"] += number
            of["made_by"] |= {operator} - {""}
            of["cases"][report["name"]] = _outcome(report, "0")
    return {
        "counts": counts,
        "kept": [
            {"reason": reason, "kind": kind, **of, "made_by": sorted(of["made_by"])}
            for (reason, kind), of in sorted(kept.items())
        ],
        "no results": [
            [report["kind"], report["name"]]
            for report in ran
            if _outcome(report, "0") == "no results"
        ],
        "other bits": [
            [report["kind"], report["name"], report["wrong"]] for report in ran if report["wrong"]
        ],
        "errors": [
            [report["kind"], report["name"], report["error"]]
            for report in reports
            if "error" in report
        ],
    }


def _code(names: Any) -> str:
    return ", ".join(f"`{name}`" for name in names)


def markdown(document: dict[str, Any]) -> str:
    """The page: counts, then what is kept and why."""
    counts = [
        (kind, LIMITS[limit], *(of[outcome] for outcome in OUTCOMES))
        for kind, limits in document["counts"].items()
        for limit, of in limits.items()
    ]
    parts = [
        f"PyTorch {document['torch']}, dtr_alloc {document['dtr_alloc']} (commit "
        f"`{document['commit']}`), {document['date']}.",
        "## How many",
        table(("", "tiny up to", *OUTCOMES), counts),
        "## What is kept, and why",
    ]
    kept = [
        (of["reason"], _code(of["made_by"]), of["kind"], of["results"], _cases(of["cases"]))
        for of in document["kept"]
    ]
    parts.append(table(("reason", "made by", "", "results", "cases"), kept))
    without = ", ".join(f"`{name}`" for _, name in document["no results"])
    parts += [f"Without results: {without or 'none'}.", "## Other bits and errors"]
    bad = [(*case[:2], case[2]) for case in document["errors"]]
    bad += [(*case[:2], "; ".join(case[2])) for case in document["other bits"]]
    parts.append(table(("", "case", "what"), bad) if bad else "None.")
    return "\n\n".join(parts)


def _cases(cases: dict[str, str]) -> str:
    """Their names; in italics those of which other results were evicted."""
    return ", ".join(
        f"*`{name}`*" if outcome == "some" else f"`{name}`" for name, outcome in cases.items()
    )
