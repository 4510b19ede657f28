"""The models that a finished run leaves behind: one safetensors file each, with what makes the model again."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import safetensors.torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from polyfed import learn, models
from polyfed.disk import Folder, digest
from polyfed.errors import CheckpointError
from polyfed.federation import Facts, Method, Server, Weights
from polyfed.federation.message import METADATA_KEY, header_of
from polyfed.federation.roster import Names, Roster
from polyfed.runs.config import MOST_FEATURES, Adapter
from polyfed.runs.contents import Description, Name, Pair, Size, read_as
from polyfed.runs.evaluation import Evaluation
from polyfed.runs.federation import Federation
from polyfed.runs.manifest import MODELS, SUMMARY, RunFiles
from polyfed.runs.trained import few

NO_ROWS = "it holds no training rows, and took no part in learning"


class ModelFacts(BaseModel):
    """What a model's file says of the model, in one value of its metadata."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")

    architecture: Name
    shape: Annotated[list[Size], Field(min_length=1, max_length=3)]
    """Of an input: (channels, height, width), or (features,)."""
    outputs: Size
    norm: models.Norm
    features: Annotated[int, Field(ge=1, le=MOST_FEATURES)] | None
    columns: list[str]
    """The names of the columns of an input, in their order; none for images and arrays."""
    classes: list[str]
    constants: Pair | None
    """By what inputs are normalised, where that is one and the same for all who use the model."""
    adapter: Adapter | None = None
    """How it is used, if it answers with more than logits or takes its input by name."""


def read_facts(data: bytes, description: Description) -> ModelFacts:
    """What a model's file says, checked before anything is built from it; otherwise a `ValueError` or `MessageError`.

    description: of the run's data. Inputs and outputs must be those that the run had: these are bounded, and the
        outputs are there by their words.
    """
    metadata = header_of(data).get("__metadata__")
    text = metadata.get(METADATA_KEY) if isinstance(metadata, dict) else None
    facts = read_as(ModelFacts, _parsed(text))
    if facts is None:
        raise ValueError("its metadata do not say what it is")
    *sides, channels = description.shape  # as rows are read; models take the channels first
    if facts.shape != [channels, *sides] or facts.outputs != len(description.outputs):
        raise ValueError("its inputs or outputs are not those of the run's data")
    constants = description.constants
    known = [*constants.values(), None] if isinstance(constants, dict) else [constants]
    if (facts.columns, facts.classes) != (description.features, description.classes) or (
        facts.constants not in known
    ):
        raise ValueError("its columns, classes or constants are not those of the run's data")
    return facts


def _parsed(text: object) -> object:
    try:
        return json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        return None


def write(
    federation: Federation, server: Server, evaluation: Evaluation, trained: Sequence[Facts], folder: Folder
) -> dict[str, str]:
    """Write every final model; returns the files with their digests.

    A file for each client that has a model of its own, one per architecture where clients share one, and the server's.
    """
    digests: dict[str, str] = {}
    held = federation.holdings
    known = held.constants
    for file, client, architecture, weights in _final(federation, server, evaluation, trained):
        constants = known.get(client) if isinstance(known, Mapping) else known
        facts = ModelFacts(
            architecture=architecture,
            shape=list(server.shape),
            outputs=server.outputs,
            norm=federation.config.models.norm,
            features=federation.config.models.features,
            columns=list(held.agreement.features),
            classes=list(held.agreement.classes),
            constants=constants and (list(constants[0]), list(constants[1])),
            adapter=federation.config.models.adapt.get(architecture),
        )
        said = facts.model_dump(exclude=set() if facts.adapter else {"adapter"})
        # One key: safetensors writes several in no fixed order, and equal models should be equal files.
        metadata = {METADATA_KEY: json.dumps(said)}
        tensors = {key: tensor.contiguous() for key, tensor in weights.items()}
        data = safetensors.torch.save(tensors, metadata)
        folder.write(file, data)
        digests[file] = digest(data)
    return digests


def _final(
    federation: Federation, server: Server, evaluation: Evaluation, trained: Sequence[Facts]
) -> Iterator[tuple[str, str, str, Weights]]:
    """File, client whose it is, architecture and weights of each."""
    roster, method, population = federation.roster, federation.method, federation.population
    models: dict[str, nn.Module] = {}

    def whole(weights: Mapping[str, Tensor], architecture: str) -> dict[str, Tensor]:
        """With what never travels: its architecture's frozen parts, and tied weights under their other names."""
        if architecture not in models:
            models[architecture] = population.build(architecture)
        return _whole(weights, models[architecture])

    if _own_models(method):
        for reply in evaluation.final_models(trained, server):
            name = reply.client.name
            architecture = reply.client.architecture
            yield own_file(name), name, architecture, whole(reply["weights"], architecture)
    firsts = [int((roster.which == place).argmax()) for place in range(len(roster.architectures))]
    for facts in (roster[index] for index in firsts):
        served = method.serves(server, facts)
        if served is not None:
            yield shared_file(facts.architecture), "", facts.architecture, whole(served, facts.architecture)
    if server.model is not None and server.architecture is not None:
        weights = _whole(learn.weights_of(server.model), server.model)
        yield own_file("server"), "", server.architecture, weights


def _whole(weights: Mapping[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """All of a model's state dict, of what travels of it and a model of its architecture."""
    found = {**weights, **learn.frozen_weights_of(model)}
    return found | {
        name: found[first].clone() for name, first in learn.other_names(model).items() if first in found
    }


def names_of(clients: Mapping[str, Any]) -> Names:
    """The clients' names, by what `models/clients.json` says."""
    return Names(len(clients["which"]), clients.get("names"))


def file_of(files: RunFiles, name: str) -> str:
    """The file of a client's model: its own, or the one that it shares with the others of its architecture."""
    there = files.folder.folder(MODELS)
    for own in (own_file(name), shared_file(name)):
        if own in there.names():
            return own
    folder = files.path
    shared = files.clients()
    names = names_of(shared)
    if name not in names:
        raise CheckpointError(f"no final model '{name}' in {folder}: use {few(names)}")
    architecture = shared["architectures"][shared["which"][names.index(name)]]
    file = shared_file(architecture)
    if not there.has(file):
        if file in shared["files"]:
            raise CheckpointError(
                f"{there.path / file} is missing: remove {folder / SUMMARY}, then `polyfed resume {folder}` writes it"
                " again"
            )
        reason = shared.get("missing", {}).get(name, "it never took part in learning")
        raise CheckpointError(f"{name} has no final model in {folder}: {reason}")
    return file


def missing(federation: Federation, files: Mapping[str, str], reasons: Mapping[str, str]) -> dict[str, str]:
    """The clients that should have a model of their own and have none, each with the reason.

    Not those that were never in a cohort, who may be many. files: what was written. reasons: why clients failed.
    """
    if not _own_models(federation.method):
        return {}
    roster = federation.roster
    holders = set(roster.holders().tolist())
    told = {name: f"it failed: {reason}" for name, reason in reasons.items()}
    told |= {roster.name(index): NO_ROWS for index in range(len(roster)) if index not in holders}
    return {name: reason for name, reason in told.items() if own_file(name) not in files}


def _own_models(method: Method) -> bool:
    """Whether clients have models of their own in the end."""
    return "model" in method.declared.keeps or method.declared.personal


def own_file(name: str) -> str:
    """The file of a client's own model, or of the server's."""
    return f"{name}.safetensors"


def shared_file(architecture: str) -> str:
    """The file of the model that the clients of an architecture share: no client's name has an underscore."""
    return f"shared_{models.file_name(architecture)}.safetensors"


def shared_by(roster: Roster) -> dict[str, Any]:
    """Which client has which of the architectures, and the clients' names where they were given."""
    shared = {"architectures": roster.architectures, "which": roster.which.tolist()}
    if roster.names.given is not None:
        shared["names"] = roster.names.given
    return shared
