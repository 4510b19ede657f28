"""How a step reaches a client: in this process, in a pool of processes; a method cannot tell them apart."""

from __future__ import annotations

from collections.abc import Callable

from polyfed.engines.host import Host
from polyfed.engines.inline import Inline
from polyfed.engines.pool import Pool
from polyfed.engines.process_setup import end_with_parent, keep_freed_memory
from polyfed.engines.torch_settings import with_gradients
from polyfed.errors import ConfigError, nearest
from polyfed.federation.engine import Engine

ENGINES: dict[str, Callable[[int | None, float | None], Engine]] = {
    "inline": lambda _workers, timeout: Inline(timeout),
    "pool": Pool,
}
"""Engines by name; each is made of the number of workers (None: one per core) and the timeout of a step."""

AUTO = "auto"


def make_engine(name: str = AUTO, workers: int | None = None, timeout: float | None = None) -> Engine:
    """An engine by name; `auto` is `inline` for one worker, else `pool`, with one worker per core by default."""
    if name == AUTO:
        name = "inline" if workers == 1 else "pool"
    if name not in ENGINES:
        raise ConfigError(f"no engine '{name}': {nearest(name, [AUTO, *ENGINES])}")
    if name == "inline" and workers not in (None, 1):
        raise ConfigError(f"the inline engine has no workers: use --engine pool for {workers} of them")
    return ENGINES[name](workers, timeout)


__all__ = [
    "AUTO",
    "ENGINES",
    "Host",
    "Inline",
    "Pool",
    "end_with_parent",
    "keep_freed_memory",
    "make_engine",
    "with_gradients",
]
