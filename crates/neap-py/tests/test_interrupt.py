"""Runs that end early: on a signal, and when another thread asks for it."""

import os
import signal
import threading

import numpy as np
import pytest
from onnx import TensorProto, helper

import neaptide as ort
from neaptide.capi.onnxruntime_pybind11_state import RuntimeException

from .conftest import save, tensor, weights

LAYERS = 300


@pytest.fixture
def long_chain(tmp_path):
    """Products one after the other, seconds of them, with one matrix for all."""
    names = ["x", *(f"h{i}" for i in range(1, LAYERS)), "y"]
    nodes = [helper.make_node("MatMul", [a, "w"], [b]) for a, b in zip(names, names[1:])]
    shape = [512, 1024]
    model = save(
        tmp_path,
        "chain",
        nodes,
        [tensor("x", TensorProto.FLOAT, shape)],
        [tensor("y", TensorProto.FLOAT, shape)],
        [("w", weights(1024, 1024, scale=0.03))],
    )
    return model, np.ones(shape, np.float32)


def bound(session, x):
    """What the run would fill, full of what no run gives."""
    y = np.full_like(x, np.nan)
    binding = session.io_binding()
    binding.bind_cpu_input("x", x)
    binding.bind_ortvalue_output("y", ort.OrtValue.ortvalue_from_numpy(y))
    return binding, y


def test_a_signal_ends_a_run_before_its_end(long_chain):
    model, x = long_chain
    session = ort.InferenceSession(model)
    binding, y = bound(session, x)

    def interrupt(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(KeyboardInterrupt):
            session.run_with_iobinding(binding)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert np.isnan(y).all()


def test_ctrl_c_ends_a_run_before_its_end(long_chain):
    model, x = long_chain
    session = ort.InferenceSession(model)
    binding, y = bound(session, x)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    presses = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
    try:
        with pytest.raises(KeyboardInterrupt):
            presses.start()
            session.run_with_iobinding(binding)
            presses.join()
    finally:
        signal.signal(signal.SIGINT, before)
    assert np.isnan(y).all()


def test_a_run_is_terminated_from_another_thread(long_chain):
    model, x = long_chain
    session = ort.InferenceSession(model)
    binding, y = bound(session, x)
    options = ort.RunOptions()
    assert options.terminate is False
    timer = threading.Timer(0.1, lambda: setattr(options, "terminate", True))
    timer.start()
    with pytest.raises(RuntimeException, match="cancelled"):
        session.run_with_iobinding(binding, options)
    timer.join()
    assert options.terminate is True
    assert np.isnan(y).all()
    with pytest.raises(RuntimeException, match="cancelled"):
        session.run(None, {"x": x}, options)


def test_a_session_runs_on_after_it(mlp):
    session = ort.InferenceSession(mlp)
    x = weights(3, 1024, seed=5, scale=1.0)
    expected = session.run(None, {"x": x})
    options = ort.RunOptions()
    options.terminate = True
    with pytest.raises(RuntimeException, match="cancelled"):
        session.run(None, {"x": x}, options)
    options.terminate = False
    for got, wanted in zip(session.run(None, {"x": x}, options), expected):
        np.testing.assert_array_equal(got, wanted)
