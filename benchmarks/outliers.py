"""How far honest clients differ in the size of their replies: `python -m benchmarks.outliers`.

Every method of the overview and of `benchmarks/defaults.yaml`, and the demo's run file; one seed, 20 rounds. Printed
are the largest extents of replies beside the median of their cohort, or what was sent: what `outliers` in a run file is
compared with (default 20). Minutes on one core.
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import polyfed
from polyfed.federation import fleet
from polyfed.federation.outliers import Extents, ratios
from polyfed.runs.keys import set_key
from polyfed.yaml_files import read_yaml

HERE = Path(__file__).parent
FILES = [HERE / "defaults.yaml", *(Path(polyfed.__file__).parent / "examples").glob("[do]*.yaml")]
ROUNDS = 20
SHOWN = 10


def largest_ratios(config: dict[str, Any]) -> dict[str, float]:
    """By field, how many times larger than the others' a reply was in a run."""
    found: dict[str, float] = {}

    def note(cohort: Mapping[int, Extents], _factor: float) -> dict[int, str]:
        for of_client in ratios(cohort).values():
            for part, ratio in of_client.items():
                found[part] = max(found.get(part, 0.0), ratio)
        return {}

    with mock.patch.object(fleet, "outliers", note), tempfile.TemporaryDirectory() as folder:
        polyfed.run(config, out=Path(folder) / "run", engine="inline")
    return found


def main() -> None:
    measured: dict[tuple[str, str], float] = {}
    for file in FILES:
        content = read_yaml(file, "")
        for name, changes in content.pop("variants", {content["method"]: {}}).items():
            config = copy.deepcopy(content)
            for key, value in changes.items():
                set_key(config, key, value)
            config |= {"rounds": min(config.get("rounds", ROUNDS), ROUNDS), "evaluate": {"every": ROUNDS}}
            for part, ratio in largest_ratios(config).items():
                measured[name, part] = max(measured.get((name, part), 0.0), ratio)
    print(f"the largest of {len(measured)} fields of methods; a run leaves out what is over 20:")
    for (name, part), ratio in sorted(measured.items(), key=lambda each: -each[1])[:SHOWN]:
        print(f"{name:>16} {part:<30} {ratio:6.2f}")


if __name__ == "__main__":
    main()
