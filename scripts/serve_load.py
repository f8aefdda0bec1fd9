"""More requests than `neap serve` can answer, for a while, inside a memory cgroup: what is answered must be right.

    serve_load.py NEAP FOLDER CACHE BUDGET SECONDS CLIENTS

FOLDER holds NAME.onnx files with one f32 input each. Each client asks one request after the other, over HTTP or gRPC, and
once in a while for a model to be unloaded and loaded again. Every answer is compared with that of an idle server, bit for bit.
Prints counts, latencies and the most memory that was charged; exits with 1 when an answer was wrong or lost, or the
kernel killed something.
"""

import json
import pathlib
import random
import re
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter

import numpy as np
import tritonclient.grpc as grpc
import tritonclient.http as http
from tritonclient.utils import InferenceServerException

# Of the answers, those that say that there is no room or the model is away, which is no fault.
NO_ROOM = ("429", "RESOURCE_EXHAUSTED")
AWAY = ("503", "UNAVAILABLE")


def start(neap, folder, cache, budget, clients):
    command = [neap, "serve", folder, "--cache-dir", cache, "--exact", "--memory-budget", budget, "--enforce"]
    command += ["--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--max-waiting", str(max(1, clients // 2))]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    said = []
    for line in process.stderr:
        said.append(line)
        found = re.search(r"on http://(\S+), grpc://(\S+)", line)
        if found:
            threading.Thread(target=process.stderr.read, daemon=True).start()
            return process, *found.groups()
    sys.exit("the server ended: " + "".join(said))


class Model:
    def __init__(self, client, name):
        metadata = client.get_model_metadata(name)
        (self.tensor,) = metadata["inputs"]
        self.name = name
        self.output = metadata["outputs"][0]["name"]
        seeded = np.random.default_rng(len(name))
        self.arrays = [seeded.standard_normal(self.tensor["shape"]).astype(np.float32) for _ in range(3)]
        self.expected = [self.ask(client, http, array) for array in self.arrays]

    def ask(self, client, kind, array):
        given = kind.InferInput(self.tensor["name"], list(array.shape), "FP32")
        given.set_data_from_numpy(array)
        return client.infer(self.name, [given]).as_numpy(self.output).tobytes()


def work(seed, addresses, models, until, counts, latencies, changes):
    rng = random.Random(seed)
    kind = http if seed % 2 == 0 else grpc
    client = kind.InferenceServerClient(addresses[seed % 2])
    while time.monotonic() < until:
        model = rng.choice(models)
        begun = time.monotonic()
        try:
            if changes and rng.random() < 0.02:
                client.unload_model(model.name)
                client.load_model(model.name)
                counts["reloaded"] += 1
                continue
            index = rng.randrange(len(model.arrays))
            got = model.ask(client, kind, model.arrays[index])
            latencies.append(time.monotonic() - begun)
            counts["right" if got == model.expected[index] else "WRONG"] += 1
        except InferenceServerException as error:
            status = str(error.status())
            if any(code in status for code in NO_ROOM):
                counts["no room"] += 1
                time.sleep(0.01)
            elif any(code in status for code in AWAY):
                counts["being reloaded"] += 1
                time.sleep(0.01)
            else:
                counts["LOST"] += 1
                print("lost:", status, error.message())
        except Exception as error:  # a connection that broke is an answer that was lost
            counts["LOST"] += 1
            print("lost:", type(error).__name__, error)
            client = kind.InferenceServerClient(addresses[seed % 2])


def main():
    neap, folder, cache, budget, seconds, clients = sys.argv[1:]
    names = sorted(path.stem for path in pathlib.Path(folder).glob("*.onnx"))
    process, *addresses = start(neap, folder, cache, budget, int(clients))
    client = http.InferenceServerClient(addresses[0])
    models = [Model(client, name) for name in names]
    counts, latencies = Counter(), []
    until = time.monotonic() + float(seconds)
    threads = [
        # One of them changes models; were there more, they would be in each other's way.
        threading.Thread(target=work, args=(seed, addresses, models, until, counts, latencies, seed == 1))
        for seed in range(int(clients))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    memory = json.load(urllib.request.urlopen(f"http://{addresses[0]}/memory"))
    process.terminate()
    code = process.wait(timeout=120)
    latencies.sort()
    for name, count in sorted(counts.items()):
        print(f"{name}: {count}")
    for share in (0.5, 0.9, 0.99, 1.0):
        at = min(len(latencies) - 1, int(share * len(latencies)))
        print(f"latency at {share:.0%}: {latencies[at] * 1e3:.1f} ms")
    mib = 1 << 20
    requests = memory["requests"]
    print(f"requests took at most {requests['most_bytes'] / mib:.1f} MiB of {requests['limit_bytes'] / mib:.1f}")
    print(f"charged at the end: {memory['process_bytes'] / mib:.1f} MiB of {memory['budget_bytes'] / mib:.1f}")
    print(f"charged at most: {memory['process_most_bytes'] / mib:.1f} MiB")
    print(f"the server ended with {code}")
    if counts["WRONG"] or counts["LOST"] or code != 0:
        sys.exit(1)


main()
