"""Checks that a generated model behaves like a trained one, for seeded random inputs.

Valid ONNX; every output finite, neither constant nor tiny nor huge; different inputs give
different outputs. Prints a JSON object; exits 0 when all holds, 1 when not.
"""

import argparse
import json
import sys

import numpy as np
import onnx

import neap_reference as ref


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    ref.add_arguments(parser)
    arguments = parser.parse_args()

    onnx.checker.check_model(arguments.model, full_check=True)
    session = ref.open_session(arguments.model, arguments.threads)
    runs = []
    for seed in (arguments.seed, arguments.seed + 1):
        arguments.seed = seed
        runs.append(session.run(None, ref.collect_feeds(session, arguments)))
    outputs = [check(o.name, a, b) for o, a, b in zip(session.get_outputs(), *runs)]
    ok = all(o["ok"] for o in outputs)
    print(json.dumps({"model": arguments.model, "ok": ok, "outputs": outputs}))
    sys.exit(0 if ok else 1)


def check(name, a, b):
    finite = bool(np.isfinite(a).all() and np.isfinite(b).all())
    std = float(a.std())
    change = float(np.abs(a - b).mean() / std) if std else 0.0
    span = float(a.max() - a.min())
    margin = None
    if a.ndim == 2 and a.shape[0] == 1:
        first, second = np.sort(a[0])[::-1][:2]
        margin = float((first - second) / span)
    return {
        "name": name,
        "shape": list(a.shape),
        "finite": finite,
        "std": std,
        "largest": float(np.abs(a).max()),
        # Mean change of an element between two inputs, in standard deviations.
        "change": change,
        "top1_margin": margin,
        "ok": finite and 0.1 < std < 30.0 and change > 0.05 and (margin is None or margin > 2e-4),
    }


if __name__ == "__main__":
    main()
