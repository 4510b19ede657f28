"""Whether what the server shares is still of use after a round: its numbers are finite, and its models answer.

The last line of defence behind the door for replies. What is not of use would be sent to every client of the next
round, where each would fail for what another one did.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from polyfed import learn, models
from polyfed.federation import Server, Weights
from polyfed.federation.message import tensors_in

PROBES = 8  # rows of noise that a model must have an answer to


class Soundness:
    """Looks at a server's models and memory."""

    def __init__(self) -> None:
        self._models: dict[str, nn.Module] = {}
        self._answering: dict[str, bool] = {}

    def fault(self, server: Server) -> str | None:
        """What is wrong with what the server holds, in words; nothing if all of it can be used."""
        if not learn.all_finite(_numbers(server)):
            return "what the server holds is no longer finite"
        for architecture, weights in self._shared(server):
            if not self._answers(server, architecture, weights):
                return f"the shared model '{architecture}' answers with no finite number"
        return None

    def _shared(self, server: Server) -> Iterator[tuple[str, Weights]]:
        kept = server.memory.get("weights")
        if isinstance(kept, dict) and kept.keys() <= set(server.roster.architectures):
            yield from kept.items()
        if server.model is not None and server.architecture is not None:
            yield server.architecture, learn.named_tensors(server.model)

    def _answers(self, server: Server, architecture: str, weights: Weights) -> bool:
        """Whether a model says anything of noise; one that did not when it was new is not asked."""
        if architecture not in self._models:
            self._models[architecture] = model = server.build(architecture)
            self._answering[architecture] = self._says_something(server, model)
        if not self._answering[architecture]:
            return True
        model = self._models[architecture]
        learn.load_weights(model, weights)
        return self._says_something(server, model)

    def _says_something(self, server: Server, model: nn.Module) -> bool:
        noise = models.random_inputs(model, server.shape, PROBES, torch.Generator().manual_seed(0))
        answers = learn.predict(model, noise.to(server.device))
        return bool(torch.isfinite(answers).any())


def _numbers(server: Server) -> Iterator[Tensor]:
    kept = list(tensors_in(server.memory))
    own = [] if server.model is None else list(learn.named_tensors(server.model).values())
    return (tensor for tensor in kept + own if tensor.is_floating_point())
