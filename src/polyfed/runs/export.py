"""A trained model as one file that takes raw rows and gives its answer, for programs that know nothing of polyfed.

ONNX or TorchScript. Normalisation is inside; what it takes and what its answers mean is in the file's metadata. A file
is run before it is put in its place: one whose answers are not the model's is not left behind.
"""

from __future__ import annotations

import importlib.util
import io
import json
import logging
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

import polyfed
from polyfed import disk, models
from polyfed.data import InputForm
from polyfed.errors import ConfigError, ModelError, describe
from polyfed.runs.api import load_model
from polyfed.runs.history import RunRecord
from polyfed.runs.trained import form_of, predict, task_of
from polyfed.tasks import Task, Trait

Rows: TypeAlias = npt.NDArray[Any]
Answers: TypeAlias = npt.NDArray[np.float32]

INPUT = "rows"
METADATA_FILE = "polyfed.json"  # in a TorchScript file
TOLERANCE = 1e-4  # of a probability, or of the largest number: other programs add up in another order
TRACED_ROWS, TRIED_ROWS = 3, (1, 8)
_ONNX_PACKAGES = ("onnx", "onnxscript", "onnxruntime")


def export(
    path: str | Path,
    name: str,
    out: str | Path,
    make: Callable[[], nn.Module] | None = None,
    *,
    as_client: str | None = None,
    trust: models.Trust = (),
) -> Path:
    """Write a final model of a finished run as one file that takes raw rows: `export(dir, "north", "north.onnx")`.

    The file takes `rows` as they come, float32 rows × columns in the order of training, or images rows × height ×
    width × channels (uint8, or float32 if those were trained on), and gives `probabilities`, rows × classes; of a
    regression `numbers`, rows × 1.

    name: of a client whose model it is, or "server".
    out: the file; its ending says what it becomes, `.onnx` or `.pt` (TorchScript). One that is there is replaced.
    make: makes the model, where its architecture is the user's own.
    as_client: the client as whose rows they are normalised, as for `TrainedModel.predict`.
    trust: modules whose code may be run, as for `load_model`.
    """
    file, folder = Path(out), Path(path)
    write, opened = _kind_of(file)
    model = load_model(folder, name, make, trust=trust)
    task = task_of(folder, trust)
    form = form_of(folder, name, as_client)
    whole = _FromRawRows(model, form, task).eval().requires_grad_(False)
    told = _metadata(RunRecord(folder), name, as_client, form, task)
    with tempfile.TemporaryDirectory() as place:
        made = Path(place) / f"model{file.suffix.lower()}"
        try:
            with _quietly(), torch.no_grad():
                write(whole, torch.from_numpy(_some_rows(form, TRACED_ROWS)), made, told)
                difference = _largest_difference(opened(made), model, form, task)
        except Exception as error:
            raise ModelError(f"{name}'s model cannot be exported to {file.name}: {_reason(error)}") from error
        if not difference <= TOLERANCE:
            raise ModelError(
                f"{name}'s model cannot be exported to {file.name}: its answers differ by {difference:.2g} there"
            )
        try:
            disk.replace(file.resolve(), made.read_bytes())
        except OSError as error:
            raise ConfigError(f"{file} cannot be written: {error.strerror or error}") from error
    return file


class _FromRawRows(nn.Module):
    """A model with what comes before and after it: rows are normalised, outputs become an answer."""

    mean: Tensor
    std: Tensor

    def __init__(self, model: nn.Module, form: InputForm, task: Task) -> None:
        super().__init__()
        self.model = model
        self.form = form
        self.task = task
        shape = (-1, 1, 1) if form.is_image else (-1,)
        self.register_buffer("mean", torch.tensor(form.mean).view(shape))
        self.register_buffer("std", torch.tensor(form.std).view(shape))

    def forward(self, rows: Tensor) -> Tensor:
        """As `Rows.inputs` and `predict` do it."""
        if self.form.is_image:
            rows = rows.permute(0, 3, 1, 2).to(torch.float32)
        if self.form.scaled:
            rows = rows / 255
        if self.form.scaled or not (self.form.is_image or self.form.is_tokens):
            rows = (rows - self.mean) / self.std
        return self.task.given(self.model(rows), len(self.form.classes))


def _metadata(
    record: RunRecord, name: str, as_client: str | None, form: InputForm, task: Task
) -> dict[str, str]:
    """What is in a file beside the model; lists are JSON."""
    summary = record.summary
    return {
        "polyfed": polyfed.__version__,
        "run": summary["name"],
        "method": summary["method"],
        "rounds": str(summary["rounds"]),
        "task": task.name,
        "output": task.given_as,
        **task.decides(form.classes),
        "unit": "" if Trait.PROBABILITIES in task.traits else task.shown_unit,
        "client": name,
        "normalised_as": as_client or name,
        "input": form.told(),
        "columns": json.dumps(list(form.features), ensure_ascii=False),
        "classes": json.dumps(list(form.classes), ensure_ascii=False),
    }


# -- whether it is the same ------------------------------------------------------------------------------------


def _some_rows(form: InputForm, count: int) -> Rows:
    """Rows as they may come, always the same."""
    rng = np.random.default_rng(count)
    shape = (count, *form.shape)
    if form.largest_id is not None:
        ids: Rows = rng.integers(0, form.largest_id + 1, shape, dtype=np.int64)
        return ids
    if form.scaled:
        pixels: Rows = rng.integers(0, 256, shape, dtype=np.uint8)
        return pixels
    mean, std = np.array(form.mean), np.array(form.std)
    # What is not normalised may be numbers of words, which are not below 0.
    as_it_is = not form.is_image and not mean.any() and (std == 1).all()
    noise = rng.random(shape) if as_it_is else rng.standard_normal(shape)
    found: Rows = (noise * std + mean).astype(np.float32)
    return found


def _largest_difference(
    run: Callable[[Rows], Answers], model: nn.Module, form: InputForm, task: Task
) -> float:
    """Between the answers of a file and those of the model, for several numbers of rows."""
    found = 0.0
    for count in TRIED_ROWS:
        rows = _some_rows(form, count)
        answers, expected = run(rows), _expected(model, form, task, rows)
        if answers.shape != expected.shape:
            raise ModelError(
                f"for {count} rows it gives answers of shape {answers.shape}, not {expected.shape}"
            )
        largest = max(1.0, float(np.abs(expected).max()))
        found = max(found, float(np.abs(answers - expected).max()) / largest)
    return found


def _expected(model: nn.Module, form: InputForm, task: Task, rows: Rows) -> Answers:
    """What the model says in predictions; of outputs that are not a table, what the task makes of them."""
    said = predict(model, form, task, rows)
    if task.given_as == "numbers":
        return np.array(said.answers)[:, None]
    if Trait.TABLE in task.traits:
        return said.table
    return task.given(said.outputs, len(form.classes)).numpy()


# -- kinds of files --------------------------------------------------------------------------------------------

_ANY_NUMBER_OF_ROWS = ({0: torch.export.Dim("count")},)

Writer: TypeAlias = Callable[[nn.Module, Tensor, Path, Mapping[str, str]], None]
Opener: TypeAlias = Callable[[Path], Callable[[Rows], Answers]]


def _kind_of(file: Path) -> tuple[Writer, Opener]:
    """How a file with this ending is written and run; refused before anything is read where it cannot be."""
    kinds: dict[str, tuple[Writer, Opener]] = {
        ".onnx": (_write_onnx, _open_onnx),
        ".pt": (_write_torchscript, _open_torchscript),
    }
    kind = file.suffix.lower()
    if kind not in kinds:
        raise ConfigError(f"{file}: give a file that ends in .onnx, or in .pt for TorchScript")
    if file.is_dir():
        raise ConfigError(f"{file} is a folder, not a file")
    if not file.parent.is_dir():
        raise ConfigError(f"there is no folder {file.parent}")
    missing = [each for each in _ONNX_PACKAGES if importlib.util.find_spec(each) is None]
    if kind == ".onnx" and missing:
        raise ConfigError(
            f"ONNX needs {' and '.join(missing)}: pip install 'polyfed[export]'; or write a .pt file"
        )
    return kinds[kind]


def _write_onnx(model: nn.Module, rows: Tensor, file: Path, told: Mapping[str, str]) -> None:
    import onnx  # noqa: PLC0415  (an extra)

    torch.onnx.export(
        model,
        (rows,),
        file,
        input_names=[INPUT],
        output_names=[told["output"]],
        dynamic_shapes=_ANY_NUMBER_OF_ROWS,
        dynamo=True,
        external_data=False,
        verbose=False,
    )
    made = onnx.load(file)
    graph = made.graph
    for part in (
        made,
        graph,
        *graph.node,
        *graph.value_info,
        *graph.input,
        *graph.output,
        *graph.initializer,
    ):
        del part.metadata_props[:]  # the exporter's notes for itself, with paths of this machine
    onnx.helper.set_model_props(made, dict(told))
    onnx.save(made, file)


def _open_onnx(file: Path) -> Callable[[Rows], Answers]:
    import onnxruntime  # noqa: PLC0415

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    return lambda rows: np.asarray(session.run(None, {INPUT: rows})[0])


def _write_torchscript(model: nn.Module, rows: Tensor, file: Path, told: Mapping[str, str]) -> None:
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        traced = torch.jit.trace(model, rows, check_trace=False)
    doubtful: type[Warning] = torch.jit.TracerWarning  # type: ignore[attr-defined]
    if any(issubclass(each.category, doubtful) for each in warned):
        # Either a branch that shapes decide, which is the same for all rows, or one that values decide, which is lost
        # in the trace: the other exporter tells them apart, and refuses the latter.
        torch.export.export(model, (rows,), dynamic_shapes=_ANY_NUMBER_OF_ROWS)
    whole = io.BytesIO()
    torch.jit.save(traced, whole, _extra_files={METADATA_FILE: json.dumps(told, ensure_ascii=False)})
    with zipfile.ZipFile(whole) as written, zipfile.ZipFile(file, "w") as kept:
        for name in written.namelist():
            if not name.endswith(".debug_pkl"):  # where each line of code is on this machine
                kept.writestr(name, written.read(name))


def _open_torchscript(file: Path) -> Callable[[Rows], Answers]:
    loaded = torch.jit.load(file)
    return lambda rows: np.asarray(loaded(torch.from_numpy(rows)))


@contextmanager
def _quietly() -> Iterator[None]:
    """What libraries say here is no affair of the user's: the file is run, and its answers are compared."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _reason(error: BaseException) -> str:
    """What is at the bottom of an exporter's error, whose own text is pages long."""
    while error.__cause__ is not None:
        error = error.__cause__
    if type(error).__name__ == "GuardOnDataDependentSymNode":
        return "a branch in it depends on the values of its rows, and a file would have only one way"
    return str(error) if isinstance(error, ModelError) else describe(error)
