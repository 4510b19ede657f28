"""What clients bring: files, folders or arrays by the clients' names; read, and in the order that they agree on."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polyfed import data
from polyfed.data import Agreement, DataSet, Targets
from polyfed.errors import ConfigError, DataError, nearest
from polyfed.federation.roster import why_not_names
from polyfed.runs.client_names import safe_names
from polyfed.runs.data_section import OF_ONE_SET, Data
from polyfed.runs.holdings import GIVEN

SPLITS = {"train", "test"}


def own_sources(wanted: Data, given: Any) -> dict[str, Any] | None:
    """What each client brings, by its name; None where one data set is cut.

    given: from Python: a mapping of clients' names to their data, or a data set that is cut.
    """
    if given is not None:
        if not isinstance(given, Mapping) or (
            set(given) <= SPLITS and not isinstance(wanted.clients, Mapping)
        ):
            return None
        _check_given(wanted, given)
        # In the order in which the run began: replies are folded in the clients' order.
        return (
            {name: given[name] for name in wanted.clients}
            if isinstance(wanted.clients, Mapping)
            else dict(given)
        )
    if wanted.each is not None:
        return _matching(wanted.each)
    if not isinstance(wanted.clients, Mapping):
        return None
    sources = {
        name: each if isinstance(each, str) else each.model_dump(exclude_none=True)
        for name, each in wanted.clients.items()
    }
    if GIVEN in sources.values():
        raise DataError(
            f"this run began with data of your own: pass them again as data={{{next(iter(sources))!r}: …}}"
        )
    return sources


def _check_given(wanted: Data, given: Mapping[Any, Any]) -> None:
    """Refuse data given from Python that are not what a run file may say, or not those that a run began with."""
    if (reason := why_not_names(list(given))) is not None:
        raise ConfigError(f"data=…: {reason}")
    if isinstance(wanted.clients, Mapping):
        if set(wanted.clients.values()) != {GIVEN}:
            raise ConfigError(
                "data.clients says what each client brings, and so does data=…: give one of them"
            )
        for name in (*wanted.clients, *given):
            if name not in given or name not in wanted.clients:
                lacks = "is missing in" if name not in given else "is new in"
                raise ConfigError(
                    f"data=…: '{name}' {lacks} what was given; the run began with {', '.join(wanted.clients)}"
                )
    cut = [
        key
        for key in (*OF_ONE_SET, "clients", "each")
        if key in wanted.model_fields_set and getattr(wanted, key) is not None
    ]
    if cut and not isinstance(wanted.clients, Mapping):
        raise ConfigError(
            f"data.{cut[0]} is not for clients that bring their own data, as data=… does: leave it out"
        )


def _matching(pattern: str) -> dict[str, str]:
    """The files or folders that match a pattern such as `hospitals/*/data.csv`, named by what `*` stands for."""
    if not set(pattern) & set("*?["):
        raise DataError(f"data.each: '{pattern}' has no * in it: write what differs between clients as *")
    root = Path(pattern).anchor or "."
    inside = str(Path(pattern).relative_to(root)) if Path(pattern).is_absolute() else pattern
    try:
        found = sorted(path for path in Path(root).glob(inside) if not _is_hidden(path, pattern))
    except (ValueError, NotImplementedError, IndexError, OSError) as error:
        raise DataError(f"data.each: '{pattern}' cannot be looked for: {error}") from None
    if not found:
        raise DataError(f"data.each: nothing matches '{pattern}'; it is looked for from {Path.cwd()}")
    if len(found) == 1:
        raise DataError(
            f"data.each: only {found[0]} matches '{pattern}': a federation has two clients or more"
        )
    return dict(zip(safe_names(_wild_parts(found), "client"), map(str, found), strict=True))


def _is_hidden(path: Path, pattern: str) -> bool:
    """Whether a part of a path is hidden (.ipynb_checkpoints) that the pattern does not name."""
    return any(part.startswith(".") and part not in Path(pattern).parts for part in path.parts)


def _wild_parts(paths: Sequence[Path]) -> list[str]:
    """What tells these paths apart: the parts in which they differ, without endings."""
    above = Path(os.path.commonpath(paths))
    inside = [path.relative_to(above) for path in paths]
    parts = [each.with_suffix("").parts if (above / each).is_file() else each.parts for each in inside]
    if len({len(each) for each in parts}) > 1:
        return ["-".join(each) for each in parts]
    differ = [place for place in range(len(parts[0])) if len({each[place] for each in parts}) > 1]
    return ["-".join(each[place] for place in differ) for each in parts]


@dataclass(frozen=True, eq=False)
class Brought:
    """What one client brought, as it was read: its training rows, and its test rows if it has them apart."""

    train: DataSet
    test: DataSet | None
    fingerprint: str
    """Of what was read first, before anything was agreed on: it depends on nobody else."""

    @property
    def sets(self) -> list[DataSet]:
        return [self.train] if self.test is None else [self.train, self.test]

    def numbered(self, classes: tuple[str, ...]) -> Brought:
        """The same with class numbers in this order."""
        test = None if self.test is None else self.test.seen_as(classes=classes)
        return Brought(self.train.seen_as(classes=classes), test, self.fingerprint)


def read_brought(
    sources: Mapping[str, Any], wanted: Data, targets: Targets
) -> tuple[dict[str, Brought], Agreement]:
    """What each client brings, with columns and classes in the order that they agree on."""
    drops = columns_to_drop(sources, wanted.drop)

    def read(name: str, like: Agreement | None = None, fingerprint: str = "") -> Brought:
        options = {**wanted.reading(), "drop": drops[name], "like": like, "part": True, "targets": targets}
        with told_of(f"client '{name}'"):
            sets = [data.load(sources[name], "train", **options)]
            if data.has_split(sources[name], "test"):
                sets.append(data.load(sources[name], "test", **options))
            for each in sets:
                each.need_labels()
        read_as = fingerprint or " ".join(each.fingerprint for each in sets)
        return Brought(sets[0], sets[1] if len(sets) > 1 else None, read_as)

    found = {name: read(name) for name in sources}
    agreement = data.agree(
        {name: each.sets for name, each in found.items()}, wanted.classes, wanted.image, targets
    )
    for name, each in found.items():
        if each.train.features != agreement.features:
            found[name] = read(name, agreement, each.fingerprint)  # its columns are in another order
    return {name: each.numbered(agreement.classes) for name, each in found.items()}, agreement


@contextmanager
def told_of(what: str) -> Iterator[None]:
    """Say what is meant (`client 'north'`) where data cannot be read."""
    try:
        yield
    except DataError as error:
        raise DataError(f"{what}: {error}") from None


def alike(brought: Mapping[str, Brought]) -> Iterator[tuple[str, str]]:
    """Clients that bring the very same training rows as one before them."""
    first: dict[str, str] = {}
    for name, each in brought.items():
        if each.train.fingerprint in first:
            yield first[each.train.fingerprint], name
        first.setdefault(each.train.fingerprint, name)


def columns_to_drop(
    sources: Mapping[str, Any], drop: Sequence[str], *, strict: bool = True
) -> dict[str, list[str]]:
    """The columns that are left out of each client's table: those of `data.drop` that it has.

    strict: somebody must have each.
    """
    if not drop:
        return {name: [] for name in sources}
    columns: dict[str, tuple[str, ...] | None] = {}
    for name, source in sources.items():
        with told_of(f"client '{name}'") if strict else nullcontext():
            columns[name] = data.table_columns(source)
    known = [column for own in columns.values() for column in own or ()]
    for column in drop:
        if column not in known and strict:
            raise DataError(
                f"data.drop: no client has a column '{column}': {nearest(column, dict.fromkeys(known))}"
            )
    return {name: [column for column in drop if column in (own or ())] for name, own in columns.items()}
