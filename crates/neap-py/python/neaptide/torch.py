"""PyTorch's models inside a memory budget, by way of ``torch.onnx``.

    import neaptide.torch

    run = neaptide.torch.export(model.eval(), (image,), memory_budget="40MiB")
    scores = run(image)

    fast = torch.compile(model.eval(), backend="neaptide", options={"memory_budget": "40MiB"})
    with torch.no_grad():
        scores = fast(image)

It needs the packages ``torch`` and ``onnxscript``. Weights are copied to a file in the cache folder when a model is exported:
what is trained afterwards is not seen. Free the model's own weights to gain what the budget promises.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple, Union

import torch

from neaptide.options import CACHE_VARIABLE, SessionOptions
from neaptide.session import InferenceSession
from neaptide.values import OrtValue

_Path = Union[str, "os.PathLike[str]"]


class Exported:
    """A model that was exported: called with tensors, it gives tensors."""

    def __init__(self, path: str, options: SessionOptions, keeps: Any = None) -> None:
        self.path = path
        self.session = InferenceSession(path, options)
        self._names = [value.name for value in self.session.get_inputs()]
        # A folder that goes with this object.
        self._keeps = keeps

    def __call__(self, *tensors: Any) -> Any:
        """Runs on the model's tensors, in the order of the export. Several outputs are a tuple."""
        outputs = self.run(tensors)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def run(self, tensors: Sequence[Any]) -> List[Any]:
        """The same, with all outputs in a list."""
        if len(tensors) != len(self._names):
            raise TypeError(f"the model has {len(self._names)} inputs, {len(tensors)} were given")
        feed = {name: _value(tensor) for name, tensor in zip(self._names, tensors)}
        return [torch.from_dlpack(value) for value in self.session.run_with_ort_values(None, feed)]


def export(
    model: Any,
    args: Tuple[Any, ...],
    path: Optional[_Path] = None,
    *,
    memory_budget: Any = None,
    cache_dir: Optional[str] = None,
    **options: Any,
) -> Exported:
    """Exports a model with ``torch.onnx.export`` and opens it.

    ``args`` are inputs to trace it with. ``path`` is where the ``.onnx`` goes; without one it goes to a folder that is removed with
    the result. Further options are ``torch.onnx.export``'s, such as ``dynamic_shapes``.
    """
    keeps = None
    if path is None:
        keeps = _Folder(cache_dir)
        path = os.path.join(keeps.path, "model.onnx")
    path = os.fspath(path)
    with torch.no_grad():
        torch.onnx.export(model, tuple(args), path, **{"verbose": False, **options})
    return Exported(path, SessionOptions(memory_budget=memory_budget, cache_dir=cache_dir), keeps)


def compile_backend(graph: Any, example_inputs: Sequence[Any], *, options: Optional[Dict[str, Any]] = None) -> Callable[..., Any]:
    """For ``torch.compile(model, backend="neaptide", options={"memory_budget": …})``.

    Parameters and buffers become weights when the graph first runs. Each shape of the other inputs has an export of its own.
    """
    opened: Dict[Any, Exported] = {}
    # PyTorch hands a model's parameters and buffers to the graph as its first inputs.
    is_fixed = [_is_fixed(value) for value in example_inputs]
    given = dict(options or {})

    def run(*values: Any) -> Any:
        if torch.is_grad_enabled() and any(isinstance(v, torch.Tensor) and v.requires_grad for v in values):
            raise RuntimeError("neaptide computes no gradients: call the compiled model within torch.no_grad()")
        is_constant = [fixed or not isinstance(value, torch.Tensor) for fixed, value in zip(is_fixed, values)]
        free = [value for value, constant in zip(values, is_constant) if not constant]
        sizes = [value for value in values if not isinstance(value, torch.Tensor)]
        key = (tuple(sizes), tuple((tuple(t.shape), t.dtype) for t in free))
        if key not in opened:
            opened[key] = export(_Bound(graph, values, is_constant).eval(), tuple(free), **given)
        return tuple(opened[key].run(free))

    return run


class _Bound(torch.nn.Module):
    """A graph whose constants are its own."""

    def __init__(self, graph: Any, values: Sequence[Any], is_constant: Sequence[bool]) -> None:
        super().__init__()
        self._graph = graph
        self._is_constant = list(is_constant)
        self._sizes: Dict[int, Any] = {}
        for index, (value, constant) in enumerate(zip(values, is_constant)):
            if constant and isinstance(value, torch.Tensor):
                self.register_buffer(f"constant_{index}", value.detach())
            elif constant:
                self._sizes[index] = value

    def forward(self, *free: Any) -> Any:
        left = iter(free)
        merged = []
        for index, constant in enumerate(self._is_constant):
            if not constant:
                merged.append(next(left))
            elif index in self._sizes:
                merged.append(self._sizes[index])
            else:
                merged.append(getattr(self, f"constant_{index}"))
        return self._graph(*merged)


class _Folder:
    """A folder that is removed with this object."""

    def __init__(self, parent: Optional[str]) -> None:
        parent = parent or os.environ.get(CACHE_VARIABLE) or None
        if parent:
            os.makedirs(parent, exist_ok=True)
        self.path = tempfile.mkdtemp(prefix="neaptide-torch-", dir=parent)

    def __del__(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)


def _is_fixed(value: Any) -> bool:
    """Whether an input of a graph is a parameter or buffer of the model."""
    is_static = getattr(value, "_dynamo_static_input_type", None) is not None
    return isinstance(value, torch.nn.Parameter) or is_static


def _value(tensor: Any) -> OrtValue:
    return OrtValue.from_dlpack(tensor.detach().contiguous())
