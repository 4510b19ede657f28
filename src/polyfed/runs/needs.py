"""Whether a method finds in a federation what it needs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from polyfed.data import Rows
from polyfed.errors import MethodError
from polyfed.federation.declaration import Need
from polyfed.federation.method import Method, registered
from polyfed.learn import Distillation, Training
from polyfed.tasks import Task, Trait, lacking

USUAL_FEATURES = 64  # suggested where nothing else decides


def check_task(method: Method, task: Task) -> None:
    """Raise a `MethodError` that names methods that do, if a method makes no sense for what is learnt."""
    trait = lacking(task, method.declared.tasks)
    if trait is None:
        _check_temperatures(method, task)
        return
    setting = method.declared.tasks[trait]
    others = ", ".join(methods_for(task, method.training))
    raise MethodError(
        f"{method.name} is not for task={task.name}: it needs {trait}:"
        f" {f'set {setting}, or ' if setting else ''}use {others}"
    )


def methods_for(task: Task, training: Training) -> list[str]:
    """The methods that make sense for a task; behind them those that do so with another setting, which is named."""
    declared = {name: kind(kind.Settings(), training).declared for name, kind in registered().items()}
    lacks = {name: lacking(task, said.tasks) for name, said in declared.items()}
    settings = {name: declared[name].tasks[trait] for name, trait in lacks.items() if trait is not None}
    return [
        *(name for name, trait in lacks.items() if trait is None),
        *(f"{name} (with {setting})" for name, setting in settings.items() if setting),
    ]


def _check_temperatures(method: Method, task: Task) -> None:
    """Refuse a temperature where there is nothing to soften: it would be passed over."""
    if Trait.PROBABILITIES in task.traits or Trait.TABLE not in task.traits:
        return
    for name, value in method.settings:
        if isinstance(value, Distillation) and value.temperature != 1.0:
            raise MethodError(
                f"method.{name}.temperature softens probabilities, and task={task.name} has none: leave it at 1"
            )


def check_needs(
    method: Method,
    *,
    architectures: Sequence[str],
    public: Rows | None,
    server_model: str | None,
    features: Mapping[str, int],
    own: Collection[str] = (),
) -> None:
    """Raise a `MethodError` that says what to set, if one of a method's needs is not met.

    features: how many features each architecture has, where the method needs one number for all. own: the user's own
        architectures, which no setting changes.
    """
    unmet: dict[Need, str] = {}
    if len(architectures) > 1:
        unmet[Need.COMMON_ARCHITECTURE] = (
            f"one architecture for all, here are {len(architectures)} ({', '.join(architectures)}):"
            " set models.names to one of them"
        )
    if len(set(features.values())) > 1:
        unmet[Need.COMMON_FEATURES] = (
            f"one feature size for all, here are {', '.join(f'{name} {size}' for name, size in features.items())}:"
            f" {_one_feature_size(features, own)}"
        )
    if public is None:
        unmet[Need.PUBLIC] = (
            "public data: set data.public.source=share and data.public.share=0.1, or name a data set"
        )
    elif public.dataset.labels is None:
        hidden = bool(public.dataset.classes)
        unmet[Need.PUBLIC_LABELS] = "labels on the public data: " + (
            "set data.public.labels=own" if hidden else f"{public.dataset.name} has none, name another set"
        )
    if server_model is None:
        unmet[Need.SERVER_MODEL] = "a server model: set models.server"
    for need, remedy in unmet.items():
        if need in method.declared.needs:
            setting = method.declared.needs[need]
            otherwise = f" or {setting}" if setting else ""
            raise MethodError(f"{method.name} needs {remedy}{otherwise}")


def _one_feature_size(features: Mapping[str, int], own: Collection[str]) -> str:
    """What to do so that all have one feature size."""
    fixed = {size for name, size in features.items() if name in own}
    if len(fixed) > 1:
        return "give the last nn.Linear of your own models inputs of one size"
    return f"set models.features={fixed.pop() if fixed else USUAL_FEATURES}"
