"""How a step reaches a client: in this process, in a pool of processes; a method cannot tell them apart."""

from polyfed.engines.inline import Inline
from polyfed.engines.pool import Pool

__all__ = ["Inline", "Pool"]
