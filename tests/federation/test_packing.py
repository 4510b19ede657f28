"""Packed tensors: what arrives of them, worked out by hand; what is kept back; and what cannot be unpacked."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

from polyfed.errors import MessageError
from polyfed.federation.message import Kind, decode, encode
from polyfed.federation.method import registered
from polyfed.federation.packing import Int8, Top, packing_of
from polyfed.federation.wire import Residuals, Wire, WireSettings
from polyfed.learn import Training
from polyfed.methods.scaffold import ScaffoldSettings
from polyfed.methods.spatl import SPATLSettings

UP = {"weights": Kind.WEIGHTS, "step": Kind.GRADIENTS, "answers": Kind.POSTERIORS}


def wire(**up: str) -> Wire:
    return Wire(WireSettings.model_validate({"up": up}))


def travelled(
    over: Wire, fields: dict[str, Any], sent: dict[str, Any] | None = None, left: Residuals | None = None
) -> dict[str, Any]:
    """What arrives of these fields, through bytes."""
    data = encode(over.pack(fields, UP, "up", sent=sent, residuals=left, lasting=["step"]))
    return over.unpack(decode(data), UP, "up", sent=sent)


def test_8_bits_are_256_levels_from_the_least_to_the_largest() -> None:
    """From −1 to 1.55 a level is 0.01: 0.004 is nearest to the 100th, 0.017 to the 102nd."""
    tensor = torch.tensor([-1.0, 0.004, 0.017, 1.55])
    packed = Int8().pack(tensor)
    assert packed["int8"].tolist() == [0, 100, 102, 255]
    assert packed["int8"].dtype == torch.uint8
    assert packed["low"] == -1.0
    assert packed["step"] == pytest.approx(0.01, abs=1e-8)
    arrived = Int8().unpack(packed)
    assert arrived is not None
    assert torch.allclose(arrived, torch.tensor([-1.0, 0.0, 0.02, 1.55]), atol=1e-6)


@given(st.lists(st.floats(-(2.0**90), 2.0**90, width=32), min_size=1, max_size=50))
@example([0.0, torch.finfo(torch.float32).tiny])
@example([0.0, 200 * torch.finfo(torch.float32).tiny])
@example([3.0, 3.0])
def test_8_bits_are_at_most_half_a_level_off(entries: list[float]) -> None:
    tensor = torch.tensor(entries)
    arrived = Int8().unpack(Int8().pack(tensor))
    assert arrived is not None
    span = float(tensor.max().double() - tensor.min().double())
    error = float((arrived.double() - tensor.double()).abs().max())
    least_level = torch.finfo(torch.float32).tiny
    assert error <= max(span / 510, least_level / 2) * 1.001 + 1e-6 * float(tensor.abs().max())


def test_top_sends_the_largest_entries_and_their_places() -> None:
    tensor = torch.tensor([[0.1, -3.0, 0.2], [2.0, -0.3, 0.0]])
    packed = Top(1 / 3).pack(tensor)
    assert packed["top"].tolist() == [1, 3]
    assert packed["values"].tolist() == [-3.0, 2.0]
    arrived = Top(1 / 3).unpack(packed)
    assert arrived is not None
    assert arrived.tolist() == [[0.0, -3.0, 0.0], [2.0, 0.0, 0.0]]
    assert packed["top"].nbytes + packed["values"].nbytes == 2 * 8


def test_what_top_leaves_out_is_added_the_next_time() -> None:
    """One entry in a hundred travels: of the changes (1, 2, 4, …) the 4; then, (1 + 1, 2 + 2, 0 + 1, …), the second."""
    over, left = wire(gradients="top-0.01"), dict[str, Tensor]()
    change = torch.zeros(100)
    change[:3] = torch.tensor([1.0, 2.0, 4.0])
    first = travelled(over, {"step": {"a": change}}, left=left)["step"]["a"]
    assert first.nonzero().flatten().tolist() == [2]
    assert left["step/a"][:4].tolist() == [1.0, 2.0, 0.0, 0.0]
    change[:3] = torch.tensor([1.0, 2.0, 1.0])
    second = travelled(over, {"step": {"a": change}}, left=left)["step"]["a"]
    assert second[:3].tolist() == [0.0, 4.0, 0.0]
    assert left["step/a"][:4].tolist() == [2.0, 0.0, 1.0, 0.0]


def test_nothing_is_lost_in_the_long_run() -> None:
    """What has arrived and what is left add up to all that was to be sent."""
    over, left = wire(gradients="top-0.05"), dict[str, Tensor]()
    generator = torch.Generator().manual_seed(0)
    wanted, arrived = torch.zeros(8, 16), torch.zeros(8, 16)
    for _ in range(20):
        change = torch.randn(8, 16, generator=generator)
        wanted += change
        arrived += travelled(over, {"step": change}, left=left)["step"]
    assert torch.allclose(arrived + left["step"], wanted, atol=1e-5)
    assert not torch.allclose(arrived, wanted, atol=1.0)


@pytest.mark.parametrize("name", ["half", "int8", "top-0.1"])
def test_weights_travel_as_differences_to_what_was_sent(name: str) -> None:
    """Weights of about 1000 that change by about a thousandth: as they are, 8 or 16 bits would lose the change."""
    generator = torch.Generator().manual_seed(1)
    sent = 1000 + torch.randn(10, 10, generator=generator)
    after = sent + 1e-3 * torch.randn(10, 10, generator=generator)
    there = travelled(wire(weights=name), {"weights": {"w": after}}, {"weights": {"w": sent}})["weights"]["w"]
    largest = (after - sent).abs().flatten().topk(10).indices
    error = (there - after).flatten().abs()
    assert float(error[largest].max()) < 1.5e-4  # the rounding of 1000 itself is 3e-5
    if name == "top-0.1":
        others = torch.ones(100, dtype=torch.bool)
        others[largest] = False
        assert torch.equal(there.flatten()[others], sent.flatten()[others])
    else:
        alone = travelled(wire(weights=name), {"weights": {"w": after}})["weights"]["w"]
        assert float((alone - after).abs().max()) > 10 * float(error.max())


def test_gradients_whose_rows_are_others_each_time_are_not_thinned_out() -> None:
    """What SPATL sends of a layer is a choice of rows: what is left of one must not be added to another."""
    over, rows = wire(gradients="top-0.1"), torch.randn(10, 10)
    assert over.pack({"step": rows}, UP, "up", residuals={}, lasting=[])["step"] is rows
    assert over.pack({"step": rows}, UP, "up", residuals={}, lasting=["step"])["step"] is not rows
    assert registered()["spatl"](SPATLSettings(), Training()).declared.lasting == frozenset()
    assert registered()["scaffold"](ScaffoldSettings(), Training()).declared.lasting == {"weights", "change"}


def test_weights_that_are_like_nothing_that_was_sent_are_not_thinned_out() -> None:
    weights = torch.randn(100)
    for sent in (None, {"weights": torch.zeros(99)}, {"others": torch.zeros(100)}):
        assert torch.equal(travelled(wire(weights="top-0.1"), {"weights": weights}, sent)["weights"], weights)


@pytest.mark.parametrize("name", ["int8", "top-0.01"])
def test_running_statistics_and_small_tensors_stay_exact(name: str) -> None:
    """A variance that rounding pushes below zero would make every answer NaN."""
    model = {"running_var": torch.rand(200) * 1e-3, "bias": torch.randn(63), "n": torch.tensor(7)}
    sent = {key: torch.zeros_like(tensor) + 10 for key, tensor in model.items()}
    there = travelled(wire(weights=name), {"weights": model}, {"weights": sent})["weights"]
    assert all(torch.equal(there[key], model[key]) for key in model)


def test_statistics_in_half_precision_are_no_differences() -> None:
    """10 − 9.9999 in 16 bits is negative for every fourth such number; 1e-4 in 16 bits is 1e-4."""
    model = {"running_var": torch.full((4,), 1e-4)}
    sent = {"running_var": torch.full((4,), 10.0)}
    there = travelled(wire(weights="half"), {"weights": model}, {"weights": sent})["weights"]
    assert torch.allclose(there["running_var"], model["running_var"], rtol=1e-3)


def test_probabilities_in_8_bits_add_up_to_1() -> None:
    answers = torch.softmax(3 * torch.randn(50, 30), dim=1)
    there = travelled(wire(posteriors="int8"), {"answers": answers})["answers"]
    assert torch.allclose(there.sum(dim=1), torch.ones(50), atol=1e-6)
    assert float(there.min()) >= 0
    assert float((there - answers).abs().max()) < 0.03


HOSTILE: list[dict[str, Any]] = [
    {"int8": torch.zeros(100), "low": 0.0, "step": 1.0},
    {"int8": torch.zeros(100, dtype=torch.uint8), "low": "0", "step": 1.0},
    {"int8": torch.zeros(100, dtype=torch.uint8), "low": 0.0, "step": float("nan")},
    {"int8": None, "low": 0.0, "step": 1.0},
]
HOSTILE_TOP: list[dict[str, Any]] = [
    {"top": torch.tensor([100]).int(), "values": torch.ones(1), "shape": [100]},
    {"top": torch.tensor([-1]).int(), "values": torch.ones(1), "shape": [100]},
    {"top": torch.tensor([0]).int(), "values": torch.ones(1), "shape": [10**12]},
    {"top": torch.tensor([0]).int(), "values": torch.ones(1), "shape": [10**6, 10**6]},
    {"top": torch.tensor([0]).int(), "values": torch.ones(1), "shape": [-100]},
    {"top": torch.tensor([0]).int(), "values": torch.ones(1), "shape": [True]},
    {"top": torch.tensor([0]).int(), "values": torch.ones(1), "shape": "100"},
    {"top": torch.tensor([0, 1]).int(), "values": torch.ones(1), "shape": [100]},
    {"top": torch.tensor([], dtype=torch.int32), "values": torch.ones(0), "shape": [100]},
    {"top": torch.tensor([0.0]), "values": torch.ones(1), "shape": [100]},
    {"top": torch.tensor([0]).int(), "values": torch.ones(1).half(), "shape": [100]},
]


@pytest.mark.parametrize("packed", HOSTILE, ids=range(len(HOSTILE)))
def test_8_bits_that_make_no_sense_are_a_message_error(packed: dict[str, Any]) -> None:
    with pytest.raises(MessageError):
        wire(gradients="int8").unpack({"step": {"a": packed}}, UP, "up")


@pytest.mark.parametrize("packed", HOSTILE_TOP, ids=range(len(HOSTILE_TOP)))
def test_entries_that_make_no_sense_are_a_message_error(packed: dict[str, Any]) -> None:
    with pytest.raises(MessageError):
        wire(gradients="top-0.01").unpack({"step": {"a": packed}}, UP, "up")


@pytest.mark.parametrize("name", ["half", "int8", "top-0.5"])
def test_unpacking_what_was_never_packed_changes_nothing(name: str) -> None:
    fields: dict[str, Any] = {
        "step": {"a": torch.randn(100).double(), "b": [torch.randn(3)], "c": "text", "int8": {}}
    }
    there = wire(gradients=name).unpack(fields, UP, "up")
    assert there["step"]["a"] is fields["step"]["a"]
    assert there["step"]["c"] == "text"


def test_a_dictionary_that_looks_packed_is_not_sent() -> None:
    with pytest.raises(TypeError, match="rename"):
        wire(gradients="int8").pack({"step": {"int8": 1, "low": 2, "step": 3}}, UP, "up")


@pytest.mark.parametrize("name", ["top-0", "top-0.0", "top-1.5", "top-", "top--0.1", "int4", "TOP-0.1", ""])
def test_an_unknown_packing_is_told(name: str) -> None:
    with pytest.raises(ValueError, match=r"top-0\.05"):
        packing_of(name)


def test_shares_are_read_as_they_are_written() -> None:
    assert packing_of("top-0.05") == Top(0.05) == packing_of("top-.05")
    assert packing_of("top-1") == Top(1.0)
    assert packing_of("plain") is None
