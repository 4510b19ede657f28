"""The demo: what learning from each other is worth, in a minute."""

from __future__ import annotations

from pathlib import Path

from polyfed.cli.examples import yaml_text
from polyfed.cli.running import COMPARED, draw_comparison, go, show_comparison
from polyfed.cli.screen import say
from polyfed.report.comparison import compare_runs
from polyfed.runs import api
from polyfed.runs.folders import unused_folder

DEMO_WORDS = """\
How to read it: `local` is every client alone, `pooled` is what one place with everybody's data would reach. A method
is good if it comes close to `pooled` while only knowledge travels. Here the clients have different models, so FedAvg
can only average weights among clients of the same model; FedMD and DS-FL exchange what each model says of a few public
images instead, and reach every client.
Everything is in {folder}; to change it: polyfed run {folder}/demo.yaml --set method=local --out my-run"""


def demo(out: Path, workers: int | None) -> None:
    """Run every method of the demo and compare them."""
    example = yaml_text("demo.yaml")
    folder = unused_folder(out / "demo")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "demo.yaml").write_text(example)
    paths = []
    for name in ("local", "aggregated", "fedavg", "fedmd", "dsfl", "pooled"):
        overrides = [f"method.name={name}", f"name={name}"]
        overrides += ["method.within=architecture"] if name == "fedavg" else []
        ready = api.prepare(folder / "demo.yaml", overrides=overrides, out=folder / name, workers=workers)
        go(ready)
        paths.append(folder / name)
    comparison = compare_runs(paths)
    show_comparison(comparison)
    draw_comparison(comparison, folder / COMPARED)
    say(DEMO_WORDS.format(folder=folder))
