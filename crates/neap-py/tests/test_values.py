"""Values and bindings: memory that stays where it is, threads, forks, and nothing that grows."""

import gc
import multiprocessing
import os
import threading

import numpy as np
import pytest
from onnx import TensorProto, helper

import neaptide as ort
from neaptide.capi.onnxruntime_pybind11_state import Fail, InvalidArgument

from .conftest import both, close, rows, save, tensor

RUNS = 100_000


class Tensor:
    """Of another library, as far as DLPack is concerned."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def test_values_share_memory(identity):
    x = np.arange(4, dtype=np.float32).reshape(1, 4)
    address = x.__array_interface__["data"][0]
    for value in (
        ort.OrtValue.ortvalue_from_numpy(x),
        ort.OrtValue.from_dlpack(Tensor(x)),
        ort.OrtValue.from_dlpack(x.__dlpack__()),
    ):
        assert value.data_ptr() == address
        assert value.numpy().__array_interface__["data"][0] == address
        assert np.from_dlpack(value).__array_interface__["data"][0] == address
        assert (value.shape(), value.data_type(), value.element_type()) == ([1, 4], "tensor(float)", 1)
        assert (value.device_name(), value.is_tensor(), value.has_value()) == ("cpu", True, True)
        (y,) = ort.InferenceSession(identity).run_with_ort_values(None, {"x": value})
        np.testing.assert_array_equal(y.numpy(), x)
        (y,) = ort.InferenceSession(identity).run(None, {"x": value})
        np.testing.assert_array_equal(y, x)


def test_values_of_shape_and_type():
    import onnxruntime

    for dtype in (np.float32, np.int64, np.float16, np.bool_, np.uint8):
        mine = ort.OrtValue.ortvalue_from_shape_and_type([2, 3], dtype)
        other = onnxruntime.OrtValue.ortvalue_from_shape_and_type([2, 3], dtype)
        assert (mine.shape(), mine.data_type(), mine.element_type()) == (
            other.shape(),
            other.data_type(),
            other.element_type(),
        )
    value = ort.OrtValue.ortvalue_from_shape_and_type([2], np.int32)
    value.update_inplace(np.array([3, 4], np.int32))
    np.testing.assert_array_equal(value.numpy(), [3, 4])
    with pytest.raises(InvalidArgument):
        value.update_inplace(np.array([3.0, 4.0]))
    with pytest.raises(Fail):
        ort.OrtValue.ortvalue_from_numpy(np.zeros(3, np.float32), "cuda", 0)


def test_bound_outputs_are_written_in_place(mlp):
    ours, theirs = both(mlp, memory_budget="9MiB")
    x = rows(3)
    y = np.full((3, 1024), np.nan, np.float32)
    mean = ort.OrtValue.ortvalue_from_shape_and_type([3], np.float32)
    binding = ours.io_binding()
    binding.bind_input("x", "cpu", 0, np.float32, x.shape, x.__array_interface__["data"][0])
    binding.bind_ortvalue_output("mean", mean)
    binding.bind_output("y", "cpu", 0, np.float32, y.shape, y.__array_interface__["data"][0])
    for _ in range(2):
        ours.run_with_iobinding(binding)
        expected = theirs.run(["y", "mean"], {"x": x})
        close(y, expected[0])
        close(mean.numpy(), expected[1])
        first, second = binding.get_outputs()
        assert (first.data_ptr(), second.data_ptr()) == (mean.data_ptr(), y.__array_interface__["data"][0])
        x *= 0.5
    # A run makes what has no place.
    binding.clear_binding_outputs()
    binding.bind_output("y")
    ours.run_with_iobinding(binding)
    (made,) = binding.copy_outputs_to_cpu()
    close(made, theirs.run(["y"], {"x": x})[0])


def test_places_that_do_not_do(mlp):
    session = ort.InferenceSession(mlp)
    x = rows(2)
    good = np.empty((2, 1024), np.float32)
    read_only = np.frombuffer(bytes(good), np.float32).reshape(good.shape)
    wrong = [good[:1], good.astype(np.float64), np.asfortranarray(good), good[:, ::2], read_only, x]
    for place in wrong:
        binding = session.io_binding()
        binding.bind_cpu_input("x", x)
        binding._outputs["y"] = place
        with pytest.raises(InvalidArgument):
            session.run_with_iobinding(binding)
    binding = session.io_binding()
    with pytest.raises(Fail):
        binding.bind_cpu_input("no such input", x)
    with pytest.raises(Fail):
        binding.bind_output("no such output")


def test_threads_take_turns(mlp):
    session = ort.InferenceSession(mlp, ort.SessionOptions(memory_budget="9MiB", exact=True))
    inputs = {count: rows(count, seed=count) for count in (1, 2, 5, 8)}
    expected = {count: session.run(["y"], {"x": x})[0] for count, x in inputs.items()}
    wrong = []

    def work(count):
        for _ in range(10):
            (y,) = session.run(["y"], {"x": inputs[count]})
            if not np.array_equal(y, expected[count]):
                wrong.append(count)

    threads = [threading.Thread(target=work, args=(count,)) for count in inputs for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_the_interpreter_goes_on_while_a_model_runs(mlp):
    session = ort.InferenceSession(mlp)
    x = rows(256)
    session.run(["mean"], {"x": x})
    done = threading.Event()
    steps = 0

    def work():
        for _ in range(20):
            session.run(["mean"], {"x": x})
        done.set()

    thread = threading.Thread(target=work)
    thread.start()
    while not done.is_set():
        steps += 1
    thread.join()
    # With the lock held throughout, this thread would get a turn between two runs only.
    assert steps > 1000


def _child(session, x, queue):
    try:
        session.run(None, {"x": x})
    except RuntimeError as error:
        queue.put(str(error))
    else:
        queue.put("it ran")
    del session
    gc.collect()


def test_a_fork_is_told_and_does_no_harm(mlp):
    session = ort.InferenceSession(mlp)
    x = rows(1)
    expected = session.run(["y"], {"x": x})[0]
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_child, args=(session, x, queue))
    child.start()
    text = queue.get(timeout=60)
    child.join(60)
    assert "fork" in text and child.exitcode == 0
    np.testing.assert_array_equal(session.run(["y"], {"x": x})[0], expected)


def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_inputs_are_not_copied(tmp_path):
    """One of 64 MiB, in 4 MiB."""
    shape = [1, 16 << 20]
    path = save(
        tmp_path,
        "mean",
        [helper.make_node("ReduceMean", ["x"], ["y"], axes=[1])],
        [tensor("x", TensorProto.FLOAT, shape)],
        [tensor("y", TensorProto.FLOAT, [1, 1])],
    )
    session = ort.InferenceSession(path, ort.SessionOptions(memory_budget="4MiB"))
    x = np.ones(shape, np.float32)
    gc.collect()
    before = resident_bytes()
    with open("/proc/self/clear_refs", "w") as file:
        # The peak begins anew.
        file.write("5")
    (y,) = session.run(None, {"x": x})
    grown = peak_bytes() - before
    assert y.tolist() == [[1.0]]
    assert grown < 16 << 20


def peak_bytes():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("VmHWM"))


def test_runs_leave_nothing_behind(identity):
    session = ort.InferenceSession(identity)
    x = np.ones((1, 4), np.float32)
    for _ in range(500):
        session.run(None, {"x": x})
    gc.collect()
    before = resident_bytes()
    for _ in range(RUNS):
        session.run(None, {"x": x})
    gc.collect()
    # Less than three bytes for each run, room for the interpreter's own pages included.
    assert resident_bytes() - before < 256 << 10


def test_sessions_leave_nothing_behind(mlp):
    x = rows(1)

    def once():
        ort.InferenceSession(mlp, ort.SessionOptions(memory_budget="9MiB")).run(None, {"x": x})

    for _ in range(5):
        once()
    gc.collect()
    before = resident_bytes()
    for _ in range(20):
        once()
    gc.collect()
    assert resident_bytes() - before < 4 << 20
