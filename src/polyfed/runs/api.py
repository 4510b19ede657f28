"""polyfed from Python: the same runs, with the user's own models and data."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from polyfed import learn
from polyfed import models as known_models
from polyfed.engines import AUTO, make_engine, with_gradients
from polyfed.errors import CheckpointError, ClientFailure, ConfigError, MessageError, describe, nearest
from polyfed.runs import final_models
from polyfed.runs.architectures import ModelMaker
from polyfed.runs.checkpoint import RunDirectory
from polyfed.runs.config import Models as ModelsSection
from polyfed.runs.config import RunConfig, read_config
from polyfed.runs.failures import failed_steps, failures_in_a_line
from polyfed.runs.folders import RUNS_FOLDER, delete_run, unused_folder
from polyfed.runs.history import RunRecord
from polyfed.runs.manifest import CONFIG, HISTORY, MODELS, RunFiles, read_manifest
from polyfed.runs.rounds import Listener, Run
from polyfed.runs.setup import set_up
from polyfed.runs.trained import TrainedModel, as_trained, task_of

Models = Mapping[str, ModelMaker] | Sequence[ModelMaker]


class OwnModelError(ConfigError):
    """A model whose architecture is the user's own was asked for without a function that makes it."""

    def __init__(self, architecture: str) -> None:
        super().__init__(f"'{architecture}' is a model of your own: pass make=…")
        self.architecture = architecture


def prepare(
    config: Mapping[str, Any] | str | Path | None = None,
    *,
    data: Any = None,
    models: Models | None = None,
    out: str | Path | None = None,
    workers: int | None = None,
    engine: str = AUTO,
    overrides: Sequence[str] = (),
    overwrite: bool = False,
    **settings: Any,
) -> Run:
    """A run that is ready to `go()`: see `run`."""
    source = Path(config) if isinstance(config, str) else config
    if isinstance(source, Path):
        if settings:
            overrides = [*overrides, *(f"{key}={json.dumps(value)}" for key, value in settings.items())]
        checked = read_config(source, overrides)
    else:
        checked = read_config({**(source or {}), **settings}, overrides)
    return prepare_checked(checked, out, workers, engine, data=data, models=models, overwrite=overwrite)


@with_gradients
def prepare_checked(
    config: RunConfig,
    out: str | Path | None = None,
    workers: int | None = None,
    engine: str = AUTO,
    *,
    data: Any = None,
    models: Models | None = None,
    overwrite: bool = False,
) -> Run:
    """A run of a config that was checked before, ready to `go()`."""
    federation = set_up(config, data, by_name(models))
    ready = make_engine(engine, workers, config.timeout)
    path = Path(out) if out is not None else RUNS_FOLDER / config.name
    if overwrite:
        started_from = config.models.init
        if started_from is not None and Path(started_from).resolve().is_relative_to(path.resolve()):
            raise ConfigError(
                f"models.init: {started_from} would be deleted by --overwrite: choose another --out"
            )
        delete_run(path)  # only now: a mistake in the new run costs nothing of the old one
    elif out is None:
        path = unused_folder(path)
    return Run(federation, ready, RunDirectory(path, new=True))


def run(
    config: Mapping[str, Any] | str | Path | None = None,
    *,
    data: Any = None,
    models: Models | None = None,
    out: str | Path | None = None,
    workers: int | None = None,
    engine: str = AUTO,
    listener: Listener | None = None,
    overwrite: bool = False,
    **settings: Any,
) -> Run:
    """Run a federation and give it back finished.

        done = polyfed.run(method="fedavg", rounds=5, data=(x, y), models=[make_small_net, make_large_net])
        done.summary["last"]["own"]["mean"]

    config: a run file, or its content; further keys can be given as keywords.
    data: the user's own data instead of a named set: (x, y), a torch `Dataset`, a file, a folder, or a mapping of
        "train" and "test" to these; it is cut as `data.partition` says. Or what each client brings: a mapping of the
        clients' names to any of these, {"north": (x, y), "south": dataset}.
    models: functions that make a model (or models to copy), by name or as a list; dealt out to the clients in turn
        (`models.clients` says who trains what), but for the one that is `models.server` (unless `models.names` lists it
        too, or it is the only one).
    out: the run directory; `polyfed-runs/NAME` by default.
    workers: processes; one per core by default, 1 for none but this one.
    engine: `inline` (this process alone), `pool` (worker processes), or `auto`. The result is the same.
    overwrite: delete the run that is in the run directory, if there is one; anything else there is refused.
    """
    ready = prepare(
        config,
        data=data,
        models=models,
        out=out,
        workers=workers,
        engine=engine,
        overwrite=overwrite,
        **settings,
    )
    return _finish(ready, listener)


def resume(
    path: str | Path,
    *,
    data: Any = None,
    models: Models | None = None,
    workers: int | None = None,
    engine: str = AUTO,
    listener: Listener | None = None,
    rounds: int | None = None,
    trust: known_models.Trust = (),
) -> Run:
    """Go on with a run that was stopped or killed, or has finished and is to have more rounds.

    data, models: the user's own must be given again; models are told apart by their names.
    rounds: go on to so many rounds in all; the result is that of a run which had so many from the start. One that has
        ended by `evaluate.patience` goes on without it.
    trust: modules whose code may be run, where the run has models such as `my_models:small_net`: `["my_models"]`.
    """
    ready = reopen(path, data=data, models=models, workers=workers, engine=engine, rounds=rounds, trust=trust)
    return _finish(ready, listener)


@with_gradients
def reopen(
    path: str | Path,
    *,
    data: Any = None,
    models: Models | None = None,
    workers: int | None = None,
    engine: str = AUTO,
    rounds: int | None = None,
    trust: known_models.Trust = (),
) -> Run:
    """A run that was stopped or killed, or is to have more rounds, ready to `go()` on (see `resume`) or `finish()`."""
    folder = Path(path)
    files = RunFiles(folder, read_manifest(folder))
    done = files.manifest["round"]
    for read in (files.config, files.description, files.assignment):
        read()  # all that is written once: what is damaged would be found when the run has ended
    checked = read_config(folder / CONFIG)
    extended = rounds is not None and not (files.finished and rounds == done)
    if files.finished and not extended:
        RunRecord(folder).verify()
    if rounds is not None and extended:
        if rounds <= done:
            raise ConfigError(f"{folder} has done {done} rounds already: give more than {done}")
        checked = checked.model_copy(update={"rounds": rounds})
    given = by_name(models)
    _check_given_again(checked.models, given or {})
    known_models.check_trusted(checked.code_names(), trust, folder / CONFIG)
    federation = set_up(checked, data, given)
    federation.verify_data()
    ready = make_engine(engine, workers, checked.timeout)
    return Run(federation, ready, RunDirectory(folder, new=False), extended=extended)


@with_gradients
def load_model(
    path: str | Path,
    name: str,
    make: Callable[[], nn.Module] | None = None,
    *,
    trust: known_models.Trust = (),
) -> TrainedModel:
    """A final model of a finished run: `load_model(dir, "client-3")`, by the client's name, or "server".

        model = polyfed.load_model("polyfed-runs/run", "north")
        model.predict("new.csv").classes  # raw rows or images, as they come
        model(x)                          # logits of inputs that are normalised already

    make: makes the model, where its architecture is the user's own.
    trust: modules whose code may be run, where the model is one such as `my_models:small_net`: `["my_models"]`.
    """
    folder = Path(path)
    files = RunFiles(folder, read_manifest(folder))
    if not files.finished:
        raise CheckpointError(f"{folder} has not finished: `polyfed resume {folder}` goes on with it")
    task = task_of(folder, trust)
    file = final_models.file_of(files, name)
    data = files.model(file)
    where = folder / MODELS / file
    try:
        facts = final_models.read_facts(data, files.description())
        weights = safetensors.torch.load(data)
        if make is None:
            known_models.check_trusted([facts.architecture], trust, where)
            model = _made_again(facts, weights)
        else:
            model = make()
        known_models.expect_tokens(model, files.description().largest_id)
        adapter = facts.adapter.model_dump() if facts.adapter else {}
        known_models.adapt(model, tuple(facts.shape), facts.outputs, **adapter, is_known=True)
        known_models.fit_types(model, tuple(facts.shape))
        others = learn.other_names(model)
        learn.load_weights(model, {key: weights[key] for key in weights if key not in others})
    except (MessageError, SafetensorError, LookupError, TypeError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"{where} holds no model of polyfed's: {describe(error)}") from None
    model.eval()
    return as_trained(model, folder, name, task)


def _check_given_again(wanted: ModelsSection, given: Mapping[str, ModelMaker]) -> None:
    """A run's own models are told apart by their names: all of them must be there, and no others."""
    names = wanted.all_names()
    for name in names:
        from_python = name in wanted.own and not known_models.is_outside(name)
        if name not in given and (from_python or not known_models.is_known(name)):
            raise ConfigError(f"'{name}' is a model of your own: pass it again as models=…")
    for name in given:
        if name not in names:
            raise ConfigError(f"models=…: '{name}' is no model of this run: {nearest(name, names)}")


def _made_again(facts: final_models.ModelFacts, weights: Mapping[str, Tensor]) -> nn.Module:
    """A model as a file's facts say, if it can be made of them and would have weights like these."""
    name, shape, outputs, norm = facts.architecture, tuple(facts.shape), facts.outputs, facts.norm
    if not known_models.is_known(name):
        raise OwnModelError(name)
    own = known_models.own_maker(name, shape, outputs, norm)
    if own is not None:
        return own()
    with torch.device("meta"):  # without memory: a few bytes may stand for a model of many gigabytes
        wanted = learn.named_tensors(
            known_models.build(name, shape, outputs, norm=norm, features=facts.features)
        )
    if {key: tensor.shape for key, tensor in wanted.items()} != {
        key: each.shape for key, each in weights.items()
    }:
        raise ValueError(f"its weights are not those of {name}")
    return known_models.build(name, shape, outputs, norm=norm, features=facts.features)


def by_name(given: Models | None) -> dict[str, ModelMaker] | None:
    """The user's own models by name; those of a list are called by the functions or classes that they are."""
    if given is None:
        return None
    if isinstance(given, Mapping):
        return dict(given)
    names = [getattr(maker, "__name__", type(maker).__name__) for maker in given]
    names = [name if name.isidentifier() else "model" for name in names]  # a lambda has no name
    if len(set(names)) < len(names):
        names = [f"{name}-{place}" for place, name in enumerate(names)]
    return dict(zip(names, given, strict=True))


def _finish(run: Run, listener: Listener | None) -> Run:
    try:
        run.go(listener)
    finally:
        run.close()
    failed = failed_steps(run.directory.files.lines(HISTORY))
    if failed:
        words = failures_in_a_line(failed, len(run.federation.roster), run.path)
        warnings.warn(words, ClientFailure, stacklevel=3)  # where `run` or `resume` was called
    return run
