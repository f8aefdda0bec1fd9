"""Answers ``import onnxruntime`` for programs that cannot be changed."""

from __future__ import annotations

import importlib.metadata
import sys
import types
from importlib.machinery import ModuleSpec

#: The version of onnxruntime's Python API that programs see where no onnxruntime is installed.
API_VERSION = "1.23.0"

_NAME = "onnxruntime"
_DISTRIBUTIONS = ("onnxruntime", "onnxruntime-gpu", "onnxruntime-openvino")


def install() -> None:
    """From now on ``import onnxruntime`` gives this package, in this process.

    Raises ``RuntimeError`` where the real one was imported before: objects of both would meet.
    """
    import neaptide
    from neaptide.capi import _pybind_state, onnxruntime_pybind11_state

    known = sys.modules.get(_NAME)
    if known is not None:
        if getattr(known, "__neaptide__", False):
            return
        raise RuntimeError("onnxruntime was imported before: call neaptide.install() first")
    modules = {
        _NAME: neaptide,
        "onnxruntime.capi": neaptide.capi,
        "onnxruntime.capi.onnxruntime_pybind11_state": onnxruntime_pybind11_state,
        "onnxruntime.capi._pybind_state": _pybind_state,
        "onnxruntime.capi.onnxruntime_inference_collection": neaptide.session,
    }
    made = {name: _like(name, module) for name, module in modules.items()}
    made[_NAME].__version__ = _version()
    made[_NAME].__neaptide__ = True
    for name, module in made.items():
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(made[parent], child, module)
    sys.modules.update(made)


def uninstall() -> None:
    """``import onnxruntime`` gives the real one again. Objects that were made stay what they are."""
    if getattr(sys.modules.get(_NAME), "__neaptide__", False):
        for name in [name for name in sys.modules if name == _NAME or name.startswith(_NAME + ".")]:
            del sys.modules[name]


def _like(name: str, module: types.ModuleType) -> types.ModuleType:
    """A module of another name with the same contents."""
    made = types.ModuleType(name, module.__doc__)
    contents = {key: value for key, value in vars(module).items() if not key.startswith("__") or key == "__all__"}
    made.__dict__.update(contents)
    # Programs ask for the spec to see whether onnxruntime is there.
    made.__spec__ = ModuleSpec(name, None, is_package=True)
    # No other module of onnxruntime is found in it.
    made.__path__ = []
    return made


def _version() -> str:
    """Of the onnxruntime that is installed, which programs may compare with what they need."""
    for name in _DISTRIBUTIONS:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return API_VERSION
