"""Hostile replies, from their bytes to the fields that a round would see: every packing, every kind of field.

Some are spoilt byte by byte; most are taken apart, changed in one or two places, and put together again, so that they
get past the first door.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from typing import Any

import torch

from polyfed import Declaration
from polyfed.federation.door import Door
from polyfed.federation.fields import (
    Counts,
    Declared,
    Indices,
    LikeWeights,
    Number,
    OwnWeights,
    Probabilities,
    RowNumbers,
    Table,
    kinds_of,
)
from polyfed.federation.message import EMPTY, METADATA_KEY, Kind, decode, encode
from polyfed.federation.wire import Wire, WireSettings

SIZES = {"outputs": 4, "classes": 4, "public": 12, "features": 3}
WEIGHTS = {"a.weight": torch.linspace(-1, 1, 96).reshape(8, 12), "a.running_mean": torch.zeros(3)}
SENT: dict[str, Any] = {"weights": WEIGHTS, "rows": torch.arange(6), "wanted": {"a": 2}}
SENDS: Declared = {
    "weights": LikeWeights("weights"),
    "own": OwnWeights(),
    "gradients": LikeWeights("weights", kind=Kind.GRADIENTS),
    "logits": Table("rows"),
    "posteriors": Probabilities("rows"),
    "indices": Indices("public", distinct=True),
    "counts": Counts("rows"),
    "filters": RowNumbers("wanted", "weights"),
    "loss": Number(0, 100),
    "anything": Kind.CONTROL,
}
HONEST: dict[str, Any] = {
    "weights": {name: tensor + 0.1 for name, tensor in WEIGHTS.items()},
    "own": WEIGHTS,
    "gradients": WEIGHTS,
    "logits": torch.linspace(-3, 3, 24).reshape(6, 4).repeat(1, 1),
    "posteriors": torch.full((6, 4), 0.25),
    "indices": torch.arange(6),
    "counts": torch.ones(6, dtype=torch.int64),
    "filters": {"a": torch.arange(2)},
    "loss": 1.5,
    "anything": {"list": [1, "x", None, {"deep": [2.5]}]},
}
REPORT: dict[str, Any] = {
    "measured": {"trained": {"own": [3, 4], "whole": [5, 9], "metrics": {"own": {"f1": 0.5}}}},
    "noted": {"local-loss": 0.5},
}
WIRES = [
    Wire(WireSettings(up=up, down={}))
    for up in (
        {},
        dict.fromkeys(Kind, "half"),
        dict.fromkeys(Kind, "int8"),
        {Kind.WEIGHTS: "top-0.05", Kind.GRADIENTS: "top-0.3", Kind.LOGITS: "int8", Kind.POSTERIORS: "int8"},
    )
]
ODD: list[Any] = [
    *(None, True, -1, 0, 1, 2, 7, 255, 2**31, 2**31 - 1, 2**53, 2**63, -(2**63), 10**400, 0.5, 1e300, 5e-324),
    *(
        float("nan"),
        float("inf"),
        "",
        "x",
        "t",
        "0",
        "1",
        "F32",
        "F16",
        "I8",
        "BF16",
        "F8_E4M3",
        "C64",
        "BOOL",
        "U8",
    ),
    *([], [0], [-1], [2**62, 4], [1] * 65, [[]], {}, {"t": "0"}, {"t": 0}, {"t": "99"}, {"d": {}}, {"l": []}),
    *(
        {"d": []},
        {"l": {}},
        {"x": 1},
        {"t": "0", "d": {}},
        {"d": {"int8": {"t": "0"}, "low": 0.0, "step": 1e308}},
    ),
    {"d": {"top": {"t": "0"}, "values": {"t": "1"}, "shape": {"l": [10**30]}}},
    {"d": {"top": {"t": "0"}, "values": {"t": "1"}, "shape": {"l": [2**31, 2**31, 2**31]}}},
    {"d": {"top": {"t": "1"}, "values": {"t": "0"}, "shape": {"l": []}}},
]

ODD_TENSORS = [
    *(torch.zeros(shape) for shape in ((), (0,), (6,), (4, 6), (6, 4), (8, 12), (1,) * 70)),
    *(
        torch.ones(6, 4).to(kind)
        for kind in (torch.float8_e4m3fn, torch.float16, torch.float64, torch.complex64)
    ),
    *(torch.ones(6).to(kind) for kind in (torch.bool, torch.uint8, torch.int32, torch.int64, torch.bfloat16)),
    *(torch.full((6, 4), number) for number in (float("nan"), float("inf"), -1.0, 3e38)),
    *(torch.tensor([number] * 5, dtype=torch.int32) for number in (-1, 0, 95, 96, 2**31 - 1)),
]


def honest_letters() -> list[tuple[Wire, bytes]]:
    """Replies that are let in, one field each and all together, packed in every way; and a report."""
    kinds = kinds_of(SENDS)
    found = []
    for wire in WIRES:
        for fields in (*({name: value} for name, value in HONEST.items()), HONEST):
            packed = wire.pack(fields, kinds, "up", sent=SENT, residuals={}, lasting=("gradients",))
            found.append((wire, encode(packed)))
    return [*found, (WIRES[0], encode(REPORT))]


def open_letter(wire: Wire, data: bytes) -> str | None:
    """What the server does with a reply, or a report: the reason for which it is refused, if it is."""
    door = Door(Declaration(sends=SENDS, stages=("trained",)), wire, SIZES)
    around: dict[str, Any] = {"sent": SENT, "arrived": SENT, "own_model": lambda: WEIGHTS, "samples": 100}
    refusal = door.open(data, EMPTY, **around).refusal
    door.open(EMPTY, data, **around)
    return refusal


class Forger:
    """Makes hostile letters of honest ones."""

    def __init__(self, chance: random.Random, spoil: Callable[[bytes], bytes]) -> None:
        self.chance = chance
        self.spoil = spoil
        self.honest = honest_letters()
        self.apart = [(wire, *_taken_apart(data)) for wire, data in self.honest]

    def letter(self) -> tuple[Wire, bytes]:
        kind = self.chance.random()
        if kind < 0.25:
            wire, data = self.chance.choice(self.honest)
            return wire, self.spoil(data)
        if kind < 0.6:
            return self._of_other_values(*self.chance.choice(self.honest))
        wire, header, skeleton, body = self.chance.choice(self.apart)
        header, skeleton = json.loads(header), json.loads(skeleton)
        for _ in range(self.chance.choice((1, 1, 2))):
            self._change(skeleton if self.chance.random() < 0.6 or not header else header)
        if self.chance.random() < 0.2:
            body = self.spoil(body) if body else b"\x00"
        header["__metadata__"] = {METADATA_KEY: json.dumps(skeleton)}
        text = json.dumps(header).encode()
        return wire, len(text).to_bytes(8, "little") + text + body

    def _of_other_values(self, wire: Wire, data: bytes) -> tuple[Wire, bytes]:
        """A message as any other, of which one value is not what it should be; perhaps packed in another way."""
        fields = decode(data)
        tree: Any = fields
        key = self.chance.choice(list(tree))
        while isinstance(tree[key], (dict, list)) and tree[key] and self.chance.random() < 0.9:
            tree = tree[key]
            key = self.chance.choice(list(tree) if isinstance(tree, dict) else range(len(tree)))
        numbers: list[Any] = [
            None,
            -1,
            0,
            2**31,
            2**62,
            10**400,
            -0.5,
            1e300,
            float("nan"),
            "x",
            [],
            {},
            [2**31] * 3,
        ]
        tree[key] = self.chance.choice(ODD_TENSORS if self.chance.random() < 0.6 else numbers)
        return self.chance.choice(WIRES) if self.chance.random() < 0.2 else wire, encode(fields)

    def _change(self, tree: Any) -> None:
        """Change a random place below this one."""
        while True:
            keys = list(tree) if isinstance(tree, dict) else range(len(tree))
            if not keys:
                return
            key = self.chance.choice(keys)
            below = tree[key]
            if not (isinstance(below, (dict, list)) and below and self.chance.random() < 0.8):
                break
            tree = below
        how = self.chance.randrange(6)
        if how == 0 and isinstance(tree, dict):
            del tree[key]
        elif how == 1 and isinstance(tree, dict):
            tree[self.chance.choice(("x", "", "int8", "low", "weights", "t", "\ud800", "a.weight"))] = below
        elif how == 2 and isinstance(tree, list):
            tree.append(copy.deepcopy(self.chance.choice(ODD)))
        elif how == 3:
            deep = below
            for _ in range(self.chance.choice((1, 3, 70, 200))):
                deep = {"l": [deep]}
            tree[key] = deep
        else:
            tree[key] = copy.deepcopy(self.chance.choice(ODD))


def _taken_apart(data: bytes) -> tuple[str, str, bytes]:
    """The header without the skeleton, the skeleton, and the tensors' bytes."""
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    skeleton = header.pop("__metadata__")[METADATA_KEY]
    return json.dumps(header), skeleton, data[8 + length :]
