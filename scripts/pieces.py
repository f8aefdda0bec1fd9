"""Compares a model with onnxruntime piece by piece: each few nodes get the values that onnxruntime has there.

    python scripts/pieces.py MODEL.onnx --neap target/release/neap [--input NAME=FILE.npy ...]

Where values are rounded to 8 bits between layers, one that goes to another step is felt in all that follows, and outputs of
two engines that are both right may have little in common. A piece has its inputs from onnxruntime, so that nothing adds up:

    onnxruntime  | nodes 0..7 |--v--| nodes 8..15 |--v--| nodes 16..23 |     v: values, each piece's inputs
    neap         | nodes 0..7 |  v  | nodes 8..15 |  v  | nodes 16..23 |

How far a piece may differ is decided by onnxruntime itself: its values move if the piece's inputs are larger by a few millionths.
Prints the pieces that differ more, and ends with 1 if there are any.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper

import neap_reference as ref

#: Values may differ by so much of their range where onnxruntime agrees with itself ...
TOLERANCE = 1e-4
#: ... and by so many times what it moves.
SPREADS = 4.0
#: Values of 16 bits are rounded to 11 bits, by onnxruntime after each node.
HALF = 5e-3
#: Its inputs are larger by so many parts then. Several, as few of them may bring a value to another step.
MOVED = (1e-6, -1e-6, 3e-6, -3e-6, 1e-5)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ref.add_arguments(parser)
    beside = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../target/release/neap")
    parser.add_argument("--neap", default=os.path.normpath(beside))
    parser.add_argument("--nodes", type=int, default=8, help="nodes of a piece")
    arguments = parser.parse_args()
    for file in (arguments.neap, arguments.model):
        if not os.path.isfile(file):
            parser.error(f"there is no file {file}")
    feeds = ref.collect_feeds(ref.open_session(arguments.model, arguments.threads), arguments)
    found = differences(arguments.model, feeds, os.path.abspath(arguments.neap), arguments.nodes)
    wrong = [piece for piece in found if not piece["right"]]
    for piece in wrong:
        print(json.dumps(piece))
    print(f"{len(found)} pieces, {len(wrong)} of them wrong")
    sys.exit(1 if wrong else 0)


def differences(model, feeds, neap, nodes):
    """For each piece how far its outputs differ, what onnxruntime's own move, and whether that is right."""
    model = onnx.load(model)
    constants, steps = parts(model.graph)
    steps = in_order(steps, {"", *constants, *feeds})
    last_use = {name: i for i, node in enumerate(steps) for name in node.input}
    last_use.update({o.name: len(steps) for o in model.graph.output})
    values = dict(feeds)
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for begin in range(0, len(steps), nodes):
            piece = steps[begin : begin + nodes]
            end = begin + len(piece)
            made = [o for node in piece for o in node.output if last_use.get(o, -1) >= end]
            taken = inputs(piece, constants)
            given = {name: values[name] for name in taken}
            if made:
                own = build(model, piece, given, made, constants)
                values.update(zip(made, run_reference(own, given)))
                found.append(compare(model, piece, given, {o: values[o] for o in made}, constants, neap, folder))
                found[-1]["first"] = begin
            # What nobody asks for again goes: all values of a large model would not fit.
            values = {name: v for name, v in values.items() if last_use.get(name, -1) >= end}
    return found


def parts(graph):
    """Constants by name, and the nodes that compute."""
    constants = {tensor.name: tensor for tensor in graph.initializer}
    steps = []
    for node in graph.node:
        if any(a.type in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS) for a in node.attribute):
            raise SystemExit(f"node '{node.name}' ({node.op_type}) has bodies: pieces of such models are not compared")
        tensor = next((a.t for a in node.attribute if node.op_type == "Constant" and a.name == "value"), None)
        if tensor is None:
            steps.append(node)
        else:
            constants[node.output[0]] = onnx.TensorProto()
            constants[node.output[0]].CopyFrom(tensor)
            constants[node.output[0]].name = node.output[0]
    return constants, steps


def in_order(steps, known):
    """The nodes, each behind those whose values it takes: some exporters write a few of them at the end."""
    known, done = set(known), []
    while steps:
        later = []
        for node in steps:
            if all(name in known for name in node.input):
                known.update(node.output)
                done.append(node)
            else:
                later.append(node)
        if len(later) == len(steps):
            raise SystemExit(f"node '{later[0].name}' ({later[0].op_type}) takes a value that nobody makes")
        steps = later
    return done


def inputs(piece, constants):
    """Names of values that come from outside."""
    made = {o for node in piece for o in node.output}
    names = dict.fromkeys(name for node in piece for name in node.input)
    return [name for name in names if name and name not in made and name not in constants]


def build(model, piece, given, made, constants):
    """A model of some nodes. `made` are names, or values whose types and shapes are told."""
    told = made if isinstance(made, dict) else {}
    names = dict.fromkeys(name for node in piece for name in node.input if name in constants)
    graph = helper.make_graph(
        piece,
        "piece",
        [described(name, array) for name, array in given.items()],
        [described(name, told[name]) if told else onnx.ValueInfoProto(name=name) for name in made],
        [constants[name] for name in names],
    )
    return helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)


def described(name, array):
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)


def run_reference(model, given):
    options = ref.exact_options({node.op_type for node in model.graph.node})
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, given)


def compare(model, piece, given, expected, constants, neap, folder):
    built = build(model, piece, given, expected, constants)
    spread = 0.0
    for parts in MOVED:
        others = run_reference(built, {name: moved(array, parts) for name, array in given.items()})
        spread = max(spread, worst(others, expected.values()))
    result = {"nodes": [node.op_type for node in piece], "spread": spread}
    file, report = os.path.join(folder, "piece.onnx"), os.path.join(folder, "report.json")
    onnx.save(built, file)
    told = []
    for index, (name, array) in enumerate(given.items()):
        np.save(os.path.join(folder, f"{index}.npy"), array)
        told += ["--input", f"{name}={folder}/{index}.npy"]
    out = ["--cache-dir", os.path.join(folder, "cache"), "--output-dir", os.path.join(folder, "out"), "--json", report]
    ran = subprocess.run([neap, "--quiet", "run", file, *told, *out], capture_output=True, text=True)
    if ran.returncode:
        return {**result, "right": False, "refused": (ran.stderr.strip().splitlines() or ["no message"])[-1]}
    files = {o["name"]: o["file"] for o in json.load(open(report))["outputs"]}
    # Half floats are given as f32.
    ours = {name: np.load(files[name]) for name in expected}
    ours = [a.astype(np.float16) if expected[n].dtype == np.float16 and a.dtype == np.float32 else a for n, a in ours.items()]
    result["error"] = worst_of_piece(ours, expected.values())
    least = HALF if has_halves(built.graph) else TOLERANCE
    return {**result, "right": result["error"] <= max(least, SPREADS * spread)}


def has_halves(graph):
    casts = (a.i for node in graph.node for a in node.attribute if node.op_type == "Cast" and a.name == "to")
    values = (value.type.tensor_type.elem_type for value in [*graph.input, *graph.output])
    return TensorProto.FLOAT16 in {*casts, *values, *(tensor.data_type for tensor in graph.initializer)}


def moved(array, parts):
    """Larger by so many parts, where they are floats; those that stand for infinity stay."""
    if array.dtype != np.float32:
        return array
    by = np.where(np.abs(array) < 1e30, 1 + parts, 1.0).astype(np.float32)
    return np.asarray(array * by)


def worst(ours, references):
    return max((difference(a, b) for a, b in zip(ours, references)), default=0.0)


def worst_of_piece(ours, references):
    """As `worst`; values of 8 bits may be a step away, where a number lies between two."""
    far = [(a, b) for a, b in zip(ours, references) if not within_a_step(a, b)]
    return max((difference(a, b) for a, b in far), default=0.0)


def within_a_step(ours, reference):
    """Whether they are integers of 8 bits, each at most 1 from the other's."""
    if ours.shape != reference.shape or ours.dtype != reference.dtype or ours.dtype not in (np.uint8, np.int8):
        return False
    return np.abs(ours.astype(int) - reference.astype(int)).max(initial=0) <= 1


def difference(ours, reference):
    """The largest difference, over the range of the reference."""
    if ours.shape != reference.shape or ours.dtype != reference.dtype:
        return float("inf")
    a, b = ours.astype(np.float64), reference.astype(np.float64)
    finite = np.isfinite(b)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True) or not np.isfinite(a[finite]).all():
        return float("inf")
    a, b = a[finite], b[finite]
    span = float(b.max() - b.min()) if b.size else 0.0
    scale = span or float(np.abs(b).max(initial=0.0)) or 1.0
    return float(np.abs(a - b).max(initial=0.0)) / scale


if __name__ == "__main__":
    main()
