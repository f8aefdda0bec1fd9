"""Runs graphs that are drawn at random (`graphs.py`) with neap, beside onnxruntime and the standard's reference.

    python scripts/fuzz_graphs.py --neap target/release/neap --graphs 1000 [--seed N] [--seconds S] [--keep FOLDER]
    python scripts/fuzz_graphs.py --neap target/release/neap --seed N --graphs 1       the graph of one number
    python scripts/fuzz_graphs.py --package ...                                        by the Python package, which is faster

Needs an environment with scripts/requirements.txt. Each graph runs without a budget, within half of what it takes, and
within the smallest budget that it names. Integers are exact; numbers may be off by rounding. A result is right if it is
onnxruntime's or the reference's, as each has faults of its own (`KNOWN`). What is neither's is judged by pieces (`by_pieces`):
each node has to be right for what neap itself gives it. Each difference is printed with its number, and its model is kept:
a folder with model.onnx, inputs and what was expected. What neap refuses is counted by its reason, and so is what no judge
judges in time. The exit status is 1 where anything differs or is not judged. Graphs are drawn and judged in a process of their
own, as a judge may crash.
"""

import argparse
import collections
import json
import os
import pickle
import re
import resource
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings

import numpy as np
import onnx

import graphs
import pieces
from graph_known import KNOWN, has, values_of

np.seterr(all="ignore")
warnings.simplefilter("ignore")

#: Longest that a graph may take until onnxruntime has judged it, and then, in seconds.
MOST_SECONDS = 20, 600
#: Longest that the reference may compute, in plain Python; and so many times that, where others compute beside it.
REFERENCE_SECONDS, PATIENCE = 30, 4


NOT_JUDGED = "not judged"


def slack(model, kind=None):
    """By how much results may be off: as a share of their range, and integers, by units and as a share of themselves.

    What lies between two steps of 8 bits may go to either. onnxruntime adds up resized integers in 32 bits, and cuts off
    sums that are a hair below an integer. The root of a sum of squares comes from floating point.
    """
    resizes = any(has(model, "Resize", mode=mode) for mode in ("linear", "cubic"))
    units, part = int(resizes or has(model, "QLinearMatMul")), 2.0**-51 if has(model, "ReduceL2") else 0.0
    return 0.05 if kind == "in 8 bits" else 0.0, units, part


def near(wanted, found, slack=(0.0, 0, 0.0)):
    """Why they differ; `None` where they do not."""
    share_of_range, units, part = slack
    if wanted.shape != found.shape:
        return f"shape {list(found.shape)} instead of {list(wanted.shape)}"
    half = wanted.dtype == np.float16
    if found.dtype != wanted.dtype and not (half and found.dtype == np.float32):
        return f"type {found.dtype} instead of {wanted.dtype}"
    if wanted.dtype.kind in "iub":
        wrong = wanted != found
        if (units or part) and wanted.dtype.kind != "b":
            a, b = wanted.astype(np.float64), found.astype(np.float64)
            wrong &= np.abs(a - b) > np.maximum(units, part * np.abs(a))
        if not wrong.any():
            return None
        at = tuple(int(i) for i in np.argwhere(wrong)[0])
        return f"{int(wrong.sum())} of {wanted.size} differ: {found[at]} instead of {wanted[at]} at {at}"
    a, b = wanted.astype(np.float64), found.astype(np.float64)
    with np.errstate(all="ignore"):
        finite = np.isfinite(a) & np.isfinite(b)
        scale = np.abs(a[finite]).max(initial=1.0)
        share, floor = (4e-3, 2e-3) if half else (3e-4, 3e-5)
        is_far = np.abs(a - b) > max(floor, share_of_range) * scale + share * np.abs(a)
        is_same = (np.isnan(a) & np.isnan(b)) | (a == b)
        wrong = np.where(finite, is_far, ~is_same)
    if not wrong.any():
        return None
    at = tuple(int(i) for i in np.argwhere(wrong)[0])
    return f"{int(wrong.sum())} of {a.size} differ: {b[at]} instead of {a[at]} at {at}"


class Runner:
    """A folder for files, in which models run."""

    def __init__(self, folder):
        self.folder = folder

    def give(self, model, feed):
        shutil.rmtree(self.folder, ignore_errors=True)
        os.makedirs(self.folder)
        onnx.save(model, f"{self.folder}/model.onnx")
        self.feed = feed


class Neap(Runner):
    """The program."""

    def __init__(self, program, folder):
        super().__init__(folder)
        self.program = program

    def give(self, model, feed):
        super().give(model, feed)
        for name, x in feed.items():
            np.save(f"{self.folder}/{name}.npy", x)

    def run(self, budget):
        """What went wrong, or the results."""
        out, report = f"{self.folder}/out", f"{self.folder}/report.json"
        shutil.rmtree(out, ignore_errors=True)
        call = [self.program, "run", f"{self.folder}/model.onnx", "--memory-budget", budget, "--threads", "2"]
        call += ["--output-dir", out, "--json", report, "--cache-dir", f"{self.folder}/cache"]
        for name in self.feed:
            call += ["--input", f"{name}={self.folder}/{name}.npy"]
        try:
            done = subprocess.run(call, capture_output=True, text=True, timeout=MOST_SECONDS[0])
        except subprocess.TimeoutExpired:
            return f"does not end within {MOST_SECONDS[0]} s", None
        text = (done.stderr.strip().splitlines() or [""])[-1]
        if done.returncode:
            return f"exit {done.returncode}: {text[:300]}", None
        with open(report) as file:
            outputs = json.load(file)["outputs"]
        return None, {o["name"]: np.load(os.path.join(out, o["file"])) for o in outputs}


class Package(Runner):
    """The Python package, in this process. Errors are told as the program tells them."""

    def run(self, budget):
        import neaptide

        options = neaptide.SessionOptions()
        options.memory_budget = None if budget == "none" else budget
        options.cache_dir = f"{self.folder}/cache"
        options.intra_op_num_threads = 2
        try:
            session = neaptide.InferenceSession(f"{self.folder}/model.onnx", options)
            names = [o.name for o in session.get_outputs()]
            return None, dict(zip(names, session.run(names, self.feed)))
        except Exception as error:  # as the exit status would be
            text = str(error).splitlines()[0] if str(error) else repr(error)
            code = 3 if re.search(r"\(\d+ bytes\)", text) else 2
            return f"exit {code}: {text[:300]}", None


def judgement(judge, model, feed):
    """What a judge says: `None` where it cannot run the graph, nothing about any result (`{}`) where not in time."""
    try:
        return in_time(judge, model, feed) if judge is graphs.by_reference else judge(model, feed)
    except Exception:  # not every judge knows every operator
        return None


def in_time(judge, model, feed):
    """What a judge says in a process of its own, which is ended where it takes longer: nothing then."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        resource.setrlimit(resource.RLIMIT_CPU, (REFERENCE_SECONDS, REFERENCE_SECONDS))
        with os.fdopen(write, "wb") as pipe:
            try:
                pickle.dump(judge(model, feed), pipe)
            except Exception:
                pickle.dump(None, pipe)
            pipe.flush()
            os._exit(0)
    os.close(write)
    try:
        with os.fdopen(read, "rb") as pipe:
            return pickle.load(pipe) if select.select([pipe], [], [], REFERENCE_SECONDS * PATIENCE)[0] else {}
    except EOFError:
        return {}
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def differences(judged, found, slack=(0.0, 0, 0.0)):
    """Why results are no judge's, by their names."""
    wrong = {}
    for name in judged[0]:
        if name not in found:
            wrong[name] = "is missing"
            continue
        reasons = [near(np.asarray(j[name]), found[name], slack) for j in judged if name in j]
        if all(reasons):
            wrong[name] = "; ".join(dict.fromkeys(reasons))
    return wrong


def in_moved_steps(model, feed, judged, found, off):
    """Why results of a network in 8 bits are wrong, though what lies at the middle of two steps may go to either.

    What one such number does to those after it is no error of theirs: results may be anything between what onnxruntime gives, and
    gives with all that it rounds to steps a millionth larger or smaller.
    """
    said = [judged[0]]
    for factor in (1 - 1e-6, 1 + 1e-6):
        moved = onnx.ModelProto()
        moved.CopyFrom(model)
        del moved.graph.node[:]
        for node in model.graph.node:
            if node.op_type == "QuantizeLinear":
                own, by = node.input[0] + "/moved", node.input[0] + "/by"
                moved.graph.initializer.append(onnx.numpy_helper.from_array(np.float32(factor), by))
                moved.graph.node.add(op_type="Mul", input=[node.input[0], by], output=[own])
                node = onnx.helper.make_node("QuantizeLinear", [own, *node.input[1:]], node.output)
            moved.graph.node.append(node)
        said.append(judgement(graphs.by_onnxruntime, moved, feed) or {})
    wrong = {}
    for name, wanted in judged[0].items():
        x = found.get(name)
        if x is None or (x.shape, x.dtype) != (np.shape(wanted), np.asarray(wanted).dtype):
            wrong[name] = "is missing, or of another shape or type"
            continue
        among = np.stack([s[name] for s in said if name in s])
        nearest = np.clip(x, among.min(axis=0), among.max(axis=0))
        if why := near(nearest, x, off):
            wrong[name] = why
    return wrong


def by_pieces(neap, model, feed, found, off):
    """Why results are wrong though a judge may have others, and what is open: a node that is of a known kind, or not judged.

    Rounding in one node may be anything after the next, and each judge may be wrong at another node of a chain. So neap is run
    for all values of the graph, and each node has to be right for the operands that neap gives it:

        neap         x --Conv--> a --Floor--> b --Mul--> y      all of them results
        onnxruntime  x --Conv--> a   a --Floor--> b   b --Mul--> y

    `found` has to be what that run says: what is wrong only where no values are kept, as nodes are fused, stays wrong. It may be
    another only behind a node that is of a known kind of which nobody's word counts, for what reaches it.
    """
    whole = onnx.ModelProto()
    whole.CopyFrom(model)
    del whole.graph.output[:]
    whole.graph.output.extend(onnx.ValueInfoProto(name=o) for node in model.graph.node for o in node.output if o)
    neap.give(whole, feed)
    error, made = neap.run("none")
    if error:
        return f"with all values as results: {error}", []
    types = {name: x.dtype for name, x in values_of(model, feed, made).items()}
    wrong = {name: f"type {x.dtype}" for name, x in made.items() if types[name] not in (x.dtype, np.float16)}
    # Those of 16 bits may be told in 32.
    values = feed | {name: x.astype(types[name]) for name, x in made.items()}
    constants, steps, open_nodes = {w.name: w for w in model.graph.initializer}, {}, []
    for node in model.graph.node:
        given = {name: values[name] for name in pieces.inputs([node], constants)}
        own = {name: values[name] for name in node.output if name}
        piece = pieces.build(model, [node], given, own, constants)
        known = next(((what, whose) for what, fits, whose in KNOWN if fits(piece, given)), (None, None))
        steps[node.output[0]] = (piece, given, own, *known)
    for name, why in differences([{name: made[name] for name in found}], found, off).items():
        behind = [steps[node.output[0]] for node in graphs.part(model, {name}).graph.node]
        kinds = [f"known: {known}" for *_, known, word in behind if known and not word]
        open_nodes += kinds
        if not kinds:
            wrong[name] = why
    if wrong:
        return "; ".join(f"'{name}' with all values as results: {why}" for name, why in wrong.items()), open_nodes
    for piece, given, own, known, word in steps.values():
        said, off = judgement(graphs.by_onnxruntime, piece, given), slack(piece)
        wrong = differences([said], own, off) if said else dict.fromkeys(own, "onnxruntime does not run it")
        if not wrong:
            continue
        said = None
        if not known or word:
            said = judgement(word or graphs.by_reference, piece, given)
            other = differences([said], own, off) if said else wrong
            wrong = {name: "; ".join(dict.fromkeys((why, other[name]))) for name, why in wrong.items() if name in other}
        if wrong and said == {}:
            open_nodes.append(NOT_JUDGED)
        elif wrong and known and not said:
            open_nodes.append(f"known: {known}")
        elif wrong:
            op = piece.graph.node[0].op_type
            return "; ".join(f"{op} of '{name}': {why}" for name, why in wrong.items()), open_nodes
    return None, open_nodes


def keep(folder, seed, model, feed, judged, why):
    path = os.path.join(folder, str(seed))
    shutil.rmtree(path, ignore_errors=True)
    for part, values in (("feed0", feed), ("expected0", judged[0] if judged else {})):
        os.makedirs(f"{path}/{part}")
        names = {name: f"{i}.npy" for i, name in enumerate(values)}
        for name, file in names.items():
            np.save(f"{path}/{part}/{file}", np.asarray(values[name]))
        with open(f"{path}/{part}/names.json", "w") as file:
            json.dump(names, file)
    onnx.save(model, f"{path}/model.onnx")
    with open(f"{path}/README.md", "w") as file:
        file.write(f"# Graph {seed}\n\n{why}\n")
    return path


def attempt(seed, neap, tally, told):
    """What is wrong with the graph of a number, with the graph; `None` for nothing. Tells when the graph is judged."""
    # Ends this process, also where onnxruntime never returns.
    signal.alarm(MOST_SECONDS[0])
    try:
        model, feed, _, kind = graphs.draw(seed)
    except graphs.Unfit:
        tally["not drawn"] += 1
        return None
    judged = [judgement(graphs.by_onnxruntime, model, feed)]
    if judged[0] is None:
        tally["no judge"] += 1
        return None
    off = slack(model, kind)
    tally[kind] += 1
    told({"is_judged": True})
    signal.alarm(MOST_SECONDS[1])
    neap.give(model, feed)
    smallest, remarks = None, set()
    # Too small for anything, so that the smallest that is not is told; then half of what it takes with everything in memory.
    for budget in ("none", "1", "smallest", "50%"):
        error, found = neap.run(str(smallest) if budget == "smallest" else budget)
        if budget == "1":
            told = re.search(r"\((\d+) bytes\)", error or "")
            if not (error or "").startswith("exit 3") or not told:
                return f"within 1 byte: {error}", model, feed, judged
            smallest = int(told[1])
            continue
        if error and error.startswith("exit 2") and budget == "none":
            tally["refused: " + re.sub(r"\d+", "N", re.sub(r"'[^']*'|\[[^]]*\]", "_", error))] += 1
            return None
        if error and budget == "50%" and error.startswith("exit 3"):
            continue
        wrong = {} if error else differences(judged, found, off)
        if wrong and kind == "in 8 bits" and not in_moved_steps(model, feed, judged, found, off):
            remarks.add("a number between two steps decides")
            wrong = {}
        if wrong:
            piecewise, left = by_pieces(neap, model, feed, found, off)
            neap.give(model, feed)
            if piecewise or NOT_JUDGED in left:
                # Slow, and so asked last, and for no more than what differs.
                references = [judgement(graphs.by_reference, graphs.part(model, {name}), feed) for name in wrong]
                judged += [reference for reference in references if reference]
                wrong = differences(judged, found, off)
            if wrong and not piecewise:
                remarks.update(left or ["judged by pieces"])
                # What other budgets have to be.
                judged.append(found)
                continue
        why = error or "; ".join(f"'{name}': {reason}" for name, reason in wrong.items())
        if why:
            by_piece = f"; by pieces: {piecewise}" if wrong else ""
            return f"budget {budget} ({smallest}): {why}{by_piece}", model, feed, judged
    tally.update(remarks)
    return (NOT_JUDGED, model, feed, judged) if NOT_JUDGED in remarks else None


def work(args, seeds, told):
    """Tells of each number that it begins, what was found, and at the end what was counted."""
    tally = collections.Counter()
    with tempfile.TemporaryDirectory() as folder:
        runner = Package(folder + "/graph") if args.package else Neap(os.path.abspath(args.neap), folder + "/graph")
        for seed in seeds:
            told({"seed": seed, "is_judged": False})
            found = attempt(seed, runner, tally, told)
            if found:
                why, model, feed, judged = found
                operators = " ".join(node.op_type for node in model.graph.node)
                told({"why": why, "operators": operators, "path": keep(args.keep, seed, model, feed, judged, why)})
    signal.alarm(0)
    told({"tally": tally})


def in_a_process(args, seeds):
    """What `work` tells; whoever dies tells no more."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        with os.fdopen(write, "w") as pipe:
            work(args, seeds, lambda what: print(json.dumps(what), file=pipe, flush=True))
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        yield from map(json.loads, pipe)
    os.waitpid(child, 0)


#: Graphs of one process, and how many lie between two lines that tell how far they are.
CHUNK, PROGRESS = 100, 1000


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--neap", default="target/release/neap")
    parser.add_argument("--package", action="store_true", help="run by the Python package instead of the program")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--graphs", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--keep", default="target/graphs")
    args = parser.parse_args()
    tally, wrong, left, began = collections.Counter(), 0, 0, time.monotonic()
    at, end = args.seed, args.seed + args.graphs
    while at < end and time.monotonic() - began < args.seconds:
        last, is_judged, is_whole = at, False, False
        for what in in_a_process(args, range(at, min(at + CHUNK, end))):
            last, is_judged, is_whole = what.get("seed", last), what.get("is_judged", is_judged), "tally" in what
            tally.update(what.get("tally", {}))
            if "why" in what:
                wrong += what["why"] != NOT_JUDGED
                left += what["why"] == NOT_JUDGED
                print(f"{last}: {what['why']}\n    {what['operators']}\n    kept in {what['path']}", flush=True)
        if not is_whole:
            # The package is in the same process.
            wrong += is_judged and args.package
            tally["a process died" if is_judged else "a judge died"] += 1
            print(f"{last}: {'its process' if is_judged else 'its judge'} died", flush=True)
        before, at = at - args.seed, last + 1
        done = at - args.seed
        if done // PROGRESS > before // PROGRESS:
            print(f"{done} graphs in {time.monotonic() - began:.0f} s: {wrong} differ, {left} {NOT_JUDGED}", flush=True)
    for what, count in sorted(tally.items(), key=lambda entry: -entry[1]):
        print(f"{count:6} {what}")
    print(f"{wrong} graphs differ, {left} are {NOT_JUDGED}")
    return int(wrong + left > 0)


if __name__ == "__main__":
    sys.exit(main())
