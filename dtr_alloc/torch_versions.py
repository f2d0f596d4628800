"""The tested versions of PyTorch, and messages on others.

An older one is refused. A newer one is tried: one line says so, and so does an error.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

OLDEST = (2, 11)
NEWEST = (2, 15)
TRIED = f"{OLDEST[0]}.{OLDEST[1]} to {NEWEST[0]}.{NEWEST[1]}"


class BridgeError(RuntimeError):
    """The bridge cannot be compiled or loaded, or this PyTorch is not supported; the message names
    the fault."""


def older(version: str) -> str | None:
    """The fault of a PyTorch before OLDEST, by its torch.__version__; None for another."""
    if _parts(version) >= OLDEST:
        return None
    return (
        f"PyTorch {version} is older than any that dtr_alloc works with (tried: {TRIED}); "
        f"pip install 'torch>={OLDEST[0]}.{OLDEST[1]}' replaces it"
    )


def newer(version: str) -> str | None:
    """A remark on a PyTorch after NEWEST, by its torch.__version__; None for another."""
    if _parts(version) <= NEWEST:
        return None
    return f"PyTorch {version} is newer than any that dtr_alloc was tried with ({TRIED})"


@contextmanager
def newer_is_named(version: str, *foreseen: type[Exception]) -> Iterator[None]:
    """Under a PyTorch after NEWEST, an error inside becomes a BridgeError that names the error and
    says that PyTorch is newer.

    Args:
        version: torch.__version__.
        foreseen: errors that do not come from PyTorch.
    """
    try:
        yield
    except Exception as error:
        reason = newer(version)
        if reason is None or isinstance(error, foreseen):
            raise
        what = str(error) if isinstance(error, BridgeError) else f"{type(error).__name__}: {error}"
        raise BridgeError(f"{what}. {reason}, which may be why") from error


def _parts(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")[:2]))
