"""A Ray Serve application: replicas of `neap serve`, each within a memory budget of its own.

    serve run deploy.ray_serve:app folder=/srv/models budget=256MiB replicas=2

Every replica starts one server on a port of its own and hands requests on as they come, so clients speak the Open Inference Protocol to
Ray's proxy: /v2/models/NAME/infer and the rest of docs/serving.md. Ray counts the budget as memory of the replica when it places it.

Settings, all as text:

    folder      of models, on every node
    budget      of one replica, such as 256MiB
    replicas    how many [1]
    threads     of one replica, which Ray counts as its processors [2]
    neap        the program [neap]
    options     more options of `neap serve`, such as --exact [none]
"""

import asyncio
import re
import shlex
import subprocess
import threading

import aiohttp
from ray import serve
from starlette.requests import Request
from starlette.responses import Response

# The first line of a server that has loaded its models.
SERVING = re.compile(r"serving .* on http://(\S+)")

# Ends the server when its replica is gone, however that came: nothing is left that holds memory.
KEEPER = """
exec 3<&0
"$@" 3<&- &
child=$!
{ cat <&3 >/dev/null; kill "$child"; } 2>/dev/null &
wait "$child"
"""

# Of a request, and of an answer, what the protocol looks at.
ASKED = ("content-type", "inference-header-content-length", "authorization", "x-request-id", "traceparent")
TOLD = ("content-type", "inference-header-content-length", "server-timing", "retry-after", "x-request-id")

UNITS = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "kB": 10**3, "MB": 10**6, "GB": 10**9}


@serve.deployment
class Neaptide:
    """One server, and the way to it."""

    def __init__(self, command):
        self.server = subprocess.Popen(
            ["sh", "-c", KEEPER, "sh", *command], stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        said = []
        for line in self.server.stderr:
            said.append(line)
            found = SERVING.search(line)
            if found:
                self.address = f"http://{found.group(1).rstrip(',')}"
                break
        else:
            raise RuntimeError("neap serve ended: " + "".join(said[-5:]))
        # Nobody reads on, and a full pipe would stop it.
        threading.Thread(target=self.server.stderr.read, daemon=True).start()
        self.session = None
        self.name = serve.get_replica_context().replica_id.unique_id

    def client(self):
        # It belongs to the loop that requests come in.
        if self.session is None:
            self.session = aiohttp.ClientSession(auto_decompress=False)
        return self.session

    async def __call__(self, request: Request) -> Response:
        headers = {key: request.headers[key] for key in ASKED if key in request.headers}
        path = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        body = await request.body()
        asked = self.client().request(request.method, self.address + path, data=body, headers=headers)
        async with asked as answer:
            told = {key: answer.headers[key] for key in TOLD if key in answer.headers}
            told["neaptide-replica"] = self.name
            return Response(await answer.read(), answer.status, told)

    async def check_health(self):
        """Ray starts another replica in place of one that fails this."""
        asked = self.client().get(self.address + "/v2/health/live", timeout=aiohttp.ClientTimeout(total=20))
        async with asked as answer:
            if answer.status != 200:
                raise RuntimeError(f"neap serve says {answer.status}")

    async def __del__(self):
        self.server.stdin.close()
        if self.session is not None:
            await self.session.close()
        await asyncio.to_thread(self.server.wait)


def bytes_of(text):
    """A budget in bytes."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?) *([A-Za-z]*)", text)
    if not found or found.group(2) not in UNITS:
        raise ValueError(f"budget={text} is not a number of bytes, such as 256MiB")
    return int(float(found.group(1)) * UNITS[found.group(2)])


def app(settings):
    """What `serve run` deploys."""
    known = {"folder", "budget", "replicas", "threads", "neap", "options"}
    if not {"folder", "budget"} <= settings.keys() <= known:
        raise ValueError(f"settings are {', '.join(sorted(known))}; folder and budget must be given")
    threads = settings.get("threads", "2")
    command = [settings.get("neap", "neap"), "serve", settings["folder"], "--memory-budget", settings["budget"]]
    command += ["--threads", threads, "--http", "127.0.0.1:0", *shlex.split(settings.get("options", ""))]
    return Neaptide.options(
        num_replicas=int(settings.get("replicas", "1")),
        # The server queues, and refuses what is too much: Ray hands on as many as it may hold.
        max_ongoing_requests=64,
        ray_actor_options={"num_cpus": int(threads), "memory": bytes_of(settings["budget"])},
    ).bind(command)
