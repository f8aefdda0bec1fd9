"""Compares two .npy files, or two folders of them, output by output.

The error is the largest absolute difference over the range (max - min) of the reference, which
is the second argument. Prints a JSON object; exits 0 when all agree, 1 when not.
"""

import argparse
import json
import os
import sys

import numpy as np


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ours", help="FILE.npy or folder")
    parser.add_argument("reference", help="FILE.npy or folder; every file in it must have a partner")
    parser.add_argument("--tolerance", type=float, default=1e-4)
    arguments = parser.parse_args()

    if os.path.isdir(arguments.reference):
        files = sorted(f for f in os.listdir(arguments.reference) if f.endswith(".npy"))
        results = [
            {"file": f, **compare_files(os.path.join(arguments.ours, f), os.path.join(arguments.reference, f), arguments)}
            for f in files
        ]
        # Nothing compared is not agreement.
        result = {"ok": bool(results) and all(r["ok"] for r in results), "outputs": results}
    else:
        result = compare_files(arguments.ours, arguments.reference, arguments)
    print(json.dumps(result))
    sys.exit(0 if result["ok"] else 1)


def compare_files(ours, reference, arguments):
    try:
        return compare(
            np.load(ours, allow_pickle=False), np.load(reference, allow_pickle=False), arguments.tolerance
        )
    except (OSError, ValueError) as error:
        return {"ok": False, "reason": str(error)}


def compare(ours, reference, tolerance):
    """The verdict on one pair of arrays."""
    if ours.shape != reference.shape:
        return {"ok": False, "reason": f"shape {list(ours.shape)} is not {list(reference.shape)}"}
    if ours.dtype != reference.dtype:
        return {"ok": False, "reason": f"dtype {ours.dtype} is not {reference.dtype}"}
    if ours.size == 0 or not np.issubdtype(reference.dtype, np.floating):
        equal = bool(np.array_equal(ours, reference))
        return {"ok": equal, "max_error": 0.0 if equal else None, "top1_equal": equal}
    a, b = ours.astype(np.float64), reference.astype(np.float64)
    finite = np.isfinite(b)
    # Infinities and NaNs must stand in the same places.
    if not np.array_equal(np.where(finite, 0.0, a), np.where(finite, 0.0, b), equal_nan=True):
        return {"ok": False, "reason": "non-finite values differ"}
    if not np.isfinite(a[finite]).all():
        return {"ok": False, "reason": "not finite where the reference is"}
    if not finite.any():
        return {"ok": True, "max_error": 0.0, "top1_equal": True}
    span = float(b[finite].max() - b[finite].min())
    difference = float(np.abs(a[finite] - b[finite]).max())
    # A constant reference has no range: measure against its size.
    error = difference / (span or abs(float(b[finite].flat[0])) or 1.0)
    top1 = top1_equal(a, b)
    ok = error <= tolerance and (top1 or b.ndim != 2)
    return {
        "ok": ok,
        "max_error": error,
        "max_difference": difference,
        "range": span,
        "bit_identical": bool(ours.tobytes() == reference.tobytes()),
        "top1_equal": top1,
        "top1": b.argmax(-1).tolist() if b.ndim == 2 and b.shape[0] <= 16 else None,
    }


def top1_equal(a, b):
    """Whether the largest entry along the last axis is the same one everywhere."""
    return b.ndim == 0 or bool(np.array_equal(a.argmax(-1), b.argmax(-1)))


if __name__ == "__main__":
    main()
