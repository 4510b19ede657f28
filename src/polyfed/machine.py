"""What of this machine a process may use."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
OWN_CGROUPS = Path("/proc/self/cgroup")


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def memory() -> int:
    """How many bytes of memory this process may use: the machine's, or fewer where its container has a limit."""
    return min([os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), *_limits()])


def _limits() -> Iterator[int]:
    """What the control groups that this process is in, of either version, and those above them allow."""
    try:
        lines = OWN_CGROUPS.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        root, name = (CGROUPS / "memory", "memory.limit_in_bytes") if controllers else (CGROUPS, "memory.max")
        inner = root / path.lstrip("/")
        for group in (inner, *inner.parents):
            if group.is_relative_to(root) and (group / name).is_file():
                limit = (group / name).read_text().strip()
                if limit.isdigit():
                    yield int(limit)
