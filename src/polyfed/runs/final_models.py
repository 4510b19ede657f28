"""The models that a finished run leaves behind: one safetensors file each."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import safetensors.torch

from polyfed import learn, models
from polyfed.disk import Folder, digest
from polyfed.federation import Facts, Server, Weights
from polyfed.federation.message import METADATA_KEY
from polyfed.federation.roster import Roster
from polyfed.runs.evaluation import Evaluation
from polyfed.runs.federation import Federation


def write(
    federation: Federation, server: Server, evaluation: Evaluation, trained: Sequence[Facts], folder: Folder
) -> dict[str, str]:
    """Write every final model; returns the files with their digests.

    A file for each client that has a model of its own, one per architecture where clients share one, and the server's.
    """
    digests: dict[str, str] = {}
    for name, architecture, weights in _final(federation, server, evaluation, trained):
        facts = {
            "architecture": architecture,
            "shape": server.shape,
            "outputs": server.outputs,
            "norm": federation.config.models.norm,
            "features": federation.config.models.features,
        }
        # One key: safetensors writes several in no fixed order, and equal models should be equal files.
        metadata = {METADATA_KEY: json.dumps(facts)}
        file = f"{models.file_name(name)}.safetensors"
        tensors = {key: tensor.contiguous() for key, tensor in weights.items()}
        data = safetensors.torch.save(tensors, metadata)
        folder.write(file, data)
        digests[file] = digest(data)
    return digests


def _final(
    federation: Federation, server: Server, evaluation: Evaluation, trained: Sequence[Facts]
) -> Iterator[tuple[str, str, Weights]]:
    """Name, architecture and weights of each."""
    roster, method = federation.roster, federation.method
    if "model" in method.keeps or method.personal:
        for reply in evaluation.final_models(trained, server):
            yield reply.client.name, reply.client.architecture, reply["weights"]
    firsts = [int((roster.which == place).argmax()) for place in range(len(roster.architectures))]
    for facts in (roster[index] for index in firsts):
        served = method.serves(server, facts)
        if served is not None:
            yield facts.architecture, facts.architecture, served
    if server.model is not None and server.architecture is not None:
        yield "server", server.architecture, learn.weights_of(server.model)


def shared_by(roster: Roster) -> dict[str, Any]:
    """Which client has which of the architectures, and the clients' names where they were given."""
    shared = {"architectures": roster.architectures, "which": roster.which.tolist()}
    if roster.names.given is not None:
        shared["names"] = roster.names.given
    return shared
