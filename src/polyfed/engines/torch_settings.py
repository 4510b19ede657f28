"""Settings that hold for a whole process, most of them PyTorch's: what a step does to them ends with the step."""

from __future__ import annotations

import functools
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, ParamSpec, TypeVar

import torch

SMALLEST = 5e-324  # a denormal number

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def with_gradients(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Let a function learn and make models that can, also where its caller has switched gradients off."""

    @functools.wraps(function)
    def wrapped(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        with torch.inference_mode(mode=False), torch.enable_grad():
            return function(*args, **kwargs)

    return wrapped


def _set_device(device: torch.device) -> None:
    """None is PyTorch's own default, without the mode that every call would go through otherwise."""
    torch.set_default_device(None)
    if torch.get_default_device() != device:
        torch.set_default_device(device)


def _set_autocast(enabled: bool, dtype: torch.dtype) -> None:
    torch.set_autocast_enabled("cpu", enabled)
    torch.set_autocast_dtype("cpu", dtype)


def _folder() -> str | None:
    try:
        return os.getcwd()  # noqa: PTH109 - read twice in every step, and a Path takes ten times longer
    except FileNotFoundError:  # somebody removed it
        return None


def _enter_folder(folder: str | None) -> None:
    if folder is not None:
        with suppress(OSError):
            os.chdir(folder)


def _signals() -> list[Any]:
    return [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]


def _handle_signals(handlers: list[Any]) -> None:
    if threading.current_thread() is threading.main_thread():
        for number, handler in zip((signal.SIGINT, signal.SIGTERM), handlers, strict=True):
            if handler is not None:  # else it is not Python's
                signal.signal(number, handler)


def _leave_modes(depths: tuple[int, int]) -> None:
    """Leave the modes that a step entered and did not leave: every later operation would go through them."""
    while torch._C._len_torch_function_stack() > depths[0]:
        torch._C._pop_torch_function_stack()
    while torch._C._len_torch_dispatch_stack() > depths[1]:
        torch._C._pop_torch_dispatch_stack(None)


# How each is read, and how it is put back.
SETTINGS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "modes": (
        lambda: (torch._C._len_torch_function_stack(), torch._C._len_torch_dispatch_stack()),
        _leave_modes,
    ),
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
    "signals": (_signals, _handle_signals),
    "recursion": (sys.getrecursionlimit, sys.setrecursionlimit),
    "digits": (sys.get_int_max_str_digits, sys.set_int_max_str_digits),
}


@contextmanager
def settings_put_back() -> Iterator[None]:
    """Put PyTorch's settings, the working folder and the like back to what they were before."""
    before = {name: read() for name, (read, _) in SETTINGS.items()}
    try:
        yield
    finally:
        for name, (read, put_back) in SETTINGS.items():
            if read() != before[name]:
                put_back(before[name])
