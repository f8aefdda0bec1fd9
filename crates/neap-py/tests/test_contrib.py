"""onnxruntime's own operators, and weights in blocks of few bits: the values that onnxruntime gives."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import neaptide

from .conftest import close, tensor

MICROSOFT = "com.microsoft"


def array(*shape, seed=0, scale=1.0):
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


def whole(*shape, high=256, dtype=np.uint8, seed=0):
    return np.random.default_rng(seed).integers(0, high, shape).astype(dtype)


class Case:
    """A model of a few operators: arrays for its inputs and constants, names of its outputs."""

    def __init__(self, name, nodes, inputs, constants=None, outputs=("y",), tolerance=2e-5, raw=()):
        self.name, self.nodes, self.inputs = name, nodes, inputs
        self.constants, self.outputs, self.tolerance, self.raw = constants or {}, outputs, tolerance, raw

    def save(self, folder):
        graph = helper.make_graph(
            self.nodes,
            "graph",
            [tensor(k, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape) for k, v in self.inputs.items()],
            [tensor(k, TensorProto.FLOAT, None) if isinstance(k, str) else tensor(*k, None) for k in self.outputs],
            [onnx.numpy_helper.from_array(v, k) for k, v in self.constants.items()] + list(self.raw),
        )
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid(MICROSOFT, 1)]
        model = helper.make_model(graph, opset_imports=opsets)
        model.ir_version = 10
        path = folder / f"{self.name}.onnx"
        onnx.save(model, path)
        return str(path)

    def __repr__(self):
        return self.name


def node(op, inputs, outputs=("y",), **attributes):
    return helper.make_node(op, inputs, list(outputs), domain=MICROSOFT, **attributes)


def nibbles(name, kind, values):
    """A tensor of four-bit integers."""
    flat = np.asarray(values).reshape(-1).astype(np.int64) & 15
    flat = np.pad(flat, (0, flat.size % 2))
    packed = (flat[0::2] | flat[1::2] << 4).astype(np.uint8)
    return helper.make_tensor(name, kind, np.shape(values), packed.tobytes(), raw=True)


def matmul_nbits():
    shapes = [(1, 256, 96, 32, 4), (5, 100, 33, 32, 4), (3, 512, 64, 128, 4), (2, 300, 40, 64, 8), (7, 64, 17, 16, 4)]
    for (m, k, n, block, bits) in shapes:
        blocks = -(-k // block)
        constants = {
            "b": whole(n, blocks, block * bits // 8, seed=1),
            "scales": np.abs(array(n * blocks, seed=2, scale=0.02)),
            "zeros": whole(n * -(-blocks * bits // 8), seed=3),
            "bias": array(n, seed=4),
        }
        for inputs in (["x", "b", "scales"], ["x", "b", "scales", "zeros"], ["x", "b", "scales", "zeros", "", "bias"]):
            used = {name: value for name, value in constants.items() if name in inputs}
            made = node("MatMulNBits", inputs, K=k, N=n, bits=bits, block_size=block)
            name = f"matmul_{m}_{k}_{n}_{block}_{bits}_{len(inputs)}"
            yield Case(name, [made], {"x": array(m, k)}, used, tolerance=1e-4)
            # Smaller matrices are widened when the model is read, so rows are not rounded.
            if k * n > 3000:
                # Both round rows to the same steps, but for numbers that lie between two of them.
                made = node("MatMulNBits", inputs, K=k, N=n, bits=bits, block_size=block, accuracy_level=4)
                yield Case(f"{name}_level4", [made], {"x": array(m, k)}, used, tolerance=2e-3)


def dequantize():
    for k, n, block, kind in [(256, 96, 32, "INT4"), (512, 64, 128, "UINT4"), (128, 48, 16, "INT8"), (256, 31, 64, "UINT8")]:
        signed, four = not kind.startswith("U"), kind.endswith("4")
        low, high = (-8, 8) if four else (-128, 128)
        shift = 0 if signed else -low
        for axis in (0, 1):
            shape = (k, n) if axis == 0 else (n, k)
            many = (k // block, n) if axis == 0 else (n, k // block)
            random = np.random.default_rng(1)
            values = random.integers(low, high, shape) + shift
            zeros = random.integers(low, high, many) + shift
            if four and n % 2:
                continue
            kind_of = getattr(TensorProto, kind)
            if four:
                raw = [nibbles("w", kind_of, values), nibbles("zeros", kind_of, zeros)]
            else:
                dtype = np.int8 if signed else np.uint8
                raw = [onnx.numpy_helper.from_array(v.astype(dtype), m) for m, v in (("w", values), ("zeros", zeros))]
            constants = {"scales": np.abs(array(*many, seed=2, scale=0.02))}
            for used in (["w", "scales"], ["w", "scales", "zeros"]):
                nodes = [helper.make_node("DequantizeLinear", used, ["d"], axis=axis, block_size=block)]
                if axis == 1:
                    nodes.append(helper.make_node("Transpose", ["d"], ["t"], perm=[1, 0]))
                nodes.append(helper.make_node("MatMul", ["x", "t" if axis == 1 else "d"], ["y"]))
                name = f"dequantize_{kind}_{axis}_{len(used)}"
                kept = [t for t in raw if t.name in used]
                yield Case(name, nodes, {"x": array(4, k)}, constants, raw=kept, tolerance=1e-4)


def gather():
    rows, width, block = 400, 256, 32
    indices = np.array([[3, 0, 399], [7, 7, 20]], np.int64)
    scales = np.abs(array(rows, width // block, seed=2, scale=0.1))
    zeros = np.random.default_rng(3).integers(0, 16, (rows, width // block))
    values = np.random.default_rng(4).integers(0, 16, (rows, width))
    for with_zeros in (False, True):
        names = ["w", "i", "scales"] + ["zeros"] * with_zeros
        made = node("GatherBlockQuantized", names, gather_axis=0, quantize_axis=1, block_size=block)
        raw = [nibbles("w", TensorProto.UINT4, values)]
        raw += [nibbles("zeros", TensorProto.UINT4, zeros)] * with_zeros
        yield Case(f"gather_{with_zeros}", [made], {"i": indices}, {"scales": scales}, raw=raw)
        packed = {"w": (values[:, 0::2] | values[:, 1::2] << 4).astype(np.uint8), "scales": scales}
        if with_zeros:
            packed["zeros"] = (zeros[:, 0::2] | zeros[:, 1::2] << 4).astype(np.uint8)
        made = node("GatherBlockQuantized", names, gather_axis=0, quantize_axis=1, block_size=block, bits=4)
        yield Case(f"gather_bytes_{with_zeros}", [made], {"i": indices}, packed)
    data = {"w": whole(rows, width, seed=5), "scales": scales}
    made = node("GatherBlockQuantized", ["w", "i", "scales"], gather_axis=0, quantize_axis=1, block_size=block, bits=8)
    yield Case("gather_8", [made], {"i": indices}, data)


def activations():
    x = array(3, 5, 64)
    yield Case("fast_gelu", [node("FastGelu", ["x", "b"])], {"x": x}, {"b": array(64, seed=1)})
    yield Case("fast_gelu_alone", [node("FastGelu", ["x"])], {"x": x})
    yield Case("bias_gelu", [node("BiasGelu", ["x", "b"])], {"x": x}, {"b": array(64, seed=1)})
    yield Case("quick_gelu", [node("QuickGelu", ["x"], alpha=1.3)], {"x": x})
    for a, b in ((0, 0), (1, 0), (0, 1), (1, 1)):
        shapes = [(2, 40, 24)[:: 1] if not a else (2, 24, 40), (2, 24, 32) if not b else (2, 32, 24)]
        inputs = {"x": array(*shapes[0]), "w": array(*shapes[1], seed=1)}
        yield Case(f"fused_matmul_{a}{b}", [node("FusedMatMul", ["x", "w"], transA=a, transB=b, alpha=0.25)], inputs)
    image, weight, z = array(1, 8, 9, 9), array(16, 8, 3, 3, seed=1, scale=0.2), array(1, 16, 9, 9, seed=2)
    for name, parameters in {"Relu": None, "Tanh": None, "Sigmoid": None, "LeakyRelu": [0.1], "Clip": [-0.5, 0.5], "HardSigmoid": [0.3, 0.4]}.items():
        about = {"activation": name, "pads": [1, 1, 1, 1], "kernel_shape": [3, 3]}
        if parameters:
            about["activation_params"] = parameters
        constants = {"w": weight, "b": array(16, seed=3)}
        yield Case(f"fused_conv_{name}", [node("FusedConv", ["x", "w", "b"], **about)], {"x": image}, constants)
        if name == "Relu":
            yield Case("fused_conv_sum", [node("FusedConv", ["x", "w", "b", "z"], **about)], {"x": image, "z": z}, constants)


def norms():
    x, skip = array(2, 7, 64), array(2, 7, 64, seed=1)
    constants = {"g": array(64, seed=2), "b": array(64, seed=3), "bias": array(64, seed=4)}
    made = node("SkipLayerNormalization", ["x", "s", "g", "b", "bias"], ["y", "", "", "sum"], epsilon=1e-5)
    yield Case("skip_layer_norm", [made], {"x": x, "s": skip}, constants, ["y", "sum"])
    made = node("SkipLayerNormalization", ["x", "s", "g"], epsilon=1e-5)
    yield Case("skip_layer_norm_few", [made], {"x": x, "s": skip}, {"g": constants["g"]})
    made = node("SkipSimplifiedLayerNormalization", ["x", "s", "g", "bias"], ["y", "", "", "sum"], epsilon=1e-5)
    used = {"g": constants["g"], "bias": constants["bias"]}
    yield Case("skip_rms_norm", [made], {"x": x, "s": skip}, used, ["y", "sum"])
    ids, segments = whole(2, 7, high=50, dtype=np.int32), whole(2, 7, high=2, dtype=np.int32, seed=1)
    mask = np.array([[1] * 7, [1] * 4 + [0] * 3], np.int32)
    tables = {"w": array(50, 64, seed=5), "p": array(20, 64, seed=6), "t": array(2, 64, seed=7), "g": constants["g"], "b": constants["b"]}
    made = node("EmbedLayerNormalization", ["ids", "seg", "w", "p", "t", "g", "b", "mask"], ["y", "m"], epsilon=1e-5)
    inputs = {"ids": ids, "seg": segments, "mask": mask}
    yield Case("embed_layer_norm", [made], inputs, tables, ["y", ("m", TensorProto.INT32)])
    tables = {name: table for name, table in tables.items() if name != "t"}
    made = node("EmbedLayerNormalization", ["ids", "", "w", "p", "", "g", "b"], ["y", "m"], epsilon=1e-5)
    yield Case("embed_layer_norm_few", [made], {"ids": ids}, tables, ["y", ("m", TensorProto.INT32)])


def attentions():
    batch, rows, heads, depth = 2, 6, 4, 16
    width = heads * depth
    x = array(batch, rows, width)
    constants = {"w": array(width, 3 * width, seed=1, scale=0.1), "b": array(3 * width, seed=2, scale=0.1)}
    masks = {
        "none": None,
        "rows": np.array([[1] * 6, [1] * 4 + [0] * 2], np.int32),
        "counts": np.array([6, 3], np.int32),
        "whole": np.tril(np.ones((2, 6, 6), np.int32)),
    }
    for kind, mask in masks.items():
        for causal in (0, 1):
            inputs = {"x": x} | ({} if mask is None else {"m": mask})
            made = node("Attention", ["x", "w", "b"] + ["m"] * (mask is not None), num_heads=heads, unidirectional=causal)
            yield Case(f"attention_{kind}_{causal}", [made], inputs, constants)
    past = array(2, batch, heads, 3, depth, seed=3)
    made = node("Attention", ["x", "w", "b", "", "past"], ["y", "present"], num_heads=heads, unidirectional=1)
    yield Case("attention_past", [made], {"x": x, "past": past}, constants, ["y", "present"])
    made = node("Attention", ["x", "w", "b", "", "", "extra"], num_heads=heads, scale=0.3)
    yield Case("attention_bias", [made], {"x": x, "extra": array(batch, heads, rows, rows, seed=4)}, constants)
    wide = {"w": array(width, 2 * width + 96, seed=1, scale=0.1), "b": array(2 * width + 96, seed=2)}
    made = node("Attention", ["x", "w", "b"], num_heads=heads, qkv_hidden_sizes=[width, width, 96])
    yield Case("attention_wide_values", [made], {"x": x}, wide)

    keys, values = array(batch, 9, width, seed=5), array(batch, 9, width, seed=6)
    apart = {"q": x, "k": keys, "v": values}
    yield Case("multi_head", [node("MultiHeadAttention", ["q", "k", "v"], num_heads=heads)], apart)
    made = node("MultiHeadAttention", ["q", "k", "v", "b"], num_heads=heads, scale=0.2)
    yield Case("multi_head_bias", [made], apart, {"b": array(3 * width, seed=7)})
    padding = np.array([[1] * 9, [1] * 5 + [0] * 4], np.int32)
    made = node("MultiHeadAttention", ["q", "k", "v", "", "m", "extra"], num_heads=heads)
    inputs = apart | {"m": padding, "extra": array(1, heads, rows, 9, seed=8)}
    yield Case("multi_head_masks", [made], inputs)
    crossed = {"q": x, "k": array(batch, heads, 9, depth, seed=1), "v": array(batch, heads, 9, depth, seed=2)}
    yield Case("multi_head_crossed", [node("MultiHeadAttention", ["q", "k", "v"], num_heads=heads)], crossed)
    inputs = {"q": x, "k": array(batch, rows, width, seed=1), "v": array(batch, rows, width, seed=2)}
    inputs |= {"pk": array(batch, heads, 4, depth, seed=3), "pv": array(batch, heads, 4, depth, seed=4)}
    made = node("MultiHeadAttention", ["q", "k", "v", "", "", "", "pk", "pv"], ["y", "nk", "nv"], num_heads=heads, unidirectional=1)
    yield Case("multi_head_past", [made], inputs, outputs=["y", "nk", "nv"])

    cos, sin = np.cos(array(32, depth // 2, seed=9)), np.sin(array(32, depth // 2, seed=9))
    tables = {"cos": cos, "sin": sin}
    positions = np.array([[0, 1, 2, 3, 4, 5], [7, 8, 9, 10, 11, 12]], np.int64)
    for interleaved in (0, 1):
        made = node("RotaryEmbedding", ["x", "p", "cos", "sin"], interleaved=interleaved)
        yield Case(f"rotary_{interleaved}", [made], {"x": x, "p": positions}, tables)
    made = node("RotaryEmbedding", ["x", "p", "cos", "sin"])
    yield Case("rotary_heads_from", [made], {"x": array(batch, heads, rows, depth), "p": np.array([5], np.int64)}, tables)
    half = {"cos": cos[:, :4].copy(), "sin": sin[:, :4].copy()}
    made = node("RotaryEmbedding", ["x", "p", "cos", "sin"], num_heads=heads, rotary_embedding_dim=8)
    yield Case("rotary_part", [made], {"x": x, "p": positions}, half)

    few = 2
    group = {"q": x, "k": array(batch, rows, few * depth, seed=1), "v": array(batch, rows, few * depth, seed=2)}
    total = {"last": np.array([5, 5], np.int32), "total": np.array([6], np.int32)}
    for rotary in (0, 1):
        names = ["q", "k", "v", "", "", "last", "total"] + ["cos", "sin"] * rotary
        made = node("GroupQueryAttention", names, ["y", "nk", "nv"], num_heads=heads, kv_num_heads=few, do_rotary=rotary)
        yield Case(f"group_query_{rotary}", [made], group, total | (tables if rotary else {}), ["y", "nk", "nv"])
    names = ["qkv", "", "", "", "", "last", "total", "cos", "sin"]
    made = node("GroupQueryAttention", names, ["y", "nk", "nv"], num_heads=heads, kv_num_heads=few, do_rotary=1)
    inputs = {"qkv": array(batch, rows, (heads + 2 * few) * depth)}
    yield Case("group_query_packed", [made], inputs, total | tables, ["y", "nk", "nv"])
    one = {"q": array(batch, 1, width), "k": array(batch, 1, few * depth, seed=1), "v": array(batch, 1, few * depth, seed=2)}
    one |= {"pk": array(batch, few, 4, depth, seed=3), "pv": array(batch, few, 4, depth, seed=4)}
    total = {"last": np.array([4, 4], np.int32), "total": np.array([5], np.int32)}
    made = node("GroupQueryAttention", ["q", "k", "v", "pk", "pv", "last", "total", "cos", "sin"], ["y", "nk", "nv"], num_heads=heads, kv_num_heads=few, do_rotary=1)
    yield Case("group_query_past", [made], one, total | tables, ["y", "nk", "nv"])


def dynamic_lstms():
    for directions, each, batch in [(1, False, 1), (2, False, 1), (1, False, 3), (1, True, 1), (2, True, 1)]:
        steps, width, hidden = 7, 20, 24
        rows = 4 * hidden
        scales = (directions, rows) if each else (directions,)
        constants = {
            "w": whole(directions, width, rows, high=255, seed=1),
            "r": whole(directions, hidden, rows, high=255, seed=2),
            "b": array(directions, 2 * rows, seed=3, scale=0.1),
            "ws": np.abs(array(*scales, seed=4, scale=0.01)),
            "wz": np.full(scales, 127, np.uint8),
            "rs": np.abs(array(*scales, seed=5, scale=0.01)),
            "rz": np.full(scales, 127, np.uint8),
        }
        names = ["x", "w", "r", "b", "", "", "", "", "ws", "wz", "rs", "rz"]
        direction = "bidirectional" if directions == 2 else "forward"
        made = node("DynamicQuantizeLSTM", names, ["y", "h", "c"], hidden_size=hidden, direction=direction)
        name = f"lstm_{directions}_{'rows' if each else 'whole'}_{batch}"
        # Of several sequences onnxruntime rounds some states together, which depends on its threads.
        tolerance = 1e-5 if batch == 1 else 1e-2
        yield Case(name, [made], {"x": array(steps, batch, width)}, constants, ["y", "h", "c"], tolerance)


CASES = [case for cases in (matmul_nbits, dequantize, gather, activations, norms, attentions, dynamic_lstms) for case in cases()]


@pytest.mark.parametrize("case", CASES, ids=repr)
def test_values_are_those_of_onnxruntime(case, tmp_path):
    import neap_reference
    import onnxruntime

    path = case.save(tmp_path)
    # Optimised, it rounds activations to 8 bits where weights have few.
    options = neap_reference.exact_options({node.op_type for node in case.nodes})
    theirs = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    ours = neaptide.InferenceSession(path)
    expected = theirs.run(None, case.inputs)
    got = ours.run(None, case.inputs)
    assert len(got) == len(expected)
    for mine, other in zip(got, expected):
        assert np.isfinite(other).all()
        close(mine, other, case.tolerance)
