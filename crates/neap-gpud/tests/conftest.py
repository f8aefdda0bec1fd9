"""Programs as they are, under the hook and the scheduler, on the stand-in driver.

NEAP_GPU_BUILD is the folder with `neap-gpu`, `libneap_hook.so` and `libneap_cuda_standin.so`.
"""

import os
import pathlib
import subprocess
import sys
import time

import pytest

BUILD = pathlib.Path(os.environ["NEAP_GPU_BUILD"])
PROGRAMS = pathlib.Path(__file__).parent / "programs"
MIB = 1 << 20


class Bench:
    """A card of so much memory, a scheduler, and programs."""

    def __init__(self, folder, mib=64, host_mib=None, rate=None):
        self.folder = folder
        (folder / "lib").mkdir()
        (folder / "card").touch()
        for name in ["libcuda.so.1", "libnvidia-ml.so.1"]:
            (folder / "lib" / name).symlink_to(BUILD / "libneap_cuda_standin.so")
        self.environment = {
            **os.environ,
            "LD_LIBRARY_PATH": str(folder / "lib"),
            "NEAP_STANDIN_CARD": str(folder / "card"),
            "NEAP_STANDIN_BYTES": str(mib * MIB),
            "NEAP_STANDIN_RATE": str(rate or 8 << 30),
        }
        if host_mib is not None:
            self.environment["NEAP_STANDIN_HOST_BYTES"] = str(host_mib * MIB)
        self.mib = mib
        self.socket = folder / "socket"
        self.started = []
        self.daemon = None

    def schedule(self, *options):
        memory = [] if "--memory" in options else ["--memory", f"{self.mib}MiB"]
        command = [BUILD / "neap-gpu", "gpud", "--socket", self.socket, *memory, *options]
        self.daemon = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self.started.append(self.daemon)
        for _ in range(500):
            if self.ask("gputop", "--once").returncode == 0:
                return self.daemon
            time.sleep(0.01)
        raise TimeoutError("no scheduler")

    def ask(self, *words):
        command = [BUILD / "neap-gpu", *words, "--socket", self.socket]
        return subprocess.run(command, capture_output=True, text=True)

    def table(self):
        """The lines of gputop, each in words; without head."""
        lines = self.ask("gputop", "--once").stdout.splitlines()[2:]
        return [line.split() for line in lines]

    def metric(self, name):
        text = self.ask("gputop", "--metrics").stdout
        lines = [line for line in text.splitlines() if line.startswith(f"neap_gpu_{name}{{")]
        return [float(line.split()[-1]) for line in lines]

    def wait_for(self, count, mib):
        """Until so many programs have allocated so much each."""
        for _ in range(3000):
            held = zip(self.metric("resident_bytes"), self.metric("away_bytes"))
            if sum(on_card + away >= mib * MIB for on_card, away in held) >= count:
                return
            time.sleep(0.02)
        raise TimeoutError(self.ask("gputop", "--once").stdout)

    def run(self, program, *arguments, options=(), hooked=True):
        command = [sys.executable, str(PROGRAMS / program), *map(str, arguments)]
        if hooked:
            hook = BUILD / "libneap_hook.so"
            head = [BUILD / "neap-gpu", "gpu", "run", "--socket", self.socket, "--hook", hook]
            command = [*head, "--chunk", "2MiB", *options, "--", *command]
        started = subprocess.Popen(
            command, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.started.append(started)
        return started

    def used_mib(self):
        """What processes that live hold of the card."""
        content = (self.folder / "card").read_bytes()
        words = [int.from_bytes(content[i : i + 8], "little") for i in range(0, len(content), 8)]
        held = [used for pid, used in zip(words[::2], words[1::2]) if pid and os.path.exists(f"/proc/{pid}")]
        return sum(held) / MIB

    def end(self):
        for process in self.started:
            process.kill()
            process.communicate()


def right(process, seconds=100):
    """A program ends, and found all that it computed."""
    out, errors = process.communicate(timeout=seconds)
    assert process.returncode == 0, f"{process.returncode}: {out} {errors}"
    assert "right" in out, out + errors
    return errors


@pytest.fixture
def bench(tmp_path):
    made = []

    def make(**kind):
        made.append(Bench(tmp_path, **kind))
        return made[-1]

    yield make
    for one in made:
        one.end()
