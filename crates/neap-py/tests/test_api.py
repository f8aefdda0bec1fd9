"""Names of onnxruntime's Python interface that programs use beside sessions and arrays."""

import threading

import numpy as np
import onnxruntime
import pytest

import neaptide as ort
from neaptide.capi import onnxruntime_pybind11_state as native
from neaptide.capi.onnxruntime_pybind11_state import Fail, InvalidArgument

from .conftest import rows


def test_a_run_may_go_on_while_its_caller_does(identity):
    session = ort.InferenceSession(identity)
    x = np.arange(4, dtype=np.float32).reshape(1, 4)
    ended, told = threading.Event(), []

    def callback(*arguments):
        told.append(arguments)
        ended.set()

    for feed in ({"x": x}, {"x": x[:, :2]}):
        ended.clear()
        session.run_async(None, feed, callback, "mine")
        assert ended.wait(60)
    (results, data, error), (nothing, _, why) = told
    np.testing.assert_array_equal(results[0], x)
    assert (data, error, nothing) == ("mine", "", []) and "'x'" in why


def test_values_in_a_row(identity):
    session = ort.InferenceSession(identity)
    x = np.arange(4, dtype=np.float32).reshape(1, 4)
    feeds, fetches = ort.OrtValueVector(), ort.OrtValueVector()
    feeds.push_back(x)
    session.run_with_ortvaluevector(ort.RunOptions(), ["x"], feeds, ["y"], fetches, [])
    np.testing.assert_array_equal(fetches[0].numpy(), x)
    binding = session.io_binding()
    binding.bind_cpu_input("x", x)
    binding.bind_output("y")
    session.run_with_iobinding(binding)
    outputs = binding.get_outputs_as_ortvaluevector()
    np.testing.assert_array_equal(outputs[0].numpy(), x)
    assert len(outputs.to_dlpacks()) == 1
    with pytest.raises(InvalidArgument):
        session.run_with_ortvaluevector(None, ["x"], [], ["y"], fetches)


def test_a_value_whose_type_is_onnxs_number():
    bits = np.array([0x3C00, 0x4000], np.uint16)
    value = ort.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, 10)
    assert value.data_type() == "tensor(float16)" and value.numpy().tolist() == [1.0, 2.0]


def test_a_read_only_array_has_a_dlpack():
    x = np.arange(4, dtype=np.float32)
    x.flags.writeable = False
    seen = np.from_dlpack(ort.OrtValue.ortvalue_from_numpy(x))
    assert seen.__array_interface__["data"][0] == x.__array_interface__["data"][0]


def test_what_says_something_of_the_installation(capsys):
    assert ort.get_version_string() == ort.__version__
    assert not ort.has_collective_ops() and ort.preload_dlls() is None
    ort.set_default_logger_callback(print)
    ort.print_debug_info()
    assert ort.__version__ in capsys.readouterr().out
    (device,) = ort.get_ep_devices()
    assert device.ep_name == "NeaptideExecutionProvider" and device.device.type == "CPU"
    assert ort.OrtDevice.make("cpu", 0).device_type() == onnxruntime.OrtDevice.make("cpu", 0).device_type()


def test_sessions_say_where_their_tensors_are(mlp):
    session = ort.InferenceSession(mlp)
    (info,) = session.get_input_memory_infos()
    assert (info.name, info.device_id, len(session.get_output_memory_infos())) == ("Cpu", 0, 2)
    assert session.get_tuning_results() == [] and session.get_provider_graph_assignment_info() == []
    session.run(None, {"x": rows(1)})


@pytest.mark.parametrize("name", ["SparseTensor", "LoraAdapter"])
def test_what_the_engine_does_not_have_says_so(name):
    with pytest.raises(Fail, match="sparse tensors|adapters"):
        getattr(ort, name)()


def test_the_native_modules_names_are_there():
    for name in ("OrtValue", "OrtDevice", "SessionOptions", "RunOptions", "SessionIOBinding", "OrtMemoryInfo", "OrtAllocatorType"):
        assert getattr(native, name) is getattr(ort, name), name
        assert hasattr(onnxruntime.capi.onnxruntime_pybind11_state, name), name
    with pytest.raises(AttributeError):
        native.frobnicate
