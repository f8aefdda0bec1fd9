"""Runs a model through an installed wheel: `python scripts/try_wheel.py MODEL.onnx BUDGET OUT.npy`.

The input is the same on every machine, so outputs of two of them can be compared.
"""

import platform
import sys

import neaptide
import numpy


def main(model, budget, out):
    session = neaptide.InferenceSession(model, neaptide.SessionOptions(memory_budget=budget))
    feed = {
        value.name: numpy.linspace(-1, 1, int(numpy.prod(value.shape)), dtype=numpy.float32).reshape(value.shape)
        for value in session.get_inputs()
    }
    (found, *_) = session.run(None, feed)
    assert numpy.isfinite(found).all()
    numpy.save(out, found)
    print(f"neaptide {neaptide.__version__} on {platform.machine()}: {model.split('/')[-1]} within {budget}")


if __name__ == "__main__":
    main(*sys.argv[1:])
