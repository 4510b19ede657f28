"""Whether a method finds in a federation what it needs."""

from __future__ import annotations

from collections.abc import Sequence

from polyfed.data import Rows
from polyfed.errors import MethodError
from polyfed.federation.method import Method, Need


def check_needs(
    method: Method, *, architectures: Sequence[str], public: Rows | None, server_model: str | None
) -> None:
    """Raise a `MethodError` that says what to set, if one of a method's needs is not met."""
    unmet: dict[Need, str] = {}
    if len(architectures) > 1:
        unmet[Need.COMMON_ARCHITECTURE] = (
            f"one architecture for all, here are {len(architectures)} ({', '.join(architectures)}):"
            " set models.names to one of them"
        )
    if public is None:
        unmet[Need.PUBLIC] = (
            "public data: set data.public.source=share and data.public.share=0.1, or name a data set"
        )
    elif public.dataset.labels is None:
        unmet[Need.PUBLIC_LABELS] = "labels on the public data: set data.public.labels=own"
    if server_model is None:
        unmet[Need.SERVER_MODEL] = "a server model: set models.server"
    needs = {need: need.otherwise for need in method.needs}
    for need, remedy in unmet.items():
        if need in needs:
            otherwise = f" or {needs[need]}" if needs[need] else ""
            raise MethodError(f"{method.name} needs {remedy}{otherwise}")
