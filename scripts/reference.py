"""Runs a model in onnxruntime on the CPU and writes its outputs as .npy files.

Prints one JSON object: the inputs and outputs with name, dtype, shape and file.
"""

import argparse
import json
import os

import numpy as np

import neap_reference as ref


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    ref.add_arguments(parser)
    parser.add_argument("--seed-inputs", metavar="DIR", help="write the inputs used to DIR as .npy")
    parser.add_argument("--output-dir", metavar="DIR", required=True)
    arguments = parser.parse_args()

    session = ref.open_session(arguments.model, arguments.threads, exact=True)
    feeds = ref.collect_feeds(session, arguments)
    # Saved first: when the run fails, the inputs that made it fail are there.
    inputs = save(feeds, arguments.seed_inputs) if arguments.seed_inputs else describe(feeds)
    names = [o.name for o in session.get_outputs()]
    outputs = dict(zip(names, session.run(None, feeds)))
    print(json.dumps({"inputs": inputs, "outputs": save(outputs, arguments.output_dir)}))


def describe(arrays):
    return [{"name": n, "dtype": a.dtype.name, "shape": list(a.shape)} for n, a in arrays.items()]


def save(arrays, folder):
    """Writes each array under its path-safe name and describes them."""
    os.makedirs(folder, exist_ok=True)
    described = describe(arrays)
    for entry, file, array in zip(described, ref.file_names(arrays), arrays.values()):
        entry["file"] = os.path.join(folder, file + ".npy")
        np.save(entry["file"], array, allow_pickle=False)
    return described


if __name__ == "__main__":
    main()
