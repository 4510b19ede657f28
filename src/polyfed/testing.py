"""The contract that every method keeps, as one suite: for ours, and for your own.

    from polyfed.testing import check_method

    def test_my_method_keeps_the_contract():
        check_method(MyMethod, strength=0.5)

It needs no data beyond those embedded and takes some seconds.
"""

from __future__ import annotations

import functools
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from sklearn.datasets import load_breast_cancer
from torch import Tensor

from polyfed import learn, tasks
from polyfed.disk import digest
from polyfed.engines import Host, Inline, Pool
from polyfed.errors import MethodError, RunError, UserError
from polyfed.federation.declaration import Need
from polyfed.federation.engine import Engine
from polyfed.federation.message import decode, encode
from polyfed.federation.method import Method, Step, check_class
from polyfed.federation.nodes import Client
from polyfed.federation.shelf import OWNER
from polyfed.learn import Training
from polyfed.runs import api
from polyfed.runs.architectures import ModelMaker
from polyfed.runs.checkpoint import RunDirectory, read_lines, read_states
from polyfed.runs.config import RunConfig, read_config, settings_of
from polyfed.runs.federation import Federation
from polyfed.runs.own_sources import own_sources
from polyfed.runs.rounds import Run
from polyfed.runs.setup import set_up


def _tumours() -> tuple[Any, Any]:
    """Two classes of scikit-learn's breast cancer set."""
    return load_breast_cancer(return_X_y=True)  # type: ignore[no-any-return]


def _signals() -> tuple[Any, Any]:
    """Four classes at once, each of a sign."""
    x = np.random.default_rng(0).normal(size=(500, 8)).astype(np.float32)
    return x, (x[:, :4] + 0.5 * x[:, 4:] > 0.3).astype(np.int64)


def _doses() -> tuple[Any, Any]:
    """A number, in a unit of its own."""
    x = np.random.default_rng(0).normal(size=(500, 8)).astype(np.float32)
    return x, 150 + 40 * (x[:, 0] - x[:, 1] + 0.5 * x[:, 2])


TABLES: dict[str, Callable[[], tuple[Any, Any]]] = {
    "binary": _tumours,
    "multilabel": _signals,
    "regression": _doses,
}
"""On which tables a method is tried that declares a task."""

ANSWERS = 64  # that are compared in two ways
STACKING_ERROR = (
    1e-4  # of a weight after two rounds: rounding is a hundred times smaller, a forgotten loss larger
)


class ContractError(AssertionError):
    """A method does not keep the contract."""


def check_method(
    method: type[Method],
    *,
    task: str | Mapping[str, Any] | None = None,
    config: Mapping[str, Any] | None = None,
    data: Any = None,
    models: api.Models | None = None,
    **settings: Any,
) -> None:
    """Raise `ContractError` unless the method keeps the contract.

    - parity: inline = pool = resumed, bit for bit: models, memory, history, ledger;
    - only what `sends` declares leaves a client;
    - a client's state survives being saved and loaded, exactly;
    - a client that fails has the state it had before, the others go on, and the reason is in the history;
    - steps that say they only read do so; the method object itself holds no state;
    - what clients learn stacked in one tensor is what they learn one by one, but for rounding;
    - it learns more than can be said without looking at a row;
    - a task of one's own means the same by a model's outputs and by the answers that people are given of them;
    - tasks that it does not declare are refused.

    task: what is learnt in the trial. Where nothing is said of it, nor by config, data or models, a classification is
        tried in full, and in short every other task that the method declares.
    settings: the method's own. config: changes to the small federation on which it is tried. data, models: your own
    data and models, as for `polyfed.run`.

    What cannot be tried at all, such as settings that the method does not have, is a `UserError`.
    """
    check_class(method, "check_method")
    if method.round is Method.round:
        raise MethodError(f"{method.__name__} has no round: write round(self, t, fleet, server)")
    checked = settings_of(method, settings)
    declared = method(checked, read_config({}).training).declared
    wanted = config or {}
    _check_on(method, task, settings, wanted, data, api.by_name(models))
    if task is None and data is None and models is None and not wanted:
        for each in TABLES:
            if declared.suits(tasks.find(each)()):
                _check_on(method, each, settings, wanted, None, None, briefly=True)
        _refuses_others(method, settings)


def _refuses_others(method: type[Method], settings: Mapping[str, Any]) -> None:
    """A task that is not declared is refused before anything is run."""
    with tempfile.TemporaryDirectory() as folder:
        for name in TABLES:
            trial = Trial(method, settings, {"task": name}, Path(folder))
            if not method(trial.settings, trial.config.training).declared.suits(tasks.find(name)()):
                try:
                    trial.federation()
                except MethodError:
                    continue
                raise ContractError(f"it does not declare task={name}, and is not refused")


def _check_on(
    method: type[Method],
    task: str | Mapping[str, Any] | None,
    settings: Mapping[str, Any],
    config: Mapping[str, Any],
    data: Any,
    models: Mapping[str, ModelMaker] | None,
    *,
    briefly: bool = False,
) -> None:
    """Check the contract on one task; briefly: only that it learns, alike on every engine and when resumed."""
    with tempfile.TemporaryDirectory() as folder:
        given = config if task is None else {**config, "task": task}
        trial = Trial(method, settings, given, Path(folder), data, models)
        reference = trial.run("inline", Inline())
        trial.learns(reference)
        trial.scores_what_it_says()
        if not briefly:
            trial.same(reference, trial.run("pool", Pool(2)), "the pool")
        trial.same(reference, trial.run_in_two_parts(), "a run that was stopped, and resumed by the pool,")
        if briefly:
            return
        trial.declares()
        trial.survives_saving()
        trial.rolls_back()
        trial.reads_only()
        trial.stacks_faithfully()


class Trial:
    """A small federation on which one method is tried."""

    def __init__(
        self,
        method: type[Method],
        settings: Mapping[str, Any],
        config: Mapping[str, Any],
        folder: Path,
        data: Any = None,
        models: Mapping[str, ModelMaker] | None = None,
    ) -> None:
        self.method = method
        self.folder = folder
        task = RunConfig.model_validate({"task": config.get("task", "classification")}).task.name
        table = TABLES.get(task) if data is None and "data" not in config else None
        self.data, self.models = data if table is None else table(), models
        self.settings = settings_of(method, settings)
        needs = method(self.settings, read_config({}).training).declared.needs
        mixed = Need.COMMON_ARCHITECTURE not in needs
        large = "cnn-small" if table is None else "mlp"
        content: dict[str, Any] = {
            "rounds": 3,
            "data": {"public": {"source": "share", "share": 0.2}},
            "models": {"names": [*(["mlp-small"] if mixed else []), large]},
            "training": {"epochs": 3, "batch": 16, "lr": 0.05, "momentum": 0.9},
            "checkpoint_seconds": 0,
        }
        if own_sources(read_config({"data": config.get("data", {})}).data, self.data) is None:
            partition = {"kind": "dirichlet", "alpha": 1.0}
            content["data"] |= {"limit": 600, "clients": 4, "partition": partition}
        if Need.COMMON_FEATURES in needs:
            content["models"]["features"] = 32
        if Need.SERVER_MODEL in needs:
            content["models"]["server"] = large
        training = config.get("training")
        if isinstance(training, Mapping) and training.get("optimiser", "sgd") != "sgd":
            del content["training"]["momentum"]  # which others may not have
        for key, value in config.items():
            both = isinstance(content.get(key), dict) and isinstance(value, Mapping)
            content[key] = {**content[key], **value} if both else value
        self.config = read_config({**content, "method": "local"})
        self.settings = learn.over_rounds(self.settings, self.config.rounds)

    def federation(self, method: type[Method] | None = None, config: RunConfig | None = None) -> Federation:
        """The federation, with the method or a variant of it, whether it is registered or not."""
        kind = method or self.method
        chosen = config or self.config
        return set_up(chosen, self.data, self.models, kind(self.settings, chosen.training))

    def make(
        self,
        name: str,
        engine: Engine,
        method: type[Method] | None = None,
        config: RunConfig | None = None,
    ) -> Run:
        return Run(self.federation(method, config), engine, RunDirectory(self.folder / name, new=True))

    def run(
        self,
        name: str,
        engine: Engine,
        method: type[Method] | None = None,
        config: RunConfig | None = None,
    ) -> Path:
        run = self.make(name, engine, method, config)
        before = set(vars(run.method))
        try:
            run.go()
        finally:
            run.close()
        _must(
            set(vars(run.method)) == before,
            "the method object holds state: keep it in me.memory, server.memory or server.shelf",
        )
        return run.path

    def run_in_two_parts(self) -> Path:
        first = self.make("parts", Inline())
        first.go(lambda run: run.stop())
        first.close()
        _must(0 < first.round < self.config.rounds, "the run did not stop in the middle")
        second = Run(self.federation(), Pool(2), RunDirectory(first.path, new=False))
        second.go()
        second.close()
        return first.path

    def same(self, one: Path, other: Path, what: str) -> None:
        for name, content in result_of(one).items():
            _must(
                content == result_of(other)[name],
                f"{what} does not give the same {name} as the inline engine",
            )

    def learns(self, path: Path) -> None:
        reached = json.loads((path / "summary.json").read_text())["last"]
        found = [reached[part]["mean"] for part in ("own", "whole") if part in reached]
        federation = self.federation()
        task, held = federation.task, federation.holdings
        labels = torch.cat([held.of(index).train.labels for index in range(len(held.names))])
        blind = task.blind(labels)
        if blind is None:
            return
        enough = blind * 8 / 9 if task.smaller_is_better else blind + (1 - blind) / 9
        _must(
            any(task.is_better(value, enough) for value in found),
            f"it reaches {task.measure} {task.shown(found[0])} where {task.shown(blind)} can be had without looking",
        )

    def scores_what_it_says(self) -> None:
        """A task scores outputs in a run and answers in predictions: both must come to the same."""
        federation = self.federation()
        task, words = federation.task, federation.holdings.agreement.classes
        me = self._trained_host().client(0)
        x, labels = me.tensors(me.train[:ANSWERS])
        true = _as_answers(task, labels, words)
        outputs = learn.predict(me.model, x)
        outputs = outputs[:, : len(words)] if tasks.Trait.TABLE in task.traits else outputs
        answers = task.read(outputs, words).answers
        scores = [task.value(task.tally(outputs, labels)), task.value(task.tally_of(answers, true))]
        if task.has_answers_as_labels:
            scores.append(task.value(task.tally_of(_as_answers(task, task.decided(outputs), words), true)))
        _must(
            np.allclose(scores, scores[0], rtol=1e-4),
            f"task={task.name} has {task.measure} {task.shown(scores[0])} by `tally`, {task.shown(scores[1])} by `read`"
            f" and `tally_of`, {task.shown(scores[-1])} by `decided`: they must be the same",
        )

    def declares(self) -> None:
        """Without its declarations the method cannot send: so nothing travels beside them."""
        kind = self.method
        said = kind(self.settings, self.config.training).declared
        if not said.sends:
            return
        silent = type(
            "Silent", (kind,), {"declare": lambda self: replace(said, sends={}, tells=said.kinds_down)}
        )
        try:
            path = self.run("silent", Inline(), silent)
            refusals = " ".join(failure["reason"] for failure in failures_of(path))
        except UserError as error:
            refusals = str(error)
        _must("does not declare" in refusals, "it declares kinds that it never sends")

    def stacks_faithfully(self) -> None:
        """A stacked twin that forgets something (a loss, say) learns something else than one client by itself."""
        if not any(hasattr(step, "together") for step in vars_of(self.method).values()):
            return
        mlps = {"models": {**self.config.as_file()["models"], "names": ["mlp-small"]}, "rounds": 2}
        # Momentum, many steps and packing would blow rounding up to what a forgotten loss looks like.
        plain = {"training": {"batch": 16, "lr": 0.05, "epochs": 1}, "wire": {}}
        if not learn.can_stack(Training(**plain["training"])):
            return
        found = []
        for stack in (1, 4):
            content = {**self.config.as_file(), **mlps, **plain, "stack": stack, "method": "local"}
            path = self.run(f"stack-{stack}", Inline(), config=read_config(content))
            found.append(_models_of(path))
        for name, alone in found[0].items():
            for key, tensor in alone.items():
                difference = float((tensor.double() - found[1][name][key].double()).abs().max())
                _must(
                    difference < STACKING_ERROR,
                    f"clients that are stacked learn something else than one by one: '{key}' of {name} differs by"
                    f" {difference:.1g}; does the stacked twin leave something out?",
                )

    def survives_saving(self) -> None:
        host = self._trained_host()
        keeps = host.keeps
        for index in range(2):
            state = host.client(index).state(keeps)
            fresh = Host(self.federation().population, host.program, self.folder).client(index)
            fresh.restore(decode(encode(state)))
            again = fresh.state(keeps)
            _must(encode(state) == encode(again), f"{fresh.name}'s state does not survive being saved")

    def rolls_back(self) -> None:
        """A client that fails after having done its work must have the state it had before."""
        path = self.run("failing", Inline(), _changed(self.method, _spoilt))
        failures = failures_of(path)
        _must(bool(failures), "a client that fails is not in the history")
        first = self.federation().roster.name(0)
        _must(
            {failure["client"] for failure in failures} == {first},
            "one client's failure spread to others",
        )
        _must(
            first not in read_states(path),
            "a client that only ever failed has another state than before",
        )

    def reads_only(self) -> None:
        """Every step that says it only reads is watched during a run, and so is an examination."""
        try:
            path = self.run("watched", Inline(), _changed(self.method, _watched, "reads_only"))
        except RunError as error:
            raise ContractError(f"a step says it only reads: {error}") from error
        for failure in failures_of(path):
            raise ContractError(f"step '{failure['step']}' says it only reads: {failure['reason']}")
        host = self._trained_host()
        me = host.client(0)
        before = encode(me.state())
        me.observer.scores(me, me.model, slice(None))
        _must(encode(me.state()) == before, "looking at a client's model changes it")

    def _trained_host(self) -> Host:
        engine = Inline()
        run = self.make(f"host-{len(list(self.folder.iterdir()))}", engine)
        run.open()
        run.go(lambda now: now.stop() if now.round == 1 else None)
        host = Host(run.federation.population, run.program, self.folder)
        host.restore(run.client_files())
        run.close()
        return host


def _as_answers(task: tasks.Task, labels: Tensor, words: Sequence[str]) -> list[Any]:
    """Labels as the answers that people are given."""
    match task.targets.kind:
        case "classes":
            return [words[int(label)] for label in labels]
        case "numbers":
            return labels.double().tolist()
        case "several":
            return [
                tuple(word for word, one in zip(words, row, strict=True) if one) for row in labels.tolist()
            ]
    return task.targets.meant(labels.tolist(), words)


def failures_of(path: Path) -> list[dict[str, Any]]:
    """Every failed step of a run: client, step, reason."""
    return [failure for line in read_lines(path / "history.jsonl") for failure in line.get("failures", ())]


def result_of(path: Path) -> dict[str, Any]:
    """Everything that a run produced and that must not depend on how it was carried out."""
    history = [
        {key: value for key, value in line.items() if key != "seconds"}
        for line in read_lines(path / "history.jsonl")
    ]
    models = {
        file.name: digest(file.read_bytes()) for file in sorted((path / "models").glob("*.safetensors"))
    }
    states = {owner: state.digest for owner, state in read_states(path).items()}
    server = sorted((path / "states").glob("server.*"))[-1]
    return {
        "models": models,
        "states": states,
        "shelf": [owner for owner in states if owner.startswith(OWNER)],  # its order is part of the result
        "server state": digest(server.read_bytes()),
        "history": history,
        "ledger": list(read_lines(path / "ledger.jsonl")),
    }


def _spoilt(step: Step) -> Step:
    """The step, raising on the first client once it has done its work."""

    @functools.wraps(step)
    def wrapped(self: Method, me: Client, *args: Any, **kwargs: Any) -> Any:
        result = step(self, me, *args, **kwargs)
        if me.facts.index == 0:
            raise RuntimeError("spoilt on purpose")
        return result

    return wrapped


def _watched(step: Step) -> Step:
    """The step, raising if it leaves another state than it found (in what the method keeps)."""

    @functools.wraps(step)
    def wrapped(self: Method, me: Client, *args: Any, **kwargs: Any) -> Any:
        before = encode(me.state(frozenset(self.declared.keeps)))
        result = step(self, me, *args, **kwargs)
        if encode(me.state(frozenset(self.declared.keeps))) != before:
            raise RuntimeError("it changes the client's state")
        return result

    return wrapped


def _changed(
    method: type[Method], change: Callable[[Step], Step], which: str = "is_client_step"
) -> type[Method]:
    """The method with its client steps (those marked so) changed, and never stacked."""
    steps = {
        name: change(step)
        for name, step in vars_of(method).items()
        if getattr(step, "is_client_step", False) and getattr(step, which, False)
    }
    for step in steps.values():
        vars(step).pop("together", None)
    return type(f"{change.__name__}{method.__name__}", (method,), steps)


def vars_of(method: type[Method]) -> dict[str, Any]:
    """What a class and its ancestors define."""
    return {name: value for kind in reversed(method.__mro__) for name, value in vars(kind).items()}


def _models_of(path: Path) -> dict[str, dict[str, Tensor]]:
    files = sorted((path / "models").glob("*.safetensors"))
    return {file.stem: safetensors.torch.load_file(file) for file in files}


def _must(truth: bool, what: str) -> None:
    if not truth:
        raise ContractError(what)


__all__ = ["ContractError", "check_method", "result_of"]
