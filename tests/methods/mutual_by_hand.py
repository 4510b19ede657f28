"""Rounds of mutual learning written out by hand, for FedKEM and FML, with the mistakes that one could make."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from tests.methods.by_hand import (
    BATCH,
    LR,
    PUBLIC_ROWS,
    Bench,
    alike,
    descend,
    mean_of,
    said,
    soft,
    state_of,
    towards,
)
from torch import Tensor, nn
from torch.nn import functional as F

from polyfed.federation.message import Weights
from polyfed.runs.rounds import Run

Buffers = list[Tensor | None]


@dataclass(frozen=True)
class Way:
    """How it is done: as the settings say, or wrongly."""

    in_turn: bool = True
    own: tuple[float, float] = (1.0, 1.0)
    sent: tuple[float, float] = (1.0, 1.0)
    fusion: str = "ensemble"
    ensemble: str = "max"
    centre: bool = False
    start: str = "global"
    statistics: str = "public"
    labels: bool = False
    weighting: str = "samples"
    momentum: float = 0.0
    kept: bool = False
    plain_steps: bool = False
    """A mistake: K instead of the effective steps."""
    corrected: bool = True
    whole_share: bool = False
    """A mistake: c moves as if everybody had taken part."""
    local_kept: bool = True
    """Whether a client's own model lasts."""


def copy_of(model: nn.Module) -> Weights:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def is_normed(model: nn.Module) -> bool:
    return any("running_mean" in name for name in model.state_dict())


def step(
    model: nn.Module, loss: Tensor, buffers: Buffers, momentum: float, added: Weights | None = None
) -> None:
    """SGD with momentum by hand."""
    named = list(model.named_parameters())
    gradients = torch.autograd.grad(loss, [parameter for _, parameter in named])
    with torch.no_grad():
        for place, ((name, parameter), gradient) in enumerate(zip(named, gradients, strict=True)):
            move = gradient if added is None else gradient + added[name]
            before = buffers[place]
            move = move if before is None else momentum * before + move
            buffers[place] = move
            parameter.sub_(LR * move)


def loss_of(weights: tuple[float, float], z: Tensor, y: Tensor, peer: Tensor) -> Tensor:
    p = peer.detach().softmax(dim=1)
    divergence = (p * (p.log() - z.log_softmax(dim=1))).sum(dim=1).mean()
    return weights[0] * F.cross_entropy(z, y) + weights[1] * divergence


class MutualByHand(Bench):
    """Algorithms 1 and 2, with one epoch of SGD everywhere."""

    def __init__(self, run: Run, way: Way) -> None:
        super().__init__(run)
        self.way = way
        self.moments: dict[int, tuple[Buffers, Buffers]] = {}
        zeros = {name: torch.zeros_like(tensor) for name, tensor in self.server.named_parameters()}
        self.control: dict[str, Tensor] = zeros
        self.controls: list[Weights] = [dict(zeros) for _ in self.clients]
        self.before = [copy_of(model) for model in self.clients]
        for number in range(1, run.config.rounds + 1):
            self.round(number)

    def round(self, number: int) -> None:
        cohort = self.cohort(number)
        networks, changes = [], []
        for client in cohort:
            network, change = self.extract(client, number)
            networks.append(network)
            changes.append(change)
        sizes = [len(self.own(client)[1]) for client in cohort]
        shares = sizes if self.way.weighting == "samples" else [1] * len(cohort)
        mean = mean_of([copy_of(network) for network in networks], [float(share) for share in shares])
        if self.way.fusion == "ensemble":
            self.distil(networks, mean, number)
        else:
            self.server.load_state_dict(mean)
        sizes = [len(self.own(client)[1]) for client in range(len(self.clients))]
        everyone = sum(sizes) if self.way.weighting == "samples" else len(sizes)
        part = 1 if self.way.whole_share else sum(shares) / everyone
        for change, share in zip(changes, shares, strict=True):
            for name, tensor in change.items():
                self.control[name] = self.control[name] + part * share / sum(shares) * tensor

    def extract(self, client: int, number: int) -> tuple[nn.Module, Weights]:
        way = self.way
        network: nn.Module = self.federation.population.build(str(self.federation.server().architecture))
        start = copy_of(self.server)
        network.load_state_dict(start)
        model = self.clients[client]
        if not way.local_kept:
            model.load_state_dict(self.before[client])
        x, y = self.own(client)
        model.train()
        network.train()
        cuts = list(torch.randperm(len(x), generator=self.stream("batches", client, number, 1)).split(BATCH))
        if len(cuts[-1]) == 1 and (is_normed(model) or is_normed(network)):
            cuts[-2:] = [torch.cat(cuts[-2:])]
        fresh: tuple[Buffers, Buffers] = ([None] * 99, [None] * 99)
        buffers = self.moments.setdefault(client, fresh) if way.kept else fresh
        own = self.controls[client]
        added = {name: self.control[name] - own[name] for name in own} if way.fusion == "scaffold" else None
        for rows in cuts:
            z, heard = model(x[rows]), network(x[rows])
            step(model, loss_of(way.own, z, y[rows], heard), buffers[0], way.momentum)
            if way.in_turn:
                z = self.again(model, x[rows])
            step(
                network,
                loss_of(way.sent, heard, y[rows], z),
                buffers[1],
                way.momentum,
                added if way.corrected else None,
            )
        m, steps = way.momentum, len(cuts)
        # How far so many steps go down a gradient of 1, step by step.
        speed, way_made = 0.0, 0.0
        for _ in range(steps):
            speed = m * speed + 1
            way_made += 1 if way.plain_steps else speed
        change = {
            name: -self.control[name] + (start[name] - parameter.detach()) / (LR * way_made)
            for name, parameter in network.named_parameters()
        }
        if way.fusion == "scaffold":
            self.controls[client] = {name: own[name] + change[name] for name in own}
        return network, change

    def again(self, model: nn.Module, x: Tensor) -> Tensor:
        """In training mode, but for its running statistics, in which a batch counts once."""
        kept = {name: buffer.clone() for name, buffer in model.named_buffers()}
        with torch.no_grad():
            z: Tensor = model(x)
            for name, buffer in model.named_buffers():
                buffer.copy_(kept[name])
        return z

    def distil(self, networks: list[nn.Module], mean: Weights, number: int) -> None:
        way, x = self.way, self.public(number)
        z = torch.stack([said(network, x) for network in networks])
        if way.centre:
            z = z - z.mean(dim=2, keepdim=True)
        if way.ensemble == "vote":
            target = F.one_hot(z.argmax(dim=2), 3).float().mean(dim=0)
        else:
            target = (z.max(dim=0).values if way.ensemble == "max" else z.mean(dim=0)).softmax(dim=1)
        if way.start == "average":
            self.server.load_state_dict(mean)
        loss = soft(target)
        if way.labels:
            y = self.public_labels(number)
            told, true = loss, towards(y)

            def loss(rows: Tensor, logits: Tensor) -> Tensor:
                return (told(rows, logits) + true(rows, logits)) / 2

        descend(self.server, x, loss, self.server_stream("distil", number))
        if way.statistics == "clients":
            kept = {name: tensor for name, tensor in mean.items() if "running" in name}
            self.server.load_state_dict({**self.server.state_dict(), **kept})

    def public_labels(self, number: int) -> Tensor:
        assert self.federation.holdings.public is not None
        stream = self.server_stream("public rows", number)
        order = torch.randperm(len(self.federation.holdings.public), generator=stream)
        return self.federation.holdings.public[order[:PUBLIC_ROWS].sort().values].tensors()[1]

    def agrees(self, run: Run) -> bool:
        assert run.server.model is not None
        server = alike(uncounted(copy_of(run.server.model)), uncounted(copy_of(self.server)), within=2e-6)
        kept = all(
            alike(uncounted(state_of(run, client)), uncounted(copy_of(model)), within=2e-6)
            for client, model in enumerate(self.clients)
        )
        return server and kept


def uncounted(weights: Weights) -> Weights:
    """Without BatchNorm's batch counter, of which no mean is taken."""
    return {name: tensor for name, tensor in weights.items() if "num_batches" not in name}
