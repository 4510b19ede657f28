"""What clients are called: as the run file says, by the words of a natural partition's column, else client-0 …"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from polyfed.data import Natural
from polyfed.errors import ConfigError
from polyfed.federation.roster import Names
from polyfed.runs.config import Data

LONGEST = 60


def client_names(wanted: Data, clients: int, words: Sequence[str] | None, models: Iterable[str]) -> Names:
    """The names of so many clients.

    words: the words that tell the clients of a natural partition apart, if each has one.
    models: the names of models, which clients cannot have too.
    """
    given = wanted.names
    if given is not None:
        if len(given) != clients:
            raise ConfigError(
                f"data.names: {len(given)} names for {clients} clients; give one for each, or none"
            )
        return Names(clients, given)
    if words is None or not isinstance(wanted.partition, Natural):
        return Names(clients)
    return Names(clients, safe_names(words, wanted.partition.column, models))


def safe_names(words: Sequence[str], column: str, models: Iterable[str] = ()) -> list[str]:
    """A name for each word of a column, the word itself where it can be one.

    Names are those of files and of random streams, and must not be read as numbers. So whatever is not a letter or
    digit becomes a dash; a word that does not begin with a letter, or is the name of a model or of the server, has the
    column's name before it (`clinic-1`); and of words that would have one name the later ones are numbered (`north-2`).
    """
    prefix = _cleaned(column)
    if not prefix[:1].isalpha():
        prefix = "client"
    names: dict[int, str] = {}
    reserved = {"server", *(model.casefold() for model in models)}
    seen = set(reserved)
    candidates = [_candidate(word, prefix, reserved) for word in words]
    # Words that can stay as they are come first: `a-b` is not renamed because there is also an `a b`.
    for place in sorted(range(len(words)), key=lambda place: candidates[place] != words[place]):
        name, number = candidates[place], 1
        while name.casefold() in seen:  # casefold: on some disks North and north are one file
            number += 1
            name = f"{candidates[place]}-{number}"
        seen.add(name.casefold())
        names[place] = name
    return [names[place] for place in range(len(words))]


def _candidate(word: str, prefix: str, reserved: set[str]) -> str:
    name = _cleaned(word)
    if name[:1].isalpha() and name.casefold() not in reserved:
        return name
    return f"{prefix}-{name}" if name else prefix


def _cleaned(word: str) -> str:
    return re.sub(r"[\W_]+", "-", word)[:LONGEST].strip("-")
