"""Run ONNX models inside a memory budget.

The names are those of onnxruntime, so ``import neaptide as ort`` is enough for most programs::

    import neaptide as ort

    options = ort.SessionOptions(memory_budget="64MiB")
    session = ort.InferenceSession("resnet152.onnx", options)
    (scores,) = session.run(None, {"input": image})

Weights that do not fit stay on the drive and are read while the model computes. What differs from onnxruntime is a table
in ``docs/python.md``.
"""

from neaptide._neaptide import __version__
from neaptide.capi.onnxruntime_pybind11_state import BudgetError
from neaptide.compat import install, uninstall
from neaptide.info import (
    disable_telemetry_events,
    enable_telemetry_events,
    get_all_providers,
    get_available_providers,
    get_build_info,
    get_device,
    set_default_logger_severity,
    set_default_logger_verbosity,
    set_seed,
)
from neaptide.options import ExecutionMode, ExecutionOrder, GraphOptimizationLevel, RunOptions, SessionOptions
from neaptide.plan import Comparison, Plan
from neaptide.session import InferenceSession, ModelMetadata, NodeArg
from neaptide.values import IOBinding, OrtDevice, OrtValue

__all__ = [
    "BudgetError",
    "Comparison",
    "ExecutionMode",
    "ExecutionOrder",
    "GraphOptimizationLevel",
    "IOBinding",
    "InferenceSession",
    "ModelMetadata",
    "NodeArg",
    "OrtDevice",
    "OrtValue",
    "Plan",
    "RunOptions",
    "SessionOptions",
    "__version__",
    "disable_telemetry_events",
    "enable_telemetry_events",
    "get_all_providers",
    "get_available_providers",
    "get_build_info",
    "get_device",
    "install",
    "set_default_logger_severity",
    "set_default_logger_verbosity",
    "set_seed",
    "uninstall",
]
