"""Classical models of ``ai.onnx.ml``: trees, linear models, support vectors, encoders. The values that onnxruntime gives."""

import numpy as np
import pytest
from onnx import TensorProto, helper

import neaptide

from .cases import CLASSICAL, Case, array, compare, node, whole

INT64 = TensorProto.INT64


def made(op, inputs=("x",), outputs=("y",), **attributes):
    return node(op, list(inputs), outputs, CLASSICAL, **attributes)


def rounded(*shape, seed=0):
    """Numbers that meet the nodes' own now and then."""
    return np.round(array(*shape, seed=seed), 1)


class Forest:
    """Lists of nodes, and of what leaves say, of random trees over four features."""

    def __init__(self, targets=(0,), trees=3, depth=3, modes=("BRANCH_LEQ",), missing=False, positive=False, partial=False):
        self.random = np.random.default_rng(0)
        self.targets, self.depth, self.modes = targets, depth, modes
        self.positive, self.partial, self.trees = positive, partial, trees
        self.nodes = {name: [] for name in ("treeids", "nodeids", "featureids", "modes", "values", "truenodeids", "falsenodeids")}
        self.nodes |= {"missing_value_tracks_true": []} if missing else {}
        self.said = {name: [] for name in ("treeids", "nodeids", "ids", "weights")}
        for tree in range(trees):
            self.free = 1
            self.grow(tree, 0, depth)

    def grow(self, tree, index, depth):
        is_leaf = depth == 0 or (depth < self.depth and self.random.random() < 0.2)
        at = len(self.nodes["nodeids"])
        values = {"treeids": tree, "nodeids": index, "featureids": int(self.random.integers(4))}
        values |= {"modes": "LEAF" if is_leaf else str(self.random.choice(self.modes)), "truenodeids": 0, "falsenodeids": 0}
        values |= {"values": float(np.round(self.random.standard_normal(), 1)), "missing_value_tracks_true": int(self.random.integers(2))}
        for name, known in self.nodes.items():
            known.append(values[name])
        if is_leaf:
            for target in self.targets:
                if self.partial and target != self.targets[-1] and self.random.random() < 0.5:
                    continue
                weight = float(np.float32(self.random.standard_normal()))
                weight = abs(weight) / self.trees if self.positive else weight
                for name, value in zip(self.said, (tree, index, target, weight)):
                    self.said[name].append(value)
            return
        passed, failed = self.free, self.free + 1
        self.free += 2
        self.nodes["truenodeids"][at], self.nodes["falsenodeids"][at] = passed, failed
        self.grow(tree, passed, depth - 1)
        self.grow(tree, failed, depth - 1)

    def attributes(self, prefix):
        nodes = {f"nodes_{name}": values for name, values in self.nodes.items()}
        return nodes | {f"{prefix}_{name}": values for name, values in self.said.items()}


def regression(name, x, targets=1, base=None, about=None, **forest):
    attributes = Forest(tuple(range(targets)), **forest).attributes("target") | (about or {})
    attributes |= {"base_values": [float(b) for b in base]} if base else {}
    return Case(f"regression_{name}", [made("TreeEnsembleRegressor", n_targets=targets, **attributes)], {"x": x})


def classification(name, x, labels=(5, 7), targets=(0,), base=None, post="NONE", **forest):
    attributes = Forest(targets, **forest).attributes("class") | {"post_transform": post, "classlabels_int64s": list(labels)}
    attributes |= {"base_values": [float(b) for b in base]} if base else {}
    made_of = made("TreeEnsembleClassifier", outputs=("label", "y"), **attributes)
    return Case(f"classification_{name}", [made_of], {"x": x}, outputs=[("label", INT64), "y"])


def trees():
    x = rounded(7, 4)
    with_gaps = x.copy()
    with_gaps[0, 1] = with_gaps[3, 0] = np.nan
    for kind in ("SUM", "AVERAGE", "MIN", "MAX"):
        about = {"aggregate_function": kind}
        for targets in (1, 3):
            yield regression(f"{kind}_{targets}", x, targets, base=range(1, targets + 1), about=about)
        yield regression(f"{kind}_partial", x, 2, about=about, partial=True, trees=2)
    for post in ("LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO"):
        for targets in (1, 3):
            yield regression(f"{post}_{targets}", x, targets, about={"post_transform": post})
    for mode in ("LEQ", "LT", "GTE", "GT", "EQ", "NEQ"):
        for missing in (False, True):
            yield regression(f"{mode}_{missing}", with_gaps, 2, modes=(f"BRANCH_{mode}",), missing=missing, depth=4)
    mixed = ("BRANCH_LEQ", "BRANCH_GT", "BRANCH_EQ")
    yield regression("mixed", with_gaps, 2, modes=mixed, missing=True, depth=5, trees=20)
    yield regression("float64", x.astype(np.float64), 2)
    yield regression("no_rows", x[:0], 2)
    yield regression("many", rounded(300, 4), trees=60, depth=6)
    for targets in ((0,), (1,), (0, 1)):
        for positive in (True, False):
            for post in ("NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO"):
                for base in (None, [0.3], [0.3, -0.2]):
                    name = f"two_{targets}_{positive}_{post}_{base}"
                    yield classification(name, x, (5, 7), targets, base, post, positive=positive)
    for post in ("NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO"):
        for base in (None, [0.1, 0.2, -0.3]):
            yield classification(f"three_{post}_{base}", x, (5, 7, 9), (0, 1, 2), base, post)
    yield classification("three_partial", x, (5, 7, 9), (0, 1, 2), partial=True, trees=2)
    yield classification("three_integers", whole(7, 4, high=3, dtype=np.int64), (0, 1, 2), (0, 1, 2))
    yield classification("three_no_rows", x[:0], (0, 1, 2), (0, 1, 2))


def linear_models():
    x, weights = rounded(7, 4), [float(w) for w in array(12, seed=3, scale=0.05)]
    outputs, both = [("label", INT64), "y"], ("label", "y")
    for post in ("NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO", "PROBIT"):
        about = {"post_transform": post}
        three = {"coefficients": weights, "intercepts": [0.4, 0.5, 0.6]} | about
        one = {"coefficients": weights[:4], "intercepts": [0.5]} | about
        yield Case(f"linear_3_{post}", [made("LinearRegressor", targets=3, **three)], {"x": x}, tolerance=1e-4)
        yield Case(f"linear_1_{post}", [made("LinearRegressor", **one)], {"x": x}, tolerance=1e-4)
        classes = made("LinearClassifier", outputs=both, classlabels_ints=[5, 7, 9], **three)
        yield Case(f"linear_classes_3_{post}", [classes], {"x": x}, outputs=outputs, tolerance=1e-4)
        if post != "PROBIT":
            classes = made("LinearClassifier", outputs=both, classlabels_ints=[5, 7], **one)
            yield Case(f"linear_classes_1_{post}", [classes], {"x": x}, outputs=outputs, tolerance=1e-4)
    parameters = {"kernel_params": [0.3, 0.1, 3.0]}
    for kernel in ("LINEAR", "POLY", "RBF", "SIGMOID"):
        about = {"kernel_type": kernel, "support_vectors": [float(v) for v in array(28, seed=1)]} | parameters
        less = about | {"support_vectors": about["support_vectors"][:12]}
        regressor = made("SVMRegressor", n_supports=3, coefficients=[0.5, -1.0, 0.7], rho=[0.2], **less)
        yield Case(f"vectors_{kernel}", [regressor], {"x": x}, tolerance=1e-4)
        for post in ("NONE", "LOGISTIC", "SOFTMAX"):
            classes = {"coefficients": [float(v) for v in array(21, seed=5)], "rho": [float(v) for v in array(6, seed=6, scale=0.2)]}
            classes |= {"vectors_per_class": [2, 1, 3, 1], "classlabels_ints": [4, 8, 1, 0], "post_transform": post}
            four = made("SVMClassifier", outputs=both, **about, **classes)
            yield Case(f"vectors_four_{kernel}_{post}", [four], {"x": x}, outputs=outputs, tolerance=1e-4)
            classes = {"coefficients": [0.5, -1.0, 0.7, 0.2, -0.4], "rho": [-0.2], "vectors_per_class": [3, 2]}
            classes |= {"classlabels_ints": [4, 8], "post_transform": post}
            two = made("SVMClassifier", outputs=both, **(about | {"support_vectors": about["support_vectors"][:20]}), **classes)
            yield Case(f"vectors_two_{kernel}_{post}", [two], {"x": x}, outputs=outputs, tolerance=1e-4)


def features():
    x = rounded(5, 4)
    x[2] = 0
    x[1] = -np.abs(x[1]) - 1
    for norm in ("MAX", "L1", "L2"):
        yield Case(f"normalizer_{norm}", [made("Normalizer", norm=norm)], {"x": x})
        yield Case(f"normalizer_row_{norm}", [made("Normalizer", norm=norm)], {"x": x[0]})
    each = made("Scaler", offset=[1.0, 2.0, 3.0, 4.0], scale=[0.5, 0.25, 2.0, 3.0])
    for dtype in (np.float32, np.float64, np.int64, np.int32):
        yield Case(f"scaler_{dtype.__name__}", [each], {"x": (x * 10).astype(dtype)})
    yield Case("scaler_row", [made("Scaler", offset=[1.0], scale=[0.5])], {"x": x[0]})
    gaps = x.copy()
    gaps[0, 1] = np.nan
    filled = {"imputed_value_floats": [9.0, 8.0, 7.0, 6.0], "replaced_value_float": float("nan")}
    yield Case("imputer_nan", [made("Imputer", **filled)], {"x": gaps})
    yield Case("imputer_zero", [made("Imputer", imputed_value_floats=[9.0], replaced_value_float=0.0)], {"x": x})
    filled = made("Imputer", imputed_value_int64s=[9, 8], replaced_value_int64=3)
    yield Case("imputer_integers", [filled], {"x": np.array([[1, 3], [3, 4]])}, outputs=[("y", INT64)])
    joined = made("FeatureVectorizer", ("x", "z"), inputdimensions=[3, 2])
    yield Case("vectorizer", [joined], {"x": x, "z": array(5, 2, seed=1)})
    encoder = made("OneHotEncoder", cats_int64s=[3, 1, 7])
    yield Case("one_hot", [encoder], {"x": np.array([[1], [7], [5]])})
    yield Case("one_hot_floats", [encoder], {"x": np.array([1.5, 7.2], np.float32)})
    yield Case("one_hot_known", [made("OneHotEncoder", cats_int64s=[3, 1, 7], zeros=0)], {"x": np.array([1, 7])})
    integers, numbers = np.array([[1, 7, 5, 3]]), np.array([[3, np.nan, -0.0, 5]], np.float32)
    for version in (2, 4):
        tables = {
            "integers": (integers, {"keys_int64s": [3, 1, 7, 3], "values_int64s": [30, 10, 70, 31], "default_int64": -5}),
            "to_floats": (integers, {"keys_int64s": [3, 1, 7], "values_floats": [30.0, 10.0, 70.0]}),
            "nan": (numbers, {"keys_floats": [3.0, float("nan"), 0.0], "values_floats": [30.0, 10.0, 70.0], "default_float": 2.0}),
            "to_integers": (numbers, {"keys_floats": [3.0, 2.0], "values_int64s": [30, 10]}),
        }
        for name, (x, table) in tables.items():
            outputs = [("y", INT64)] if "values_int64s" in table else ["y"]
            yield Case(f"labels_{name}_{version}", [made("LabelEncoder", **table)], {"x": x}, outputs=outputs, classical=version)


def late_rows():
    """Rows whose number the data say."""
    chosen = [helper.make_node("NonZero", ["m"], ["places"]), helper.make_node("Squeeze", ["places", "axis"], ["p"])]
    chosen.append(helper.make_node("Gather", ["all", "p"], ["x"]))
    x = rounded(7, 4)
    weights = [float(w) for w in array(12, seed=3)]
    linear = made("LinearClassifier", outputs=("label", "y"), coefficients=weights, intercepts=[0.1, 0.2, 0.3], classlabels_ints=[5, 7, 9])
    vectors = {"kernel_type": "RBF", "kernel_params": [0.3, 0.0, 3.0], "support_vectors": weights, "n_supports": 3}
    cases = [
        classification("late_three", x, (4, 1, 2), (0, 1, 2)),
        classification("late_two", x, (4, 1), (0,), post="LOGISTIC"),
        regression("late", x, 2),
        Case("linear_late", [linear], {"x": x}, outputs=[("label", INT64), "y"]),
        Case("vectors_late", [made("SVMRegressor", coefficients=[0.5, -1.0, 0.7], rho=[0.2], **vectors)], {"x": x}),
        Case("labels_late", [made("LabelEncoder", keys_floats=[0.1, -0.1], values_int64s=[3, 1])], {"x": x}, outputs=[("y", INT64)]),
        Case("one_hot_late", [made("OneHotEncoder", cats_int64s=[0, 1, -1])], {"x": x}),
        Case("normalizer_late", [made("Normalizer", norm="L2")], {"x": x}),
    ]
    for case in cases:
        case.nodes = chosen + case.nodes
        case.inputs = {"all": x, "m": np.array([1, 0, 1, 1, 0, 0, 1], np.float32)}
        case.constants = {"axis": np.array([0])}
        yield case


CASES = [case for cases in (trees, linear_models, features, late_rows) for case in cases()]


@pytest.mark.parametrize("case", CASES, ids=repr)
def test_values_are_those_of_onnxruntime(case, tmp_path):
    compare(case, tmp_path)


def test_an_unknown_category_is_an_error_where_there_are_no_zeros(tmp_path):
    encoder = made("OneHotEncoder", cats_int64s=[3, 1, 7], zeros=0)
    path = Case("unknown", [encoder], {"x": np.array([1, 7])}).save(tmp_path)
    with pytest.raises(Exception, match="index"):
        neaptide.InferenceSession(path).run(None, {"x": np.array([1, 9])})
