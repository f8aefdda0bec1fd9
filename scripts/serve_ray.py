"""Runs deploy/ray_serve.py with two replicas on a local Ray; answers of both must be those of `neap run`, bit for bit.

    serve_ray.py NEAP

Prints a line for each model and replica, and exits with 1 at the first difference.
"""

import concurrent.futures
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

# A machine with other work starts processes slowly; Ray would end those that take longer than a few seconds.
for name in ("PROXY_READY_CHECK", "PROXY_HEALTH_CHECK"):
    os.environ.setdefault(f"RAY_SERVE_{name}_TIMEOUT_S", "120")

import numpy  # noqa: E402
import ray  # noqa: E402
from ray import serve  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from deploy.ray_serve import app  # noqa: E402

MODELS = ("cnn_28", "squeezenet1_1")
REPLICAS = 2
BUDGET = "96MiB"

# Ray chooses who answers: so many requests of one model are asked at most until all replicas have.
MOST_REQUESTS = 200


def main():
    neap = sys.argv[1] if len(sys.argv) == 2 else sys.exit(__doc__)
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=100 << 20)
    try:
        with tempfile.TemporaryDirectory() as folder:
            check(neap, pathlib.Path(folder))
    finally:
        serve.shutdown()
        ray.shutdown()
    # Ray ends replicas one after the other.
    for _ in range(100):
        if not servers(neap):
            break
        time.sleep(0.1)
    assert not servers(neap), "a server outlived its replica"
    print("all servers ended with their replicas")


def check(neap, folder):
    models = folder / "models"
    models.mkdir()
    for name in MODELS:
        subprocess.run([neap, "zoo", name, "--quiet", "--output", models / f"{name}.onnx"], check=True)
    settings = {
        "folder": str(models),
        "budget": BUDGET,
        "replicas": str(REPLICAS),
        "threads": "1",
        "neap": neap,
        "options": f"--exact --request-memory 32MiB --cache-dir {folder / 'cache'}",
    }
    # Packed before both ask for that at once.
    expected = {name: of_run(neap, models / f"{name}.onnx", folder) for name in MODELS}
    start()
    serve.run(app(settings), name="neaptide", route_prefix="/")
    address = "http://127.0.0.1:8123"
    for name in MODELS:
        by_replica = asked(address, name, *expected[name])
        for replica, answers in sorted(by_replica.items()):
            print(f"{name}: {answers} answers of replica {replica} are those of neap run")
        assert len(by_replica) == REPLICAS, f"only {len(by_replica)} of {REPLICAS} replicas answered"
    try:
        urllib.request.urlopen(f"{address}/v2/models/nothing")
    except urllib.error.HTTPError as error:
        assert error.code == 404, error
        print("a model that is not there:", json.load(error)["error"])
    else:
        sys.exit("a model that is not there was found")


def start():
    """Starts Serve, for whose proxy Ray waits a minute."""
    for attempt in (1, 2, 3):
        try:
            serve.start(http_options={"host": "127.0.0.1", "port": 8123})
            return
        except ray.exceptions.RayError as error:
            print(f"starting Serve, attempt {attempt}: {type(error).__name__}", file=sys.stderr)
            if attempt == 3:
                raise


def asked(address, name, given, wanted):
    """How many right answers each replica gave."""
    body = json.dumps(
        {
            "inputs": [
                {
                    "name": "input",
                    "datatype": "FP32",
                    "shape": list(given.shape),
                    "data": given.ravel().tolist(),
                }
            ]
        }
    ).encode()

    def once(_):
        request = urllib.request.Request(f"{address}/v2/models/{name}/infer", data=body)
        with urllib.request.urlopen(request, timeout=120) as answer:
            output = json.load(answer)["outputs"][0]
            assert answer.headers["Server-Timing"], "the server's own headers are lost"
            return answer.headers["Neaptide-Replica"], numpy.array(output["data"], numpy.float32)

    by_replica = {}
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        for begun in range(0, MOST_REQUESTS, 8):
            for replica, values in pool.map(once, range(begun, begun + 8)):
                assert values.tobytes() == wanted.tobytes(), f"{name}: other bits from replica {replica}"
                by_replica[replica] = by_replica.get(replica, 0) + 1
            if len(by_replica) == REPLICAS:
                break
    return by_replica


def of_run(neap, model, folder):
    """An input, and what `neap run` gives for it."""
    sizes = re.search(r"28|squeezenet", model.stem)
    shape = (1, 1, 28, 28) if sizes.group() == "28" else (1, 3, 224, 224)
    given = numpy.random.default_rng(7).random(shape, numpy.float32)
    numpy.save(folder / "given.npy", given)
    report = subprocess.run(
        [neap, "run", "--quiet", model, "--exact", "--threads", "1", "--input", f"input={folder / 'given.npy'}"]
        + ["--cache-dir", folder / "cache", "--output-dir", folder / "out", "--json", "-"],
        check=True,
        stdout=subprocess.PIPE,
    )
    output = json.loads(report.stdout)["outputs"][0]["file"]
    return given, numpy.load(output)


def servers(neap):
    """Processes of the program that serve."""
    found = subprocess.run(["pgrep", "-f", f"^{re.escape(neap)} serve"], stdout=subprocess.PIPE, check=False)
    return found.stdout.split()


if __name__ == "__main__":
    main()
