"""The ONNX project's backend interface: ``prepare``, ``run_model``, ``run_node``, ``supports_device``.

    import onnx
    import neaptide.backend as backend

    prepared = backend.prepare(onnx.load("model.onnx"), memory_budget="6MiB")
    outputs = prepared.run([image])

It needs the package ``onnx``. What the engine cannot run is refused by one of :data:`REFUSALS`, before anything is computed.
"""

from __future__ import annotations

import os
from typing import Any, Mapping, Optional, Sequence, Tuple, Union

import numpy as np
from onnx import ModelProto, NodeProto, helper
from onnx.backend.base import Backend, BackendRep, namedtupledict
from onnx.defs import onnx_opset_version

from neaptide.capi.onnxruntime_pybind11_state import Fail, InvalidArgument, InvalidGraph, InvalidProtobuf, NotImplemented
from neaptide.options import SessionOptions
from neaptide.session import InferenceSession

#: What a model that cannot run raises: when it is prepared, or at its first run where its inputs' values decide sizes.
REFUSALS = (NotImplemented, InvalidArgument, InvalidGraph, InvalidProtobuf, Fail)

_Model = Union[ModelProto, bytes, str, "os.PathLike[str]"]


class NeaptideBackendRep(BackendRep):
    """A model that is ready to run."""

    def __init__(self, session: InferenceSession) -> None:
        self.session = session
        self._names = [value.name for value in session.get_outputs()]

    def run(self, inputs: Any, **kwargs: Any) -> Tuple[Any, ...]:
        """Runs on ``inputs``: a list in the model's order, a dict by names, or the only one. Outputs have names, too."""
        names = [value.name for value in self.session.get_inputs()]
        if isinstance(inputs, Mapping):
            feed = dict(inputs)
        else:
            values = list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]
            if len(values) != len(names):
                raise InvalidArgument(f"the model has {len(names)} inputs, {len(values)} were given")
            feed = dict(zip(names, values))
        return namedtupledict("Outputs", self._names)(*self.session.run(None, feed))


class NeaptideBackend(Backend):
    """The interface as a class, as ``onnx.backend.test`` wants it."""

    @classmethod
    def is_compatible(cls, model: _Model, device: str = "CPU", **kwargs: Any) -> bool:
        """Whether the model can be opened."""
        try:
            cls.prepare(model, device, **kwargs)
        except REFUSALS:
            return False
        return True

    @classmethod
    def prepare(cls, model: _Model, device: str = "CPU", **kwargs: Any) -> NeaptideBackendRep:
        """Opens a model. Further arguments are attributes of :class:`neaptide.SessionOptions`, such as ``memory_budget``."""
        if not cls.supports_device(device):
            raise InvalidArgument(f"device {device}: there is only CPU")
        options = SessionOptions()
        for name, value in kwargs.items():
            if not hasattr(options, name):
                raise InvalidArgument(f"there is no session option '{name}'")
            setattr(options, name, value)
        source = model.SerializeToString() if isinstance(model, ModelProto) else model
        return NeaptideBackendRep(InferenceSession(source, options))

    @classmethod
    def run_node(
        cls,
        node: NodeProto,
        inputs: Any,
        device: str = "CPU",
        outputs_info: Optional[Sequence[Tuple[np.dtype, Tuple[int, ...]]]] = None,
        **kwargs: Any,
    ) -> Tuple[Any, ...]:
        """Runs one node on a list of arrays, one for each input that the node names. ``opset_version`` says what it means."""
        opset = kwargs.pop("opset_version", onnx_opset_version())
        names = [name for name in node.input if name]
        arrays = [np.asarray(value) for value in inputs]
        if len(arrays) != len(names):
            raise InvalidArgument(f"the node has {len(names)} inputs, {len(arrays)} were given")
        given = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
            for name, array in dict(zip(names, arrays)).items()
        ]
        made = [name for name in node.output if name]
        if outputs_info is None:
            gives = [helper.make_empty_tensor_value_info(name) for name in made]
        else:
            kinds = [(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape) for dtype, shape in outputs_info]
            gives = [helper.make_tensor_value_info(name, *kind) for name, kind in zip(made, kinds)]
        graph = helper.make_graph([node], "node", given, gives)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid(node.domain, opset)])
        return cls.prepare(model, device, **kwargs).run(dict(zip(names, arrays)))

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """``CPU`` only."""
        return device.split(":")[0] == "CPU"


is_compatible = NeaptideBackend.is_compatible
prepare = NeaptideBackend.prepare
run_model = NeaptideBackend.run_model
run_node = NeaptideBackend.run_node
supports_device = NeaptideBackend.supports_device
