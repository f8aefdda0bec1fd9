"""Tests of the scripts here; run with `python -m unittest` in this folder."""

import json
import os
import subprocess
import sys
import tempfile
import unittest

import numpy as np

import compare
import neap_reference as ref

HERE = os.path.dirname(os.path.abspath(__file__))


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


class Names(unittest.TestCase):
    def test_names_become_distinct_file_names(self):
        self.assertEqual(ref.file_names(["a/b", "a:b", "x.1", ".."]), ["a_b", "a_b_1", "x.1", "_.."])


if __name__ == "__main__":
    unittest.main()
