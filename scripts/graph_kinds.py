"""What graphs that are drawn consist of: each function adds an operator, or a few, to a graph of `graphs.Graph`."""

import numpy as np
from onnx import TensorProto

F32 = np.float32
UNARY = """Abs Neg Floor Ceil Round Sign Sqrt Reciprocal Exp Log Sin Cos Tan Asin Acos Atan Sinh Cosh Asinh Acosh Atanh Erf Tanh
Sigmoid Softplus Softsign Relu HardSwish Mish Identity IsNaN IsInf""".split()
BINARY = "Add Sub Mul Div Min Max Equal Less Greater LessOrEqual GreaterOrEqual Pow PRelu Mean Sum".split()
TUNED = "Elu LeakyRelu Celu ThresholdedRelu HardSigmoid Selu Shrink".split()
EQUATIONS = """bij,bjk->bik bij,bjk->bki ij,jk->ik ij,kj->ik ij,ij-> ij,ij->ij i,j->ij bhid,bhjd->bhij bhij,bjhd->bihd
...ij,...jk->...ik ii,ij->j ij->ji ij,jk,kl->il""".split()
REDUCTIONS = "Sum Mean Max Min Prod L1 L2 LogSum LogSumExp SumSquare".split()
TYPES = [
    TensorProto.FLOAT,
    TensorProto.DOUBLE,
    TensorProto.FLOAT16,
    TensorProto.INT64,
    TensorProto.INT32,
    TensorProto.UINT8,
    TensorProto.INT8,
    TensorProto.UINT64,
    TensorProto.BOOL,
]


def axis_of(g, x):
    rank = g.values[x].ndim
    if rank == 0:
        raise ValueError("no axis")
    return g.below(rank) - (rank if g.chance() else 0)


def axes_of(g, x, least=1):
    rank = g.values[x].ndim
    axes = [a for a in range(rank) if g.chance()] or list(range(rank))[:least]
    return [a - rank if g.chance(0.3) else a for a in axes]


def unary(g):
    return g.node(g.pick(UNARY), [g.tensor()])


def tuned(g):
    op = g.pick(TUNED)
    name = "lambd" if op == "Shrink" else "alpha"
    return g.node(op, [g.tensor()], **{name: g.pick([0.1, 0.5, 1.0, 1.7])})


def gelu(g):
    return g.node("Gelu", [g.tensor(dtype=F32)], approximate=g.pick(["none", "tanh"]))


def clip(g):
    x = g.tensor()
    dtype = g.values[x].dtype
    low = g.operand(np.array(-1, dtype)) if dtype.kind != "u" and g.chance(0.8) else ""
    return g.node("Clip", [x, low, g.operand(np.array(5, dtype))])


def broadcast(g, x):
    """Another operand of the same type."""
    value = g.values[x]
    shape = [1 if g.chance(0.25) else n for n in value.shape[g.below(value.ndim + 1):]]
    return g.operand(g.array(shape, value.dtype))


def binary(g):
    x = g.tensor() if g.chance(0.8) else g.tensor(dtype=g.pick([np.int64, np.int32, np.uint8]))
    y = broadcast(g, x)
    op = g.pick(BINARY)
    return g.node(op, [x, y] if op == "PRelu" or g.chance(0.7) else [y, x])


def modulo(g):
    x = g.tensor()
    return g.node("Mod", [x, broadcast(g, x)], fmod=int(g.values[x].dtype.kind == "f" or g.chance()))


def logic(g):
    x = g.tensor(dtype=np.bool_)
    return g.node("Not", [x]) if g.chance(0.2) else g.node(g.pick(["And", "Or", "Xor"]), [x, broadcast(g, x)])


def where(g):
    x = g.tensor()
    condition = g.operand(g.array(g.values[broadcast(g, x)].shape, np.bool_))
    return g.node("Where", [condition, x, broadcast(g, x)])


def cast(g):
    return g.node("Cast", [g.tensor()], to=g.pick(TYPES))


def reduce(g):
    op, x = "Reduce" + g.pick(REDUCTIONS), g.tensor() if g.chance(0.8) else g.tensor(dtype=g.pick([np.int32, np.int64]))
    axes, keep, none = axes_of(g, x), int(g.chance()), int(g.chance(0.2))
    if op == "ReduceSum" or g.opset >= 18:
        return g.node(op, [x] + ([g.ints(axes)] if g.chance(0.8) else []), keepdims=keep, noop_with_empty_axes=none)
    return g.node(op, [x], axes=axes if g.chance(0.8) else None, keepdims=keep)


def extreme(g):
    x = g.tensor(at_least=1)
    if g.chance():
        options = {"keepdims": int(g.chance()), "select_last_index": int(g.chance())}
        return g.node(g.pick(["ArgMax", "ArgMin"]), [x], axis=axis_of(g, x), **options)
    axis = axis_of(g, x)
    k = g.below(g.values[x].shape[axis] + 1)
    return g.node("TopK", [x, g.ints([k])], 2, axis=axis, largest=int(g.chance()), sorted=1)


def running(g):
    x = g.tensor(at_least=1)
    return g.node("CumSum", [x, g.ints(axis_of(g, x))], exclusive=int(g.chance()), reverse=int(g.chance()))


def normal(g):
    x = g.tensor(at_least=1)
    return g.node(g.pick(["Softmax", "LogSoftmax", "Hardmax", "LpNormalization"]), [x], axis=axis_of(g, x))


def norm(g):
    x = g.tensor(dtype=F32, at_least=2)
    shape = g.values[x].shape
    of = [g.weight(g.array([shape[1]])) for _ in range(3)] + [g.weight(np.abs(g.array([shape[1]])) + F32(0.1))]
    kinds = ["LayerNormalization", "InstanceNormalization", "BatchNormalization", "LRN", "MeanVarianceNormalization"]
    op = g.pick(kinds)
    if op == "LayerNormalization":
        axis = g.below(len(shape))
        return g.node(op, [x] + [g.operand(g.array(shape[axis:])) for _ in range(2)], axis=axis)
    inputs = {"InstanceNormalization": of[:2], "BatchNormalization": of}.get(op, [])
    axes = [0, 2] if op == "MeanVarianceNormalization" and len(shape) > 2 else None
    return g.node(op, [x, *inputs], size=3 if op == "LRN" else None, axes=axes)


def matmul(g):
    x = g.tensor(at_least=1) if g.chance(0.85) else g.tensor(dtype=g.pick([np.int32, np.int64]), at_least=1)
    k, dtype = g.values[x].shape[-1], g.values[x].dtype
    lead = list(g.values[x].shape[:-2])[g.below(3):]
    return g.node("MatMul", [x, g.operand(g.array(lead + [k, g.size()], dtype))])


def gemm(g):
    x = g.tensor(rank=2)
    m, k = g.values[x].shape
    dtype, ta, tb, n = g.values[x].dtype, int(g.chance(0.3)), int(g.chance()), g.size()
    m, k = (k, m) if ta else (m, k)
    c = [g.operand(g.array(g.pick([[n], [m, n], [1], [m, 1], []]), dtype))] if g.chance(0.7) else []
    w = g.operand(g.array([n, k] if tb else [k, n], dtype))
    return g.node("Gemm", [x, w, *c], alpha=g.pick([1.0, 0.5]), beta=g.pick([1.0, 2.0]), transA=ta, transB=tb)


def einsum(g):
    equation = g.pick(EQUATIONS)
    sizes = {letter: g.pick([g.size(), 3]) for letter in "abcdefghijkl"}
    terms = equation.split("->")[0].split(",")
    lead = g.shape(g.below(3), 20)
    shapes = [(lead if term.startswith("...") else []) + [sizes[c] for c in term if c.isalpha()] for term in terms]
    return g.node("Einsum", [g.operand(g.array(s)) if i else g.input(g.array(s)) for i, s in enumerate(shapes)], equation=equation)


def image(g, axes=2):
    x = g.tensor(rank=axes + 2, dtype=F32)
    return x, g.values[x].shape


def window(g, axes, most=3):
    kernel = [1 + g.below(most) for _ in range(axes)]
    if g.chance(0.2):
        strides = [1 + g.below(min(k, 2)) for k in kernel]
        return kernel, {"auto_pad": g.pick(["SAME_UPPER", "SAME_LOWER", "VALID"]), "strides": strides}
    options = {"strides": [1 + g.below(2) for _ in kernel], "dilations": [1 + (g.below(4) == 3) for _ in kernel]}
    return kernel, {"pads": [g.below(k) for k in kernel] + [g.below(k) for k in kernel], **options}


def conv(g):
    axes = g.pick([1, 2, 2, 2, 3])
    x, shape = image(g, axes)
    kernel, options = window(g, axes)
    groups = g.pick([n for n in (1, 1, 2, 4, shape[1]) if n and shape[1] % n == 0])
    out = groups * g.pick([1, 2, 5, 16])
    w = g.array([out, shape[1] // groups, *kernel])
    w = g.weight(w) if g.chance(0.8) else g.input(w)
    bias = [g.weight(g.array([out]))] if g.chance() else []
    return g.node("Conv", [x, w, *bias], kernel_shape=kernel, group=groups, **options)


def transposed(g):
    x, shape = image(g)
    kernel, options = window(g, 2)
    options.pop("auto_pad", None)
    groups = g.pick([n for n in (1, 2) if shape[1] % n == 0])
    w = g.weight(g.array([shape[1], g.pick([1, 3, 16]), *kernel]))
    return g.node("ConvTranspose", [x, w], kernel_shape=kernel, group=groups, **options)


def pool(g):
    axes = g.pick([1, 2, 2, 3])
    x, _ = image(g, axes)
    if g.chance(0.2):
        return g.node(g.pick(["GlobalMaxPool", "GlobalAveragePool", "GlobalLpPool"]), [x])
    kernel, options = window(g, axes)
    op = g.pick(["MaxPool", "MaxPool", "AveragePool", "AveragePool", "LpPool"])
    if "dilations" in options and (op == "LpPool" and g.opset < 18 or op == "AveragePool" and g.opset < 19):
        del options["dilations"]
    if "auto_pad" not in options and (op == "MaxPool" or op == "AveragePool" or g.opset >= 18):
        options["ceil_mode"] = int(g.chance())
    options["count_include_pad"] = int(g.chance()) if op == "AveragePool" else None
    return g.node(op, [x], kernel_shape=kernel, **options)


def quantized(g):
    x = g.tensor(dtype=F32)
    dtype = g.pick([np.int8, np.uint8])
    if g.chance(0.2):
        return g.node("DynamicQuantizeLinear", [x], 3)
    scale, zero = g.weight(np.array(g.pick([0.1, 0.02, 1.0]), F32)), g.weight(np.array(g.below(20), dtype))
    q = g.node("QuantizeLinear", [x, scale, zero])
    if g.chance(0.2):
        return q
    if g.chance(0.3):
        q = g.node("Transpose", [q])
    return g.node("DequantizeLinear", [q, scale, zero])


def integers(g):
    a = g.input(g.array(g.shape(2), g.pick([np.int8, np.uint8])))
    b = g.operand(g.array([g.values[a].shape[1], g.size()], g.pick([np.int8, np.uint8])))
    return g.node("MatMulInteger", [a, b])


def reshape(g):
    x = g.tensor()
    value = g.values[x]
    shape = g.pick([[-1], [0, -1] if value.ndim else [-1], [1, *value.shape], [value.size], [*value.shape, 1]])
    return g.node("Reshape", [x, g.ints(shape)])


def flip(g):
    x = g.tensor(at_least=1)
    perm = list(range(g.values[x].ndim))
    g.rng.shuffle(perm)
    return g.node("Transpose", [x], perm=perm)


def axes_more_or_less(g):
    x = g.tensor()
    value = g.values[x]
    ones = [i for i, n in enumerate(value.shape) if n == 1]
    if ones and g.chance():
        return g.node("Squeeze", [x, g.ints(ones[:1])])
    if g.chance(0.2):
        return g.node("Flatten", [x], axis=g.below(value.ndim + 1))
    return g.node("Unsqueeze", [x, g.ints([g.below(value.ndim + 1)])])


def concat(g):
    x = g.tensor(at_least=1)
    axis, shape = axis_of(g, x), list(g.values[x].shape)
    parts = [x]
    for _ in range(1 + g.below(2)):
        shape[axis] = g.size()
        parts.append(g.operand(g.array(shape, g.values[x].dtype)))
    g.rng.shuffle(parts)
    return g.node("Concat", parts, axis=axis)


def split(g):
    x = g.tensor(at_least=1)
    axis = axis_of(g, x)
    total = g.values[x].shape[axis]
    first = g.below(total + 1)
    return g.node("Split", [x, g.ints([first, total - first])], 2, axis=axis)


def slices(g):
    x = g.tensor(at_least=1)
    axes = axes_of(g, x)
    sizes = [g.values[x].shape[a] for a in axes]
    starts = [g.below(2 * n + 3) - n - 1 for n in sizes]
    ends = [g.pick([g.below(2 * n + 3) - n - 1, 2**31, -(2**31)]) for n in sizes]
    steps = [g.pick([1, 1, 2, -1, -2]) for _ in sizes]
    return g.node("Slice", [x] + [g.ints(v) for v in (starts, ends, axes, steps)])


def pad(g):
    x = g.tensor(at_least=1)
    rank = g.values[x].ndim
    mode = g.pick(["constant", "constant", "reflect", "edge"] + (["wrap"] if g.opset >= 19 else []))
    pads = [g.below(4) - (g.below(5) == 4) for _ in range(2 * rank)]
    return g.node("Pad", [x, g.ints(pads)], mode=mode)


def repeat(g):
    x = g.tensor()
    value = g.values[x]
    if g.chance():
        return g.node("Tile", [x, g.ints([g.below(3) + (not g.may_be_empty) for _ in value.shape])])
    return g.node("Expand", [x, g.ints([g.below(3) + 1] + [n if n != 1 else g.size() for n in value.shape])])


def gather(g):
    x = g.tensor(at_least=1)
    axis, value = axis_of(g, x), g.values[x]
    n = value.shape[axis]
    op = g.pick(["Gather", "GatherElements", "ScatterElements", "GatherND"])
    shape = g.shape(g.below(3), 200) if op == "Gather" else [g.below(s + 1) for s in value.shape]
    if op == "GatherND":
        index = np.stack([g.np.integers(0, max(s, 1), [3]) for s in value.shape[: 1 + g.below(value.ndim)]], -1)
        return g.node(op, [x, g.operand(index.astype(np.int64))])
    index = g.np.integers(-n, max(n, 1), shape) if n else np.zeros([0] * len(shape))
    if op == "ScatterElements":
        # Each place once: which of two stays is open.
        index = np.argsort(g.np.random(value.shape), axis)
        index = index[tuple(slice(0, s) for s in shape)]
        update = g.operand(g.array(index.shape, value.dtype))
        return g.node(op, [x, g.operand(index.astype(np.int64)), update], axis=axis)
    return g.node(op, [x, g.operand(index.astype(np.int64))], axis=axis)


def blocks(g):
    x, shape = image(g)
    if shape[1] % 4 == 0 and g.chance():
        return g.node("DepthToSpace", [x], blocksize=2, mode=g.pick(["DCR", "CRD"]))
    return g.node("SpaceToDepth", [x], blocksize=g.pick([1, 2]))


def resize(g):
    x = g.tensor(rank=4, dtype=g.pick([F32, F32, F32, np.uint8, np.int8]))
    shape = g.values[x].shape
    mode = g.pick(["nearest", "linear", "linear", "cubic"])
    sizes = list(shape[:2]) + [g.pick([n, 2 * n, n + 3, max(n // 2, 1), 7]) if n else 0 for n in shape[2:]]
    places = g.pick(["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"])
    options = {"mode": mode, "coordinate_transformation_mode": places}
    if mode == "nearest":
        options["nearest_mode"] = g.pick(["floor", "ceil", "round_prefer_floor", "round_prefer_ceil"])
    elif g.opset >= 18 and g.chance(0.3):
        options["antialias"] = 1
    if g.chance():
        return g.node("Resize", [x, "", "", g.ints(sizes)], **options)
    scales = [1.0, 1.0] + [g.pick([0.5, 2.0, 1.5, 0.6]) for _ in range(2)]
    return g.node("Resize", [x, "", g.weight(np.array(scales, F32))], **options)


def index_like(g):
    if g.chance(0.3):
        which, values = g.input(g.array(g.shape(2), np.int64)), g.weight(np.array([0, 1], F32))
        return g.node("OneHot", [which, g.ints(4), values], axis=g.pick([-1, 0, 1]))
    if g.chance(0.3):
        return g.node("EyeLike", [g.tensor(rank=2)], k=g.below(5) - 2, dtype=g.pick([1, 7]))
    if g.chance(0.3):
        return g.node("Range", [g.ints(g.below(5)), g.ints(g.below(30)), g.ints(1 + g.below(3))])
    return g.node("Trilu", [g.tensor(at_least=2)], upper=int(g.chance()))


def recurrent(g):
    steps, batch = g.pick([0, 1, 5] if g.may_be_empty else [1, 5]), g.pick([1, 3])
    width, hidden = g.pick([1, 6, 16]), g.pick([1, 5, 8, 16])
    op, gates = g.pick([("LSTM", 4), ("GRU", 3), ("RNN", 1)])
    direction = g.pick(["forward", "reverse", "bidirectional"])
    d = 1 + (direction == "bidirectional")
    x = g.input(g.array([steps, batch, width]))
    shapes = [d, gates * hidden, width], [d, gates * hidden, hidden], [d, 2 * gates * hidden]
    scaled = [g.weight(g.array(shape) * F32(0.3)) for shape in shapes]
    options = {"clip": g.pick([None, None, 0.5]), "linear_before_reset": int(g.chance()) if op == "GRU" else None}
    return g.node(op, [x, *scaled], 3 if op == "LSTM" else 2, hidden_size=hidden, direction=direction, **options)


def grid(g):
    x, shape = image(g)
    places = g.operand((g.array([shape[0], g.size(), g.size(), 2]) * F32(0.7)).astype(F32))
    modes = ["linear", "nearest", "cubic"] if g.opset >= 20 else ["bilinear", "nearest", "bicubic"]
    if g.opset < 16:
        raise ValueError("there is no such operator")
    outside = g.pick(["zeros", "border", "reflection"])
    return g.node("GridSample", [x, places], mode=g.pick(modes), padding_mode=outside, align_corners=int(g.chance()))


def sizes(g):
    """A size of the data, as exporters write it."""
    x = g.tensor(at_least=1)
    shape = g.node("Shape", [x])
    n = g.node("Gather", [shape, g.ints([axis_of(g, x)])], axis=0)
    flat = g.node("Concat", [n, g.ints([-1])], axis=0)
    return g.node("Reshape", [x, flat])


MAKERS = [
    *[unary, unary, tuned, gelu, clip, binary, binary, binary, modulo, logic, where, cast],
    *[reduce, reduce, extreme, running, normal, norm, norm, matmul, matmul, gemm, gemm, einsum],
    *[conv, conv, conv, transposed, pool, pool, quantized, integers, recurrent, grid],
    *[reshape, flip, axes_more_or_less, concat, split, slices, pad, repeat, gather, gather],
    *[blocks, resize, resize, index_like, sizes],
]


def non_zero(g):
    x = g.input(g.array(g.shape(2), g.pick([F32, np.bool_])))
    places = g.node("NonZero", [x])
    g.late.add(places)
    rows = g.node("Transpose", [places], perm=[1, 0])
    return g.node("GatherND", [g.input(g.array(g.values[x].shape)), rows])


def compressed(g):
    x = g.input(g.array([g.pick([0, 3, 8, 17] if g.may_be_empty else [3, 8, 17]), g.pick([4, 8, 16])]))
    condition = g.input(g.array([g.values[x].shape[0]], np.bool_))
    y = g.node("Compress", [x, condition], axis=0)
    g.late.add(y)
    return y


def distinct(g):
    x = g.input(g.np.integers(0, 9, [g.pick([1, 8, 30])]).astype(g.pick([np.int64, np.float32])))
    y = g.node("Unique", [x], 1, sorted=1)
    g.late.add(y)
    return y


def weighted(g):
    x = g.tensor(dtype=F32, at_least=2)
    k = g.values[x].shape[-1]
    y = g.node("MatMul", [x, g.weight(g.array([k, g.pick([3, 16, 33])]))])
    return g.node("Add", [y, g.weight(g.array([g.values[y].shape[-1]]))]) if g.chance() else y


def images(g):
    x = g.input(g.array([g.pick([0, 3] if g.may_be_empty else [1, 3]), g.pick([3, 16]), g.pick([1, 2, 6]), 7]))
    y = g.node("Compress", [x, g.input(g.array([g.values[x].shape[0]], np.bool_))], axis=0)
    g.late.add(y)
    return y


LATE = [non_zero, compressed, compressed, distinct, images]
OVER_LATE = [
    *[unary, tuned, clip, binary, where, cast, reduce, reduce, extreme, running, normal, matmul, weighted, weighted],
    *[reshape, flip, axes_more_or_less, concat, slices, repeat, gather, sizes, conv, conv, pool, pool, norm, gemm],
]


def network(g):
    """Convolutions with what follows them, then rows; or rows with attention."""
    convolves = g.chance(0.65)
    image = [g.pick([1, 1, 2]), g.pick([1, 3, 8, 16, 20]), g.pick([6, 9, 14, 20]), g.pick([5, 8, 14, 21])]
    x = g.input(g.array(image if convolves else [g.pick([1, 2]), g.pick([1, 4, 9]), 32]))
    for _ in range(2 + g.below(5)):
        x = (block if convolves else rows)(g, x)
    if convolves and g.chance():
        x = g.node("Flatten", [g.node("GlobalAveragePool", [x])])
        x = linear(g, x, g.pick([1, 10, 33]))
    return x


def activated(g, x):
    op = g.pick(["Relu", "Relu", "Sigmoid", "Tanh", "LeakyRelu", "HardSwish", "Clip", "Silu", ""])
    if op == "Silu":
        return g.node("Mul", [x, g.node("Sigmoid", [x])])
    if op == "Clip":
        return g.node(op, [x, g.weight(np.array(0, F32)), g.weight(np.array(6, F32))])
    return g.node(op, [x]) if op else x


def block(g, x):
    n, c, h, w = g.values[x].shape
    choice = g.below(8)
    if choice == 0:
        op, ceil = g.pick(["MaxPool", "AveragePool"]), int(g.chance() or min(h, w) < 2)
        return g.node(op, [x], kernel_shape=[2, 2], strides=[2, 2], ceil_mode=ceil)
    if choice == 1 and h * w < 500:
        scale, mode = g.weight(np.array([1, 1, 2, 2], F32)), g.pick(["nearest", "linear"])
        options = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        return g.node("Resize", [x, "", scale], mode=mode, **options)
    kernel = g.pick([1, 3, 3, 3, 5])
    depthwise, stride = g.chance(0.25), g.pick([1, 1, 1, 2])
    out = c if depthwise or g.chance(0.3) else g.pick([8, 16, 24, 32, 33])
    groups = c if depthwise else 1
    weight = g.weight(g.array([out, c // groups, kernel, kernel]) / F32((c // groups * kernel * kernel) ** 0.5))
    bias = [g.weight(g.array([out]))] if g.chance() else []
    y = g.node("Conv", [x, weight, *bias], group=groups, pads=[kernel // 2] * 4, strides=[stride] * 2)
    if g.chance(0.4):
        of = [g.weight(g.array([out])) for _ in range(3)] + [g.weight(np.abs(g.array([out])) + F32(0.5))]
        y = g.node("BatchNormalization", [y, *of])
    if g.values[y].shape == g.values[x].shape and g.chance():
        y = g.node("Add", [y, x] if g.chance() else [x, y])
    elif g.chance(0.2) and stride == 1:
        y = g.node("Concat", [y, x], axis=1)
    return activated(g, y)


def linear(g, x, out):
    k = g.values[x].shape[-1]
    weight = g.array([k, out]) / F32(max(k, 1) ** 0.5)
    if g.values[x].ndim == 2 and g.chance():
        return g.node("Gemm", [x, g.weight(np.ascontiguousarray(weight.T)), g.weight(g.array([out]))], transB=1)
    y = g.node("MatMul", [x, g.weight(weight)])
    return g.node("Add", [y, g.weight(g.array([out]))])


def rows(g, x):
    n, steps, width = g.values[x].shape
    choice = g.below(3)
    if choice == 0 and g.opset >= 17:
        return g.node("LayerNormalization", [x, g.weight(g.array([width])), g.weight(g.array([width]))], axis=-1)
    if choice == 1:
        y = activated(g, linear(g, x, g.pick([48, 64])))
        return g.node("Add", [x, linear(g, y, width)])
    heads = g.pick([1, 2, 4])

    def head(perm):
        y = g.node("Reshape", [linear(g, x, width), g.ints([n, steps, heads, width // heads])])
        return g.node("Transpose", [y], perm=perm)
    q, k, v = head([0, 2, 1, 3]), head([0, 2, 3, 1]), head([0, 2, 1, 3])
    scores = g.node("Mul", [g.node("MatMul", [q, k]), g.weight(np.array((width // heads) ** -0.5, F32))])
    y = g.node("MatMul", [g.node("Softmax", [scores], axis=-1), v])
    y = g.node("Reshape", [g.node("Transpose", [y], perm=[0, 2, 1, 3]), g.ints([n, steps, width])])
    return g.node("Add", [x, linear(g, y, width)])
