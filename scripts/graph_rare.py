"""What graphs of rare operators consist of: each function adds one to a graph of `graphs.Graph`, with attributes at random.

`graphs.Graph` spoils some of the attributes afterwards. What onnxruntime runs all the same is compared.
"""

import numpy as np

from graph_kinds import F32, axis_of, image

CONTRIB = "com.microsoft"


def col2im(g):
    n, c, block = g.pick([1, 2]), g.pick([1, 3]), [g.pick([1, 2, 3]), g.pick([1, 2])]
    size, pads, strides, dilations = [], [], [], []
    steps = 1
    for b in block:
        pad, stride, dilation = g.below(2), g.pick([1, 2]), g.pick([1, 1, 2])
        side = (b - 1) * dilation + 1 + g.below(5)
        steps *= max((side + 2 * pad - (b - 1) * dilation - 1) // stride + 1, 0)
        size.append(side)
        pads.append(pad)
        strides.append(stride)
        dilations.append(dilation)
    x = g.input(g.array([n, c * block[0] * block[1], steps]))
    options = {"pads": pads * 2, "strides": strides, "dilations": dilations}
    return g.node("Col2Im", [x, g.ints(size), g.ints(block)], **options)


def deformed(g):
    n, c, h, w = g.pick([1, 2]), g.pick([2, 4]), 5 + g.below(3), 6
    kernel, groups = [g.pick([1, 3]), g.pick([1, 2])], g.pick([1, 2])
    pads = [g.below(k) for k in kernel] * 2
    out = [h + 2 * pads[0] - kernel[0] + 1, w + 2 * pads[1] - kernel[1] + 1]
    taps = kernel[0] * kernel[1]
    x = g.input(g.array([n, c, h, w]))
    weight = g.weight(g.array([g.pick([2, 4]), c // groups, *kernel]))
    offset = g.input(g.array([n, groups * 2 * taps, *out]))
    mask = [g.input(g.array([n, groups * taps, *out]))] if g.chance() else []
    bias = [""] if mask else []
    options = {"pads": pads, "group": groups, "offset_group": groups, "kernel_shape": kernel}
    return g.node("DeformConv", [x, weight, offset, *bias, *mask], **options)


def regions(g):
    x, shape = image(g)
    count = g.below(4) + (not g.may_be_empty)
    corner = g.np.random([count, 2]) * 4
    boxes = g.input(np.concatenate([corner, corner + g.np.random([count, 2]) * 6], -1).astype(F32))
    which = g.operand(g.np.integers(0, max(shape[0], 1), [count]).astype(np.int64))
    options = {"mode": g.pick(["avg", "max"]), "output_height": g.pick([1, 2, 3]), "output_width": g.pick([1, 2])}
    options |= {"sampling_ratio": g.pick([0, 1, 2]), "spatial_scale": g.pick([1.0, 0.5])}
    if g.opset >= 16:
        options["coordinate_transformation_mode"] = g.pick(["half_pixel", "output_half_pixel"])
    return g.node("RoiAlign", [x, boxes, which], **options)


def suppressed(g):
    boxes = g.input((g.np.random([g.pick([1, 2]), g.pick([1, 6, 20]), 4]) * 9).astype(F32))
    n, count, _ = g.values[boxes].shape
    scores = g.input(g.np.random([n, g.pick([1, 3]), count]).astype(F32))
    limits = [g.ints([g.below(8)]), g.weight(np.array([g.pick([0.0, 0.3, 0.7])], F32)), g.weight(np.array([0.2], F32))]
    return g.node("NonMaxSuppression", [boxes, scores, *limits], center_point_box=g.below(2))


def scattered(g):
    x = g.tensor(at_least=1, dtype=g.pick([F32, np.int64, np.int32]))
    value = g.values[x]
    options = {"reduction": g.pick(["none", "add", "mul"] + (["min", "max"] if g.opset >= 18 else []))}
    if g.opset < 16:
        raise ValueError("no reduction")
    deep = 1 + g.below(value.ndim)
    # Each place once, where the last one would win.
    places = np.stack(np.meshgrid(*[np.arange(s) for s in value.shape[:deep]], indexing="ij"), -1).reshape(-1, deep)
    g.np.shuffle(places)
    places = places[: 1 + g.below(6)]
    if options["reduction"] != "none" and len(places):
        places = places[g.np.integers(0, len(places), [5])]
    update = g.operand(g.array([len(places), *value.shape[deep:]], value.dtype))
    return g.node("ScatterND", [x, g.operand(places.astype(np.int64)), update], **options)


def gathered(g):
    x = g.tensor(at_least=2)
    shape = g.values[x].shape
    batch = g.below(len(shape))
    deep = 1 + g.below(len(shape) - batch)
    index = np.stack([g.np.integers(-s, max(s, 1), [*shape[:batch], 3]) for s in shape[batch : batch + deep]], -1)
    return g.node("GatherND", [x, g.operand(index.astype(np.int64))], batch_dims=batch)


def reversed_(g):
    x = g.tensor(at_least=2)
    shape = g.values[x].shape
    time = g.below(2)
    lengths = g.np.integers(0, shape[time] + 1, [shape[1 - time]]).astype(np.int64)
    return g.node("ReverseSequence", [x, g.operand(lengths)], time_axis=time, batch_axis=1 - time)


def group_norm(g):
    x, shape = image(g)
    groups = g.pick([k for k in (1, 2, 4) if shape[1] % k == 0])
    if g.opset < 21:
        raise ValueError("its meaning was another")
    of = [g.weight(g.array([shape[1]])) for _ in range(2)]
    return g.node("GroupNormalization", [x, *of], num_groups=groups, epsilon=g.pick([1e-5, 0.1]))


def bits(g):
    x = g.tensor(dtype=g.pick([np.int32, np.int64, np.uint8, np.int8]))
    value = g.values[x]
    if g.opset < 18 or g.chance(0.3):
        y = g.input(np.abs(g.array(value.shape, np.uint8)) % 8)
        x = g.input(g.array(value.shape, np.uint8))
        return g.node("BitShift", [x, y], direction=g.pick(["LEFT", "RIGHT"]))
    if g.chance(0.2):
        return g.node("BitwiseNot", [x])
    return g.node(g.pick(["BitwiseAnd", "BitwiseOr", "BitwiseXor"]), [x, g.operand(g.array(value.shape, value.dtype))])


def losses(g):
    classes, rest = g.pick([1, 3, 5]), [g.size() for _ in range(g.below(3))]
    n = g.size()
    x = g.input(g.array([n, classes, *rest]))
    target = g.np.integers(0, classes, [n, *rest]).astype(np.int64)
    weight = [g.weight(np.abs(g.array([classes])))] if g.chance() else []
    options = {"reduction": g.pick(["none", "sum", "mean"])}
    if g.chance(0.3):
        options["ignore_index"] = g.below(classes)
    op = g.pick(["NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"])
    return g.node(op, [x, g.operand(target), *weight], **options)


def cropped(g):
    x = g.tensor(at_least=1)
    rank = g.values[x].ndim
    if g.opset < 18:
        raise ValueError("there is no such operator")
    axes = sorted(g.rng.sample(range(rank), 1 + g.below(rank)))
    sizes = [g.pick([1, 2, 5, 9]) for _ in axes]
    return g.node("CenterCropPad", [x, g.ints(sizes)], axes=axes)


def transformed(g):
    if g.opset < 20:
        raise ValueError("its axis was an attribute")
    shape = [g.pick([1, 2]), g.pick([1, 4, 7, 8]), g.pick([3, 5]), g.pick([1, 2])]
    x = g.input(g.array(shape))
    axis, length = g.pick([1, 2, -2, -3]), g.pick([None, 4, 9])
    inputs = [x, g.ints(length) if length else "", g.ints(axis)]
    onesided, inverse = int(g.chance(0.3) and shape[3] == 1), int(g.chance(0.3))
    return g.node("DFT", inputs, onesided=onesided, inverse=0 if onesided else inverse)


def windows(g):
    op = g.pick(["HannWindow", "HammingWindow", "BlackmanWindow"])
    if g.opset < 17:
        raise ValueError("there is no such operator")
    return g.node(op, [g.ints(1 + g.below(20))], periodic=g.below(2))


def spectrum(g):
    if g.opset < 17:
        raise ValueError("there is no such operator")
    frame = g.pick([2, 4, 7])
    x = g.input(g.array([g.pick([1, 2]), frame + g.below(20), 1]))
    window = g.weight(np.abs(g.array([frame])))
    return g.node("STFT", [x, g.ints(1 + g.below(5)), window, g.ints(frame)], onesided=g.below(2))


def determinant(g):
    n = g.pick([1, 2, 3, 5])
    return g.node("Det", [g.input(g.array([*g.shape(g.below(3), 20), n, n]))])


def unpooled(g):
    x, shape = image(g)
    kernel = [1 + g.below(3), 1 + g.below(2)]
    y, places = g.node("MaxPool", [x], 2, kernel_shape=kernel, strides=kernel)
    return g.node("MaxUnpool", [y, places], kernel_shape=kernel, strides=kernel)


def affine(g):
    if g.opset < 20:
        raise ValueError("there is no such operator")
    n, size = g.pick([1, 2]), [g.pick([2, 3]), g.pick([2, 5])]
    theta = g.input(g.array([n, 2, 3]))
    return g.node("AffineGrid", [theta, g.ints([n, 3, *size])], align_corners=g.below(2))


def resized(g):
    x, shape = image(g)
    mode = g.pick(["nearest", "linear", "cubic"])
    places = g.pick(["tf_crop_and_resize", "half_pixel_symmetric", "half_pixel", "align_corners"])
    options = {"mode": mode, "coordinate_transformation_mode": places, "extrapolation_value": 2.5}
    if mode == "cubic":
        options |= {"cubic_coeff_a": g.pick([-0.75, -0.5]), "exclude_outside": g.below(2)}
    if mode == "nearest":
        options["nearest_mode"] = g.pick(["floor", "ceil", "round_prefer_floor", "round_prefer_ceil"])
    box = [0.0, 0.0, g.pick([0.0, 0.2, -0.3]), 0.1, 1.0, 1.0, g.pick([1.0, 0.7, 1.4]), 0.8]
    roi = g.weight(np.array(box, F32)) if places == "tf_crop_and_resize" else ""
    sizes = [*shape[:2], g.pick([1, 3, 8]), g.pick([2, 5, 9])]
    if places == "half_pixel_symmetric" or g.chance(0.4):
        scales = g.weight(np.array([1.0, 1.0, g.pick([0.5, 1.5, 2.3]), g.pick([0.6, 2.0])], F32))
        return g.node("Resize", [x, roi, scales], **options)
    return g.node("Resize", [x, roi, "", g.ints(sizes)], **options)


def one_hot(g):
    depth = g.pick([1, 3, 6])
    which = g.input(g.np.integers(-depth - 1, depth + 2, g.shape(g.below(3), 100)).astype(np.int64))
    values = g.weight(np.array([g.pick([0, -1]), 2], g.pick([F32, np.int64])))
    rank = g.values[which].ndim
    return g.node("OneHot", [which, g.ints(depth), values], axis=g.below(2 * rank + 2) - rank - 1)


def quantized_product(g):
    m, k, n = g.pick([1, 3, 17]), g.pick([4, 16, 33]), g.pick([1, 8, 20])
    kind = g.pick([np.uint8, np.int8])
    zero = lambda dtype: g.weight(np.array(g.below(9), dtype))  # noqa: E731
    scale = lambda: g.weight(np.array(g.pick([0.01, 0.05, 0.1]), F32))  # noqa: E731
    a = g.input(g.array([m, k], np.uint8))
    b = g.weight(g.array([k, n], kind))
    inputs = [a, scale(), zero(np.uint8), b, scale(), zero(kind), scale(), zero(np.uint8)]
    return g.node("QLinearMatMul", inputs)


def contrib(g):
    op = g.pick(["FusedGemm", "FusedMatMul", "BiasGelu", "FastGelu", "QuickGelu", "SkipLayerNormalization", "Trilu"])
    if op == "Trilu":
        return g.node(op, [g.tensor(at_least=2)], domain=CONTRIB, upper=g.below(2))
    rows, width, out = g.pick([1, 3, 9]), g.pick([4, 16, 20]), g.pick([1, 8, 33])
    x = g.input(g.array([rows, width]))
    if op == "FusedGemm":
        turned = g.below(2)
        w = g.weight(g.array([out, width] if turned else [width, out]))
        activation = g.pick(["Relu", "LeakyRelu", "Sigmoid", "Tanh"])
        options = {"activation": activation, "transB": turned, "alpha": g.pick([1.0, 0.5])}
        if activation == "LeakyRelu":
            options["activation_alpha"] = 0.2
        return g.node(op, [x, w, g.weight(g.array([out]))], domain=CONTRIB, **options)
    if op == "FusedMatMul":
        turned = g.below(2)
        w = g.operand(g.array([out, width] if turned else [width, out]))
        return g.node(op, [x, w], domain=CONTRIB, transB=turned, alpha=g.pick([1.0, 0.25]))
    if op == "QuickGelu":
        return g.node(op, [x], domain=CONTRIB, alpha=g.pick([1.702, 1.0]))
    bias = g.weight(g.array([width]))
    if op == "SkipLayerNormalization":
        x = g.input(g.array([1, rows, width]))
        skip = g.input(g.array([1, rows, width]))
        return g.node(op, [x, skip, bias, g.weight(g.array([width]))], domain=CONTRIB, epsilon=g.pick([1e-5, 1e-2]))
    return g.node(op, [x, bias], domain=CONTRIB)


def normal_or_late(g):
    x = g.tensor(at_least=1, dtype=F32)
    op = g.pick(["Hardmax", "LpNormalization", "Softmax", "LogSoftmax"])
    return g.node(op, [x], axis=axis_of(g, x), p=g.pick([1, 2]) if op == "LpNormalization" else None)


RARE = [
    *[col2im, deformed, regions, suppressed, scattered, gathered, reversed_, group_norm, bits, losses, cropped],
    *[transformed, windows, spectrum, determinant, unpooled, affine, resized, resized, one_hot, quantized_product],
    *[contrib, contrib, normal_or_late],
]
