"""What this engine is, in the words that programs for onnxruntime ask with."""

from __future__ import annotations

from typing import List

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
