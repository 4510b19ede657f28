"""Everything random has a name: a generator is derived from the run's seed and what it is for.

There is no global random state in polyfed. The same (seed, purpose, client, round …) gives the same stream on
every engine, in every order of execution, before and after a resume.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import torch


@dataclass(frozen=True)
class Seeds:
    """The root of a run's random streams.

    >>> a = Seeds(7).torch("batches", "client-3", 12)
    >>> b = Seeds(7).torch("batches", "client-3", 12)
    >>> bool((torch.rand(4, generator=a) == torch.rand(4, generator=b)).all())
    True
    """

    root: int

    def number(self, *name: str | int) -> int:
        """A 63-bit number that depends on the root and on every part of the name, and on nothing else."""
        text = "\x1f".join([str(self.root), *(f"{type(part).__name__}:{part}" for part in name)])
        digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little") >> 1

    def torch(self, *name: str | int) -> torch.Generator:
        """A PyTorch generator (on the CPU, so that every device sees the same draws)."""
        return torch.Generator().manual_seed(self.number(*name))

    def numpy(self, *name: str | int) -> np.random.Generator:
        """A NumPy generator."""
        return np.random.default_rng(self.number(*name))
