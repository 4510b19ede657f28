"""What a client's generator makes, read back from a run directory, and what the served model says of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from polyfed import learn, models
from polyfed.data import InputForm
from polyfed.errors import CheckpointError, ConfigError, MessageError
from polyfed.federation.message import decode
from polyfed.methods import imitation
from polyfed.runs import api
from polyfed.runs.config import read_config
from polyfed.runs.states import read_state, read_states
from polyfed.runs.trained import form_of

ROWS = 500


@dataclass(frozen=True, eq=False)
class Generated:
    """Images of a generator.

    images: rows × height × width × channels, from 0 to 1 as they would be seen.
    classes: what the served model takes each for. confidence: the probability that it gives to that class.
    words: the word for each class.
    """

    images: Tensor
    classes: Tensor
    confidence: Tensor
    words: tuple[str, ...]


def generated(run: Path, client: str, rows: int = ROWS, *, trust: models.Trust = ()) -> Generated:
    """So many images that a client's generator makes at the end of a run; always the same ones.

    trust: as for `api.load_model`.
    """
    form = form_of(run, client)  # it says what is wrong with a folder that is no run
    config = read_config(run / "config.yaml")
    settings = config.method_settings()
    if not isinstance(settings, imitation.ImitationSettings) or not settings.keep_generator:
        raise ConfigError(
            f"no client of {run} keeps a generator (its method is {config.method.name}): use a run of"
            " method=fedkf with method.keep_generator=true"
        )
    if not form.is_image:
        raise ConfigError(
            f"the generators of {run} make rows of a table, not images: there is nothing to draw"
        )
    try:
        teacher = api.load_model(run, client, trust=trust)
    except api.OwnModelError as error:
        raise ConfigError(
            f"{client} trains '{error.architecture}', a model of your own: samples are drawn for built-in models"
        ) from None
    height, width, channels = form.shape
    generator = imitation.generator(settings, (channels, height, width), form.limits)
    learn.load_weights(generator, _kept(run, client)["weights"])
    stream = torch.Generator().manual_seed(0)
    with torch.no_grad():
        made = generator(torch.randn(rows, settings.noise, generator=stream))
    said = learn.predict(teacher, models.laid_out(made, teacher))
    confidence, classes = said[:, : len(form.classes)].softmax(dim=1).max(dim=1)
    return Generated(_seen(made, form).permute(0, 2, 3, 1), classes, confidence, form.classes)


def _kept(run: Path, client: str) -> dict[str, Any]:
    """The generator in a client's memory."""
    state = read_states(run).get(client)
    if state is None or state.file is None:
        raise CheckpointError(f"{client} never took part in {run}: it has no generator")
    try:
        memory = decode(read_state(run, state))["memory"]
    except (MessageError, LookupError, TypeError):
        raise CheckpointError(f"the state of {client} in {run} was edited") from None
    kept = memory.get("generator") if isinstance(memory, dict) else None
    if not isinstance(kept, dict) or not isinstance(kept.get("weights"), dict):
        raise CheckpointError(f"{client} has trained no generator in {run} yet: it needs a second round")
    return kept


def _seen(made: Tensor, form: InputForm) -> Tensor:
    """Images from 0 to 1: as the data are before they are normalised, or stretched where that is not known."""
    if form.scaled:
        mean, std = (torch.tensor(constants).view(-1, 1, 1) for constants in (form.mean, form.std))
        return (made * std + mean).clamp(0, 1)
    low, high = made.amin((0, 2, 3), keepdim=True), made.amax((0, 2, 3), keepdim=True)
    return (made - low) / (high - low).clamp(min=1e-12)
