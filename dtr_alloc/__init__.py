"""dtr_alloc: a budgeted, rematerializing memory allocator for unmodified PyTorch jobs.

Importing this package imports neither torch nor the compiled core; the first use does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dtr_alloc.advise.advice import Advice as Advice
    from dtr_alloc.config import Budget as Budget
    from dtr_alloc.config import Config as Config
    from dtr_alloc.config import ConfigError as ConfigError
    from dtr_alloc.core import DriverError as DriverError
    from dtr_alloc.core import StateError as StateError
    from dtr_alloc.heuristics import Candidate as Candidate
    from dtr_alloc.heuristics import Heuristic as Heuristic
    from dtr_alloc.heuristics import register_heuristic as register_heuristic
    from dtr_alloc.records import Kept as Kept
    from dtr_alloc.records import Stats as Stats
    from dtr_alloc.torch.api import check_invariants as check_invariants
    from dtr_alloc.torch.api import compact as compact
    from dtr_alloc.torch.api import disable as disable
    from dtr_alloc.torch.api import enable as enable
    from dtr_alloc.torch.api import evict as evict
    from dtr_alloc.torch.api import is_enabled as is_enabled
    from dtr_alloc.torch.api import is_resident as is_resident
    from dtr_alloc.torch.api import kept as kept
    from dtr_alloc.torch.api import limit_rematerializations as limit_rematerializations
    from dtr_alloc.torch.api import materialize as materialize
    from dtr_alloc.torch.api import pin as pin
    from dtr_alloc.torch.api import reset_peak_stats as reset_peak_stats
    from dtr_alloc.torch.api import session as session
    from dtr_alloc.torch.api import set_budget as set_budget
    from dtr_alloc.torch.api import stats as stats
    from dtr_alloc.torch.api import trim as trim
    from dtr_alloc.torch.api import unpin as unpin
    from dtr_alloc.torch.api import why_kept as why_kept
    from dtr_alloc.torch.batch_size import find_batch_size as find_batch_size
    from dtr_alloc.torch.custom_operators import distrust as distrust
    from dtr_alloc.torch.custom_operators import trust as trust
    from dtr_alloc.torch.observe import suggest as suggest
    from dtr_alloc.torch.run_as_operator import run_as_operator as run_as_operator
    from dtr_alloc.torch_versions import BridgeError as BridgeError

__version__ = "0.2.0"

_NAMES = {
    "dtr_alloc.advise.advice": ("Advice",),
    "dtr_alloc.config": ("Budget", "Config", "ConfigError"),
    "dtr_alloc.core": ("DriverError", "StateError"),
    "dtr_alloc.heuristics": ("Candidate", "Heuristic", "register_heuristic"),
    "dtr_alloc.records": ("Kept", "Stats"),
    "dtr_alloc.torch.api": (
        *("check_invariants", "compact", "disable", "enable", "evict", "is_enabled"),
        *("is_resident", "kept", "limit_rematerializations", "materialize", "pin"),
        *("reset_peak_stats", "session", "set_budget", "stats", "trim", "unpin", "why_kept"),
    ),
    "dtr_alloc.torch.batch_size": ("find_batch_size",),
    "dtr_alloc.torch.custom_operators": ("distrust", "trust"),
    "dtr_alloc.torch.observe": ("suggest",),
    "dtr_alloc.torch.run_as_operator": ("run_as_operator",),
    "dtr_alloc.torch_versions": ("BridgeError",),
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names}

__all__ = sorted([*_HOMES, "__version__"])


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'dtr_alloc' has no attribute {name!r}")
    value = getattr(_load(_HOMES[name]), name)
    globals()[name] = value
    return value


def _load(home: str) -> Any:
    from importlib import import_module

    if not home.startswith("dtr_alloc.torch."):
        return import_module(home)
    import torch

    from dtr_alloc.torch_versions import newer_is_named

    with newer_is_named(torch.__version__):
        return import_module(home)


def __dir__() -> list[str]:
    return __all__
