"""What onnxruntime's Python half takes from its native module."""

from neaptide.capi.onnxruntime_pybind11_state import *  # noqa: F401,F403
from neaptide.capi.onnxruntime_pybind11_state import __getattr__  # noqa: F401
from neaptide.info import get_available_providers, get_device  # noqa: F401
