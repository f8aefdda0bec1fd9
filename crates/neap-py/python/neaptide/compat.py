"""Answers ``import onnxruntime`` for programs that cannot be changed."""

from __future__ import annotations

import importlib.machinery
import importlib.metadata
import os
import sys
import types
from importlib.machinery import ModuleSpec

#: The version of onnxruntime's Python API that programs see where no onnxruntime is installed.
API_VERSION = "1.23.0"

_NAME = "onnxruntime"
_DISTRIBUTIONS = ("onnxruntime", "onnxruntime-gpu", "onnxruntime-openvino")


def install(children: bool = False) -> None:
    """From now on ``import onnxruntime`` gives this package, in this process; with ``children`` also in processes of Python
    that this one starts, by whatever means.

    What the real onnxruntime has beside its sessions, such as ``onnxruntime.quantization``, is found where it is installed.
    Raises ``RuntimeError`` where the real one was imported before: objects of both would meet.
    """
    import neaptide
    from neaptide.capi import _pybind_state, onnxruntime_pybind11_state

    if children:
        _cover_children()
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
    # Its modules in Python, which use what is imported from here; its native module is never loaded.
    real = importlib.machinery.PathFinder.find_spec(_NAME)
    if real is not None:
        made[_NAME].__path__ = list(real.submodule_search_locations or [])
    made[_NAME].__file__ = (real and real.origin) or neaptide.__file__
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


def _cover_children() -> None:
    """A folder on the path of all processes of Python that inherit the environment."""
    folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "_children")
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if folder not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join([folder, *filter(None, paths)])
    os.environ["NEAPTIDE_CHILDREN"] = "1"


def _like(name: str, module: types.ModuleType) -> types.ModuleType:
    """A module of another name with the same contents."""
    made = types.ModuleType(name, module.__doc__)
    contents = {key: value for key, value in vars(module).items() if not key.startswith("__") or key == "__all__"}
    made.__dict__.update(contents)
    # Programs ask for the spec to see whether onnxruntime is there.
    made.__spec__ = ModuleSpec(name, None, is_package=True)
    made.__path__ = []
    made.__file__ = getattr(module, "__file__", None)
    return made


def _version() -> str:
    """Of the onnxruntime that is installed, which programs may compare with what they need."""
    for name in _DISTRIBUTIONS:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return API_VERSION
