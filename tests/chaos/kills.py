"""Runs, their workers and sweeps are killed; what finishes must equal the undisturbed run bit for bit."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from tests.chaos.attack import Chaos, Tally
from tests.chaos.processes import (
    FORK,
    begin_or_resume,
    children_of,
    in_child,
    in_child_counting,
    kill,
    killed_before,
    results_of_sweep,
    shuffled,
)

import polyfed
from polyfed.experiments.sweep import plan_sweep
from polyfed.runs.checkpoint import read_lines
from polyfed.testing import result_of


def kills(chaos: Chaos) -> Iterator[Tally]:
    """Runs killed at random moments, with one and with two workers; and single workers."""
    whole, workers = Tally("runs killed at random moments"), Tally("workers killed at random moments")
    left_out = Tally("not compared: a client was left out, its worker killed twice in one step")
    configs = chaos.configs()
    known: dict[str, Any] = {}
    names = list(configs)
    for turn, _ in enumerate(chaos.until_time_is_up()):
        name = names[turn % len(names)]
        if name not in known:
            path = chaos.path(f"undisturbed-{name}")
            started = time.monotonic()
            in_child(partial(begin_or_resume, path, configs[name], 1))
            known[name] = result_of(path), time.monotonic() - started
        expected, seconds = known[name]
        count = chaos.chance.choice([1, 2])
        path = chaos.path(name)
        tally = workers if count == 2 and chaos.chance.random() < 0.5 else whole
        kills = _disturb(chaos, path, configs[name], count, seconds, only_workers=tally is workers)
        same = result_of(path) == expected
        if same or not _blamed_a_client(path):
            tally.count(None if same else f"{name}, {count} workers, after {kills} kills: another result")
        else:
            left_out.count(None)
        shutil.rmtree(path)
    yield from (whole, workers, left_out)


def _blamed_a_client(path: Path) -> bool:
    """Whether a client was left out because both tries of its step were hit, as is promised."""
    lines = read_lines(path / "history.jsonl")
    return any(
        "its worker died" in failure["reason"] for line in lines for failure in line.get("failures", ())
    )


def _disturb(
    chaos: Chaos, path: Path, config: dict[str, Any], workers: int, seconds: float, *, only_workers: bool
) -> int:
    kills = 0
    while not (path / "summary.json").exists():
        process = FORK.Process(target=begin_or_resume, args=(path, config, workers))
        process.start()
        patient = kills >= 6
        process.join(None if patient else chaos.chance.uniform(0.02, max(0.1, seconds)))
        while only_workers and process.is_alive() and not patient:
            children = children_of(process.pid or 0)
            if children:
                kill(chaos.chance.choice(children))
                kills += 1
            process.join(chaos.chance.uniform(0.02, max(0.1, seconds)))
            patient = kills >= 6
        if process.is_alive():
            if not patient:
                process.kill()
                kills += 1
            process.join()
        elif process.exitcode != 0 and patient:
            raise RuntimeError(f"{path} ended with exit code {process.exitcode}")
    return kills


def file_operations(chaos: Chaos) -> Iterator[Tally]:
    """A run killed before each change that it makes to the disk, one after the other."""
    tally = Tally("runs killed before a file operation")
    config = {**chaos.configs()["ktpfl"], "rounds": 2, "checkpoint_seconds": 0}
    path = chaos.path("whole")
    in_child(lambda: begin_or_resume(path, config, 1))
    expected = result_of(path)
    count = in_child_counting(lambda: begin_or_resume(chaos.path("counted"), config, 1))
    for _, place in zip(chaos.until_time_is_up(), shuffled(range(1, count + 1), chaos.chance), strict=False):
        path = chaos.path("operation")
        process = FORK.Process(target=killed_before, args=(place, path, config))
        process.start()
        process.join()
        in_child(partial(begin_or_resume, path, config, 1))
        same = result_of(path) == expected
        tally.count(None if same else f"killed before operation {place}: another result")
        shutil.rmtree(path)
    yield tally


def sweeps(chaos: Chaos) -> Iterator[Tally]:
    """Sweeps killed at random moments and begun again."""
    tally = Tally("sweeps killed at random moments")
    file = chaos.path("sweep").with_suffix(".yaml")
    config = {**chaos.configs()["local"], "models": {"names": ["mlp-small"]}}
    del config["method"]
    file.write_text(yaml.safe_dump(config))
    sets = {"method": ["local", "fedavg"]}

    def do(out: Path) -> None:
        polyfed.sweep(file, sets, seeds=2, out=out, workers=2)

    whole = chaos.path("whole-sweep")
    in_child(lambda: do(whole))
    expected = results_of_sweep(whole)
    for _ in chaos.until_time_is_up():
        out = chaos.path("swept")
        for attempt in range(50):
            process = FORK.Process(target=do, args=(out,))
            process.start()
            process.join(chaos.chance.uniform(0.1, 2.0) if attempt < 4 else None)
            if process.is_alive():
                process.kill()
            process.join()
            if process.exitcode == 0:
                break
        ready = plan_sweep(file, sets, 2, out)
        complete = all((job.path / "summary.json").exists() for job in ready.jobs)
        same = complete and results_of_sweep(out) == expected
        tally.count(None if same else "another result")
        shutil.rmtree(out)
    yield tally
