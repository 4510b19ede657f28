"""The demo: what learning from each other is worth, in a minute."""

from __future__ import annotations

from pathlib import Path

from polyfed.cli.examples import yaml_text
from polyfed.cli.running import go, show_comparison
from polyfed.cli.screen import say
from polyfed.report.comparison import compare_runs
from polyfed.report.tables import percent, sent_words, signed
from polyfed.runs import api
from polyfed.runs.folders import unused_folder
from polyfed.runs.history import RunRecord

METHODS = {
    "local": [],
    "fedavg": ["method.within=architecture"],
    "fedmd": ["method.public_training=null", "method.global=false"],
    "dsfl": [],
    "pooled": [],
}
"""What is run, and what must be set where models differ, public images have no labels, and the server has no model."""

LINES = {
    "pooled": "pooled: all data in one place",
    "dsfl": "DS-FL: probabilities",
    "fedmd": "FedMD: logits",
    "fedavg": "FedAvg: weights, among equal models",
    "local": "local: every client alone",
}
"""What the picture says of each."""

CAPTION = (
    "`polyfed demo`: 1,797 digits, 8 clients with 4 architectures, Dirichlet α = 0.3; a fifth of the training images"
    " is public, without labels. One seed ({seed})."
)

WORDS = """\
How to read it: alone (`local`), a client gets {local} % of all digits right, for it has seen too few of most; with \
everybody's data in one place (`pooled`), {pooled} %. Between clients that keep their data, only knowledge travels. \
What it adds to {local} %:
  fedavg  {fedavg:>5}  weights, averaged among the two clients that have the same model ({fedavg_sent} from each client)
  fedmd   {fedmd:>5}  what every model says of public images, as logits ({fedmd_sent})
  dsfl    {dsfl:>5}  the same as probabilities, the mean of which is sharpened ({dsfl_sent})
The public images have no labels: what clients learn of them, they learn from each other. One seed on a small data set \
is an illustration, not a ranking.
The picture is {folder}/demo.png, all else is beside it; to change something: \
polyfed run {folder}/demo.yaml --set data.partition.alpha=1 --out my-run"""


def demo(out: Path, workers: int | None) -> None:
    """Run every method of the demo, compare them, and draw what came out."""
    folder = unused_folder(out / "demo")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "demo.yaml").write_text(yaml_text("demo.yaml"))
    for name, settings in METHODS.items():
        overrides = [f"method.name={name}", f"name={name}", *settings]
        go(api.prepare(folder / "demo.yaml", overrides=overrides, out=folder / name, workers=workers))
    records = {name: RunRecord(folder / name) for name in METHODS}
    show_comparison(compare_runs(record.path for record in records.values()))
    say(_explained(records, folder))
    # Imported only where something is drawn: matplotlib takes half a second of every launch.
    from polyfed.report.score_and_cost import score_and_cost  # noqa: PLC0415

    caption = CAPTION.format(seed=records["local"].config["seed"])
    score_and_cost({LINES[name]: records[name] for name in LINES}, folder / "demo.png", caption)


def _explained(records: dict[str, RunRecord], folder: Path) -> str:
    """How to read the table, with the numbers that were measured."""
    local = records["local"]
    known = {name: percent(records[name].summary["last"]["whole"]["mean"]) for name in ("local", "pooled")}
    gains = {
        name: signed(records[name].gain_over(local)["whole"], local.task)
        for name in ("fedavg", "fedmd", "dsfl")
    }
    sent = {f"{name}_sent": sent_words(records[name].summary) for name in gains}
    return WORDS.format(folder=folder, **known, **gains, **sent)
