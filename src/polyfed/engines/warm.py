"""What PyTorch imports at its first use, imported before the first step and before any fork.

`torch.optim.Optimizer` imports `torch._dynamo` (1.5 s), the first `vmap` its decompositions: once here instead of
once in every worker, and never in the middle of a round.
"""

from __future__ import annotations


def warm_up() -> None:
    """Do once what is slow only the first time."""
    import torch._dynamo  # noqa: PLC0415

    weight = torch.zeros(1, 1, 1, requires_grad=True)
    result = torch.func.vmap(torch.nn.functional.linear)(torch.zeros(1, 1, 1), weight)
    torch.autograd.grad(result.sum(), weight)
