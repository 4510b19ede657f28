"""PyTorch's settings that hold for a whole process: what a step does to them ends with the step."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

SMALLEST = 5e-324  # a denormal number


def _set_device(device: torch.device) -> None:
    """None is PyTorch's own default, without the mode that every call would go through otherwise."""
    torch.set_default_device(None)
    if torch.get_default_device() != device:
        torch.set_default_device(device)


def _set_autocast(enabled: bool, dtype: torch.dtype) -> None:
    torch.set_autocast_enabled("cpu", enabled)
    torch.set_autocast_dtype("cpu", dtype)


def _folder() -> Path | None:
    try:
        return Path.cwd()
    except FileNotFoundError:  # somebody removed it
        return None


def _enter_folder(folder: Path | None) -> None:
    if folder is not None:
        with suppress(OSError):
            os.chdir(folder)


# How each is read, and how it is put back.
SETTINGS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "gradients": (torch.is_grad_enabled, torch.set_grad_enabled),
    "dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "device": (torch.get_default_device, _set_device),
    "threads": (torch.get_num_threads, torch.set_num_threads),
    "deterministic": (
        lambda: (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        ),
        lambda value: torch.use_deterministic_algorithms(value[0], warn_only=value[1]),
    ),
    "precision": (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    "autocast": (
        lambda: (torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")),
        lambda value: _set_autocast(*value),
    ),
    "anomalies": (
        lambda: (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
        lambda value: torch.autograd.set_detect_anomaly(*value),
    ),
    "mkldnn": (torch._C._get_mkldnn_enabled, torch._C._set_mkldnn_enabled),
    "denormals": (lambda: SMALLEST * 1.0 == 0.0, torch.set_flush_denormal),
    "folder": (_folder, _enter_folder),
}


@contextmanager
def settings_put_back() -> Iterator[None]:
    """Put PyTorch's settings, and the working folder, back to what they were before."""
    before = {name: read() for name, (read, _) in SETTINGS.items()}
    try:
        yield
    finally:
        for name, (read, put_back) in SETTINGS.items():
            if read() != before[name]:
                put_back(before[name])
