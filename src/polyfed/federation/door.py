"""The one door for replies: from bytes that anybody may have sent to fields that a method's round can use.

Whatever comes, a message is let in, or refused with a reason; nothing is raised.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from polyfed.errors import MessageError
from polyfed.federation.declaration import Declaration
from polyfed.federation.fields import Surroundings, why_refused, why_report_refused
from polyfed.federation.message import Fields, Kind, bytes_by_kind, decode
from polyfed.federation.outliers import MOST, Extents, extents_of, too_large
from polyfed.federation.wire import Wire
from polyfed.learn import Metric
from polyfed.tasks import CLASSIFICATION, Task


@dataclass(frozen=True)
class Arrived:
    """What came of a client's message, and its bytes by kind: they travelled, also if it is refused."""

    bytes: Mapping[Kind, int]
    fields: Mapping[str, Any] = field(default_factory=dict)
    report: Fields = field(default_factory=dict)
    """What the client measured and noted on the way."""
    extents: Extents = field(default_factory=dict)
    """How large the parts of the reply are."""
    refusal: str | None = None
    """Why nothing of it is used."""


@dataclass(frozen=True)
class Door:
    """What the replies to one ask must be.

    declared: by whoever the step belongs to.
    task: what is learnt. metrics: what is asked for beside its score.
    required: the fields without which a reply is refused; unless it has none at all and `may_be_empty`.
    """

    declared: Declaration
    wire: Wire
    sizes: Mapping[str, int]
    required: Sequence[str] = ()
    may_be_empty: bool = False
    task: Task = CLASSIFICATION
    metrics: Sequence[Metric] = ()

    def open(
        self,
        reply: bytes,
        report: bytes,
        *,
        sent: Fields,
        arrived: Fields | None,
        own_model: Callable[[], Mapping[str, Tensor]],
        samples: float,
    ) -> Arrived:
        """Let a reply in, with its report, or say why not.

        sent: what the client was sent. arrived: the same as it arrived, to which packed fields are differences; None if
            they are to nothing. own_model, samples: what the server knows of the client.
        """
        declared = self.declared
        size: Mapping[Kind, int] = {Kind.FRAMING: len(reply)}
        try:
            packed = decode(reply)
            size = bytes_by_kind(packed, len(reply), declared.kinds_up)
            fields = self.wire.unpack(packed, declared.kinds_up, "up", sent=arrived)
            told = decode(report)
        except MessageError as error:
            return Arrived(size, refusal=f"its reply cannot be unpacked: {error}")
        around = Surroundings(self.sizes, sent, fields, own_model, samples, self.task)
        outputs = self.sizes["outputs"]
        refusal = why_report_refused(told, declared.stages, declared.notes, outputs, self.task, self.metrics)
        extents: Extents = {}
        if refusal is None and (fields or (self.required and not self.may_be_empty)):
            refusal = why_refused(declared.sends, self.required, fields, around)
        if refusal is None:
            extents = extents_of(declared.sends, fields, around)
            part = too_large(extents)
            refusal = None if part is None else f"its {part} hold numbers over {MOST:g}"
        return Arrived(size, fields, told, extents, refusal)
