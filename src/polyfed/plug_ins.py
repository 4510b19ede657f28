"""What other packages add through entry points: loaded on demand, so that a broken one costs nobody else anything."""

from __future__ import annotations

import logging
from importlib.metadata import EntryPoint
from typing import Any

from polyfed.errors import UserError, describe

logger = logging.getLogger(__name__)


def load(entry: EntryPoint, what: str, error: type[UserError]) -> Any:
    """What an entry point leads to; otherwise an error of this kind, which says what cannot be loaded and why."""
    try:
        return entry.load()
    except Exception as reason:
        raise error(
            f"the plug-in {what} '{entry.name}' ({entry.value}) cannot be loaded: {describe(reason)}"
        ) from reason


_warned: set[str] = set()


def warn_once(text: str) -> None:
    """A warning of a plug-in that is left out: one line, however often it is met."""
    if text not in _warned:
        _warned.add(text)
        logger.warning("%s", text)
