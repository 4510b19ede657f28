"""How large the replies of a cohort are, and which are so much larger than the others that nobody honest sent them.

Every part of a reply has an extent: the root mean square of its entries; of weights, of their difference to what the
client was sent. A reply is an outlier if an extent of it is over `outliers` times (a setting of a run) the largest of

- the median of the cohort's extents,
- the extent of what the client was sent,
- what is never too large: 0.01 for weights and gradients, 5 for everything else.

So clients that train from zeros, many that hold little beside one that holds much, or all that diverge together are no
outliers. What is in a range by itself (probabilities, row numbers, counts) has no extent. Whatever the others send, an
extent over `MOST` is refused at the door: its square is hardly a number of 32 bits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from polyfed import learn
from polyfed.federation.fields import (
    Counts,
    Declared,
    Indices,
    LikeWeights,
    Probabilities,
    RowNumbers,
    Surroundings,
    field_of,
)
from polyfed.federation.message import Fields, Kind, numbers_in, tensors_in

MOST = 1e15
SMALL_WEIGHTS = 0.01
SMALL = 5.0
SUSPECT = 10.0  # times the median: from there on, a reply may be what spoilt a shared model

_IN_A_RANGE = (Probabilities, Indices, Counts, RowNumbers)


@dataclass(frozen=True)
class Extent:
    """How large a part of a reply is."""

    own: float
    """The root mean square of its entries, or of their differences to what the client was sent."""
    known: float
    """That of what the client was sent, or what is never too large."""
    spread: float
    """How many times more than in other fields honest clients differ in this one."""


Extents: TypeAlias = dict[str, Extent]
"""By part of the reply: `weights`, `running statistics of weights`, `logits`."""


def extents_of(declared: Declared, fields: Fields, around: Surroundings) -> Extents:
    """How large each part of a reply is that has passed the door."""
    found: Extents = {}
    for name, value in fields.items():
        field = field_of(declared[name])
        if isinstance(field, LikeWeights):
            found |= _of_weights(name, value, field, around)
        elif not isinstance(field, _IN_A_RANGE):
            found[name] = Extent(_of_anything(value), SMALL, field.spread)
    return found


def _of_weights(name: str, value: Any, field: LikeWeights, around: Surroundings) -> Extents:
    """Running statistics by themselves: they are as large as the data make them."""
    sent = field.sent_rows(name, around)
    found: Extents = {}
    for part, statistics in ((name, False), (f"running statistics of {name}", True)):
        own = {
            key: tensor
            for key, tensor in value.items()
            if learn.is_statistic(key) == statistics and tensor.is_floating_point()
        }
        if own:
            # Gradients are differences already; nothing is known of a model that was not sent.
            differ = field.kind != Kind.GRADIENTS and all(key in sent for key in own)
            changes = [tensor - sent[key] if differ else tensor for key, tensor in own.items()]
            known = learn.root_mean_square([sent[key] for key in own if key in sent])
            found[part] = Extent(learn.root_mean_square(changes), max(known, SMALL_WEIGHTS), field.spread)
    return found


def _of_anything(value: Any) -> float:
    entries = learn.root_mean_square([tensor for tensor in tensors_in(value) if tensor.is_floating_point()])
    return max([entries, *(abs(float(number)) for number in numbers_in(value))])


def too_large(extents: Extents) -> str | None:
    """The part of a reply that is too large whatever the others send, if there is one."""
    return next((part for part, extent in extents.items() if not extent.own <= MOST), None)


def ratios(cohort: Mapping[int, Extents]) -> dict[int, dict[str, float]]:
    """By client and part, how many times larger than the others' and than what was sent, divided by its spread."""
    medians = _medians(cohort)
    return {
        client: {
            part: extent.own / (extent.spread * max(medians[part], extent.known))
            for part, extent in extents.items()
        }
        for client, extents in cohort.items()
    }


def outliers(cohort: Mapping[int, Extents], factor: float) -> dict[int, str]:
    """The clients whose replies are outliers, each with the reason.

    cohort: the extents of all replies to one ask, by client. factor: the run's `outliers`.
    """
    found: dict[int, str] = {}
    for client, of_client in ratios(cohort).items():
        part = max(of_client, key=of_client.__getitem__, default="")
        if part and of_client[part] > factor:
            times = of_client[part] * cohort[client][part].spread
            found[client] = (
                f"its {part} are {times:.2g} times as large as the others' and as what it was sent: an outlier"
            )
    return found


def most_suspect(asks: Sequence[Mapping[int, Extents]]) -> int | None:
    """The client whose reply is the largest beside the others' in any ask of a round; None if none stands out."""
    ratios: dict[int, float] = {}
    for cohort in asks:
        medians = _medians(cohort)
        for client, extents in cohort.items():
            for part, extent in extents.items():
                ratio = extent.own / medians[part] if medians[part] else math.inf if extent.own else 0.0
                ratios[client] = max(ratios.get(client, 0.0), ratio)
    if not ratios:
        return None
    client = max(ratios, key=lambda each: (ratios[each], -each))
    return client if ratios[client] > SUSPECT else None


def _medians(cohort: Mapping[int, Extents]) -> dict[str, float]:
    """The median extent of each part; of two in the middle the smaller: one of two clients can be an outlier."""
    by_part: dict[str, list[float]] = {}
    for extents in cohort.values():
        for part, extent in extents.items():
            by_part.setdefault(part, []).append(extent.own)
    return {part: sorted(sizes)[(len(sizes) - 1) // 2] for part, sizes in by_part.items()}
