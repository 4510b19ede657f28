"""What clients are called: as the run file says, by the words of a natural partition's column, else client-0 …"""

from __future__ import annotations

import re
from collections.abc import Sequence

from polyfed.data import Natural, Rotated
from polyfed.errors import ConfigError
from polyfed.federation.roster import Names
from polyfed.runs.data_section import Data

LONGEST = 60


def client_names(wanted: Data, clients: int, words: Sequence[str] | None) -> Names:
    """The names of so many clients: their identities, which depend on nothing but the data.

    words: the words that tell the clients of a natural partition apart, or those that a partition of one's own gives
        them; None if it gives none.
    """
    given = wanted.names
    if given is not None:
        if len(given) != clients:
            raise ConfigError(
                f"data.names: {len(given)} names for {clients} clients; give one for each, or none"
            )
        return Names(clients, given)
    if words is None or isinstance(wanted.partition, Rotated):
        return Names(clients)
    prefix = wanted.partition.column if isinstance(wanted.partition, Natural) else "client"
    return Names(clients, safe_names(words, prefix))


def safe_names(words: Sequence[str], column: str) -> list[str]:
    """A name for each word of a column, the word itself where it can be one.

    Names are those of files and of random streams, and must not be read as numbers. So whatever is not a letter or
    digit becomes a dash; a word that does not begin with a letter, or is the server's name, has the column's name
    before it (`clinic-1`); and of words that would have one name the later ones are numbered (`north-2`).
    """
    prefix = _cleaned(column)
    if not prefix[:1].isalpha():
        prefix = "client"
    names: dict[int, str] = {}
    seen = {"server"}
    candidates = [_candidate(word, prefix) for word in words]
    # Words that can stay as they are come first: `a-b` is not renamed because there is also an `a b`.
    for place in sorted(range(len(words)), key=lambda place: candidates[place] != words[place]):
        name, number = candidates[place], 1
        while name.casefold() in seen:  # casefold: on some disks North and north are one file
            number += 1
            name = f"{candidates[place]}-{number}"
        seen.add(name.casefold())
        names[place] = name
    return [names[place] for place in range(len(words))]


def _candidate(word: str, prefix: str) -> str:
    name = _cleaned(word)
    if name[:1].isalpha() and name.casefold() != "server":
        return name
    return f"{prefix}-{name}" if name else prefix


def _cleaned(word: str) -> str:
    return re.sub(r"[\W_]+", "-", word)[:LONGEST].strip("-")
