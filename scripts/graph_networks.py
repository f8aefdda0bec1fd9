"""Networks that graphs are drawn of: along time, and in 8 bits with QuantizeLinear and DequantizeLinear around each layer."""

import numpy as np

from graph_kinds import F32, activated, linear


def along_time(g):
    """Recurrent layers one after the other, then rows."""
    steps, batch, width = g.pick([1, 4, 9]), g.pick([1, 3]), g.pick([3, 8, 16])
    x = g.input(g.array([steps, batch, width]))
    for _ in range(1 + g.below(3)):
        x = layer(g, x)
        if g.chance(0.3):
            x = g.node(g.pick(["Relu", "Tanh", "LeakyRelu"]), [x])
    if g.chance():
        x = g.node("Transpose", [x], perm=[1, 0, 2])
        x = linear(g, x, g.pick([1, 10, 33]))
    return x


def layer(g, x):
    """One of them, with its directions side by side."""
    steps, batch, width = g.values[x].shape
    op, gates = g.pick([("LSTM", 4), ("GRU", 3), ("RNN", 1)])
    direction, hidden = g.pick(["forward", "reverse", "bidirectional"]), g.pick([4, 5, 16, 32])
    d = 1 + (direction == "bidirectional")
    shapes = [d, gates * hidden, width], [d, gates * hidden, hidden], [d, 2 * gates * hidden]
    inputs = [x, *(g.weight(g.array(shape) * F32(0.3)) for shape in shapes)]
    state = [d, batch, hidden]
    if g.chance(0.4):
        lengths = g.np.integers(1, steps + 1, [batch]).astype(np.int32)
        inputs.append(g.operand(lengths) if g.chance() else "")
        inputs.append(g.operand(g.array(state)))
        if op == "LSTM" and g.chance():
            inputs.append(g.operand(g.array(state)))
            if g.chance():
                inputs.append(g.weight(g.array([d, 3 * hidden]) * F32(0.3)))
    options = {"hidden_size": hidden, "direction": direction, "clip": None if g.may_be_wild else g.pick([None, None, 0.7])}
    if op == "GRU":
        options["linear_before_reset"] = g.below(2)
    if g.chance(0.3):
        of = {"LSTM": ["Sigmoid", "Tanh", "Relu"], "GRU": ["HardSigmoid", "Tanh"], "RNN": ["Relu"]}[op]
        options["activations"] = of * d
    y = g.node(op, inputs, 3 if op == "LSTM" else 2, **options)[0]
    y = g.node("Transpose", [y], perm=[0, 2, 1, 3])
    if d == 1:
        y = g.node("Reshape", [y, g.ints([batch, steps, hidden])])
    else:
        y = g.node("Transpose", [y], perm=[1, 2, 0, 3])
        y = g.node("Reshape", [y, g.ints([batch, steps, d * hidden])])
    return g.node("Transpose", [y], perm=[1, 0, 2])


class Steps:
    """A grid of steps in 8 bits that suits numbers."""

    def __init__(self, g, x, is_signed, is_symmetric):
        dtype = np.int8 if is_signed else np.uint8
        least, most = float(min(x.min(initial=0), 0)), float(max(x.max(initial=0), 1e-3))
        if is_symmetric:
            most = max(most, -least)
            scale, zero = most / 127, 0
        else:
            scale = (most - least) / 255
            zero = round(-least / scale) + np.iinfo(dtype).min
        self.scale = g.weight(np.array(scale, F32))
        self.zero = g.weight(np.array(np.clip(zero, np.iinfo(dtype).min, np.iinfo(dtype).max), dtype))


def rounded(g, x, is_signed):
    """To steps and back."""
    value = g.values[x]
    if not np.isfinite(value).all():
        raise ValueError("no grid for these")
    steps = Steps(g, value, is_signed, False)
    q = g.node("QuantizeLinear", [x, steps.scale, steps.zero])
    return g.node("DequantizeLinear", [q, steps.scale, steps.zero])


def stored(g, w, axis, by_channel):
    """Weights in steps, as they are in files."""
    if not np.isfinite(w).all():
        raise ValueError("no grid for these")
    rest = tuple(i for i in range(w.ndim) if i != axis)
    scale = np.asarray(np.maximum(np.abs(w).max(rest if by_channel else None), 1e-3) / 127)
    shape = [-1 if i == axis else 1 for i in range(w.ndim)] if by_channel else []
    q = g.weight(np.clip(np.round(w / np.reshape(scale, shape)), -127, 127).astype(np.int8))
    zero = g.weight(np.zeros(np.shape(scale), np.int8))
    options = {"axis": axis} if by_channel else {}
    return g.node("DequantizeLinear", [q, g.weight(scale.astype(F32)), zero], **options)


def in_8_bits(g):
    """Convolutions or rows, each between roundings. Sums are exact in onnxruntime too, as it does not fuse what it judges."""
    is_signed, by_channel = g.chance(), g.chance()
    convolves = g.chance(0.6)
    shape = [1, g.pick([3, 16, 20]), g.pick([5, 9]), g.pick([6, 8])] if convolves else [g.pick([1, 5]), g.pick([16, 33])]
    x = rounded(g, g.input(g.array(shape)), is_signed)
    for _ in range(1 + g.below(4)):
        before = x
        c = g.values[x].shape[1]
        if convolves:
            out, kernel = g.pick([16, 24, 32]), g.pick([1, 3])
            groups = c if g.chance(0.2) else 1
            out = c if groups > 1 or g.chance(0.3) else out
            w = stored(g, g.array([out, c // groups, kernel, kernel]), 0, by_channel)
            bias = [g.weight(g.array([out]))] if g.chance() else []
            y = g.node("Conv", [x, w, *bias], pads=[kernel // 2] * 4, group=groups, strides=[g.pick([1, 1, 2])] * 2)
        else:
            w = stored(g, g.array([c, g.pick([c, 16, 33])]), 1, by_channel)
            y = g.node("MatMul", [x, w])
            y = g.node("Add", [y, g.weight(g.array([g.values[y].shape[-1]]))]) if g.chance() else y
        x = rounded(g, activated(g, y) if g.chance(0.7) else y, is_signed)
        if g.values[x].shape == g.values[before].shape and g.chance():
            x = rounded(g, g.node("Add", [x, before]), is_signed)
        elif convolves and min(g.values[x].shape[2:]) > 1 and g.chance(0.2):
            x = g.node("MaxPool", [x], kernel_shape=[2, 2], strides=[1, 1])
    return x
