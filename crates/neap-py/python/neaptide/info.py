"""What this engine is, in the words that programs for onnxruntime ask with."""

from __future__ import annotations

import os
from typing import Any, Dict, List, Optional

#: The provider's name. ``CPUExecutionProvider`` is taken as another name of it.
PROVIDER = "NeaptideExecutionProvider"
_PROVIDERS = (PROVIDER, "CPUExecutionProvider")


def get_available_providers() -> List[str]:
    """Names that ``providers=`` accepts."""
    return list(_PROVIDERS)


def get_all_providers() -> List[str]:
    """The same: there are no others."""
    return list(_PROVIDERS)


def get_device() -> str:
    """Always ``CPU``."""
    return "CPU"


def get_build_info() -> str:
    """One line about the engine."""
    from neaptide import __version__

    return f"Neaptide {__version__}"


def get_version_string() -> str:
    """The version of this package."""
    from neaptide import __version__

    return __version__


def get_build_number() -> str:
    """Of this package's version."""
    return get_version_string()


def print_debug_info() -> None:
    """Prints what somebody who looks for a fault wants to know."""
    import platform

    import numpy

    print(f"{get_build_info()}, Python {platform.python_version()}, numpy {numpy.__version__}")
    print(f"{platform.platform()}, {os.cpu_count()} processors")
    print(f"providers: {', '.join(_PROVIDERS)}")


def has_collective_ops() -> bool:
    """No: a session runs on one machine."""
    return False


def preload_dlls(cuda: bool = True, cudnn: bool = True, msvc: bool = True, directory: Optional[str] = None) -> None:
    """Does nothing: the engine needs no other libraries."""


class OrtHardwareDevice:
    """The processor."""

    type = "CPU"
    vendor = ""
    vendor_id = 0
    device_id = 0
    metadata: Dict[str, str] = {}


class OrtEpDevice:
    """The engine on the processor."""

    ep_name = PROVIDER
    ep_vendor = "Neaptide"
    ep_metadata: Dict[str, str] = {}
    ep_options: Dict[str, str] = {}
    device = OrtHardwareDevice()


def get_ep_devices() -> List[OrtEpDevice]:
    """The one that there is."""
    return [OrtEpDevice()]


def register_execution_provider_library(registration_name: str, library_path: str) -> None:
    """Not possible: such a library is for onnxruntime's own binary interface."""
    from neaptide.capi.onnxruntime_pybind11_state import Fail

    raise Fail(f"providers of onnxruntime cannot be loaded: {library_path}")


def unregister_execution_provider_library(registration_name: str) -> None:
    """Not possible, as :func:`register_execution_provider_library`."""
    register_execution_provider_library(registration_name, registration_name)


def set_global_thread_pool_sizes(intra_op_num_threads: int, inter_op_num_threads: int) -> None:
    """Does nothing: each session has threads of its own, as its options say."""


def set_default_logger_callback(callback: Any, severity: int = 2) -> None:
    """Does nothing: the engine has no log. What goes wrong is raised."""


def set_default_logger_severity(severity: int) -> None:
    """Does nothing: the engine has no log. What goes wrong is raised."""


def set_default_logger_verbosity(verbosity: int) -> None:
    """Does nothing, as :func:`set_default_logger_severity`."""


def set_seed(seed: int) -> None:
    """Does nothing: random operators take their seed from the model."""


def disable_telemetry_events() -> None:
    """Does nothing: nothing is sent anywhere."""


def enable_telemetry_events() -> None:
    """Does nothing: nothing is sent anywhere."""
