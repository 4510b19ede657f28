"""FedKEM against loops written out by hand: mutual learning, the three ensembles, the three fusions."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from tests.methods.by_hand import NO_PUBLIC, ONCE, PUBLIC_ROWS, Prepare, normed, one_layer, plain
from tests.methods.mutual_by_hand import MutualByHand, Way, copy_of
from torch import Tensor, nn

import polyfed
from polyfed.errors import PolyfedError
from polyfed.federation.message import decode
from polyfed.federation.nodes import Assistant, ClientData
from polyfed.methods import ensemble_distillation
from polyfed.methods.ensemble_distillation import EnsembleSettings
from polyfed.runs.checkpoint import read_lines
from polyfed.runs.rounds import Run
from polyfed.testing import failures_of

FEDKEM: dict[str, Any] = {
    "name": "fedkem",
    "start": "global",
    "public_rows": PUBLIC_ROWS,
    "distil": {**ONCE, "cosine": False},
}
TRAINING = {"lr": 0.1, "batch": 8, "epochs": 1}
HALF: dict[str, Any] = {"cohort": {"count": 2}, "rounds": 3}


def done(federate: Prepare, models: list[Any], method: dict[str, Any], **settings: Any) -> Run:
    run = federate(models, method={**FEDKEM, **method}, **{"rounds": 2, **settings})
    run.go()
    assert failures_of(run.path) == []
    return run


def travelled(run: Run) -> list[list[Any]]:
    """[client, direction, kind, bytes] of the first round's training."""
    [line] = [line for line in read_lines(run.path / "ledger.jsonl") if line["round"] == 1]
    return [[*row[:3], row[4]] for row in line["rows"] if row[3] == "training"]


def agrees(run: Run, way: Way) -> bool:
    return MutualByHand(run, way).agrees(run)


# -- rounds --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("models", "settings"),
    [
        ([one_layer, plain], {}),
        ([normed, plain], {"ensemble": "mean", "updates": "at-once"}),
        ([plain, normed], {"ensemble": "vote"}),
        ([plain, one_layer], {"centre": True, "start": "average", "weighting": "uniform"}),
    ],
    ids=["as printed", "mean at once", "vote", "centred from the mean"],
)
def test_rounds_equal_a_loop_by_hand(federate: Prepare, models: list[Any], settings: dict[str, Any]) -> None:
    """The server's network has the architecture of client 0 and 2; the big models are never averaged."""
    run = done(federate, models, settings)
    choices = {name: value for name, value in settings.items() if name != "updates"}
    way = Way(in_turn=settings.get("updates") != "at-once", **choices)
    assert agrees(run, way)
    assert not agrees(run, replace(way, in_turn=not way.in_turn))
    for other in {"max", "mean", "vote"} - {way.ensemble}:
        assert not agrees(run, replace(way, ensemble=other))
    assert not agrees(run, replace(way, start="global" if way.start == "average" else "average"))
    assert not agrees(run, replace(way, local_kept=False))
    if (
        way.centre
    ):  # linear networks from one start answer with the same sum of logits: there it changes nothing
        assert not agrees(run, replace(way, centre=False))
        assert not agrees(run, replace(way, weighting="samples"))


def test_the_mean_of_the_networks_by_hand(federate: Prepare) -> None:
    run = done(federate, [normed, plain], {"fusion": "average"}, data=NO_PUBLIC)
    way = Way(fusion="average")
    assert agrees(run, way)
    assert not agrees(run, replace(way, weighting="uniform"))


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_scaffold_by_hand(federate: Prepare, weighting: str) -> None:
    """Two of three clients a round, with momentum: steps are counted by how far they go, c moves by their share."""
    training = {**TRAINING, "momentum": 0.5}
    settings: dict[str, Any] = {"data": NO_PUBLIC, "training": training, **HALF}
    run = done(federate, [normed, plain], {"fusion": "scaffold", "weighting": weighting}, **settings)
    way = Way(fusion="scaffold", momentum=0.5, weighting=weighting)
    by_hand = MutualByHand(run, way)
    assert all(
        torch.allclose(run.server.memory["control"][name], tensor, atol=1e-5)
        for name, tensor in by_hand.control.items()
    )
    assert by_hand.control.keys() == dict(by_hand.server.named_parameters()).keys()  # no running statistics
    assert by_hand.agrees(run)
    assert not agrees(run, replace(way, plain_steps=True))
    assert not agrees(run, replace(way, whole_share=True))
    assert not agrees(run, replace(way, weighting="uniform" if weighting == "samples" else "samples"))
    assert not agrees(run, replace(way, corrected=False))


def test_clients_keep_moments_of_both_models_apart(federate: Prepare) -> None:
    training = {**TRAINING, "momentum": 0.5, "keep_optimiser": True}
    run = done(federate, [plain, one_layer], {}, training=training, rounds=3)
    assert agrees(run, Way(momentum=0.5, kept=True))
    assert not agrees(run, Way(momentum=0.5, kept=False))
    memory = decode(run.client_files()[1].read_bytes())["memory"]
    assert len(memory["optimiser"]) == 2 and len(memory["network"]["optimiser"]) == 4


def test_nothing_but_its_model_is_kept_of_a_client(federate: Prepare) -> None:
    run = done(federate, [plain, one_layer], {})
    assert decode(run.client_files()[0].read_bytes()).keys() == {"model"}


def test_running_statistics_are_those_of_the_public_rows_or_of_the_clients(federate: Prepare) -> None:
    for statistics, other in (("public", "clients"), ("clients", "public")):
        run = done(federate, [normed, plain], {"statistics": statistics})
        assert agrees(run, Way(statistics=statistics))
        assert not agrees(run, Way(statistics=other))


def test_labels_are_half_of_the_loss_if_so_set(federate: Prepare) -> None:
    run = done(federate, [plain, one_layer], {"labels": True})
    assert agrees(run, Way(labels=True))
    assert not agrees(run, Way())


def test_a_client_without_rows_is_not_asked(federate: Prepare) -> None:
    """It would send back what it was sent, and teach it."""
    for fusion in ("ensemble", "average", "scaffold"):
        run = federate([one_layer, plain], method={**FEDKEM, "fusion": fusion})
        run.federation.roster._samples[1] = 0  # type: ignore[index]
        run.go()
        assert 1 not in run.client_files()
        assert {client for client, *_ in travelled(run)} == {"client-0", "client-2"}


def test_a_client_that_finds_no_rows_sends_back_what_it_was_sent(federate: Prepare) -> None:
    run = federate([one_layer, plain], method={**FEDKEM, "fusion": "average", "weighting": "uniform"})
    seen_by = run.federation.holdings.seen_by

    def nothing(index: int) -> ClientData:
        held = seen_by(index)
        return replace(held, train=held.train[torch.empty(0, dtype=torch.int64)])

    run.federation.holdings.seen_by = nothing  # type: ignore[method-assign]
    assert run.server.model is not None
    before = copy_of(run.server.model)
    run.go()
    assert failures_of(run.path) == []
    assert all(torch.equal(before[name], tensor) for name, tensor in copy_of(run.server.model).items())


# -- the ensembles -------------------------------------------------------------------------------------------


def ensemble(settings: EnsembleSettings, *logits: list[list[float]]) -> Tensor:
    """What becomes of these networks' logits: each network answers every row with its input and its own bias."""
    merged = settings.merging()
    network = nn.Linear(3, 3)
    for table in logits:
        helper = SimpleNamespace(
            public=torch.tensor(table),
            scratch_model=lambda _name: network,
            inputs=lambda rows, _network: rows,
        )
        weights = {"weight": torch.eye(3), "bias": torch.zeros(3)}
        rows = torch.arange(len(table))
        said = ensemble_distillation.answer(cast(Assistant, helper), weights, "any", rows, settings)
        merged.add(cast(Tensor, said["answers"]), 1.0)
    assert merged.total == len(logits)
    return merged.result()


ONE = [[3.0, 1.0, 2.0], [0.0, 4.0, 2.0]]
TWO = [[1.0, 5.0, 3.0], [1.0, 9.0, 8.0]]
THREE = [[0.0, 1.0, 2.0], [7.0, 5.0, 0.0]]
FOUR = [[6.0, 2.0, 1.0], [8.0, 0.0, 1.0]]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"ensemble": "max"}, [[6.0, 5.0, 3.0], [8.0, 9.0, 8.0]]),
        ({"ensemble": "mean"}, [[2.5, 2.25, 2.0], [4.0, 4.5, 2.75]]),
        # The votes are 0, 1, 2, 0 and 1, 1, 0, 0: of the tie each has its half.
        ({"ensemble": "vote"}, [[0.5, 0.25, 0.25], [0.5, 0.5, 0.0]]),
        # Less 2, 3, 1, 3 and less 2, 6, 4, 3.
        ({"ensemble": "max", "centre": True}, [[3.0, 2.0, 1.0], [5.0, 3.0, 2.0]]),
    ],
    ids=["max", "mean", "vote", "max of what is centred"],
)
def test_the_ensembles_by_hand(settings: dict[str, Any], expected: list[list[float]]) -> None:
    assert ensemble(EnsembleSettings(**settings), ONE, TWO, THREE, FOUR).tolist() == expected


def test_centred_the_maximum_does_not_mind_a_constant() -> None:
    """Which changes no network's probabilities."""
    shifted = [[9 + logit for logit in row] for row in TWO]
    for centre in (True, False):
        settings = EnsembleSettings(centre=centre)
        assert torch.equal(ensemble(settings, ONE, TWO), ensemble(settings, ONE, shifted)) == centre


# -- what travels, what is measured --------------------------------------------------------------------------


def test_only_the_knowledge_network_travels(federate: Prepare) -> None:
    """`one_layer` has 5 × 3 + 3 numbers of 4 bytes, whatever a client trains; SCAFFOLD doubles it."""
    for fusion, kinds in (("ensemble", {"weights": 72}), ("scaffold", {"weights": 72, "gradients": 72})):
        run = done(federate, [one_layer, plain], {"fusion": fusion}, rounds=1)
        for client in ("client-0", "client-1", "client-2"):
            for direction in ("up", "down"):
                found = {kind: size for *where, kind, size in travelled(run) if where == [client, direction]}
                assert found.pop("framing") < 600  # names and shapes
                assert found == {**kinds, **({"control": 11} if direction == "down" else {})}  # "one_layer"


def test_the_global_network_is_scored_on_the_whole_test_set(federate: Prepare) -> None:
    for fusion in ("ensemble", "average", "scaffold"):
        run = done(federate, [normed, plain], {"fusion": fusion}, rounds=1)
        by_hand = MutualByHand(run, Way(fusion=fusion))
        last = run.summary["last"]
        assert last["server"]["global"] == pytest.approx(by_hand.accuracy([by_hand.server]), abs=1e-9)
        assert last["whole"]["mean"] == pytest.approx(by_hand.accuracy(by_hand.clients), abs=1e-9)
        assert last["stages"]["mutual"]["whole"]["mean"] == last["whole"]["mean"]


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"models": {"names": ["mlp-small"]}}, "models.server"),
        ({"data": {"clients": 2}}, "method.fusion=average"),
        ({"method": {"name": "fedkem", "labels": True}, "public": "none"}, "method.labels=false"),
        (
            {"method": {"name": "fedkem", "fusion": "scaffold"}, "training": {"optimiser": "adam"}},
            "training.optimiser=sgd",
        ),
        (
            {"method": {"name": "fedkem", "fusion": "scaffold"}, "training": {"keep_optimiser": True}},
            "training.keep_optimiser=false",
        ),
    ],
    ids=["no server model", "no public data", "no labels", "adam", "kept moments"],
)
def test_what_is_missing_is_told_in_one_line(tmp_path: Any, changes: dict[str, Any], complaint: str) -> None:
    labels = changes.pop("public", "own")
    config = {
        "method": "fedkem",
        "data": {"clients": 2, "public": {"source": "share", "share": 0.2, "labels": labels}},
        "models": {"names": ["mlp-small"], "server": "mlp-small"},
        **changes,
    }
    with pytest.raises(PolyfedError, match=complaint) as caught:
        polyfed.prepare(config, out=tmp_path / "run")
    assert "\n" not in str(caught.value)


def test_different_models_learn_from_each_other_through_a_small_network(tmp_path: Any) -> None:
    """On digits, unlike as the clients are, the network knows more of all classes than clients do alone."""
    config = {
        "rounds": 5,
        "data": {
            "clients": 4,
            "partition": {"kind": "dirichlet", "alpha": 0.3},
            "public": {"source": "share", "share": 0.2, "labels": "none"},
        },
        "models": {"names": ["mlp-small", "cnn-small"], "server": "mlp-small"},
        "training": {"batch": 16, "lr": 0.1, "epochs": 2},
    }
    method = {"name": "fedkem", "start": "global", "distil": {"lr": 0.1}}
    found = polyfed.run(config, method=method, out=tmp_path / "fedkem", workers=1).summary["last"]
    alone = polyfed.run(config, method="local", out=tmp_path / "local", workers=1).summary["last"]
    assert found["server"]["global"] > alone["whole"]["mean"] + 0.1
