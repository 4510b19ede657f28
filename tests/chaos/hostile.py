"""Messages, run directories, data and run files are spoilt; an error of one line or the same result comes of it."""

from __future__ import annotations

import io
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from PIL import Image
from tests.chaos.attack import Chaos, Tally
from tests.chaos.letters import Forger, open_letter
from tests.chaos.processes import begin_or_resume, in_child, stop_half_way

import polyfed
from polyfed.cli import commands
from polyfed.data import load
from polyfed.errors import DataError, UserError
from polyfed.runs.history import RunRecord


def messages(chaos: Chaos) -> Iterator[Tally]:
    """Replies that are spoilt or forged, from their bytes to their fields; those that nobody touched are let in."""
    tally = Tally("hostile messages")
    forger = Forger(chaos.chance, chaos.spoilt)
    for wire, data in forger.honest[:-1]:
        reason = open_letter(wire, data)
        tally.count(f"an honest one is refused: {reason}" if reason else None)
    for _ in chaos.until_time_is_up():
        for _ in range(500):
            wire, data = forger.letter()
            try:
                open_letter(wire, data)
                tally.count(None)
            except BaseException as error:  # whatever it is, it is the finding
                tally.count(f"{type(error).__name__}: {error!s:.200} in {data!r:.2000}")
    yield tally


def directories(chaos: Chaos) -> Iterator[Tally]:
    """Finished and stopped runs with a damaged file, read by every reader."""
    tally = Tally("damaged run directories")
    config = {**chaos.configs()["dsfl"], "checkpoint_seconds": 0}
    finished, stopped = chaos.path("finished"), chaos.path("stopped")
    in_child(lambda: begin_or_resume(finished, config, 1))
    in_child(lambda: stop_half_way(stopped, config))
    summary = result_in(finished)
    for _ in chaos.until_time_is_up():
        path = chaos.path("damaged")
        shutil.copytree(chaos.chance.choice([finished, stopped]), path)
        files = [file for file in sorted(path.rglob("*")) if file.is_file() and file.name != ".lock"]
        file = chaos.chance.choice(files)
        file.write_bytes(chaos.spoilt(file.read_bytes()))
        for reader, read in READERS.items():
            failure = told_in_a_line(partial(read, path))
            tally.count(f"{reader} after damage to {file.relative_to(path)}: {failure}" if failure else None)
        if (path / "summary.json").exists() and not told_of(path):
            same = result_in(path) == summary
            tally.count(None if same else f"damage to {file.relative_to(path)} went unnoticed")
        shutil.rmtree(path)
    yield tally


def data(chaos: Chaos) -> Iterator[Tally]:
    """Tables, arrays and images whose bytes are changed or cut."""
    tally = Tally("hostile data files")
    folder = chaos.path("data")
    folder.mkdir()
    originals = data_files(folder)
    for _ in chaos.until_time_is_up():
        original = chaos.chance.choice(originals)
        file = folder / f"spoilt{original.suffix}"
        if original.is_dir():
            target = folder / "images-spoilt"
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree(original, target)
            image = chaos.chance.choice(sorted(target.rglob("*.png")))
            image.write_bytes(chaos.spoilt(image.read_bytes()))
            file = target
        else:
            file.write_bytes(chaos.spoilt(original.read_bytes()))
        cache = folder / "cache"
        failure = told_in_a_line(partial(load, file, cache_dir=cache), DataError)
        tally.count(f"{original.name}: {failure}" if failure else None)
        shutil.rmtree(cache, ignore_errors=True)
    yield tally


def run_files(chaos: Chaos) -> Iterator[Tally]:
    """Run files whose bytes are changed or cut, through the command line."""
    tally = Tally("hostile run files")
    whole = yaml.safe_dump(chaos.configs()["fedavg"]).encode()
    file = chaos.path("spoilt").with_suffix(".yaml")
    for _ in chaos.until_time_is_up():
        file.write_bytes(chaos.spoilt(whole))
        code, said = command("partition", str(file), "-o", str(chaos.folder / "partition.png"))
        ok = code == 0 or (code == 2 and said.startswith("polyfed: ") and said.count("\n") == 1)
        tally.count(None if ok else f"exit code {code}: {said[:200]!r}")
    yield tally


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


def result_in(path: Path) -> dict[str, Any]:
    """A run's summary without the time that it took: a run that was stopped has gone on."""
    return {key: value for key, value in RunRecord(path).summary.items() if key != "seconds"}


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
