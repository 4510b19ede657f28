"""Digests of what every method makes, in small runs: a change that must not alter results leaves all of them alone.

python -m benchmarks.digests > before.txt     (on the commit before)
python -m benchmarks.digests > after.txt      (on this one)
diff before.txt after.txt
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from tests.test_contract import VARIANTS

from polyfed.disk import digest
from polyfed.engines import Inline
from polyfed.federation.method import registered
from polyfed.testing import Trial, result_of


def main() -> None:
    cases: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
        **{name: (name, {}, {}) for name in registered()},
        **VARIANTS,
    }
    for title, (name, settings, config) in cases.items():
        with tempfile.TemporaryDirectory() as folder:
            path = Trial(registered()[name], settings, config, Path(folder)).run("run", Inline())
            found = {
                what: digest(json.dumps(content, sort_keys=True).encode())[:12]
                for what, content in result_of(path).items()
            }
        print(title, *(f"{what} {value}" for what, value in found.items()), sep="; ", flush=True)


if __name__ == "__main__":
    main()
