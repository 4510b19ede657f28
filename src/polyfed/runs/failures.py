"""Which clients failed in a run, in which step, how often and why. Failures with the same reason are told once."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polyfed.disk import Folder
from polyfed.federation.engine import DIVERGED, Failure
from polyfed.federation.roster import Roster

logger = logging.getLogger(__name__)

FAILURES_LOG = "failures.log"
MOST_REASONS = 5
MOST_NAMES = 3
MOST_SPANS = 4
_NUMBER = re.compile(r"(?<![:\w])\d[\d.,]*(e[+-]?\d+)?")  # but not the line of `my_method.py:23`


@dataclass(frozen=True)
class FailedStep:
    """A step that failed for one reason: on which clients, in which rounds, how many times."""

    step: str
    reason: str
    alike: bool
    """Whether some of the reasons differ in their numbers: `reason` is the first of them."""
    clients: tuple[str, ...]
    rounds: tuple[int, ...]
    times: int

    def words(self, clients: int) -> str:
        """In one line, of so many clients: `2 of 8 clients (client-1, client-5) failed in step 'train' …`."""
        times = f", {self.times} times" if self.times > len(self.clients) else ""
        alike = " (and alike)" if self.alike else ""
        return (
            f"{len(self.clients)} of {clients} clients ({few_names(self.clients)}) failed in step '{self.step}',"
            f" {_words_of_rounds(self.rounds)}{times}: {self.reason}{alike}"
        )


def log_failures(failures: Sequence[Failure], number: int, roster: Roster, folder: Folder) -> None:
    """Keep the tracebacks of what failed in a round in the run directory."""
    told: dict[str, list[str]] = {}
    for failure in failures:
        name = name_of(failure, roster)
        where = f"{folder.path}: round {number}"
        logger.debug("%s: %s failed in step '%s': %s", where, name, failure.step, failure.reason)
        if failure.traceback:
            told.setdefault(failure.traceback, []).append(f"{name} in step '{failure.step}'")
    if told:
        with folder.append(FAILURES_LOG) as file:
            for text, all_of_them in told.items():
                line = f"round {number}: {', '.join(all_of_them)}\n{text}\n"
                file.write(line.encode(errors="backslashreplace"))


def name_of(failure: Failure, roster: Roster) -> str:
    """The client that failed."""
    assert failure.client is not None, "a server's step that fails ends the run at once"
    return roster.name(failure.client)


def few_names(names: Iterable[str]) -> str:
    """`client-1, client-5, …`: the first of some clients, each once."""
    known = list(dict.fromkeys(names))
    return ", ".join(known[:MOST_NAMES]) + (", …" if len(known) > MOST_NAMES else "")


def diverged(history: Iterable[Mapping[str, Any]]) -> list[str]:
    """The clients whose weights were not finite after a step, in the order in which it happened."""
    failures = (failure for line in history for failure in line.get("failures", ()))
    return list(dict.fromkeys(each["client"] for each in failures if DIVERGED in each["reason"]))


def last_reasons(history: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Why each client that failed did so the last time."""
    return {each["client"]: each["reason"] for line in history for each in line.get("failures", ())}


def failed_steps(history: Iterable[Mapping[str, Any]]) -> list[FailedStep]:
    """The failures in a history's lines, folded; the most frequent first."""
    found: dict[tuple[str, str], list[tuple[int, Mapping[str, str]]]] = {}
    for line in history:
        for failure in line.get("failures", ()):
            kind = (failure["step"], _NUMBER.sub("#", failure["reason"]))
            found.setdefault(kind, []).append((line["round"], failure))
    folded = [
        FailedStep(
            step,
            reason=those[0][1]["reason"],
            alike=len({failure["reason"] for _, failure in those}) > 1,
            clients=tuple(dict.fromkeys(failure["client"] for _, failure in those)),
            rounds=tuple(dict.fromkeys(number for number, _ in those)),
            times=len(those),
        )
        for (step, _), those in found.items()
    ]
    return sorted(folded, key=lambda each: -each.times)


def failure_lines(failed: Sequence[FailedStep], clients: int, path: Path) -> list[str]:
    """What failed, a line for each reason, and where the tracebacks are; of many reasons the most frequent.

    clients: how many the run has. path: the run directory.
    """
    lines = [each.words(clients) for each in failed[:MOST_REASONS]]
    rest = failed[MOST_REASONS:]
    if rest:
        lines.append(f"and {_other_reasons(rest)}, {sum(each.times for each in rest)} times")
    if failed:
        log = path / FAILURES_LOG
        lines.append(f"tracebacks are in {log}" if log.exists() else f"all are in {path / 'history.jsonl'}")
    return lines


def failures_in_a_line(failed: Sequence[FailedStep], clients: int, path: Path) -> str:
    """The most frequent failure, how many others there are, and where to read on."""
    others = f"; and {_other_reasons(failed[1:])}" if len(failed) > 1 else ""
    return f"{failed[0].words(clients)}{others}; {failure_lines(failed[:1], clients, path)[-1]}"


def _other_reasons(failed: Sequence[FailedStep]) -> str:
    return "1 other reason" if len(failed) == 1 else f"{len(failed)} other reasons"


def _words_of_rounds(rounds: Sequence[int]) -> str:
    """`round 3`, `rounds 1–4, 7`; of many spans the first and the last round."""
    numbers = sorted(number for number in rounds if number)
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][-1] + 1:
            spans[-1][1:] = [number]
        else:
            spans.append([number])
    words = []
    if len(numbers) < len(rounds):
        words.append("before the first round")
    if len(spans) > MOST_SPANS:
        words.append(f"{len(numbers)} rounds between {numbers[0]} and {numbers[-1]}")
    elif spans:
        told = ", ".join("–".join(map(str, span)) for span in spans)
        words.append(f"{'round' if len(numbers) == 1 else 'rounds'} {told}")
    return " and ".join(words)
