"""FedKF: rounds against a loop written out by hand, its flavours and settings, what generators make."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from tests.methods.by_hand import BATCH, LR, Bench, Prepare, close, normed, plain
from torch import Tensor, nn
from torch.nn import functional as F

import polyfed
from polyfed import data, learn, models
from polyfed.errors import UserError
from polyfed.federation.message import decode
from polyfed.methods.fedkf import FedKFSettings
from polyfed.runs.checkpoint import read_lines
from polyfed.runs.rounds import Run
from polyfed.testing import failures_of

NOISE, WIDTH = 4, 6


@dataclass(frozen=True)
class Form:
    """How the loop is done: as the paper has it, unless it says so."""

    gamma: float = 1.0
    lambda1: float = 0.1
    lambda2: float = 0.1
    keep_generator: bool = False
    entropy: str = "plain"
    activation: str = "norm"
    adversarial: bool = False
    equal_steps: bool = False
    first: str = "generator"
    plain_first_round: bool = False
    inactive: str = "cached"
    unseen: str = "initial"
    # what is wrong in any case
    turned: bool = False
    one_pass: bool = False
    tracked: bool = False
    teacher_trains: bool = False
    new_moments: bool = False


PAPER = Form()
AUTHORS = Form(
    keep_generator=True,
    entropy="normalised",
    activation="mean",
    adversarial=True,
    equal_steps=True,
    first="student",
    plain_first_round=True,
    unseen="left-out",
)


def parts(model: nn.Module) -> tuple[nn.Module, nn.Module]:
    assert isinstance(model, nn.Sequential)
    return model[:-1], model[-1]


class ByHand(Bench):
    """Algorithm 1, with torch's own Adam and SGD."""

    def __init__(self, run: Run, form: Form) -> None:
        super().__init__(run)
        self.form = form
        self.generators: dict[int, tuple[nn.Module, torch.optim.Optimizer]] = {}
        architecture = run.federation.roster.architectures[0]
        initial = run.federation.server().build(architecture).state_dict()
        self.aca = self.oca = {name: tensor.clone() for name, tensor in initial.items()}
        slots = dict.fromkeys(range(3), initial) if form.unseen == "initial" else {}
        for number in range(1, run.config.rounds + 1):
            trained = {index: self.update(index, number) for index in self.cohort(number)}
            slots |= trained
            self.aca = self.mean(trained)
            self.oca = self.mean(slots) if form.inactive == "cached" else self.aca
        self.model = self.clients[0]
        self.model.load_state_dict(self.oca)

    def mean(self, found: dict[int, dict[str, Tensor]]) -> dict[str, Tensor]:
        """By samples; of BatchNorm's batch counter the largest."""
        samples = {index: len(self.own(index)[0]) for index in found}
        result: dict[str, Tensor] = {}
        for name in next(iter(found.values())):
            each = torch.stack([weights[name].double() for weights in found.values()])
            shares = torch.tensor(list(samples.values())).double() / sum(samples.values())
            counter = name.endswith("num_batches_tracked")
            result[name] = each.max() if counter else torch.tensordot(shares, each, dims=1)
        return result

    def generator(self, index: int, number: int) -> tuple[nn.Module, torch.optim.Optimizer]:
        keep = self.form.keep_generator
        if keep and index in self.generators:
            model, adam = self.generators[index]
            fresh = torch.optim.Adam(model.parameters(), lr=1e-3)
            return model, fresh if self.form.new_moments else adam
        seeds = self.federation.seeds
        stream = seeds.torch("generator") if keep else self.stream("generator", index, number, 1)
        model = models.build_generator((5,), NOISE, width=WIDTH, generator=stream)
        self.generators[index] = model, torch.optim.Adam(model.parameters(), lr=1e-3)
        return self.generators[index]

    def cuts(self, index: int, number: int) -> list[Tensor]:
        rows, stream = len(self.own(index)[0]), self.stream("batches", index, number, 1)
        everybody = [len(self.own(client)[0]) for client in range(3)]
        wanted = sum(everybody) // (3 * BATCH) if self.form.equal_steps else None
        found: list[Tensor] = []
        while len(found) < (wanted or 1):
            cuts = list(torch.randperm(rows, generator=stream).split(BATCH))
            if len(cuts[-1]) == 1 and len(cuts) > 1 and "1.running_mean" in self.aca:
                cuts[-2:] = [torch.cat(cuts[-2:])]
            found += cuts
        return found[:wanted]

    def update(self, index: int, number: int) -> dict[str, Tensor]:
        form = self.form
        x, y = self.own(index)
        student, teacher = self.clients[index], self.clients[(index + 1) % 3]
        student.load_state_dict(self.aca)
        teacher.load_state_dict(self.oca)
        student.train()
        teacher.train(form.teacher_trains)
        sgd = torch.optim.SGD(student.parameters(), lr=LR)
        plain_round = form.plain_first_round and number == 1
        generator, adam = (nn.Identity(), sgd) if plain_round else self.generator(index, number)
        noise = self.stream("noise", index, number, 1)

        def generator_step(z: Tensor) -> None:
            made = generator(z)
            body, head = parts(teacher)
            features = body(made)
            p = head(features).softmax(dim=1)
            mean = p.mean(dim=0)
            balance = (mean * mean.log()).sum()
            if form.entropy == "normalised":
                balance = 1 + balance / math.log(3)
            sure = -p.max(dim=1).values.log().mean()
            size = features.abs().sum(dim=1).mean()
            if form.activation == "mean":
                size = size / features.shape[1]
            loss = balance + form.lambda1 * sure - form.lambda2 * size
            if form.adversarial:
                q = self.untracked(student, made).softmax(dim=1)
                loss = loss - form.gamma * (p.detach() * (p.detach().log() - q.log())).sum(dim=1).mean()
            gradients = torch.autograd.grad(loss, list(generator.parameters()))
            for parameter, gradient in zip(generator.parameters(), gradients, strict=True):
                parameter.grad = gradient
            adam.step()

        for rows in self.cuts(index, number):
            if not plain_round:
                z = torch.randn(BATCH, NOISE, generator=noise)
                before = generator(z).detach()
                if form.first == "generator":
                    generator_step(z)
                made = generator(z).detach() if not form.one_pass else before
                with torch.no_grad():
                    p = teacher(made).softmax(dim=1)
            loss = F.cross_entropy(student(x[rows]), y[rows])
            if not plain_round:
                q = self.untracked(student, made).softmax(dim=1)
                ratio = q * (q.log() - p.log()) if form.turned else p * (p.log() - q.log())
                loss = loss + form.gamma * ratio.sum(dim=1).mean()
            sgd.zero_grad()
            loss.backward()
            sgd.step()
            if not plain_round and form.first == "student":
                generator_step(z)
        return {name: tensor.clone() for name, tensor in student.state_dict().items()}

    def untracked(self, student: nn.Module, made: Tensor) -> Tensor:
        """The student's answer, with its statistics put back afterwards."""
        before = {name: tensor.clone() for name, tensor in student.named_buffers()}
        logits: Tensor = student(made)
        if not self.form.tracked:
            for name, buffer in student.named_buffers():
                buffer.data = before[name]
        return logits

    def agrees(self, run: Run) -> bool:
        return close(served(run), self.model, within=1e-6)


def served(run: Run) -> Mapping[str, Tensor]:
    weights = run.method.serves(run.server, run.federation.roster[0])
    assert weights is not None
    return weights


def settings_of(form: Form) -> dict[str, Any]:
    wrong = {"turned", "one_pass", "tracked", "teacher_trains", "new_moments"}
    given = {name: value for name, value in dataclasses.asdict(form).items() if name not in wrong}
    return {"name": "fedkf", "noise": NOISE, "width": WIDTH, **given}


SMALL = {"server": False, "rounds": 3, "cohort": {"fraction": 0.7}}


@pytest.mark.parametrize("form", [PAPER, AUTHORS], ids=["paper", "authors"])
@pytest.mark.parametrize("maker", [plain, normed], ids=lambda maker: maker.__name__)
def test_rounds_equal_a_loop_by_hand(federate: Prepare, form: Form, maker: Any) -> None:
    flavour = "authors" if form is AUTHORS else "paper"
    method = {"name": "fedkf", "flavour": flavour, "noise": NOISE, "width": WIDTH}
    run = federate([maker], method=method, **SMALL)
    run.go()
    assert ByHand(run, form).agrees(run)


DIFFERENCES = {
    "gamma": 0.5,
    "lambda1": 3.0,
    "lambda2": 3.0,
    "keep_generator": True,
    "entropy": "normalised",
    "activation": "mean",
    "adversarial": True,
    "equal_steps": True,
    "first": "student",
    "plain_first_round": True,
    "inactive": "ignore",
    "unseen": "left-out",
}


@pytest.mark.parametrize("name", DIFFERENCES)
def test_each_setting_does_what_it_says_and_nothing_else(federate: Prepare, name: str) -> None:
    changed = dataclasses.replace(PAPER, **{name: DIFFERENCES[name]})  # type: ignore[arg-type]
    run = federate([plain], method=settings_of(changed), **SMALL)
    run.go()
    assert ByHand(run, changed).agrees(run)
    assert not ByHand(run, PAPER).agrees(run)


@pytest.mark.parametrize(
    ("form", "mistake"),
    [
        (PAPER, "turned"),
        (PAPER, "one_pass"),
        (PAPER, "tracked"),
        (PAPER, "teacher_trains"),
        (AUTHORS, "new_moments"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_loop_with_a_mistake_does_not_agree(federate: Prepare, form: Form, mistake: str) -> None:
    run = federate([normed], method=settings_of(form), **SMALL)
    run.go()
    wrong = dataclasses.replace(form, **{mistake: True})  # type: ignore[arg-type]
    assert ByHand(run, form).agrees(run)
    assert not ByHand(run, wrong).agrees(run)


# -- settings ------------------------------------------------------------------------------------------------


def test_a_flavour_fills_in_what_is_not_given() -> None:
    authors = FedKFSettings.model_validate({"flavour": "authors", "entropy": "plain"})
    filled = settings_of(AUTHORS)
    for name in (
        "keep_generator",
        "activation",
        "adversarial",
        "equal_steps",
        "first",
        "plain_first_round",
        "unseen",
    ):
        assert getattr(authors, name) == filled[name]
        assert getattr(FedKFSettings(), name) == settings_of(PAPER)[name]
    assert authors.entropy == "plain"
    again = FedKFSettings.model_validate(authors.model_dump())
    assert again == authors  # as a resumed run reads it


def test_models_of_several_architectures_are_refused_in_one_line(federate: Prepare) -> None:
    with pytest.raises(UserError, match="architecture"):
        federate([plain, normed], method="fedkf", server=False)


# -- what is kept, and what travels ---------------------------------------------------------------------------


def test_a_kept_generator_and_its_moments_are_in_the_clients_memory_and_its_size_is_told(
    federate: Prepare,
) -> None:
    run = federate([plain], method=settings_of(AUTHORS), server=False, rounds=2)
    run.go()
    memory = decode(run.client_files()[0].read_bytes())["memory"]["generator"]
    count = sum(tensor.numel() for tensor in memory["weights"].values())
    tensors = len(memory["weights"])
    told = [
        line["noted"]["generator-bytes"] for line in read_lines(run.path / "history.jsonl") if "noted" in line
    ]
    assert told[-1] == 4 * (
        3 * count + tensors
    )  # weights, two moments each, and a step counter for each tensor


def test_start_and_teacher_go_down_as_one_message_and_as_one_model_where_they_are_the_same(
    federate: Prepare,
) -> None:
    """Down in round 1: one model; then two, unless inactive clients are ignored. Up: always one."""
    for inactive, models_down in (("cached", [1, 2]), ("ignore", [1, 1])):
        method = {**settings_of(PAPER), "inactive": inactive}
        run = federate([plain], method=method, server=False, rounds=2)
        run.go()
        for line, count in zip(read_lines(run.path / "ledger.jsonl"), models_down, strict=True):
            sizes = {tuple(row[1:4]): row[4] for row in line["rows"]}
            down = sizes["down", "weights", "training"]
            assert count == round(down / sizes["up", "weights", "training"])


def test_nothing_is_kept_where_the_generator_is_not(federate: Prepare) -> None:
    run = federate([plain], method=settings_of(PAPER), server=False, rounds=1)
    run.go()
    assert all(not decode(file.read_bytes()).get("memory") for file in run.client_files().values())


# -- what generators make ----------------------------------------------------------------------------------------


def digits() -> tuple[Tensor, Tensor, data.Limits]:
    found = data.load("digits", "train")
    assert found.limits is not None
    return *found.rows().tensors(), found.limits


@pytest.mark.parametrize("form", ["paper", "authors"])
def test_samples_cover_all_classes_and_the_teacher_is_sure_of_them(form: str) -> None:
    """With the loss of the code; and with the paper's, where λ2 is as much smaller as its norm is larger."""
    x, y, limits = digits()
    teacher = models.build("cnn-small", (1, 8, 8), 10)
    learn.supervised(teacher, x, y, learn.Training(epochs=5, lr=0.1), torch.Generator().manual_seed(0))
    generator = models.build_generator((1, 8, 8), 100, width=32, limits=limits)
    stream = torch.Generator().manual_seed(1)
    learner = learn.Learner(generator, learn.Training(epochs=1, optimiser="adam", lr=1e-3))
    before = {name: tensor.clone() for name, tensor in teacher.state_dict().items()}
    with learn.evaluating(teacher), learn.frozen(teacher):
        for _ in range(300):
            made = generator(torch.randn(64, 100, generator=stream))
            features, logits = models.features_and_logits(teacher, made)
            balance = learn.balance_loss(logits, normalised=form == "authors")
            activation = learn.activation_loss(features, mean=form == "authors")
            lambda2 = 0.1 if form == "authors" else 0.1 / features.shape[1]
            learner.step(balance + 0.1 * learn.one_hot_loss(logits) + lambda2 * activation)
        with torch.no_grad():
            sure = teacher(generator(torch.randn(500, 100, generator=stream))).softmax(dim=1)
    assert all(torch.equal(before[name], tensor) for name, tensor in teacher.state_dict().items())
    counts = sure.argmax(dim=1).bincount(minlength=10)
    assert int(counts.min()) >= 5, counts
    assert float(sure.max(dim=1).values.median()) > 0.7


def learns(source: Any, model: str, tmp_path: Any, **method: Any) -> float:
    config = {
        "method": {"name": "fedkf", "width": 16, "noise": 10, **method},
        "rounds": 3,
        "data": {"clients": 3, "partition": {"kind": "iid"}},
        "models": {"names": [model]},
        "training": {"epochs": 3, "lr": 0.1, "batch": 16},
    }
    run = polyfed.run(config, data=source, out=tmp_path / "run", workers=1)
    assert run.last is not None
    return float(run.last["summary"]["whole"]["mean"])


def images(channels: int, height: int, width: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Two classes: bright on the left, or on the right."""
    rng = np.random.default_rng(0)
    labels = np.arange(120) % 2
    pixels = rng.integers(0, 100, size=(120, height, width, channels)).astype(np.uint8)
    for row, label in enumerate(labels):
        half = slice(0, width // 2) if label else slice(width // 2, None)
        pixels[row, :, half] += 100
    return pixels, labels


@pytest.mark.parametrize("flavour", ["paper", "authors"])
@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 10, 14)], ids=str)
def test_grey_and_colour_images_of_odd_sizes_are_learnt(
    shape: tuple[int, int, int], flavour: str, tmp_path: Any
) -> None:
    assert learns(images(*shape), "cnn-small", tmp_path, flavour=flavour) > 0.9


@pytest.mark.parametrize("flavour", ["paper", "authors"])
def test_a_table_of_feature_vectors_is_learnt(flavour: str, tmp_path: Any) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 6)) * [1, 10, 100, 1, 1, 1] + 5
    y = ((x[:, 0] - 5) + (x[:, 1] - 5) / 10 > 0).astype(int)
    assert learns((x, y), "mlp-small", tmp_path, flavour=flavour) > 0.85


@pytest.mark.parametrize("flavour", ["paper", "authors"])
@pytest.mark.parametrize("batch", [1, 1000])
def test_batches_of_one_row_and_of_more_rows_than_there_are_do_no_harm(
    federate: Prepare, batch: int, flavour: str
) -> None:
    """A generator's BatchNorm needs two rows of noise at least; the mean client has no whole batch of 1000."""
    method = {"name": "fedkf", "flavour": flavour, "noise": NOISE, "width": WIDTH}
    training = {"lr": 0.01, "batch": batch, "epochs": 1}
    run = federate([normed], method=method, server=False, rounds=2, training=training)
    run.go()
    assert failures_of(run.path) == []
    assert all(bool(tensor.isfinite().all()) for tensor in served(run).values())
