"""Draws ONNX graphs at random: single operators, also rare ones with spoiled attributes, short chains, networks with weights,
along time, and in 8 bits, sizes that the data decide.

A number is all that a graph depends on. Nodes are run by onnxruntime one by one while a graph is drawn, so that each has
operands that fit; axes may have no elements, and numbers may be infinite, none at all, or large.
"""

import random
import unittest.mock

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import graph_kinds
import graph_networks
import graph_rare
import neap_reference

F32, F64, F16 = np.float32, np.float64, np.float16
FLOATS = [F32, F32, F32, F32, F16, F64]
INTEGERS = [np.int64, np.int32, np.int8, np.uint8, np.uint64]


class Unfit(Exception):
    """A node that nobody can run."""


def judge_options():
    """onnxruntime without its own rewriting, so that its operators are what is compared."""
    import onnxruntime as ort

    ort.set_default_logger_severity(4)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    return options


def by_onnxruntime(model, feed, options=None):
    import onnxruntime as ort

    session = ort.InferenceSession(model.SerializeToString(), options or judge_options(), providers=["CPUExecutionProvider"])
    names = [o.name for o in session.get_outputs()]
    return dict(zip(names, session.run(names, feed)))


def by_exact_onnxruntime(model, feed):
    """The same, with exact products of 8 bits."""
    return by_onnxruntime(model, feed, neap_reference.exact_options({"MatMulInteger"}))


def by_exact_integers(model, feed):
    """One product of bytes with its factors, in integers and then in 64-bit numbers."""
    node = model.graph.node[0]
    if node.op_type != "QLinearMatMul":
        return by_exact_onnxruntime(model, feed)
    known = {w.name: numpy_helper.to_array(w) for w in model.graph.initializer} | feed
    a, a_scale, a_zero, b, b_scale, b_zero, scale, zero = (known[name] for name in node.input)
    # One number for each row of the left operand.
    of_row = [x if x.ndim != 1 or a.ndim == 1 else x[:, None] for x in (a_scale, a_zero)]
    a, b = a.astype(np.int64) - of_row[1], b.astype(np.int64) - b_zero
    y = np.rint(a @ b * (of_row[0].astype(F64) * b_scale.astype(F64) / scale)) + zero
    info = np.iinfo(zero.dtype)
    return {node.output[0]: np.clip(y, info.min, info.max).astype(zero.dtype)}


def _by_reference_in(wide, model, feed):
    """The reference with a wider type in place of that of the node's first operand."""
    dtype, types = feed[model.graph.node[0].input[0]].dtype, helper.np_dtype_to_tensor_dtype
    other = onnx.ModelProto()
    other.CopyFrom(model)
    for value in [*other.graph.input, *other.graph.output]:
        if value.type.tensor_type.elem_type == types(dtype):
            value.type.tensor_type.elem_type = types(np.dtype(wide))
    return by_reference(other, {name: x.astype(wide) if x.dtype == dtype else x for name, x in feed.items()}), dtype


def by_exact_sums(model, feed):
    """The reference in doubles, whose results are rounded once."""
    found, dtype = _by_reference_in(F64, model, feed)
    return {name: x.astype(dtype) for name, x in found.items()}


def by_reference_that_saturates(model, feed):
    """The reference in 32-bit numbers, whose results are rounded to the integers that the model has, and no others."""
    found, dtype = _by_reference_in(F32, model, feed)
    info = np.iinfo(dtype)
    return {name: np.clip(np.rint(x), info.min, info.max).astype(dtype) for name, x in found.items()}


def by_reference(model, feed):
    from onnx.reference import ReferenceEvaluator
    from onnx.reference.ops import op_resize

    for node in model.graph.node:
        if node.op_type in ("LSTM", "GRU", "RNN") and any(a.name == "clip" for a in node.attribute):
            raise Unfit("the reference does not clip")
    model = with_new_names(model)
    remembers = unittest.mock.patch.object(op_resize, INTERPOLATE, once(getattr(op_resize, INTERPOLATE)))
    with np.errstate(all="ignore"), remembers:
        found = ReferenceEvaluator(model).run(None, {x.name: feed[x.name] for x in model.graph.input})
        return {o.name: as_declared(o, np.asarray(x)) for o, x in zip(model.graph.output, found)}


#: What the reference resizes by.
INTERPOLATE = "_interpolate_nd_with_x"


def once(interpolate):
    """The same, where no part of an image is interpolated twice, nor along an axis that stays as it is: the reference does
    all of that for each element of a result."""
    known = {}

    def remembered(data, n, scales, sizes, x, get_coeffs, roi=None, **rest):
        is_whole = roi is None or (roi[0], roi[n]) == (0, 1)
        if n > 1 and scales[0] == 1 and sizes[0] == len(data) and is_whole:
            roi = None if roi is None else np.concatenate([roi[1:n], roi[n + 1 :]])
            return remembered(data[int(x[0])], n - 1, scales[1:], sizes[1:], x[1:], get_coeffs, roi=roi, **rest)
        others = (None if roi is None else roi.tobytes(), *sorted(rest.items()))
        key = (data.tobytes(), n, *scales, *sizes, *x, get_coeffs, *others)
        if key not in known:
            known[key] = interpolate(data, n, scales, sizes, x, get_coeffs, roi=roi, **rest)
        return known[key]

    return remembered


def as_declared(output, x):
    """Integers in the type that they have in the graph: the reference adds them up in 64 bits."""
    wanted = helper.tensor_dtype_to_np_dtype(output.type.tensor_type.elem_type)
    return x.astype(wanted) if x.dtype.kind in "iu" and np.dtype(wanted).kind in "iu" else x


def part(model, names):
    """The same with some of its results only, and what they need."""
    needed, nodes = set(names), []
    for node in reversed(model.graph.node):
        if needed.intersection(node.output):
            needed.update(node.input)
            nodes.insert(0, node)
    graph = onnx.GraphProto()
    graph.CopyFrom(model.graph)
    for values, kept in [
        (graph.node, nodes),
        (graph.input, [x for x in model.graph.input if x.name in needed]),
        (graph.output, [x for x in model.graph.output if x.name in names]),
        (graph.initializer, [x for x in model.graph.initializer if x.name in needed]),
    ]:
        del values[:]
        values.extend(kept)
    return helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)


def with_new_names(model):
    """The same where modes of GridSample have the names that opset 20 gave them: the reference knows no others."""
    if model.opset_import[0].version >= 20 or all(node.op_type != "GridSample" for node in model.graph.node):
        return model
    renamed = onnx.ModelProto()
    renamed.CopyFrom(model)
    renamed.opset_import[0].version = 20
    for node in renamed.graph.node:
        for mode in (a for a in node.attribute if node.op_type == "GridSample" and a.name == "mode"):
            mode.s = {b"bilinear": b"linear", b"bicubic": b"cubic"}.get(mode.s, mode.s)
    return renamed


def never_ends(op, operands, attributes):
    """Whether onnxruntime itself does not survive a node: no channels, no steps, empty sums, and some attributes."""
    if op in ("Conv", "ConvTranspose"):
        return operands[0].shape[1] == 0
    if op in ("LSTM", "GRU", "RNN"):
        return operands[0].shape[1 if attributes.get("layout") else 0] == 0
    if op == "Einsum":
        return any(not x.size for x in operands)
    return op == "GatherND" and attributes.get("batch_dims", 0) < 0


class Graph:
    """A graph while it is drawn. Each value is known by name, and what it is for the inputs drawn."""

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.np = np.random.default_rng(seed)
        self.opset = self.pick([13, 17, 18, 19, 20, 21])
        #: Whether axes may be empty, and numbers wild.
        self.may_be_empty = self.rng.random() < 0.3
        self.may_be_wild = self.rng.random() < 0.15
        #: Whether attributes may be others than their makers say.
        self.may_be_spoiled = False
        self.nodes, self.weights, self.feed, self.values, self.late = [], {}, {}, {}, set()

    def pick(self, of):
        return self.rng.choice(list(of))

    def chance(self, p=0.5):
        return self.rng.random() < p

    def below(self, n):
        return self.rng.randrange(max(n, 1))

    def size(self):
        if self.may_be_empty and self.chance(0.25):
            return 0
        return self.pick([1, 1, 2, 3, 4, 5, 7, 8, 16, 17, 33])

    def shape(self, rank=None, most=20_000):
        rank = self.below(5) if rank is None else rank
        shape = [self.size() for _ in range(rank)]
        while np.prod(shape, dtype=np.int64) > most:
            at = int(np.argmax(shape))
            shape[at] = max(1, shape[at] // 2)
        return shape

    def array(self, shape, dtype=F32):
        dtype = np.dtype(dtype)
        if dtype == np.bool_:
            return self.np.random(shape) < 0.5
        if dtype.kind in "iu":
            info = np.iinfo(dtype)
            if self.chance(0.2):
                return self.np.integers(info.min, info.max, shape, dtype=dtype, endpoint=True)
            return self.np.integers(max(info.min, -9), 10, shape).astype(dtype)
        x = self.np.standard_normal(shape).astype(dtype)
        x = x.reshape(shape)
        if self.chance(0.1):
            x = np.round(x)
        if self.may_be_wild and x.size and dtype != F16:
            for _ in range(1 + self.below(3)):
                x.flat[self.below(x.size)] = self.pick([np.nan, np.inf, -np.inf, 1e8, -1e9, 0.0])
        return x

    def _new(self, x):
        name = f"v{len(self.values)}"
        self.values[name] = x
        return name

    def input(self, x):
        name = self._new(x)
        self.feed[name] = x
        return name

    def weight(self, x):
        name = self._new(x)
        self.weights[name] = x
        return name

    def operand(self, x):
        """Known beforehand or not."""
        return self.weight(x) if self.chance(0.5) else self.input(x)

    def ints(self, values, dtype=np.int64):
        return self.weight(np.array(values, dtype))

    def tensor(self, rank=None, dtype=None, at_least=0):
        """Some value that is there, most often the last, or a new one."""
        def fits(name):
            x = self.values[name]
            return (
                (rank is None or x.ndim == rank) and x.ndim >= at_least
                and (dtype is None or x.dtype == dtype) and name not in self.weights and x.size < 1_000_000
            )
        there = [name for name in self.values if fits(name)]
        if there and self.chance(0.8):
            return there[-1] if self.chance(0.7) else self.pick(there)
        if rank is None:
            rank = max(at_least, self.below(5))
        return self.input(self.array(self.shape(rank), dtype or self.pick(FLOATS)))

    def node(self, op, inputs, outputs=1, **attributes):
        """Names of its results; `Unfit` where onnxruntime cannot run it."""
        domain = attributes.pop("domain", "")
        attributes = {k: v for k, v in attributes.items() if v is not None}
        if self.may_be_spoiled and attributes and self.chance(0.3):
            name = self.pick(sorted(attributes))
            attributes[name] = self._spoiled(attributes[name])
        names = [f"v{len(self.values) + i}" for i in range(outputs)]
        node = helper.make_node(op, inputs, names, domain=domain, **attributes)
        feed = {name: self.values[name] for name in inputs if name}
        if never_ends(op, [self.values.get(name) for name in inputs], attributes):
            raise Unfit("onnxruntime never returns, or ends the process")
        try:
            found = by_onnxruntime(self._model([node], feed, {}, names), feed)
        except Exception as error:  # whatever onnxruntime says
            raise Unfit(str(error)) from None
        if any(not isinstance(x, np.ndarray) or x.size > 4_000_000 for x in found.values()):
            raise Unfit("a result that is too large")
        self.nodes.append(node)
        self.values.update(found)
        if self.late.intersection(inputs):
            self.late.update(names)
        return names[0] if outputs == 1 else names

    def _spoiled(self, value):
        if isinstance(value, list) and value:
            at = self.below(len(value))
            return value[:at] + [self._spoiled(value[at])] + value[at + 1 + (self.below(5) == 4):]
        if isinstance(value, float):
            return self.pick([0.0, -value, 1.0, 1e-3, 1e6])
        if isinstance(value, int):
            return self.pick([0, 1, 2, 3, -1, -2, 7])
        return value

    def _model(self, nodes, feed, weights, outputs):
        def info(name, x):
            return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)

        inputs = [info(name, x) for name, x in feed.items()]
        results = [onnx.ValueInfoProto(name=name) for name in outputs]
        constants = [numpy_helper.from_array(x, name) for name, x in weights.items()]
        graph = helper.make_graph(nodes, "graph", inputs, results, constants)
        imports = [helper.make_opsetid("", self.opset), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=imports, ir_version=9)

    def model(self):
        """With what nobody reads as results, and now and then another value."""
        read = {name for node in self.nodes for name in node.input}
        made = [name for node in self.nodes for name in node.output if name]
        outputs = [name for name in made if name not in read or self.chance(0.1)]
        used = {name: x for name, x in self.weights.items() if name in read}
        feed = {name: x for name, x in self.feed.items() if name in read}
        model = self._model(self.nodes, feed, used, outputs)
        for result in model.graph.output:
            kind = helper.np_dtype_to_tensor_dtype(self.values[result.name].dtype)
            result.CopyFrom(helper.make_tensor_value_info(result.name, kind, [None] * self.values[result.name].ndim))
        return model, feed, {name: self.values[name] for name in outputs}

    def grow(self, makers, count):
        """Adds nodes by some of the makers; those that do not fit are left out."""
        tries = 0
        while count and tries < 40:
            tries += 1
            nodes, values = len(self.nodes), dict(self.values)
            feed, weights = dict(self.feed), dict(self.weights)
            try:
                self.pick(makers)(self)
                count -= 1
            except (Unfit, IndexError, ValueError):
                del self.nodes[nodes:]
                self.values, self.feed, self.weights = values, feed, weights


#: Each as often as it is listed.
KINDS = ["single", "single", "chain", "chain", "network", "late", "rare", "rare", "along time", "in 8 bits"]


def draw(seed):
    """A model, its inputs, and what its values are as they were drawn; and which kind it is of."""
    g = Graph(seed)
    kind = g.pick(KINDS)
    try:
        grow(g, kind)
    except (IndexError, ValueError) as error:
        raise Unfit(str(error)) from None
    if not g.nodes:
        raise Unfit("no node fits")
    return (*g.model(), kind)


def grow(g, kind):
    if kind == "single":
        g.grow(graph_kinds.MAKERS, 1)
    elif kind == "chain":
        g.grow(graph_kinds.MAKERS, 2 + g.below(5))
    elif kind == "network":
        graph_kinds.network(g)
    elif kind == "rare":
        g.may_be_spoiled = g.chance()
        g.grow(graph_rare.RARE, 1)
    elif kind == "along time":
        graph_networks.along_time(g)
    elif kind == "in 8 bits":
        # There is no grid of steps for infinities.
        g.may_be_wild = False
        graph_networks.in_8_bits(g)
    else:
        g.grow(graph_kinds.LATE, 1)
        g.grow(graph_kinds.OVER_LATE, 1 + g.below(4))
