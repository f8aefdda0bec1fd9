"""Where onnxruntime and the standard's reference are known to be wrong, as `fuzz_graphs.py` asks of a node and of what reaches it."""

import numpy as np
import onnx

import graphs


def has_one(node, op, **attributes):
    own = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    return node.op_type == op and all(own.get(k) in (v, str(v).encode()) for k, v in attributes.items())


def has(model, op, **attributes):
    return any(has_one(node, op, **attributes) for node in model.graph.node)


def constants_of(model):
    return {w.name: onnx.numpy_helper.to_array(w) for w in model.graph.initializer}


def reaching(model, feed, *at):
    """What reaches a node: all of it, or some of its operands."""
    known, names = constants_of(model) | feed, model.graph.node[0].input
    return [known[name] for i, name in enumerate(names) if name and (i in at or not at)]


def is_wild(model, feed, *at):
    return any(x.dtype.kind == "f" and not np.isfinite(x).all() for x in reaching(model, feed, *at))


def is_of_shares(model):
    """Whether a place takes a share from each of its neighbours."""
    return has(model, "RoiAlign") or any(has(model, "Resize", mode=mode) for mode in ("linear", "cubic"))


def has_wild_filter(model, feed):
    """Whether a convolution multiplies by what is no number."""
    return any(has(model, op) for op in ("Conv", "ConvTranspose", "DeformConv")) and is_wild(model, feed, 1)


def is_in_time(model):
    return any(has(model, op) for op in ("LSTM", "GRU", "RNN"))


def has_large_neighbours(model, feed):
    """Whether what an f32 rounds off from the squares in a window of LRN is felt beside its bias."""
    own = {a.name: onnx.helper.get_attribute_value(a) for a in model.graph.node[0].attribute}
    squares = np.square(np.float64(reaching(model, feed, 0)[0])).max(initial=0) * own.get("alpha", 1e-4) / own["size"]
    return not squares * 2.0**-24 <= 1e-5 * own.get("bias", 1.0)


def has_far_places(model, feed):
    """Whether places lie so far from an image that an f32 does not tell them apart."""
    return np.abs(reaching(model, feed, 1)[0]).max(initial=0) > 1e4


def has_window_of_padding(model, feed):
    """Whether a window of MaxPool has nothing in it."""
    own = {a.name: onnx.helper.get_attribute_value(a) for a in model.graph.node[0].attribute}
    for axis, (size, kernel) in enumerate(zip(reaching(model, feed, 0)[0].shape[2:], own["kernel_shape"])):
        dilation, stride, pad = (own[name][axis] if name in own else least for name, least in STEPS)
        taps = np.arange(0, size + pad, stride)[:, None] - pad + np.arange(kernel) * dilation
        if not ((taps >= 0) & (taps < size)).any(axis=1).all():
            return True
    return False


#: Attributes of windows, and what they are without.
STEPS = [("dilations", 1), ("strides", 1), ("pads", 0)]


def saturates(model, feed):
    """Whether two products of unsigned with signed bytes may be more than 16 bits hold."""
    operands = [x for x in reaching(model, feed) if x.dtype in (np.uint8, np.int8) and x.ndim > 1]
    if [x.dtype for x in operands] != [np.uint8, np.int8] or not all(x.size for x in operands):
        return False
    a, b = (int(np.abs(x.astype(int)).max()) for x in operands)
    return 2 * a * b > np.iinfo(np.int16).max


def sums_past_doubles(model, feed):
    """Whether integers add up to more than the integers that floating point holds."""
    x = reaching(model, feed, 0)[0]
    return x.dtype.kind in "iu" and np.abs(x.astype(np.float64)).sum() > 2.0**53


_T = onnx.TensorProto
INTEGERS = [_T.UINT8, _T.INT8, _T.INT32, _T.INT64, _T.UINT64]


def values_of(model, feed, names):
    """Values of a graph by name, as onnxruntime has them."""
    known = constants_of(model) | feed
    computed = [name for name in dict.fromkeys(names) if name not in known]
    if computed:
        whole = onnx.ModelProto()
        whole.CopyFrom(model)
        del whole.graph.output[:]
        whole.graph.output.extend(onnx.ValueInfoProto(name=name) for name in computed)
        known |= graphs.by_onnxruntime(whole, feed)
    return known


def leaves(dtype, x):
    """Whether some numbers are none of an integer type."""
    info = np.iinfo(dtype)
    return bool(x.size) and not ((x > float(info.min) - 1) & (x < float(info.max) + 1)).all()


def out_of_range(model, feed):
    """Whether a cast or a power meets a number that its type of integers does not hold."""
    casts = [node for node in model.graph.node if node.op_type == "Cast" and node.attribute[0].i in INTEGERS]
    powers = [node for node in model.graph.node if node.op_type == "Pow"]
    if not casts and not powers:
        return False
    read = [node.input[0] for node in casts] + [name for node in powers for name in node.input]
    known = values_of(model, feed, read)
    for node in casts:
        x = known[node.input[0]]
        if x.dtype.kind in "iuf" and leaves(onnx.helper.tensor_dtype_to_np_dtype(node.attribute[0].i), x):
            return True
    for node in powers:
        base, exponent = (known[name] for name in node.input)
        if base.dtype.kind in "iu" and leaves(base.dtype, base.astype(np.float64) ** exponent.astype(np.float64)):
            return True
    return False


def has_rounded_corners(model, feed):
    """Whether corners are aligned, also of a part of an image, of a size that is not the image's size times a scale."""
    modes = ("align_corners", "tf_crop_and_resize")
    aligned = [
        node
        for node in model.graph.node
        if len(node.input) == 3 and any(has_one(node, "Resize", coordinate_transformation_mode=mode) for mode in modes)
    ]
    known = values_of(model, feed, [name for node in aligned for name in (node.input[0], node.input[2])])
    sizes = [known[node.input[0]].shape * known[node.input[2]].astype(np.float64) for node in aligned]
    return any(np.abs(size - np.round(size)).max(initial=0) > 1e-5 for size in sizes)


def is_resize_of_bytes(model, feed):
    return has(model, "Resize", mode="cubic") and reaching(model, feed, 0)[0].dtype in (np.uint8, np.int8)


def has_edge_at_border(model, feed):
    """Whether a pixel of a part of an image lies within rounding of the image's border."""
    if not has(model, "Resize", coordinate_transformation_mode="tf_crop_and_resize") or len(model.graph.node[0].input) < 2:
        return False
    image, part = reaching(model, feed, 0)[0], reaching(model, feed, 1)[0].astype(np.float64)
    own = {a.name: onnx.helper.get_attribute_value(a) for a in model.graph.node[0].attribute}
    axes = [axis % image.ndim for axis in own.get("axes", range(image.ndim))]
    last = np.array([image.shape[axis] - 1 for axis in axes])
    places = part.reshape(2, -1) * last
    return bool((np.minimum(np.abs(places), np.abs(places - last)) < 1e-4).any())


def normalises_a_constant(model, feed):
    """Whether numbers differ by no more than their rounding from the mean that they are normalised by."""
    node = model.graph.node[0]
    own = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    if node.op_type not in ("MeanVarianceNormalization", "InstanceNormalization", "GroupNormalization", "LayerNormalization"):
        return False
    x = reaching(model, feed, 0)[0].astype(np.float64)
    axes = tuple(own.get("axes", (0, 2, 3)))
    if node.op_type == "GroupNormalization":
        x = x.reshape(x.shape[0], own["num_groups"], -1)
    if node.op_type in ("InstanceNormalization", "GroupNormalization"):
        axes = tuple(range(2, x.ndim))
    if node.op_type == "LayerNormalization":
        axes = tuple(range(own.get("axis", -1) % x.ndim, x.ndim))
    if not x.size:
        return False
    spread, mean = x.std(axis=axes), np.abs(x.mean(axis=axes))
    return bool((spread <= 1e-5 * np.maximum(mean, 1e-6)).any())


def bends_what_cancels(model, feed):
    """Whether rounding of large products that cancel is felt in an activation behind their sum."""
    node = model.graph.node[0]
    if node.op_type not in ("FusedGemm", "FusedConv"):
        return False
    x, w, *bias = (np.abs(v[np.isfinite(v)]).max(initial=0) for v in map(np.float64, reaching(model, feed)))
    return max(x * w, *bias, 0) * 2.0**-24 > 1e-4


def is_part_as_one_pixel(model, feed):
    """Whether a part of an image becomes one pixel, of a size that is not the image's size times a scale."""
    if not has(model, "Resize", coordinate_transformation_mode="tf_crop_and_resize") or len(model.graph.node[0].input) != 3:
        return False
    image, scales = reaching(model, feed, 0)[0], reaching(model, feed, 2)[0]
    sizes = image.shape * scales.astype(np.float64)
    return ((sizes > 1 + 1e-5) & (sizes < 2 - 1e-5)).any()


#: Where onnxruntime and the reference are known to be wrong, or where the standard leaves a result open: what is said of it,
#: whether a graph of one node and what reaches it are of that kind, and whose word counts then; nobody's leaves a node open.
KNOWN = [
    (
        "onnxruntime and the reference take no NaN in a window for the largest",
        lambda m, feed: (has(m, "MaxPool") or has(m, "GlobalMaxPool") or has(m, "RoiAlign", mode="max")) and is_wild(m, feed),
        None,
    ),
    (
        "onnxruntime smooths signed bytes as unsigned ones: none is below 0",
        lambda m, feed: has(m, "Resize", antialias=1) and any(x.dtype == np.int8 for x in feed.values()),
        None,
    ),
    ("an infinite filter meets the zeros around an image, or does not", has_wild_filter, None),
    ("onnxruntime's gates take no number for a large one", lambda m, feed: is_in_time(m) and is_wild(m, feed), None),
    (
        "onnxruntime takes squares that leave a window off a sum, the reference takes the batch for the channels",
        lambda m, feed: has(m, "LRN") and has_large_neighbours(m, feed),
        None,
    ),
    (
        "onnxruntime takes the mean of integers in floating point, the reference's sum wraps around",
        lambda m, feed: has(m, "ReduceMean") and sums_past_doubles(m, feed),
        None,
    ),
    (
        "onnxruntime takes a place that is no number for one at the border",
        lambda m, feed: has(m, "GridSample") and is_wild(m, feed, 1),
        None,
    ),
    ("f32 does not tell far places apart", lambda m, feed: has(m, "GridSample") and has_far_places(m, feed), None),
    ("a window of padding has no largest", lambda m, feed: has(m, "MaxPool") and has_window_of_padding(m, feed), None),
    (
        "onnxruntime loses the order of numbers at one that is none, the reference that of equal ones",
        lambda m, feed: has(m, "TopK") and is_wild(m, feed, 0),
        None,
    ),
    (
        "onnxruntime and the reference find other steps for what is no number",
        lambda m, feed: has(m, "DynamicQuantizeLinear") and is_wild(m, feed),
        None,
    ),
    (
        "onnxruntime leaves an empty result of the place of a largest in the shape of what it is of",
        lambda m, feed: (has(m, "ArgMax") or has(m, "ArgMin")) and not reaching(m, feed, 0)[0].size,
        None,
    ),
    (
        "a scale that is no number becomes part of a filter, and meets the zeros around an image",
        lambda m, feed: has(m, "BatchNormalization") and is_wild(m, feed, 1, 2, 3, 4),
        None,
    ),
    (
        "the mean of no losses is 0 or no number",
        lambda m, feed: (has(m, "NegativeLogLikelihoodLoss") or has(m, "SoftmaxCrossEntropyLoss"))
        and not reaching(m, feed, 1)[0].size,
        None,
    ),
    (
        "an infinity spreads over the neighbours of a place, or not where its share is 0, as all but one of the nearest's are",
        lambda m, feed: (is_of_shares(m) or has_rounded_corners(m, feed)) and is_wild(m, feed, 0),
        None,
    ),
    (
        "one pixel of a part of an image is its middle or its start",
        is_part_as_one_pixel,
        None,
    ),
    (
        "rounding decides which pixel of a part of an image is nearest, and whether its edge is within",
        lambda m, feed: has(m, "Resize", coordinate_transformation_mode="tf_crop_and_resize", mode="nearest"),
        None,
    ),
    (
        "onnxruntime aligns corners of a rounded size, the standard's tests those of size times scale",
        has_rounded_corners,
        graphs.by_reference,
    ),
    (
        "onnxruntime takes other places for the cubes of a part of an image",
        lambda m, feed: has(m, "Resize", mode="cubic", coordinate_transformation_mode="tf_crop_and_resize"),
        graphs.by_reference,
    ),
    (
        "rounding decides whether the edge of a part of an image is within",
        has_edge_at_border,
        None,
    ),
    (
        "onnxruntime cuts bytes off between the axes of a cubic filter, the reference's overshoot wraps around",
        is_resize_of_bytes,
        graphs.by_reference_that_saturates,
    ),
    ("a constant that is normalised is rounding divided by rounding", normalises_a_constant, None),
    ("large numbers that cancel leave their rounding to an activation", bends_what_cancels, None),
    (
        "what an f32 rounds off from a sum is felt where its addends cancel",
        lambda m, feed: (has(m, "ReduceSum") or has(m, "ReduceMean")) and reaching(m, feed, 0)[0].dtype == np.float32,
        graphs.by_exact_sums,
    ),
    (
        "the mean of no integers is none of them, and onnxruntime leaves it out",
        lambda m, feed: has(m, "ReduceMean") and reaching(m, feed, 0)[0].dtype.kind in "iu" and not reaching(m, feed, 0)[0].size,
        None,
    ),
    ("onnxruntime adds pairs of products of 8 bits in 16 where there is no VNNI", saturates, graphs.by_exact_integers),
    ("a number that its type does not hold may become anything", out_of_range, None),
    (
        "the logarithm of an integer that is not above 0 is none",
        lambda m, feed: (has(m, "ReduceLogSum") and reaching(m, feed, 0)[0].dtype.kind in "iu")
        and (reaching(m, feed, 0)[0] <= 0).any(),
        None,
    ),
    (
        "onnxruntime cuts the logarithm of integers off before it adds the largest",
        lambda m, feed: has(m, "ReduceLogSumExp") and any(x.dtype.kind in "iu" for x in feed.values()),
        graphs.by_reference,
    ),
    (
        "an infinity spreads over a spectrum as its sums are ordered",
        lambda m, feed: (has(m, "STFT") or has(m, "DFT")) and is_wild(m, feed),
        None,
    ),
    (
        "onnxruntime and the reference take another number for the least or largest beside none",
        lambda m, feed: any(has(m, "ScatterND", reduction=r) or has(m, "ScatterElements", reduction=r) for r in ("min", "max"))
        and is_wild(m, feed),
        None,
    ),
    (
        "what a remainder is of need not be rounded to halves, which changes it by as much as one divides by",
        lambda m, feed: has(m, "Mod") and reaching(m, feed, 0)[0].dtype == np.float16,
        None,
    ),
    (
        "infinities and zeros meet in another order",
        lambda m, feed: any(has(m, op) for op in ("Det", "Einsum", "ReduceProd")) and is_wild(m, feed),
        None,
    ),
    ("an infinity spreads over a window of Col2Im", lambda m, feed: has(m, "Col2Im") and is_wild(m, feed), None),
    (
        "onnxruntime clamps each place of a cube, the standard's reference where it is",
        lambda m, feed: any(has(m, "GridSample", padding_mode="border", mode=mode) for mode in ("cubic", "bicubic")),
        graphs.by_reference,
    ),
]
