"""Which settings the examples should have: `python -m benchmarks.examples [NAME …]`.

Every variant of an example is run with each learning rate of a list, and what else is listed for it, with seeds 100 to
109. The settings with the best score on validation rows at the last round (mean over seeds) are marked; test rows are
not looked at. The tables of examples/README.md are of seeds 10 to 14. A quarter of an hour on two cores.
"""

from __future__ import annotations

import itertools
import os
import runpy
import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polyfed
from polyfed.runs.keys import set_key
from polyfed.yaml_files import read_yaml

EXAMPLES = Path(__file__).parents[1] / "examples"
FIRST_SEED, SEEDS = 100, 10
RATE = "training.lr"
WITH_RATE = ("method.public_training.lr", "method.private_training.lr")
"""Set to the same learning rate, where a method has these settings and the example's labels are public."""


@dataclass(frozen=True)
class Choice:
    """What is tried for an example."""

    rates: Sequence[float]
    further: Mapping[str, Mapping[str, Sequence[Any]]] = field(default_factory=dict)
    """By variant, values of other keys."""
    tied: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """By variant, keys that are given the learning rate too."""


CHOICES = {
    "diabetes": Choice(
        (0.005, 0.01, 0.02, 0.05, 0.1),
        {"fedmd": {"method.distil.lr": (0.02, 0.05, 0.1), "method.distil.loss": ("l1", "l2")}},
        {"fedmd": WITH_RATE},
    ),
    "screening": Choice((0.1, 0.3, 1.0)),
    "attributes": Choice(
        (0.1, 0.3, 1.0),
        {
            "fedmd": {"method.distil.lr": (0.1, 0.3, 1.0)},
            "dsfl": {"method.distil.lr": (0.01, 0.03, 0.1), "method.sharpen": (0.25, 0.5, 1.0)},
        },
        {"fedmd": WITH_RATE},
    ),
    "messages": Choice((0.01, 0.03, 0.1), {"fedmd": {"method.distil.lr": (0.01, 0.03, 0.1)}}),
    "heads": Choice((0.001, 0.003, 0.01, 0.03)),
}


def tried(variant: str, choice: Choice) -> Iterator[dict[str, Any]]:
    """The settings that are tried for a variant."""
    further = choice.further.get(variant, {})
    for rate, *values in itertools.product(choice.rates, *further.values()):
        tied = dict.fromkeys(choice.tied.get(variant, ()), rate)
        yield {RATE: rate, **tied, **dict(zip(further, values, strict=True))}


def choose(name: str) -> None:
    """Print what each variant of an example reaches on validation rows with each of its settings."""
    content = read_yaml(Path(f"{name}.yaml"), "")
    candidates: dict[str, tuple[str, dict[str, Any]]] = {}
    variants: dict[str, dict[str, Any]] = {}
    for variant, changes in content.pop("variants").items():
        for number, settings in enumerate(tried(variant, CHOICES[name])):
            key = f"{variant}-{number}"
            candidates[key] = variant, settings
            variants[key] = with_settings(changes, settings)
    done = polyfed.sweep({**content, "seed": FIRST_SEED, "variants": variants}, seeds=SEEDS, out="sweep")
    scores: dict[str, dict[str, float]] = {}
    for key, records in done.runs.items():
        found = [record.criterion.of_round({"summary": record.summary["last"]}) for record in records]
        scores.setdefault(candidates[key][0], {})[key] = statistics.fmean(f for f in found if f is not None)
    for variant, reached in scores.items():
        best = max(reached, key=lambda key: reached[key])
        for key, score in reached.items():
            told = ", ".join(f"{at}={value}" for at, value in candidates[key][1].items())
            print(f"{'*' if key == best else ' '} {name:<10} {variant:<9} {abs(score):8.4f}  {told}")


def with_settings(changes: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """A variant with other settings; those of its method go into the section that it has."""
    content: dict[str, Any] = {}
    for key, value in {**changes, **settings}.items():
        if key == "method" and isinstance(value, str):
            content["method"] = {"name": value}
        elif key.startswith("method."):
            set_key(content, key, value)
        else:
            content[key] = value
    return content


def main() -> None:
    for name in sys.argv[1:] or CHOICES:
        with tempfile.TemporaryDirectory() as folder:
            for file in (EXAMPLES / name).iterdir():
                if file.is_file():
                    shutil.copy(file, folder)
            os.chdir(folder)
            sys.path.insert(0, folder)
            runpy.run_path(next(Path(folder).glob("make_*.py")).name, run_name="__main__")
            choose(name)
            os.chdir(EXAMPLES)


if __name__ == "__main__":
    main()
