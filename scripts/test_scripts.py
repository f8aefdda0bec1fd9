"""Tests of the scripts here; run with `python -m unittest` in this folder."""

import json
import os
import subprocess
import sys
import tempfile
import time
import unittest
import unittest.mock

import numpy as np
import onnx

import compare
import fuzz_graphs
import graph_known
import graphs
import neap_reference as ref
import pieces

HERE = os.path.dirname(os.path.abspath(__file__))


class ExactOptions(unittest.TestCase):
    def test_integer_products_of_the_reference_are_exact(self):
        import onnxruntime

        random = np.random.default_rng(0)
        x = random.integers(200, 256, (4, 64)).astype(np.uint8)
        w = random.integers(100, 128, (64, 32)).astype(np.int8)
        value = onnx.helper.make_tensor_value_info
        graph = onnx.helper.make_graph(
            [onnx.helper.make_node("MatMulInteger", ["x", "w"], ["y"])],
            "g",
            [value("x", onnx.TensorProto.UINT8, x.shape)],
            [value("y", onnx.TensorProto.INT32, [4, 32])],
            [onnx.numpy_helper.from_array(w, "w")],
        )
        model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
        # What is added up in 16 bits saturates here.
        for operators in (None, {"MatMulInteger"}):
            session = onnxruntime.InferenceSession(model.SerializeToString(), ref.exact_options(operators))
            (y,) = session.run(None, {"x": x})
            np.testing.assert_array_equal(y, x.astype(np.int32) @ w.astype(np.int32))


class FuzzGraphs(unittest.TestCase):
    def test_a_number_always_draws_the_same_graph(self):
        for seed in (0, 3, 5):
            (first, feed, _, _), (again, same, _, _) = graphs.draw(seed), graphs.draw(seed)
            self.assertEqual(first.SerializeToString(), again.SerializeToString())
            for name, x in feed.items():
                np.testing.assert_array_equal(x, same[name])

    def test_integers_are_exact_and_numbers_may_be_rounded(self):
        numbers = np.array([1.0, np.nan, -np.inf], np.float32)
        self.assertIsNone(fuzz_graphs.near(numbers, numbers * np.float32(1.00001)))
        self.assertIsNotNone(fuzz_graphs.near(numbers, numbers * np.float32(1.01)))
        self.assertIsNotNone(fuzz_graphs.near(numbers, np.array([1.0, 0.0, -np.inf], np.float32)))
        self.assertIsNotNone(fuzz_graphs.near(np.array([255]), np.array([254])))
        self.assertIsNotNone(fuzz_graphs.near(np.zeros([0, 2]), np.zeros([0, 3])))
        self.assertIsNone(fuzz_graphs.near(np.array([255]), np.array([254]), (0.0, 1, 0.0)))
        roots = np.array([2**62, 3]), np.array([2**62 + 1024, 3])
        self.assertIsNotNone(fuzz_graphs.near(*roots))
        self.assertIsNone(fuzz_graphs.near(*roots, (0.0, 0, 2.0**-51)))
        self.assertIsNotNone(fuzz_graphs.near(roots[0], roots[0] + 4096, (0.0, 0, 2.0**-51)))

    def test_every_kind_is_drawn_and_known_faults_are_narrow(self):
        kinds = set()
        for seed in range(60):
            try:
                kinds.add(graphs.draw(seed)[3])
            except graphs.Unfit:
                pass
        self.assertEqual(kinds, set(graphs.KINDS))

        def resized(scales):
            node = onnx.helper.make_node(
                "Resize", ["x", "", "s"], ["y"], mode="linear", coordinate_transformation_mode="align_corners"
            )
            s = onnx.numpy_helper.from_array(np.array(scales, np.float32), "s")
            return onnx.helper.make_model(onnx.helper.make_graph([node], "g", [], [], [s]))

        image = {"x": np.zeros([1, 1, 4, 3], np.float32)}
        self.assertTrue(graph_known.has_rounded_corners(resized([1, 1, 2, 1.5]), image))
        self.assertFalse(graph_known.has_rounded_corners(resized([1, 1, 1.5, 2]), image))
        node = onnx.helper.make_node("Cast", ["x"], ["y"], to=onnx.TensorProto.UINT8)
        cast = onnx.helper.make_model(onnx.helper.make_graph([node], "g", [], []))
        self.assertTrue(graph_known.out_of_range(cast, {"x": np.array([1.0, 256.0])}))
        self.assertTrue(graph_known.out_of_range(cast, {"x": np.array([np.nan])}))
        self.assertFalse(graph_known.out_of_range(cast, {"x": np.array([1.0, 255.5, -0.5])}))
        node = onnx.helper.make_node("Pow", ["x", "n"], ["y"])
        power = onnx.helper.make_model(onnx.helper.make_graph([node], "g", [], []))
        self.assertTrue(graph_known.out_of_range(power, {"x": np.array([0, 1]), "n": np.array([-7, -7])}))
        self.assertFalse(graph_known.out_of_range(power, {"x": np.array([2, 1]), "n": np.array([-7, -7])}))

        def window(shape, **attributes):
            node = onnx.helper.make_node("MaxPool", ["x"], ["y"], **attributes)
            graph = onnx.helper.make_graph([node], "g", [], [])
            return graph_known.has_window_of_padding(onnx.helper.make_model(graph), {"x": np.zeros(shape)})

        self.assertTrue(window([1, 1, 1], kernel_shape=[2], dilations=[2], pads=[1, 1]))
        self.assertFalse(window([1, 1, 2], kernel_shape=[2], dilations=[2], pads=[1, 1]))
        self.assertFalse(window([1, 1, 5], kernel_shape=[3], strides=[2], pads=[2, 2]))

        node = onnx.helper.make_node("ReduceSum", ["x"], ["y"], keepdims=0)
        ports = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in "xy"]
        total = onnx.helper.make_model(onnx.helper.make_graph([node], "g", ports[:1], ports[1:]))
        found = graphs.by_exact_sums(total, {"x": np.array([1e8, 1, -1e8], np.float32)})["y"]
        self.assertEqual((found.dtype, found), (np.float32, 1.0))

        node = onnx.helper.make_node("MatMulInteger", ["x", "w"], ["y"])
        product = onnx.helper.make_model(onnx.helper.make_graph([node], "g", [], []))
        for largest, dtype, expected in ((130, np.int8, True), (129, np.int8, False), (255, np.uint8, False)):
            operands = {"x": np.full([1, 2], largest, np.uint8), "w": np.full([2, 1], 127, dtype)}
            self.assertEqual(graph_known.saturates(product, operands), expected)

    def test_the_reference_is_asked_for_what_differs_in_the_graphs_types(self):
        value, node = onnx.helper.make_tensor_value_info, onnx.helper.make_node
        graph = onnx.helper.make_graph(
            [node("ReduceSumSquare", ["x"], ["y"]), node("GRU", ["z", "w", "r"], ["", "h"], hidden_size=1, clip=0.5)],
            "g",
            [value(name, kind, None) for name, kind in (("x", 6), ("z", 1), ("w", 1), ("r", 1))],
            [value("y", onnx.TensorProto.INT32, None), value("h", onnx.TensorProto.FLOAT, None)],
        )
        model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)])
        feed = {"x": np.array([2**30, 3], np.int32)} | {name: np.ones([1, 1, 1], np.float32) for name in "zwr"}
        (y,) = graphs.by_reference(graphs.part(model, {"y"}), feed).values()
        self.assertEqual((y, y.dtype), (9, np.int32))
        with self.assertRaises(graphs.Unfit):
            graphs.by_reference(model, feed)
        judged = [{"y": y, "h": np.float32(1)}, {"y": y + 1}]
        found = {"y": y + 1, "h": np.float32(2)}
        self.assertEqual(list(fuzz_graphs.differences(judged, found)), ["h"])


class Stub(fuzz_graphs.Runner):
    """Runs node by node, each result off by a rounding; and spoils those of one operator, or what it is told not to keep."""

    def __init__(self, spoiled=None, only_fused=False):
        self.spoiled, self.only_fused = spoiled, only_fused

    def give(self, model, feed):
        self.model, self.feed = model, feed

    def run(self, budget):
        values, made = dict(self.feed), []
        for node in self.model.graph.node:
            given = {name: values[name] for name in node.input}
            piece = pieces.build(self.model, [node], given, list(node.output), {})
            is_fused = len(self.model.graph.output) < len(self.model.graph.node)
            spoils = node.op_type == self.spoiled and (is_fused or not self.only_fused)
            for name, x in graphs.by_onnxruntime(piece, given).items():
                values[name] = x * np.float32(1.01 if spoils else 1 + 1e-6)
        return None, {o.name: values[o.name] for o in self.model.graph.output}


class ByPieces(unittest.TestCase):
    def judged(self, neap):
        """What is said of `y = (x + n - n) * n`, which a rounding makes another."""
        value, node = onnx.helper.make_tensor_value_info, onnx.helper.make_node
        nodes = [
            node("Add", ["x", "n"], ["a"]),
            node("Sub", ["a", "n"], ["b"]),
            node("Mul", ["b", "n"], ["y"]),
        ]
        names = ["x", "n"]
        graph = onnx.helper.make_graph(nodes, "g", [value(n, 1, [1]) for n in names], [value("y", 1, [1])])
        model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=9)
        feed = {name: np.array([x], np.float32) for name, x in zip(names, (1.0, 1000.0))}
        neap.give(model, feed)
        _, found = neap.run("none")
        judged = [graphs.by_onnxruntime(model, feed), graphs.by_reference(model, feed)]
        self.assertTrue(fuzz_graphs.differences(judged, found))
        return fuzz_graphs.by_pieces(neap, model, feed, found, fuzz_graphs.slack(model))

    def test_rounding_that_grows_is_nobodys_fault(self):
        self.assertEqual(self.judged(Stub()), (None, []))

    def test_a_node_that_is_wrong_is_found(self):
        for operator in ("Add", "Sub", "Mul"):
            why, _ = self.judged(Stub(operator))
            self.assertIn(f"{operator} of", why)

    def test_what_is_wrong_only_as_nodes_are_fused_is_found(self):
        why, _ = self.judged(Stub("Mul", only_fused=True))
        self.assertIn("'y' with all values as results", why)

    def test_the_reference_is_ended_and_then_says_nothing(self):
        def computes(*_):
            while True:
                pass

        began = time.monotonic()
        with unittest.mock.patch.object(fuzz_graphs, "REFERENCE_SECONDS", 1):
            for judge in (computes, lambda *_: time.sleep(60)):
                self.assertEqual(fuzz_graphs.in_time(judge, None, None), {})
        self.assertLess(time.monotonic() - began, 30)
        self.assertEqual(fuzz_graphs.in_time(lambda x, y: {"y": x + y}, 1, 2), {"y": 3})
        self.assertIsNone(fuzz_graphs.judgement(lambda *_: 1 / 0, None, None))


class Compare(unittest.TestCase):
    def test_error_is_relative_to_the_range(self):
        reference = np.array([[0.0, 10.0]], np.float32)
        result = compare.compare(reference + np.float32(0.01), reference, 1e-2)
        self.assertTrue(result["ok"])
        self.assertAlmostEqual(result["max_error"], 1e-3, places=5)
        self.assertFalse(compare.compare(reference + np.float32(0.01), reference, 1e-4)["ok"])

    def test_another_top_class_is_a_failure(self):
        reference = np.array([[5.0, 5.00001, 0.0]], np.float32)
        ours = np.array([[5.00002, 5.00001, 0.0]], np.float32)
        result = compare.compare(ours, reference, 1e-4)
        self.assertFalse(result["top1_equal"] or result["ok"])

    def test_shapes_types_and_non_finite_values_must_agree(self):
        a = np.array([1.0, np.nan, np.inf], np.float32)
        self.assertTrue(compare.compare(a, a.copy(), 0.0)["ok"])
        self.assertFalse(compare.compare(np.array([1.0, 2.0, np.inf], np.float32), a, 1.0)["ok"])
        self.assertFalse(compare.compare(a, np.array([1.0, 2.0, np.inf], np.float32), 1.0)["ok"])
        self.assertFalse(compare.compare(a, np.array([1.0, np.nan, -np.inf], np.float32), 1.0)["ok"])
        self.assertFalse(compare.compare(a[:2], a, 1.0)["ok"])
        self.assertFalse(compare.compare(a.astype(np.float64), a, 1.0)["ok"])

    def test_integers_are_exact(self):
        a = np.array([1, 2])
        self.assertTrue(compare.compare(a, a.copy(), 1e-4)["ok"])
        self.assertFalse(compare.compare(a, a + 1, 1.0)["ok"])

    def test_missing_outputs_and_empty_folders_fail(self):
        with tempfile.TemporaryDirectory() as ours, tempfile.TemporaryDirectory() as reference:
            self.assertEqual(self.folders(ours, reference), (1, False))
            np.save(os.path.join(reference, "a.npy"), np.ones(3, np.float32))
            self.assertEqual(self.folders(ours, reference), (1, False))
            np.save(os.path.join(ours, "a.npy"), np.ones(3, np.float32))
            self.assertEqual(self.folders(ours, reference), (0, True))

    def folders(self, ours, reference):
        done = subprocess.run(
            [sys.executable, os.path.join(HERE, "compare.py"), ours, reference],
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, json.loads(done.stdout)["ok"]


class Pieces(unittest.TestCase):
    def test_a_step_of_8_bits_is_rounding_and_two_are_not(self):
        reference = np.array([7, 200], np.uint8)
        self.assertEqual(pieces.worst_of_piece([np.array([6, 201], np.uint8)], [reference]), 0.0)
        self.assertGreater(pieces.worst_of_piece([np.array([5, 200], np.uint8)], [reference]), 0.0)
        self.assertGreater(pieces.worst_of_piece([np.array([8, 200])], [reference.astype(np.int64)]), 0.0)
        self.assertEqual(pieces.worst_of_piece([reference.astype(np.int8)], [reference]), float("inf"))

    def test_infinities_must_be_in_the_same_places(self):
        reference = np.array([-np.inf, 0.0, 2.0], np.float32)
        near = np.array([-np.inf, 0.0, 2.002], np.float32)
        self.assertAlmostEqual(pieces.difference(near, reference), 1e-3, places=5)
        self.assertEqual(pieces.difference(np.array([0.0, 0.0, 2.0], np.float32), reference), float("inf"))
        self.assertEqual(pieces.difference(np.array([-np.inf, np.nan, 2.0], np.float32), reference), float("inf"))

    def test_nodes_are_put_in_order(self):
        node = lambda takes, gives: onnx.helper.make_node("Add", takes, gives)
        last, first = node(["b", "w"], ["c"]), node(["x", ""], ["b"])
        self.assertEqual(pieces.in_order([last, first], {"", "x", "w"}), [first, last])
        with self.assertRaises(SystemExit):
            pieces.in_order([last, first], {"", "x"})

    def test_what_stands_for_infinity_does_not_move(self):
        least = np.finfo(np.float32).min
        array = pieces.moved(np.array([least, 1.0], np.float32), 1e-3)
        self.assertEqual(array[0], least)
        self.assertGreater(array[1], 1.0)
        ids = np.array([3])
        self.assertIs(pieces.moved(ids, 1e-3), ids)


class Names(unittest.TestCase):
    def test_names_become_distinct_file_names(self):
        self.assertEqual(ref.file_names(["a/b", "a:b", "x.1", ".."]), ["a_b", "a_b_1", "x.1", "_.."])


if __name__ == "__main__":
    unittest.main()
