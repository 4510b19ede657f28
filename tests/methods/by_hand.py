"""Loops written out by hand, to hold the methods that learn through public data against."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from tests.readers import whole_test
from torch import Tensor, nn
from torch.nn import functional as F

from polyfed.federation.message import Weights, decode
from polyfed.runs.rounds import Run

Prepare = Callable[..., Run]
Loss = Callable[[Tensor, Tensor], Tensor]
"""loss(rows, logits)"""

LR = 0.1
BATCH = 8
PUBLIC_ROWS = 20
ONCE = {"epochs": 1, "batch": BATCH, "lr": LR}
NO_PUBLIC = {"clients": 3, "partition": {"kind": "quantity", "alpha": 2.0}}


def plain() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))


def one_layer() -> nn.Module:
    return nn.Linear(5, 3)


def descend(
    model: nn.Module,
    x: Tensor,
    loss: Loss,
    stream: torch.Generator,
    epochs: int = 1,
    *,
    momentum: float = 0.0,
    correction: Weights | None = None,
) -> int:
    """SGD, batch after batch; a last batch of one joins the one before where there is BatchNorm.

    correction: added to every gradient, by the parameters' names. Returns the steps made.
    """
    model.train()
    names = [name for name, _ in model.named_parameters()]
    velocity = [torch.zeros_like(parameter) for parameter in model.parameters()]
    steps = 0
    for _ in range(epochs):
        cuts = list(torch.randperm(len(x), generator=stream).split(BATCH))
        if len(cuts[-1]) == 1 and any("running_mean" in name for name in model.state_dict()):
            cuts[-2:] = [torch.cat(cuts[-2:])]
        for rows in cuts:
            parameters = list(model.parameters())
            gradients = torch.autograd.grad(loss(rows, model(x[rows])), parameters)
            with torch.no_grad():
                for name, parameter, gradient, speed in zip(
                    names, parameters, gradients, velocity, strict=True
                ):
                    speed.mul_(momentum).add_(gradient)
                    if correction is not None:
                        speed.add_(correction[name])
                    parameter.sub_(LR * speed)
            steps += 1
    return steps


def towards(labels: Tensor) -> Loss:
    """Cross-entropy to labels."""
    return lambda rows, logits: F.cross_entropy(logits, labels[rows])


def soft(probabilities: Tensor, temperature: float = 1.0) -> Loss:
    """Cross-entropy to probabilities, which has KL's gradient."""
    return lambda rows, logits: (
        -(probabilities[rows] * (logits / temperature).log_softmax(dim=1)).sum(dim=1).mean()
    )


def said(model: nn.Module, x: Tensor) -> Tensor:
    """Logits in evaluation mode."""
    model.eval()
    with torch.no_grad():
        logits: Tensor = model(x)
    return logits


def no_scratch_models(architecture: str, place: int = 0) -> nn.Module:
    """For a client made by hand, which has no use for them."""
    raise AssertionError(f"nobody asks for {architecture} here")


class Bench:
    """What a run's clients and server begin with, and the streams that they draw from."""

    def __init__(self, run: Run) -> None:
        self.federation = run.federation
        self.run = run
        self.clients = [
            self.federation.population.own_model(index) for index in range(len(self.federation.roster))
        ]
        server = self.federation.server().model
        self.server = server if server is not None else one_layer()

    def stream(self, purpose: str, client: int, number: int, sequence: int) -> torch.Generator:
        return self.federation.seeds.torch(purpose, f"client-{client}", number, sequence)

    def server_stream(self, purpose: str, number: int) -> torch.Generator:
        return self.federation.seeds.torch(purpose, "server", number)

    def public(self, number: int) -> Tensor:
        """The inputs of the public rows of a round."""
        assert self.federation.holdings.public is not None
        order = torch.randperm(
            len(self.federation.holdings.public), generator=self.server_stream("public rows", number)
        )
        return self.federation.holdings.public[order[:PUBLIC_ROWS].sort().values].inputs()

    def own(self, client: int) -> tuple[Tensor, Tensor]:
        return self.federation.holdings.of(client).train.tensors()

    def train(self, client: int, number: int, sequence: int) -> None:
        """A client's model on its own data, for one epoch."""
        x, y = self.own(client)
        descend(self.clients[client], x, towards(y), self.stream("batches", client, number, sequence))

    def cohort(self, number: int) -> list[int]:
        self.run.fleet.begin(number, measuring=False)
        return [facts.index for facts in self.run.fleet.sample()]

    def accuracy(self, models: Iterable[nn.Module]) -> float:
        """The mean of the models' accuracies on the whole test set."""
        x, y = whole_test(self.federation).tensors()
        shares = [(said(model, x).argmax(dim=1) == y).double().mean().item() for model in models]
        return sum(shares) / len(shares)


def state_of(run: Run, client: int) -> Weights:
    """A client's model as it was saved last."""
    weights: Weights = decode(run.client_files()[client].read_bytes())["model"]
    return weights


def server_state_of(run: Run) -> Weights:
    assert run.server.model is not None
    return run.server.model.state_dict()


def close(found: Weights, model: nn.Module, *, within: float = 1e-6) -> bool:
    """Whether weights are those of a model (but for BatchNorm's batch counter, all of them)."""
    expected = model.state_dict()
    assert found.keys() == expected.keys()
    return all(torch.allclose(found[name], tensor, atol=within, rtol=0) for name, tensor in expected.items())


def mean_of(states: Sequence[Weights], shares: Sequence[float]) -> Weights:
    """The weighted mean of weights, in double precision."""
    total = sum(shares)
    return {
        name: sum(
            (share / total * state[name].double() for state, share in zip(states, shares, strict=True)),
            start=torch.zeros_like(tensor, dtype=torch.float64),
        ).to(tensor.dtype)
        for name, tensor in states[0].items()
    }


def weights(run: Run) -> Weights:
    """Those that all clients share, of the only architecture."""
    [architecture] = run.server.roster.architectures
    return run.server.weights(architecture)


def alike(found: Weights, expected: Weights, *, within: float = 1e-6) -> bool:
    """Whether weights are the same, but for rounding."""
    assert found.keys() == expected.keys()
    return all(torch.allclose(found[name], expected[name], atol=within, rtol=0) for name in expected)


LocalLoss = Callable[[int, int, nn.Module, Weights, Weights | None], Loss]
"""local_loss(client, number, model, start, last): what a client minimises in a round, whose model begins with `start`
and was `last` when it was trained for the last time."""


@dataclass
class Averaged:
    """What rounds of FedAvg leave behind."""

    active: Weights
    """The mean over the last cohort."""
    last: dict[int, Weights]
    """Every client's last model."""
    globals: list[Weights]
    """What each round has made."""


def averaging(run: Run, local_loss: LocalLoss | None = None, *, epochs: int = 1) -> Averaged:
    """The run's rounds of FedAvg of `plain`, by the samples of each client, written out."""
    bench = Bench(run)
    model = run.federation.population.build("plain")
    active = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    done = Averaged(active, {}, [])
    for number in range(1, run.config.rounds + 1):
        cohort = bench.cohort(number)
        for client in cohort:
            model.load_state_dict(done.active)
            x, y = bench.own(client)
            loss = towards(y)
            if local_loss is not None:
                loss = local_loss(client, number, model, done.active, done.last.get(client))
            descend(model, x, loss, bench.stream("batches", client, number, 1), epochs)
            done.last[client] = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        shares = [len(bench.own(client)[1]) for client in cohort]
        done.active = mean_of([done.last[client] for client in cohort], shares)
        done.globals.append(done.active)
    return done
