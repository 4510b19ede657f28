"""FedH2L keeps the contract of a method on every topology and with every switch."""

from __future__ import annotations

from typing import Any

import pytest

from polyfed.methods.fedh2l import FedH2L
from polyfed.testing import check_method

# With so few local steps in a round it takes some rounds to learn more than chance.
FEDERATION: dict[str, Any] = {
    "rounds": 10,
    "data": {"limit": 300},
    "models": {"names": ["mlp-small", "mlp"]},
    "training": {"batch": 16, "lr": 0.1, "momentum": 0.9},
}
ROTATED = {"limit": 100, "clients": None, "partition": {"kind": "rotated"}, "validation": 0.2}


@pytest.mark.slow
@pytest.mark.parametrize("topology", ["ring", "star"])
def test_it_keeps_the_contract_on_other_topologies(topology: str) -> None:
    check_method(FedH2L, config=FEDERATION, batches=1, topology=topology)


@pytest.mark.evidence
@pytest.mark.parametrize(
    ("settings", "changes"),
    [
        ({"topology": "pairs"}, {"data": {"limit": 300, "clients": 5}}),
        ({"interval": 3, "conflict": "pcgrad"}, {"cohort": {"fraction": 0.75}}),
        (
            {"public_batch": 8},
            {
                "data": ROTATED,
                "models": {"names": ["cnn-small", "mlp-small"]},
                "training": {"optimiser": "amsgrad", "lr": 0.003, "momentum": 0.0},
                "evaluate": {"every": 4, "validation": "everyone"},
            },
        ),
    ],
    ids=["pairs of five", "an interval, some peers", "domains, AMSGrad, BatchNorm"],
)
def test_its_variants_keep_the_contract(settings: dict[str, Any], changes: dict[str, Any]) -> None:
    check_method(FedH2L, config={**FEDERATION, **changes}, **{"batches": 2, **settings})
