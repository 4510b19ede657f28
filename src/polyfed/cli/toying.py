"""The toy: three clients in the plane, and what a server makes of what they know."""

from __future__ import annotations

from pathlib import Path

from polyfed.cli.running import go
from polyfed.cli.screen import say, tell
from polyfed.experiments import toy as problem
from polyfed.federation.method import find
from polyfed.report.tables import percent
from polyfed.runs.folders import unused_folder

ALONE = "local"
PICTURE_SIDE = 200  # points, of the regions that are drawn
SEED = 0


def toy(wanted: str | None, out: Path, rounds: int) -> None:
    """Run a method on the toy, and every client alone; draw the regions of all models and say how true they are."""
    method = wanted or problem.METHOD
    find(method)  # a name that nobody has is told before anything is written
    folder = unused_folder(out / "toy")
    points = problem.write_points(folder / "points", SEED)
    square = problem.square(PICTURE_SIDE)
    said = {}
    for name in dict.fromkeys([ALONE, method]):
        run = problem.prepare(name, points, folder / name, rounds, SEED)
        go(run)
        said[name] = problem.regions(run, square)
    for name, regions in said.items():
        words = ", ".join(f"{who} {percent(region.accuracy)} %" for who, region in regions.items())
        say(f"{name}: {words}")
    tell("right on a grid of true points; a client that knows its two classes alone can reach 67 %")
    say(f"wrote {_draw(said, method, folder)}; the runs and the points are beside it")


def _draw(said: dict[str, dict[str, problem.Region]], method: str, folder: Path) -> Path:
    # Imported only where something is drawn: matplotlib takes half a second of every launch.
    from polyfed.report.regions import Panel, decision_regions  # noqa: PLC0415

    seen = problem.seen_points(SEED)
    square = problem.square(PICTURE_SIDE)
    shape = (PICTURE_SIDE, PICTURE_SIDE)
    rows = []
    for name, regions in said.items():
        panels = [
            Panel(
                f"{region.title}\n{percent(region.accuracy)} % right",
                region.classes.reshape(shape),
                *seen.get(who, (None, None)),
            )
            for who, region in regions.items()
        ]
        if name == ALONE:
            panels.append(Panel("the true classes\n", problem.true_class(square).reshape(shape)))
        rows.append(("every client alone" if name == ALONE else name, panels))
    title = f"{method} on FedORION's toy: three clients, each of which has seen two of three classes"
    note = "Dots are what a client has seen; right is measured within the circle of radius 1 that they were drawn from."
    return decision_regions(rows, folder / "toy.png", title, note)
