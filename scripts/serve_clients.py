"""Asks a running `neap serve` with tritonclient as it comes from PyPI; answers must be those of `neap run`, bit for bit.

    serve_clients.py NEAP FOLDER CACHE

FOLDER holds NAME.onnx files with one f32 input each; CACHE keeps packed models. Prints a line for each way of asking,
and exits with 1 at the first difference.
"""

import pathlib
import queue
import re
import subprocess
import sys
import tempfile
import threading

import grpc as grpcio
import numpy as np
import tritonclient.grpc as grpc
import tritonclient.http as http
from tritonclient.utils import InferenceServerException

BUDGET = "96MiB"

#: Answers of `grpc.health.v1`: the first field, and its number.
SERVING, NOT_SERVING, SERVICE_UNKNOWN = (bytes([8, status]) for status in (1, 2, 3))


class Server:
    """A server on ports of its own, until the block ends."""

    def __init__(self, neap, folder, cache, more=()):
        self.command = [neap, "serve", folder, "--cache-dir", cache, "--exact", "--memory-budget", BUDGET]
        self.command += ["--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--metrics", "127.0.0.1:0", *more]

    def __enter__(self):
        self.process = subprocess.Popen(self.command, stderr=subprocess.PIPE, text=True)
        said = []
        for line in self.process.stderr:
            said.append(line)
            found = re.search(r"on https?://(\S+), grpcs?://(\S+), metrics https?://(\S+)", line)
            if found:
                self.http, self.grpc, self.metrics = found.groups()
                break
        else:
            sys.exit("the server ended: " + "".join(said))
        threading.Thread(target=self.process.stderr.read, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.process.terminate()
        code = self.process.wait(timeout=60)
        assert code == 0, f"the server ended with {code}"


def of_run(neap, model, cache, name, array):
    """What `neap run` gives: output name and array."""
    with tempfile.TemporaryDirectory() as folder:
        given = pathlib.Path(folder) / "in.npy"
        np.save(given, array)
        out = pathlib.Path(folder) / "out"
        command = [neap, "run", model, "--cache-dir", cache, "--exact", "--quiet"]
        command += ["--input", f"{name}={given}", "--output-dir", out]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        (path,) = out.iterdir()
        return np.load(path)


def same(what, got, expected):
    if got.dtype != expected.dtype or got.shape != expected.shape:
        sys.exit(f"{what}: {got.dtype} {got.shape} instead of {expected.dtype} {expected.shape}")
    if got.tobytes() != expected.tobytes():
        sys.exit(f"{what}: other bits, by up to {np.abs(got - expected).max()}")
    print(f"same bits: {what}")


def ask_http(client, name, tensor, array, output, expected):
    for binary_in in (True, False):
        for binary_out in (True, False):
            given = http.InferInput(tensor, list(array.shape), "FP32")
            given.set_data_from_numpy(array, binary_data=binary_in)
            wanted = http.InferRequestedOutput(output, binary_data=binary_out)
            result = client.infer(name, [given], outputs=[wanted], request_id="7")
            assert result.get_response()["id"] == "7"
            what = f"{name} over HTTP, binary in {binary_in}, binary out {binary_out}"
            same(what, result.as_numpy(output), expected)
    given = http.InferInput(tensor, list(array.shape), "FP32")
    given.set_data_from_numpy(array)
    same(f"{name} over HTTP, all outputs", client.infer(name, [given]).as_numpy(output), expected)
    packed = client.infer(name, [given], request_compression_algorithm="gzip")
    same(f"{name} over HTTP, gzipped", packed.as_numpy(output), expected)


def ask_grpc(client, name, tensor, array, output, expected):
    given = grpc.InferInput(tensor, list(array.shape), "FP32")
    given.set_data_from_numpy(array)
    result = client.infer(name, [given], request_id="8")
    assert result.get_response().id == "8"
    same(f"{name} over gRPC", result.as_numpy(output), expected)
    wanted = [grpc.InferRequestedOutput(output)]
    same(f"{name} over gRPC, by name", client.infer(name, [given], outputs=wanted).as_numpy(output), expected)


def refused(what, call, status):
    try:
        call()
    except InferenceServerException as error:
        assert status in str(error.status()), f"{what}: {error.status()} {error}"
        assert error.message() and "\n" not in error.message(), error
        print(f"refused: {what}: {error.message()}")
        return
    sys.exit(f"{what} was not refused")


def check_model(clients, neap, folder, cache, name):
    over_http, over_grpc = clients
    metadata = over_http.get_model_metadata(name)
    (tensor,) = metadata["inputs"]
    output = metadata["outputs"][0]["name"]
    seeded = np.random.default_rng(7)
    array = seeded.standard_normal(tensor["shape"]).astype(np.float32)
    expected = of_run(neap, folder / f"{name}.onnx", cache, tensor["name"], array)
    ask_http(over_http, name, tensor["name"], array, output, expected)
    as_grpc = over_grpc.get_model_metadata(name)
    assert [i.name for i in as_grpc.inputs] == [tensor["name"]]
    assert list(as_grpc.inputs[0].shape) == tensor["shape"]
    ask_grpc(over_grpc, name, tensor["name"], array, output, expected)

    wrong = array.reshape(-1)
    given = http.InferInput(tensor["name"], list(wrong.shape), "FP32")
    given.set_data_from_numpy(wrong)
    refused("a wrong shape over HTTP", lambda: over_http.infer(name, [given]), "400")
    given = grpc.InferInput(tensor["name"], list(wrong.shape), "FP32")
    given.set_data_from_numpy(wrong)
    refused("a wrong shape over gRPC", lambda: over_grpc.infer(name, [given]), "INVALID_ARGUMENT")


def check_repository(client, names, kind):
    assert client.is_server_live() and client.is_server_ready()
    assert client.is_model_ready(names[0])
    client.unload_model(names[0])
    assert not client.is_model_ready(names[0])
    client.load_model(names[0])
    assert client.is_model_ready(names[0])
    missing = "NOT_FOUND" if kind == "gRPC" else "404"
    refused(f"a model that is not there, over {kind}", lambda: client.load_model("nothing"), missing)
    print(f"load and unload over {kind}")


def check_triton(over_http, over_grpc, neap, folder, cache, name):
    """What only clients of Triton ask: configuration, statistics, a stream of requests."""
    config = over_http.get_model_config(name)
    as_grpc = over_grpc.get_model_config(name, as_json=True)["config"]
    for told in (config, as_grpc):
        assert told["name"] == name and told["input"][0]["data_type"] == "TYPE_FP32", told
    counted = over_http.get_inference_statistics(name)["model_stats"][0]
    as_grpc = over_grpc.get_inference_statistics(name).model_stats[0]
    assert counted["inference_count"] == as_grpc.inference_count > 0, (counted, as_grpc)
    assert counted["inference_stats"]["success"]["count"] == as_grpc.inference_stats.success.count > 0
    assert over_http.get_system_shared_memory_status() == []

    metadata = over_http.get_model_metadata(name)
    (tensor,) = metadata["inputs"]
    output = metadata["outputs"][0]["name"]
    array = np.random.default_rng(9).standard_normal(tensor["shape"]).astype(np.float32)
    expected = of_run(neap, folder / f"{name}.onnx", cache, tensor["name"], array)
    given = grpc.InferInput(tensor["name"], list(array.shape), "FP32")
    given.set_data_from_numpy(array)
    answers = queue.Queue()
    over_grpc.start_stream(callback=lambda result, error: answers.put((result, error)))
    for asked in (name, "nothing", name):
        over_grpc.async_stream_infer(asked, [given])
    told = [answers.get(timeout=60) for _ in range(3)]
    over_grpc.stop_stream()
    assert [error is None for _, error in told] == [True, False, True], told
    assert "'nothing'" in told[1][1].message(), told[1]
    for result, _ in (told[0], told[2]):
        same(f"{name} on a stream", result.as_numpy(output), expected)


def check_health(over_grpc, address, name):
    """What Kubernetes and balancers ask, as `grpc.health.v1` has it: a name goes there, a number comes back."""
    def asked(service):
        return bytes([10, len(service)]) + service.encode()

    with grpcio.insecure_channel(address) as channel:
        check = channel.unary_unary("/grpc.health.v1.Health/Check")
        watch = channel.unary_stream("/grpc.health.v1.Health/Watch")
        assert [check(asked(service)) for service in ("", "live", name)] == [SERVING] * 3
        watched = watch(asked(name), timeout=60)
        assert next(watched) == SERVING
        over_grpc.unload_model(name)
        assert next(watched) == NOT_SERVING
        over_grpc.load_model(name)
        assert next(watched) == SERVING
        watched.cancel()
        assert next(watch(asked("nothing"), timeout=60)) == SERVICE_UNKNOWN
    print("health over gRPC")


def check_tls(neap, folder, cache, name):
    """The same clients through TLS, with a certificate that was signed by itself."""
    with tempfile.TemporaryDirectory() as own:
        certificate, key = f"{own}/cert.pem", f"{own}/key.pem"
        make = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
        make = [*make.split(), "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-out", certificate, "-keyout", key]
        subprocess.run(make, check=True, stderr=subprocess.DEVNULL)
        with Server(neap, folder, cache, ["--tls-cert", certificate, "--tls-key", key]) as server:
            over_http = http.InferenceServerClient(server.http, ssl=True, ssl_options={"ca_certs": certificate})
            over_grpc = grpc.InferenceServerClient(server.grpc, ssl=True, root_certificates=certificate)
            check_model((over_http, over_grpc), neap, folder, cache, name)
            over_http.close()
            over_grpc.close()
    print("the same through TLS")


def main():
    neap, folder, cache = sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3]
    names = sorted(path.stem for path in folder.glob("*.onnx"))
    with Server(neap, folder, cache) as server:
        over_http = http.InferenceServerClient(server.http, concurrency=2)
        over_grpc = grpc.InferenceServerClient(server.grpc)
        assert over_http.get_server_metadata()["name"] == "neaptide"
        assert over_grpc.get_server_metadata().name == "neaptide"
        listed = over_http.get_model_repository_index()
        assert [(m["name"], m["state"]) for m in listed] == [(n, "READY") for n in names], listed
        listed = over_grpc.get_model_repository_index().models
        assert [(m.name, m.state) for m in listed] == [(n, "READY") for n in names], listed
        for name in names:
            check_model((over_http, over_grpc), neap, folder, cache, name)
        check_repository(over_http, names, "HTTP")
        check_repository(over_grpc, names, "gRPC")
        check_triton(over_http, over_grpc, neap, folder, cache, names[0])
        check_health(over_grpc, server.grpc, names[0])
        over_http.close()
        over_grpc.close()
    check_tls(neap, folder, cache, names[0])
    print(f"{len(names)} models: all answers are those of neap run")


main()
