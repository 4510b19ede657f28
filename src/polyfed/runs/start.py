"""Where models start from, if not anew: each client's from its own of an earlier run, or all from one file.

Everything is checked when a federation is set up; a file is read again when a model is made of it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor, nn

from polyfed import learn
from polyfed.data import Agreement
from polyfed.disk import check_regular, digest, read_file
from polyfed.errors import CheckpointError, ConfigError, MessageError, UserError, describe
from polyfed.federation import Method, Weights
from polyfed.federation.message import header_of
from polyfed.federation.roster import Roster
from polyfed.runs import final_models
from polyfed.runs.config import Models
from polyfed.runs.history import RunRecord
from polyfed.runs.manifest import MANIFEST, MODELS, RunFiles, read_manifest
from polyfed.schema import as_yaml
from polyfed.tasks import Task

logger = logging.getLogger(__name__)

FINGERPRINT = "(initial models)"
_SERVER = "server"


@dataclass(frozen=True)
class Start:
    """The file from which each model starts; none where `models.init` is not set.

    own: of each client by its name, where clients have models of their own.
    shared: of each architecture, where one model is of all its clients.
    server: of the server's model; None where that starts anew.
    digests: of each file.
    """

    left_out: tuple[str, ...] = ()
    own: Mapping[str, Path] = field(default_factory=dict)
    shared: Mapping[str, Path] = field(default_factory=dict)
    server: Path | None = None
    digests: Mapping[Path, str] = field(default_factory=dict)
    frozen: Mapping[str, Weights] = field(default_factory=dict)
    """The frozen parts of each architecture that has some."""

    @property
    def fingerprints(self) -> dict[str, str]:
        """What ties a run to the models that it starts from."""
        if not self.digests:
            return {}
        used = [
            {name: self.digests[path] for name, path in files.items()} for files in (self.own, self.shared)
        ]
        server = self.server and self.digests[self.server]
        return {FINGERPRINT: digest(json.dumps([*used, server, self.left_out], sort_keys=True).encode())}

    def client(self, model: nn.Module, name: str) -> nn.Module:
        """A client's own model, as it starts."""
        return self._started(model, self.own.get(name))

    def common(self, model: nn.Module, architecture: str) -> nn.Module:
        """The model that the clients of an architecture share, as it starts."""
        return self._started(model, self.shared.get(architecture))

    def of_server(self, model: nn.Module) -> nn.Module:
        """The server's model, as it starts."""
        return self._started(model, self.server)

    def _started(self, model: nn.Module, path: Path | None) -> nn.Module:
        if path is not None:
            weights, found = _read(path)
            if found != self.digests[path]:
                raise CheckpointError(f"models.init: {path} was changed since this run was set up")
            left_out = _names_left_out(model, self.left_out)
            taken = {name: weights[name] for name in learn.named_tensors(model) if name not in left_out}
            learn.load_weights(model, taken, partly=True)
        return model


def start_of(
    wanted: Models,
    method: Method,
    roster: Roster,
    build: Callable[[str], nn.Module],
    server: str | None,
    agreement: Agreement,
    task: Task,
    task_name: str,
    normalised: str | None,
) -> Start:
    """What the models of a federation start from; a `UserError` of one line if they cannot.

    build: makes a model of an architecture. server: the architecture of the server's model. agreement, task,
        task_name, normalised: what the inputs and outputs of these models mean (the task is called in the run file so),
        and by whose statistics inputs are normalised.
    """
    if wanted.init is None:
        if wanted.init_except:
            raise ConfigError("models.init_except: there is no models.init of which to leave parts out")
        return Start()
    path = Path(wanted.init)
    try:
        _check_meaning(path, agreement, task, task_name, normalised, wanted.init_except)
        if path.is_dir():
            found, written = _of_directory(path, method, roster, server)
        else:
            found, written = _of_file(path.resolve(), method, roster, server), {}
        return _checked(found, written, tuple(wanted.init_except), roster, build, server)
    except UserError as error:
        told = str(error)
        raise type(error)(told if told.startswith("models.init") else f"models.init: {told}") from None


def _check_meaning(
    path: Path,
    agreement: Agreement,
    task: Task,
    task_name: str,
    normalised: str | None,
    left_out: Sequence[str],
) -> None:
    """Refuse models of a run whose inputs or outputs meant something else: tensors of one size would not show it."""
    run = path if path.is_dir() else path.parent.parent
    if not (run / MANIFEST).exists():
        return  # a file from elsewhere: nobody says what it is of
    record = RunRecord(run)
    there = RunFiles(run, record.manifest).description()
    if there.features and agreement.features and there.features != list(agreement.features):
        raise ConfigError(
            f"{run} has learnt from the columns {_few(there.features)}, in this order, and here they are"
            f" {_few(agreement.features)}: start from a run over the same columns"
        )
    before = record.config["data"].get("normalise")
    if before != normalised:
        logger.warning(
            "models.init: %s has learnt from inputs with data.normalise=%s, which is %s here: they mean something else",
            *(run, before, normalised),
        )
    if left_out:
        return  # what outputs meant is learnt anew
    if there.classes != list(agreement.classes):
        raise ConfigError(
            f"the outputs in {run} stand for {_few(there.classes)}, and here for {_few(agreement.classes)}: leave the"
            " head out (models.init_except), or start from a run with these"
        )
    learnt = record.config["task"]
    if task_name != learnt["name"]:
        raise ConfigError(
            f"{run} has learnt task={learnt['name']}, and here it is {task_name}: leave the head out"
        )
    scale = learnt.get("scale")
    if scale != task.model_dump(mode="json").get("scale"):
        told = {
            key: int(number) if number == int(number) else number for key, number in (scale or {}).items()
        }
        raise ConfigError(
            f"{run} has learnt numbers on another scale: set task.scale={as_yaml(told or None)}"
        )


def _few(words: Sequence[str]) -> str:
    return ", ".join(words[:8]) + (" …" if len(words) > 8 else "")


def _of_file(path: Path, method: Method, roster: Roster, server: str | None) -> Start:
    if path.suffix != ".safetensors":
        raise ConfigError(
            f"{path} is {'not a .safetensors file' if path.exists() else 'not there'}: give the directory of a finished"
            " run, or a .safetensors file"
        )
    if "model" in method.declared.keeps:
        return Start(own=dict.fromkeys(roster.names, path), server=path if server else None)
    return Start(shared=dict.fromkeys(roster.architectures, path), server=path if server else None)


def _of_directory(
    path: Path, method: Method, roster: Roster, server: str | None
) -> tuple[Start, dict[Path, str]]:
    """The files of a run, and the digests that they had when they were written."""
    files = RunFiles(path, read_manifest(path))
    if not files.finished:
        raise CheckpointError(f"{path} has not finished: `polyfed resume {path}` goes on with it")
    there = path / MODELS
    of_server = there / final_models.own_file(_SERVER)
    digests = files.clients()["files"]
    kept = of_server if server and of_server.name in digests else None
    if server and kept is None:
        logger.warning("models.init: %s has no model of a server: the server's starts anew", path)
    written = {there / name: known for name, known in digests.items()}
    if "model" in method.declared.keeps:
        own = {name: there / final_models.file_of(files, name) for name in roster.names}
        return Start(own=own, server=kept), written
    return Start(shared=_shared_files(files, method, roster), server=kept), written


def _shared_files(files: RunFiles, method: Method, roster: Roster) -> dict[str, Path]:
    """Of each architecture the one file of which all of its clients had their model; a new client had none."""
    told = files.clients()
    names, which = final_models.names_of(told), told["which"]
    shared: dict[str, Path] = {}
    for facts in roster:
        known = facts.name in names
        there = told["architectures"][which[names.index(facts.name)]] if known else facts.architecture
        file = final_models.shared_file(there)
        if file not in told["files"]:
            if not known:
                final_models.file_of(files, facts.name)  # says so
            own = files.path / MODELS / final_models.own_file(facts.name)
            raise ConfigError(
                f"{files.path} has a model for each client and none that they share, but {method.name} starts all"
                f" clients of an architecture from one: name one of its files, such as {own}"
            )
        before = shared.setdefault(facts.architecture, files.path / MODELS / file)
        if before.name != file:
            raise ConfigError(
                f"clients of '{facts.architecture}' had different models in {files.path} ({before.name}, {file}), but"
                f" {method.name} starts all of them from one: name one of these files"
            )
    return shared


def _checked(
    start: Start,
    written: Mapping[Path, str],
    left_out: tuple[str, ...],
    roster: Roster,
    build: Callable[[str], nn.Module],
    server: str | None,
) -> Start:
    """The same with digests and frozen parts, once every file is known to fit the models that start from it."""
    users: dict[tuple[Path, str], None] = {}
    for name, path in start.own.items():
        users[path, roster.architecture(roster.names.index(name))] = None
    users |= {(path, architecture): None for architecture, path in start.shared.items()}
    of_server = start.server
    models = {
        name: build(name) for name in dict.fromkeys([*roster.architectures, *([server] if server else [])])
    }
    if of_server is not None and server is not None:
        if not written and not _fits(of_server, models[server], left_out):
            logger.warning(
                "models.init: %s is not of '%s': the server's model starts anew", of_server, server
            )
            of_server = None
        else:
            users[of_server, server] = None
    digests: dict[Path, str] = {}
    frozen: dict[str, tuple[Path, Weights]] = {}
    _check_left_out(left_out, list(models.values()))
    for path, architecture in users:
        model = models[architecture]
        weights, digests[path] = _read(path)
        if written.get(path, digests[path]) != digests[path]:
            raise CheckpointError(
                f"{path} was truncated or edited since it was written: start from another run"
            )
        _check_fits(weights, model, architecture, left_out, path)
        anew = _names_left_out(model, left_out)
        own = {name: weights[name] for name in learn.frozen_weights_of(model) if name not in anew}
        first, kept = frozen.setdefault(architecture, (path, own))
        for name, tensor in own.items():
            if not tensor.equal(kept[name]):
                raise ConfigError(
                    f"'{name}' is frozen in '{architecture}', and so the same for all, but it is not in {first} and"
                    f" {path}: name one of these files"
                )
    return Start(
        left_out,
        start.own,
        start.shared,
        of_server,
        digests,
        {architecture: own for architecture, (_, own) in frozen.items() if own},
    )


def _check_left_out(left_out: Sequence[str], models: Sequence[nn.Module]) -> None:
    for part in left_out:
        if not any(_is_left_out(name, [part]) for model in models for name in learn.all_tensors(model)):
            raise ConfigError(f"models.init_except: no model has a part '{part}'")


def _is_left_out(name: str, left_out: Sequence[str]) -> bool:
    return any(name == part or name.startswith(f"{part}.") for part in left_out)


def _names_left_out(model: nn.Module, left_out: Sequence[str]) -> frozenset[str]:
    """The names of what starts anew; of a tensor that is in two places, both."""
    tensors = learn.all_tensors(model)
    places = {tensor.data_ptr() for name, tensor in tensors.items() if _is_left_out(name, left_out)}
    return frozenset(
        name for name, tensor in tensors.items() if tensor.data_ptr() in places and tensor.numel()
    )


def _check_fits(
    weights: Mapping[str, Tensor], model: nn.Module, architecture: str, left_out: Sequence[str], path: Path
) -> None:
    """Refuse weights of another structure, by the first tensor that differs."""
    anew = _names_left_out(model, left_out)
    own = {name: tensor for name, tensor in learn.all_tensors(model).items() if name not in anew}
    given = {
        name: tensor
        for name, tensor in weights.items()
        if name not in anew and not _is_left_out(name, left_out)
    }
    trained = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    for name in [*own, *given]:
        if name in own and name in given and own[name].shape == given[name].shape:
            _check_numbers(name, given[name], own[name], path, finite=name in trained)
            continue
        there, here = (_shape(each.get(name)) for each in (given, own))
        part = name.rpartition(".")[0] or name
        raise ConfigError(
            f"{path} is of another structure than '{architecture}': '{name}' is {there} there and {here} here; start"
            f" from a run of this architecture, or leave it out (models.init_except: [{part}])"
        )


def _check_numbers(name: str, given: Tensor, own: Tensor, path: Path, *, finite: bool) -> None:
    """Refuse numbers of another kind, of which a part would be lost, and those that no weight can be."""
    if given.is_complex() != own.is_complex() or given.is_floating_point() != own.is_floating_point():
        told = (str(each.dtype).removeprefix("torch.") for each in (given, own))
        raise ConfigError(
            f"{path}: '{name}' is {' there and '.join(told)} here: start from weights of one type"
        )
    if finite and not learn.all_finite([given]):
        raise ConfigError(
            f"{path}: '{name}' has NaN or infinity in it: start from a model that has not diverged"
        )


def _fits(path: Path, model: nn.Module, left_out: Sequence[str]) -> bool:
    try:
        _check_fits(_read(path)[0], model, "", left_out, path)
    except ConfigError:
        return False
    return True


def _shape(tensor: Tensor | None) -> str:
    if tensor is None:
        return "not"
    return "×".join(map(str, tensor.shape)) or "one number"


def _read(path: Path) -> tuple[Weights, str]:
    """The tensors of a file, and its digest. It may be anybody's: nothing but numbers is read."""
    try:
        check_regular(path)
        data = read_file(path)
    except OSError as error:
        raise CheckpointError(f"models.init: {path} cannot be read: {error.strerror or error}") from None
    try:
        header_of(data)
        return safetensors.torch.load(data), digest(data)
    except (MessageError, SafetensorError, LookupError, TypeError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"models.init: {path} holds no weights: {describe(error)}") from None
