"""Run ONNX models and language models inside a memory budget.

The names are those of onnxruntime, so ``import neaptide as ort`` is enough for most programs::

    import neaptide as ort

    options = ort.SessionOptions(memory_budget="64MiB")
    session = ort.InferenceSession("resnet152.onnx", options)
    (scores,) = session.run(None, {"input": image})

Language models are in GGUF files::

    llm = ort.LLM("model.gguf", memory_budget="64MiB")
    print(llm.chat([{"role": "user", "content": "What is a neap tide?"}]))

Weights that do not fit stay on the drive and are read while the model computes. What differs from onnxruntime is a table
in ``docs/python.md``.
"""

from neaptide._neaptide import __version__
from neaptide.cached import cache_clear, cache_list
from neaptide.capi.onnxruntime_pybind11_state import BudgetError
from neaptide.compat import install, uninstall
from neaptide.info import (
    OrtEpDevice,
    OrtHardwareDevice,
    disable_telemetry_events,
    enable_telemetry_events,
    get_all_providers,
    get_available_providers,
    get_build_info,
    get_device,
    get_ep_devices,
    get_version_string,
    has_collective_ops,
    preload_dlls,
    print_debug_info,
    register_execution_provider_library,
    set_default_logger_callback,
    set_default_logger_severity,
    set_default_logger_verbosity,
    set_global_thread_pool_sizes,
    set_seed,
    unregister_execution_provider_library,
)
from neaptide.language import LLM, Answer, AnswerOptions, Stream
from neaptide.options import ExecutionMode, ExecutionOrder, GraphOptimizationLevel, RunOptions, SessionOptions
from neaptide.plan import Comparison, Plan
from neaptide.session import InferenceSession, ModelMetadata, NodeArg
from neaptide.training import Trainer
from neaptide.values import (
    IOBinding,
    LoraAdapter,
    OrtAllocatorType,
    OrtDevice,
    OrtMemoryInfo,
    OrtMemType,
    OrtValue,
    OrtValueVector,
    SessionIOBinding,
    SparseTensor,
)

__all__ = [
    "LLM",
    "Answer",
    "AnswerOptions",
    "BudgetError",
    "Comparison",
    "ExecutionMode",
    "ExecutionOrder",
    "GraphOptimizationLevel",
    "IOBinding",
    "InferenceSession",
    "LoraAdapter",
    "ModelMetadata",
    "NodeArg",
    "OrtAllocatorType",
    "OrtDevice",
    "OrtEpDevice",
    "OrtHardwareDevice",
    "OrtMemType",
    "OrtMemoryInfo",
    "OrtValue",
    "OrtValueVector",
    "Plan",
    "RunOptions",
    "SessionIOBinding",
    "SessionOptions",
    "SparseTensor",
    "Stream",
    "Trainer",
    "__version__",
    "cache_clear",
    "cache_list",
    "disable_telemetry_events",
    "enable_telemetry_events",
    "get_all_providers",
    "get_available_providers",
    "get_build_info",
    "get_device",
    "get_ep_devices",
    "get_version_string",
    "has_collective_ops",
    "install",
    "preload_dlls",
    "print_debug_info",
    "register_execution_provider_library",
    "set_default_logger_callback",
    "set_default_logger_severity",
    "set_default_logger_verbosity",
    "set_global_thread_pool_sizes",
    "set_seed",
    "uninstall",
    "unregister_execution_provider_library",
]
