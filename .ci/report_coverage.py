"""Prints how much of polyfed the tests run: the modules below 90 %, and the total. `make coverage` calls it."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import coverage

LEAST = 90.0


def main() -> None:
    measured = coverage.Coverage()
    measured.load()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "coverage.json"
        measured.json_report(outfile=str(file))
        found = json.loads(file.read_text())
    modules = {path: module["summary"]["percent_covered"] for path, module in found["files"].items()}
    low = sorted((share, path) for path, share in modules.items() if share < LEAST)
    lines = [f"{share:5.1f} %  {path}" for share, path in low]
    total = found["totals"]["percent_covered"]
    lines.append(f"{total:5.1f} %  in all; {len(low)} of {len(modules)} modules are below {LEAST:.0f} %")
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
