"""The exceptions, under the names that onnxruntime gives them; and by its native module's names what else this package has."""

from __future__ import annotations

from typing import Any, Optional


class Fail(Exception):
    """A model cannot be opened."""


class InvalidArgument(Exception):
    """An input, an option or a name that does not fit the model."""


class NoSuchFile(Exception):
    """There is no such model file, or it cannot be read."""


class NoModel(Exception):
    """Kept for programs that catch it; never raised."""


class EngineError(Exception):
    """Kept for programs that catch it; never raised."""


class RuntimeException(Exception):
    """A run failed after it had begun: weights cannot be read, or values cannot be computed with."""


class InvalidProtobuf(Exception):
    """The file is not an ONNX file."""


class ModelLoaded(Exception):
    """Kept for programs that catch it; never raised."""


class NotImplemented(Exception):
    """The model uses an operator, a type or sizes that the engine does not have."""


class InvalidGraph(Exception):
    """The file is an ONNX file, and holds no valid model."""


class EPFail(Exception):
    """Kept for programs that catch it; never raised."""


class ModelLoadCanceled(Exception):
    """Kept for programs that catch it; never raised."""


class ModelRequiresCompilation(Exception):
    """Kept for programs that catch it; never raised."""


class NotFound(Exception):
    """Kept for programs that catch it; never raised."""


class DeviceReset(Exception):
    """Kept for programs that catch it; never raised."""


class BudgetError(RuntimeException):
    """The model cannot run in its memory budget. Only Neaptide raises it."""

    #: The budget that cannot be met, in bytes.
    budget_bytes: Optional[int] = None
    #: The smallest one that can, in bytes.
    smallest_bytes: Optional[int] = None


def __getattr__(name: str) -> Any:
    # Looked up late: the package itself begins with this module.
    import neaptide

    if name.startswith("_") or not hasattr(neaptide, name):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(neaptide, name)
