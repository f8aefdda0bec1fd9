"""Values that stay where they are: arrays of numpy and, by DLPack, of others, as inputs and outputs without a copy."""

from __future__ import annotations

import ctypes
import enum
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Sequence

import numpy as np

from neaptide.capi.onnxruntime_pybind11_state import Fail, InvalidArgument

if TYPE_CHECKING:
    from neaptide.session import InferenceSession

_TYPES = {
    "float32": "float",
    "float64": "double",
    **{name: name for name in ("float16", "bfloat16", "bool")},
    **{f"{sign}int{bits}": f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}


class OrtDevice:
    """Where a value is. Only the processor's memory is possible."""

    @staticmethod
    def cpu() -> int:
        """The number of the processor's memory."""
        return 0

    @staticmethod
    def default_memory() -> int:
        """The number of memory as it is."""
        return 0

    def __init__(self, device_type: Any = "cpu", memory_type: Any = None, device_id: int = 0) -> None:
        _check_device(device_type)
        self._device_id = device_id

    @staticmethod
    def make(ort_device_name: str, device_id: int = 0) -> "OrtDevice":
        """The device of that name."""
        return OrtDevice(ort_device_name, None, device_id)

    def device_type(self) -> int:
        """Always that of the processor: 0."""
        return 0

    def mem_type(self) -> int:
        """Always 0: memory as it is."""
        return 0

    def device_id(self) -> int:
        """As it was given."""
        return self._device_id


class OrtAllocatorType(enum.IntEnum):
    """How memory is taken."""

    INVALID = -1
    ORT_DEVICE_ALLOCATOR = 0
    ORT_ARENA_ALLOCATOR = 1


class OrtMemType(enum.IntEnum):
    """What memory is for."""

    CPU_INPUT = -2
    CPU_OUTPUT = -1
    CPU = -1
    DEFAULT = 0


class OrtMemoryInfo:
    """Where tensors are. Only the processor's memory is possible."""

    def __init__(
        self, name: str, allocator_type: Any = OrtAllocatorType.ORT_DEVICE_ALLOCATOR, id: int = 0, mem_type: Any = OrtMemType.DEFAULT
    ) -> None:
        _check_device(name.lower())
        self.name = name
        self.allocator_type = OrtAllocatorType(allocator_type)
        self.device_id = id
        self.mem_type = OrtMemType(mem_type)

    @staticmethod
    def cpu() -> "OrtMemoryInfo":
        """The processor's."""
        return OrtMemoryInfo("Cpu")


class OrtValueVector(List["OrtValue"]):
    """Values in a row."""

    def push_back(self, value: Any) -> None:
        """Appends a value, or an array."""
        self.append(value if isinstance(value, OrtValue) else OrtValue.ortvalue_from_numpy(value))

    def to_dlpacks(self, to_tensor: Any = None) -> List[Any]:
        """DLPack capsules of all, or what a function makes of each."""
        capsules = [value.to_dlpack() for value in self]
        return [to_tensor(capsule) for capsule in capsules] if to_tensor else capsules


class SparseTensor:
    """Not possible: the engine has dense tensors."""

    def __init__(self, *_: Any, **__: Any) -> None:
        raise Fail("sparse tensors are not supported: give a dense array")

    sparse_coo_from_numpy = sparse_csr_from_numpy = staticmethod(__init__)


class LoraAdapter:
    """Not possible: the engine has no adapters beside a model."""

    def __init__(self, *_: Any, **__: Any) -> None:
        raise Fail("adapters of onnxruntime cannot be loaded: merge them into the model")

    Load = load = staticmethod(__init__)


class OrtValue:
    """A tensor. It is an array of numpy, whose memory it shares."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array

    @staticmethod
    def ortvalue_from_numpy(numpy_obj: np.ndarray, device_type: Any = "cpu", device_id: int = 0) -> "OrtValue":
        """Of an array, whose memory it shares when it is row-major."""
        _check_device(device_type)
        _type_text(numpy_obj.dtype)
        return OrtValue(_row_major(numpy_obj))

    @staticmethod
    def ortvalue_from_numpy_with_onnx_type(data: np.ndarray, onnx_element_type: int) -> "OrtValue":
        """Of an array whose elements are said by ONNX's number, such as bfloat16 in uint16."""
        dtype = _dtype(onnx_element_type)
        if data.dtype.itemsize != dtype.itemsize:
            raise InvalidArgument(f"{data.dtype} has not the size of {dtype}")
        return OrtValue(_row_major(data).view(dtype))

    @staticmethod
    def ort_value_from_sparse_tensor(sparse_tensor: Any) -> "OrtValue":
        """Not possible: the engine has dense tensors."""
        raise Fail("sparse tensors are not supported: give a dense array")

    @staticmethod
    def ortvalue_from_shape_and_type(
        shape: Sequence[int], element_type: Any, device_type: Any = "cpu", device_id: int = 0
    ) -> "OrtValue":
        """A new tensor of zeros."""
        _check_device(device_type)
        return OrtValue(np.zeros(tuple(shape), _dtype(element_type)))

    @staticmethod
    def from_dlpack(data: Any, is_bool_tensor: bool = False) -> "OrtValue":
        """Of a tensor of another library, whose memory it shares: what has ``__dlpack__``, or such a capsule."""
        if not hasattr(data, "__dlpack__"):
            data = _Capsule(data)
        array = np.from_dlpack(data)
        if is_bool_tensor and array.dtype == np.uint8:
            array = array.view(np.bool_)
        return OrtValue(_row_major(array))

    def __dlpack__(self, **options: Any) -> Any:
        return _writable(self._array).__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self._array.__dlpack_device__()

    def to_dlpack(self) -> Any:
        """A DLPack capsule that shares the memory."""
        return _writable(self._array).__dlpack__()

    def numpy(self) -> np.ndarray:
        """The array itself, not a copy."""
        return self._array

    def __array__(self, dtype: Any = None, copy: Optional[bool] = None) -> np.ndarray:
        if dtype is not None and np.dtype(dtype) != self._array.dtype:
            if copy is False:
                raise ValueError("another element type needs a copy")
            return self._array.astype(dtype)
        return self._array.copy() if copy else self._array

    def update_inplace(self, np_arr: np.ndarray) -> None:
        """Copies an array of the same type and shape into the tensor."""
        if np_arr.dtype != self._array.dtype or np_arr.shape != self._array.shape:
            raise InvalidArgument(
                f"a {np_arr.dtype} of shape {np_arr.shape} does not fit a {self._array.dtype} of {self._array.shape}"
            )
        np.copyto(self._array, np_arr)

    def data_ptr(self) -> int:
        """Address of the first element."""
        return self._array.__array_interface__["data"][0]

    def device_name(self) -> str:
        """Always ``cpu``."""
        return "cpu"

    def shape(self) -> List[int]:
        """Sizes of the dimensions."""
        return list(self._array.shape)

    def data_type(self) -> str:
        """Such as ``tensor(float)``."""
        return _type_text(self._array.dtype)

    def element_type(self) -> int:
        """The number of the element type in ``onnx.TensorProto``."""
        return _NUMBERS[self._array.dtype.name]

    def tensor_size_in_bytes(self) -> int:
        """Of all elements."""
        return self._array.nbytes

    def has_value(self) -> bool:
        """Always."""
        return True

    def is_sparse(self) -> bool:
        """Never."""
        return False

    def memory_info(self) -> OrtMemoryInfo:
        """The processor's memory."""
        return OrtMemoryInfo.cpu()

    def as_sparse_tensor(self) -> Any:
        """Not possible: the engine has dense tensors."""
        raise Fail("sparse tensors are not supported: give a dense array")

    def is_tensor(self) -> bool:
        """Always."""
        return True

    def is_sparse_tensor(self) -> bool:
        """Never."""
        return False

    def is_tensor_sequence(self) -> bool:
        """Never."""
        return False


class IOBinding:
    """Inputs and outputs of a run by name: read and written where they are."""

    def __init__(self, session: "InferenceSession") -> None:
        self._session = session
        self._inputs: Dict[str, np.ndarray] = {}
        #: Places of the outputs that are wanted; ``None`` for one that the run makes.
        self._outputs: Dict[str, Optional[np.ndarray]] = {}
        self._results: List[np.ndarray] = []

    def bind_cpu_input(self, name: str, arr_on_cpu: np.ndarray) -> None:
        """An array as an input."""
        self._inputs[self._known(name, self._session.get_inputs())] = arr_on_cpu

    def bind_input(
        self, name: str, device_type: Any, device_id: int, element_type: Any, shape: Sequence[int], buffer_ptr: int
    ) -> None:
        """Memory as an input. It must stay there until the binding is cleared."""
        _check_device(device_type)
        self.bind_cpu_input(name, _at(buffer_ptr, element_type, shape))

    def bind_ortvalue_input(self, name: str, ortvalue: OrtValue) -> None:
        """A value as an input."""
        self.bind_cpu_input(name, ortvalue.numpy())

    def bind_output(
        self,
        name: str,
        device_type: Any = "cpu",
        device_id: int = 0,
        element_type: Any = None,
        shape: Optional[Sequence[int]] = None,
        buffer_ptr: Optional[int] = None,
    ) -> None:
        """Wants an output, in memory that must stay there, or in a new array."""
        _check_device(device_type)
        place = None if not buffer_ptr else _at(buffer_ptr, element_type, shape or ())
        self._outputs[self._known(name, self._session.get_outputs())] = place

    def bind_ortvalue_output(self, name: str, ortvalue: OrtValue) -> None:
        """Wants an output in this value's memory."""
        self._outputs[self._known(name, self._session.get_outputs())] = ortvalue.numpy()

    def clear_binding_inputs(self) -> None:
        """Forgets all inputs."""
        self._inputs = {}

    def clear_binding_outputs(self) -> None:
        """Forgets all outputs."""
        self._outputs = {}
        self._results = []

    def synchronize_inputs(self) -> None:
        """Does nothing: there is one memory."""

    def synchronize_outputs(self) -> None:
        """Does nothing: there is one memory."""

    def get_outputs(self) -> List[OrtValue]:
        """Outputs of the last run, in the order in which they were bound."""
        return [OrtValue(result) for result in self._results]

    def get_outputs_as_ortvaluevector(self) -> OrtValueVector:
        """The same in a row of values."""
        return OrtValueVector(self.get_outputs())

    def copy_outputs_to_cpu(self) -> List[np.ndarray]:
        """The same as arrays. They are there already."""
        return list(self._results)

    def _run(self, run_options: Any = None) -> None:
        names = list(self._outputs)
        if not names:
            raise InvalidArgument("no output is bound")
        places = [self._outputs.get(output.name) for output in self._session.get_outputs()]
        cancel = None if run_options is None else run_options._cancel
        self._results = self._session._native.run(names, self._inputs, places, cancel)

    def _known(self, name: str, known: Any) -> str:
        if all(name != value.name for value in known):
            raise Fail(f"the model has no '{name}' to bind")
        return name


class _Capsule:
    """What numpy takes for a tensor of another library."""

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack__(self, **_: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> Any:
        return (1, 0)


#: What onnxruntime's native module calls it.
SessionIOBinding = IOBinding


def _writable(array: np.ndarray) -> np.ndarray:
    """The same memory, of which DLPack of numpy has no word for that it must not be written; onnxruntime does not ask."""
    if array.flags.writeable or not array.size:
        return array
    memory = (ctypes.c_uint8 * array.nbytes).from_address(array.__array_interface__["data"][0])
    # It lives as long as what looks at it.
    memory._array = array
    return np.frombuffer(memory, array.dtype).reshape(array.shape)


def _row_major(array: np.ndarray) -> np.ndarray:
    return array if array.flags.c_contiguous else array.copy("C")


def _check_device(device_type: Any) -> None:
    name = device_type.device_type() if isinstance(device_type, OrtDevice) else device_type
    if name not in ("cpu", "CPU", "Cpu", 0):
        raise Fail(f"device '{name}': only the processor's memory is possible")


def _at(pointer: int, element_type: Any, shape: Sequence[int]) -> np.ndarray:
    """An array over memory that somebody else holds."""
    dtype = _dtype(element_type)
    bytes_of_all = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    memory = (ctypes.c_uint8 * bytes_of_all).from_address(pointer)
    return np.frombuffer(memory, dtype).reshape(tuple(shape))


_NUMBERS = {
    name: number
    for number, name in enumerate(
        "float32 uint8 int8 uint16 int16 int32 int64 str bool float16 float64 uint32 uint64 _ _ bfloat16".split(), 1
    )
}
_NAMES = {number: name for name, number in _NUMBERS.items()}


def _dtype(element_type: Any) -> np.dtype:
    """Of numpy's types, or of the numbers that ONNX gives them."""
    if isinstance(element_type, int):
        element_type = _NAMES.get(element_type, element_type)
    dtype = np.dtype(element_type)
    _type_text(dtype)
    return dtype


def _type_text(dtype: np.dtype) -> str:
    if dtype.name not in _TYPES:
        raise InvalidArgument(f"element type {dtype} is not supported")
    return f"tensor({_TYPES[dtype.name]})"
