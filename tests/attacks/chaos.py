"""The long version of the attacks: `make chaos`. Prints what was tried and what failed, and fails if anything did.

    python -m tests.attacks.chaos --minutes 10 --seed 0 [--only kills,messages]

Runs are killed at random moments and before every change that they make to a file, over all methods and both engines,
and so are their workers and sweeps; what finishes must equal the undisturbed run bit for bit. Messages, run
directories, tables, images and run files are spoilt at random; what comes of it is an error of one line, or the same
result.
"""

from __future__ import annotations

import argparse
import io
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from PIL import Image
from rich import box
from rich.console import Console
from rich.table import Table

import polyfed
from polyfed.cli import commands
from polyfed.data import load
from polyfed.errors import DataError, MessageError, UserError
from polyfed.experiments.sweep import plan_sweep
from polyfed.federation.message import decode, encode
from polyfed.federation.method import Need, registered
from polyfed.learn import Training
from polyfed.runs.history import RunRecord
from polyfed.testing import result_of

FORK = multiprocessing.get_context("fork")
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
CHANGES = ("os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate")


@dataclass
class Tally:
    """What was tried of one kind, and what failed."""

    what: str
    tried: int = 0
    failures: list[str] = field(default_factory=list)

    def count(self, failure: str | None) -> None:
        self.tried += 1
        if failure:
            self.failures.append(failure)


class Chaos:
    """Attacks in a folder of their own, each kind for its share of the time."""

    def __init__(self, folder: Path, seed: int, seconds: float) -> None:
        self.folder = folder
        self.chance = random.Random(seed)
        self.seconds = seconds
        self.number = 0

    def path(self, name: str) -> Path:
        self.number += 1
        return self.folder / f"{name}-{self.number}"

    def until_time_is_up(self) -> Iterator[None]:
        """At least once, then as long as there is time."""
        end = time.monotonic() + self.seconds
        yield
        while time.monotonic() < end:
            yield

    # -- kills -----------------------------------------------------------------------------------------------

    def configs(self) -> dict[str, dict[str, Any]]:
        """A small run of every method."""
        found = {}
        for name, kind in registered().items():
            needs = kind(kind.Settings(), Training()).needs
            content: dict[str, Any] = {
                "method": name,
                "rounds": 4,
                "data": {"limit": 300, "clients": 4, "public": {"source": "share", "share": 0.2}},
                "models": {"names": ["mlp-small", "cnn-small"], "features": 16, "server": "mlp-small"},
                "training": {"batch": 16, "momentum": 0.9},
                "cohort": {"fraction": 0.75},
                "checkpoint_seconds": self.chance.choice([0, 0.2]),
            }
            if Need.COMMON_ARCHITECTURE in needs:
                content["models"]["names"] = ["mlp-small"]
            found[name] = content
        return found

    def kills(self) -> Iterator[Tally]:
        """Runs killed at random moments, with one and with two workers; and single workers."""
        whole, workers = Tally("runs killed at random moments"), Tally("workers killed at random moments")
        configs = self.configs()
        known: dict[str, Any] = {}
        names = list(configs)
        for turn, _ in enumerate(self.until_time_is_up()):
            name = names[turn % len(names)]
            if name not in known:
                path = self.path(f"undisturbed-{name}")
                started = time.monotonic()
                in_child(partial(begin_or_resume, path, configs[name], 1))
                known[name] = result_of(path), time.monotonic() - started
            expected, seconds = known[name]
            count = self.chance.choice([1, 2])
            path = self.path(name)
            tally = workers if count == 2 and self.chance.random() < 0.5 else whole
            kills = self._disturb(path, configs[name], count, seconds, only_workers=tally is workers)
            same = result_of(path) == expected
            tally.count(None if same else f"{name}, {count} workers, after {kills} kills: another result")
            shutil.rmtree(path)
        yield from (whole, workers)

    def _disturb(
        self, path: Path, config: dict[str, Any], workers: int, seconds: float, *, only_workers: bool
    ) -> int:
        kills = 0
        while not (path / "summary.json").exists():
            process = FORK.Process(target=begin_or_resume, args=(path, config, workers))
            process.start()
            patient = kills >= 6
            process.join(None if patient else self.chance.uniform(0.02, max(0.1, seconds)))
            while only_workers and process.is_alive() and not patient:
                children = children_of(process.pid or 0)
                if children:
                    kill(self.chance.choice(children))
                    kills += 1
                process.join(self.chance.uniform(0.02, max(0.1, seconds)))
                patient = kills >= 6
            if process.is_alive():
                if not patient:
                    process.kill()
                    kills += 1
                process.join()
            elif process.exitcode != 0 and patient:
                raise RuntimeError(f"{path} ended with exit code {process.exitcode}")
        return kills

    def file_operations(self) -> Iterator[Tally]:
        """A run killed before each change that it makes to the disk, one after the other."""
        tally = Tally("runs killed before a file operation")
        config = {**self.configs()["ktpfl"], "rounds": 2, "checkpoint_seconds": 0}
        path = self.path("whole")
        in_child(lambda: begin_or_resume(path, config, 1))
        expected = result_of(path)
        count = in_child_counting(lambda: begin_or_resume(self.path("counted"), config, 1))
        for _, place in zip(
            self.until_time_is_up(), shuffled(range(1, count + 1), self.chance), strict=False
        ):
            path = self.path("operation")
            process = FORK.Process(target=killed_before, args=(place, path, config))
            process.start()
            process.join()
            in_child(partial(begin_or_resume, path, config, 1))
            same = result_of(path) == expected
            tally.count(None if same else f"killed before operation {place}: another result")
            shutil.rmtree(path)
        yield tally

    def sweeps(self) -> Iterator[Tally]:
        """Sweeps killed at random moments and begun again."""
        tally = Tally("sweeps killed at random moments")
        file = self.path("sweep").with_suffix(".yaml")
        config = {**self.configs()["local"], "models": {"names": ["mlp-small"]}}
        del config["method"]
        file.write_text(yaml.safe_dump(config))
        sets = {"method": ["local", "fedavg"]}

        def do(out: Path) -> None:
            polyfed.sweep(file, sets, seeds=2, out=out, workers=2)

        whole = self.path("whole-sweep")
        in_child(lambda: do(whole))
        expected = results_of_sweep(whole)
        for _ in self.until_time_is_up():
            out = self.path("swept")
            for attempt in range(50):
                process = FORK.Process(target=do, args=(out,))
                process.start()
                process.join(self.chance.uniform(0.1, 2.0) if attempt < 4 else None)
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

    # -- hostile bytes ---------------------------------------------------------------------------------------

    def messages(self) -> Iterator[Tally]:
        """Messages whose bytes are changed, cut or made up."""
        tally = Tally("hostile messages")
        honest = [
            encode({"weights": {"a": torch.zeros(3, 4), "b": torch.ones(2)}, "n": 3, "list": [1, "x", None]}),
            encode({"logits": torch.randn(5, 10)}),
        ]
        for _ in self.until_time_is_up():
            for _ in range(500):
                data = self.spoilt(self.chance.choice(honest))
                try:
                    decode(data)
                    tally.count(None)
                except MessageError:
                    tally.count(None)
                except BaseException as error:  # whatever it is, it is the finding
                    tally.count(f"{type(error).__name__}: {error}")
        yield tally

    def directories(self) -> Iterator[Tally]:
        """Finished and stopped runs with a damaged file, read by every reader."""
        tally = Tally("damaged run directories")
        config = {**self.configs()["dsfl"], "checkpoint_seconds": 0}
        finished, stopped = self.path("finished"), self.path("stopped")
        in_child(lambda: begin_or_resume(finished, config, 1))
        in_child(lambda: stop_half_way(stopped, config))
        summary = RunRecord(finished).summary
        for _ in self.until_time_is_up():
            path = self.path("damaged")
            shutil.copytree(self.chance.choice([finished, stopped]), path)
            files = [file for file in sorted(path.rglob("*")) if file.is_file() and file.name != ".lock"]
            file = self.chance.choice(files)
            file.write_bytes(self.spoilt(file.read_bytes()))
            for reader, read in READERS.items():
                failure = told_in_a_line(partial(read, path))
                tally.count(
                    f"{reader} after damage to {file.relative_to(path)}: {failure}" if failure else None
                )
            if (path / "summary.json").exists() and not told_of(path):
                same = RunRecord(path).summary == summary
                tally.count(None if same else f"damage to {file.relative_to(path)} went unnoticed")
            shutil.rmtree(path)
        yield tally

    def data(self) -> Iterator[Tally]:
        """Tables, arrays and images whose bytes are changed or cut."""
        tally = Tally("hostile data files")
        folder = self.path("data")
        folder.mkdir()
        originals = data_files(folder)
        for _ in self.until_time_is_up():
            original = self.chance.choice(originals)
            file = folder / f"spoilt{original.suffix}"
            if original.is_dir():
                target = folder / "images-spoilt"
                shutil.rmtree(target, ignore_errors=True)
                shutil.copytree(original, target)
                image = self.chance.choice(sorted(target.rglob("*.png")))
                image.write_bytes(self.spoilt(image.read_bytes()))
                file = target
            else:
                file.write_bytes(self.spoilt(original.read_bytes()))
            cache = folder / "cache"
            failure = told_in_a_line(partial(load, file, cache_dir=cache), DataError)
            tally.count(f"{original.name}: {failure}" if failure else None)
            shutil.rmtree(cache, ignore_errors=True)
        yield tally

    def run_files(self) -> Iterator[Tally]:
        """Run files whose bytes are changed or cut, through the command line."""
        tally = Tally("hostile run files")
        whole = yaml.safe_dump(self.configs()["fedavg"]).encode()
        file = self.path("spoilt").with_suffix(".yaml")
        for _ in self.until_time_is_up():
            file.write_bytes(self.spoilt(whole))
            code, said = command("partition", str(file), "-o", str(self.folder / "partition.png"))
            ok = code == 0 or (code == 2 and said.startswith("polyfed: ") and said.count("\n") == 1)
            tally.count(None if ok else f"exit code {code}: {said[:200]!r}")
        yield tally

    def spoilt(self, data: bytes) -> bytes:
        """These bytes with a few changed, some lost, or some from elsewhere."""
        kind = self.chance.randrange(6)
        if kind == 0:
            return data[: self.chance.randrange(len(data) + 1)]
        if kind == 1:
            return self.chance.randbytes(self.chance.randrange(200))
        if kind == 2:
            place, length = self.chance.randrange(len(data) + 1), self.chance.randrange(40)
            return data[:place] + data[place + length :]
        if kind == 3:
            place = self.chance.randrange(len(data) + 1)
            return data[:place] + self.chance.randbytes(self.chance.randrange(1, 20)) + data[place:]
        changed = bytearray(data)
        for _ in range(self.chance.randrange(1, 6)):
            if changed:
                changed[self.chance.randrange(len(changed))] ^= 1 << self.chance.randrange(8)
        return bytes(changed)


# -- processes -----------------------------------------------------------------------------------------------


def begin_or_resume(path: Path, config: dict[str, Any], workers: int) -> None:
    torch.set_num_threads(1)
    if (path / "manifest.json").exists():
        polyfed.resume(path, workers=workers)
    else:
        polyfed.run(config, out=path, workers=workers)


def stop_half_way(path: Path, config: dict[str, Any]) -> None:
    run = polyfed.prepare(config, out=path, workers=1)
    run.go(lambda now: now.stop() if now.round == 2 else None)
    run.close()


def in_child(work: Callable[[], None]) -> None:
    process = FORK.Process(target=work)
    process.start()
    process.join()
    if process.exitcode != 0:
        raise RuntimeError(f"a run that nobody disturbed ended with exit code {process.exitcode}")


def on_changes(act: Callable[[], None]) -> None:
    """Call a function before every change that this process makes to the disk from now on."""

    def look(event: str, details: tuple[Any, ...]) -> None:
        if event in CHANGES or (event == "open" and isinstance(details[2], int) and details[2] & WRITES):
            act()

    sys.addaudithook(look)


def killed_before(place: int, path: Path, config: dict[str, Any]) -> None:
    seen = [0]

    def die_in_time() -> None:
        seen[0] += 1
        if seen[0] == place:
            os.kill(os.getpid(), signal.SIGKILL)

    on_changes(die_in_time)
    begin_or_resume(path, config, 1)


def in_child_counting(work: Callable[[], None]) -> int:
    """How many changes to the disk some work makes."""
    count = FORK.RawValue("q", 0)

    def counted() -> None:
        def add() -> None:
            count.value += 1

        on_changes(add)
        work()

    in_child(counted)
    return int(count.value)


def children_of(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def results_of_sweep(folder: Path) -> dict[str, Any]:
    runs = sorted(file.parent for file in folder.rglob("summary.json"))
    return {str(run.relative_to(folder)): result_of(run) for run in runs}


def shuffled(numbers: range, chance: random.Random) -> list[int]:
    mixed = list(numbers)
    chance.shuffle(mixed)
    return mixed


# -- readers and files ---------------------------------------------------------------------------------------


def resumed_in_a_copy(path: Path) -> None:
    polyfed.resume(path, workers=1)


READERS: dict[str, Callable[[Path], Any]] = {
    "compare": lambda path: command_or_raise("compare", str(path), "--no-figure"),
    "load_model": lambda path: polyfed.load_model(path, "client-1"),
    "summary": lambda path: RunRecord(path).summary,
    "history": lambda path: RunRecord(path).evaluations,
    "ledger": lambda path: RunRecord(path).ledger,
    "resume": resumed_in_a_copy,
}


def told_of(path: Path) -> bool:
    """Whether who reads a run's result is told that it is damaged."""
    try:
        return not RunRecord(path).summary
    except UserError:
        return True


def told_in_a_line(work: Callable[[], Any], kind: type[Exception] = UserError) -> str | None:
    """What went wrong in another way than by an error of one line; None if nothing did."""
    try:
        work()
    except kind as error:
        return None if len(str(error).splitlines()) == 1 else f"several lines: {error}"
    except BaseException as error:  # whatever it is, it is the finding
        return f"{type(error).__name__}: {error}"
    return None


@contextmanager
def swallowed() -> Iterator[io.StringIO]:
    out, err = sys.stdout, sys.stderr
    sys.stdout = sys.stderr = said = io.StringIO()
    try:
        yield said
    finally:
        sys.stdout, sys.stderr = out, err


def command(*words: str) -> tuple[int, str]:
    """A command's exit code and what it wrote on stderr (and on stdout, where that goes through `sys`)."""
    before, sys.argv = sys.argv, ["polyfed", *words]
    with swallowed() as said:
        try:
            commands.main()
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
        except BaseException as error:
            code = -1
            said.write(f"{type(error).__name__}: {error}")
        finally:
            sys.argv = before
    lines = [line for line in said.getvalue().splitlines() if line.startswith("polyfed: ")]
    return code, f"{lines[-1]}\n" if lines else said.getvalue()


def command_or_raise(*words: str) -> None:
    code, said = command(*words)
    if code == 2:
        raise UserError(said.strip())
    if code:
        raise RuntimeError(said)


def data_files(folder: Path) -> list[Path]:
    """A table, a parquet file, arrays and a folder of images."""
    import pyarrow as pa
    import pyarrow.parquet

    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 3))
    labels = np.where(x[:, 0] > 0, "yes", "no")
    rows = [",".join([*(f"{value:.4f}" for value in row), word]) for row, word in zip(x, labels, strict=True)]
    (folder / "table.csv").write_text("\n".join(["a,b,c,label", *rows]) + "\n")
    columns = {"a": x[:, 0], "b": x[:, 1], "label": labels}
    pyarrow.parquet.write_table(pa.table(columns), folder / "table.parquet")
    np.savez(folder / "arrays.npz", x=x.astype(np.float32), y=(x[:, 0] > 0).astype(np.int64))
    for word in ("cat", "dog"):
        (folder / "images" / word).mkdir(parents=True)
        for number in range(4):
            pixels = rng.integers(0, 255, (10, 10, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / "images" / word / f"{number}.png")
    return [folder / name for name in ("table.csv", "table.parquet", "arrays.npz", "images")]


ATTACKS: dict[str, Callable[[Chaos], Iterator[Tally]]] = {
    "kills": Chaos.kills,
    "file-operations": Chaos.file_operations,
    "sweeps": Chaos.sweeps,
    "messages": Chaos.messages,
    "directories": Chaos.directories,
    "data": Chaos.data,
    "run-files": Chaos.run_files,
}
SHARES = {"kills": 4.0, "file-operations": 3.0, "sweeps": 2.0}  # of the time; of all others 1


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.attacks.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="how long it may take, in all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default=",".join(ATTACKS), help=f"of {', '.join(ATTACKS)}")
    wanted = parser.parse_args()
    names = wanted.only.split(",")
    whole = sum(SHARES.get(name, 1.0) for name in names)
    tallies: list[Tally] = []
    with tempfile.TemporaryDirectory() as folder:
        os.environ["POLYFED_CACHE"] = f"{folder}/cache"
        for name in names:
            seconds = 60 * wanted.minutes * SHARES.get(name, 1.0) / whole
            chaos = Chaos(Path(folder), wanted.seed, seconds)
            chaos.folder = Path(folder) / name
            chaos.folder.mkdir()
            for tally in ATTACKS[name](chaos):
                sys.stdout.write(f"{tally.what}: {tally.tried} tried, {len(tally.failures)} failed\n")
                sys.stdout.flush()
                tallies.append(tally)
    table = Table("what", "tried", "failed", box=box.SIMPLE_HEAD)
    for tally in tallies:
        table.add_row(tally.what, f"{tally.tried:,}", f"{len(tally.failures):,}")
    console = Console()
    console.print(table)
    for tally in tallies:
        for failure in tally.failures[:20]:
            console.print(f"{tally.what}: {failure}", markup=False, soft_wrap=True)
    return int(any(tally.failures for tally in tallies))


if __name__ == "__main__":
    sys.exit(main())
