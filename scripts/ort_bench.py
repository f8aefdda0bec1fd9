"""Measures onnxruntime's latency and peak memory on a model.

By default runs and prints one JSON object. With --serve it reads commands from stdin and
answers each with one line of JSON, so that a driver can run two engines in turn and let
disturbances of the machine hit both alike:

    run N     runs N times:       {"latency_ms": [...]}
    stats     memory so far:      {"peak_memory_bytes": ..., "peak_memory_source": ..., ...}
    quit      ends (as does end of input)

The first line it prints says that the model is loaded: {"ready": true, "session_ms": ...}.
"""

import argparse
import atexit
import json
import os
import statistics
import sys
import time


def main():
    # Entered before numpy and onnxruntime are imported, so that what they cost is counted too.
    group = Cgroup.enter() if "--cgroup" in sys.argv[1:] else None
    import neap_reference as ref

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cgroup", action="store_true", help="measure in an own memory cgroup (needs rights)")
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--serve", action="store_true", help="take commands from stdin")
    ref.add_arguments(parser)
    arguments = parser.parse_args()

    start = time.perf_counter()
    session = ref.open_session(arguments.model, arguments.threads)
    session_ms = (time.perf_counter() - start) * 1e3
    feeds = ref.collect_feeds(session, arguments)

    if arguments.serve:
        serve(session, feeds, group, session_ms)
        return
    first = timed_run(session, feeds)
    for _ in range(arguments.warmup):
        timed_run(session, feeds)
    spent = time.process_time()
    times = [timed_run(session, feeds) for _ in range(max(1, arguments.iterations))]
    spent = time.process_time() - spent
    print(
        json.dumps(
            {
                "model": arguments.model,
                "threads": arguments.threads,
                "session_ms": session_ms,
                "latency_ms": summary(first, times),
                "processor_ms_per_run": spent * 1e3 / len(times),
                **memory(group),
            }
        )
    )


def serve(session, feeds, group, session_ms):
    answer({"ready": True, "session_ms": session_ms, **memory(group)})
    for line in sys.stdin:
        words = line.split()
        if not words:
            continue
        if words[0] == "run" and len(words) == 2 and words[1].isdigit():
            answer({"latency_ms": [timed_run(session, feeds) for _ in range(int(words[1]))]})
        elif words == ["stats"]:
            answer(memory(group))
        elif words == ["quit"]:
            break
        else:
            answer({"error": f"unknown command: {line.strip()}"})


def answer(value):
    print(json.dumps(value), flush=True)


def timed_run(session, feeds):
    start = time.perf_counter()
    session.run(None, feeds)
    return (time.perf_counter() - start) * 1e3


def summary(first, times):
    ordered = sorted(times)
    return {
        "first": first,
        "median": statistics.median(ordered),
        "p95": ordered[min(len(ordered) - 1, round(0.95 * (len(ordered) - 1)))],
        "min": ordered[0],
        "max": ordered[-1],
        "runs": len(ordered),
    }


def memory(group):
    """Peak memory of this process: as its own group counts it, else by VmHWM."""
    hwm = vm_hwm_bytes()
    if group is None:
        return {"peak_memory_bytes": hwm, "peak_memory_source": "vm_hwm", "vm_hwm_bytes": hwm}
    return {"peak_memory_bytes": group.peak_bytes(), "peak_memory_source": group.source, "vm_hwm_bytes": hwm}


def vm_hwm_bytes():
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return None


class Cgroup:
    """A memory cgroup of this process's own, left and removed at exit."""

    def __init__(self, parent, peak_file, source):
        self.parent = parent
        self.peak_file = peak_file
        self.source = source
        self.path = os.path.join(parent, f"neap-ort-{os.getpid()}")

    @classmethod
    def enter(cls):
        group = cls.find()
        try:
            os.mkdir(group.path)
            atexit.register(group.leave)
            group.join(group.path)
            # A v2 group shows its peak only where the memory controller is delegated to it.
            group.peak_bytes()
        except OSError as error:
            raise SystemExit(f"cannot make a memory cgroup: {error}") from None
        return group

    @classmethod
    def find(cls):
        """The parent under which the new group is made: the current group, v1 before v2."""
        with open("/proc/self/cgroup") as lines:
            current = [line.rstrip("\n").split(":", 2) for line in lines]
        for _, controllers, path in current:
            if "memory" in controllers.split(","):
                root = "/sys/fs/cgroup/memory"
                parent = os.path.join(root, path.lstrip("/"))
                # In a container the path may be the host's; the mount's root is then ours.
                parent = parent if os.path.isdir(parent) else root
                return cls(parent, "memory.max_usage_in_bytes", "cgroup_v1")
        for _, controllers, path in current:
            if controllers == "":
                parent = os.path.join("/sys/fs/cgroup", path.lstrip("/"))
                parent = parent if os.path.isdir(parent) else "/sys/fs/cgroup"
                return cls(parent, "memory.peak", "cgroup_v2")
        raise SystemExit("no memory cgroup here")

    def join(self, path):
        with open(os.path.join(path, "cgroup.procs"), "w") as procs:
            procs.write(str(os.getpid()))

    def peak_bytes(self):
        with open(os.path.join(self.path, self.peak_file)) as peak:
            return int(peak.read())

    def leave(self):
        try:
            self.join(self.parent)
            os.rmdir(self.path)
        except OSError as error:
            print(f"cannot remove {self.path}: {error}", file=sys.stderr)


if __name__ == "__main__":
    main()
