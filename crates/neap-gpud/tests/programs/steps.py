"""Fills buffers, steps them again and again, and compares every byte with what numpy computes.

usage: steps.py MIB JOBS [PAUSE_MS [HOOK]]      with HOOK, jobs are marked with neap_job_begin and neap_job_end
"""

import ctypes
import sys
import time

import numpy as np
from driver import Card
from steps_of import mix


def main():
    mib, jobs = int(sys.argv[1]), int(sys.argv[2])
    pause = float(sys.argv[3]) / 1e3 if len(sys.argv) > 3 else 0
    marks = ctypes.CDLL(sys.argv[4]) if len(sys.argv) > 4 else None
    card = Card()
    # Sizes that fill chunks in part, and one that is most of the memory.
    sizes = [1000, 70_000, 3 << 20, (mib << 20) // 3, 123_456]
    sizes.append((mib << 20) - sum(sizes) - (1 << 20))
    counts = [size // 8 for size in sizes]
    buffers = [card.allocate(8 * count) for count in counts]
    for seed, (buffer, count) in enumerate(zip(buffers, counts)):
        card.launch("fill_u64", buffer, count, seed)
    expected = [mix(np.uint64(s) + np.arange(n, dtype=np.uint64)) for s, n in enumerate(counts)]
    for _ in range(jobs):
        if marks:
            assert marks.neap_job_begin() == 0
        for buffer, count in zip(buffers, counts):
            card.launch("step_u64", buffer, count)
        card.wait()
        if marks:
            assert marks.neap_job_end() == 0
        expected = [mix(values) for values in expected]
        time.sleep(pause)
    for buffer, count, values in zip(buffers, counts, expected):
        found = np.empty(count, dtype=np.uint64)
        card.read(buffer, found)
        assert np.array_equal(found, values), "memory is not what it was"
    print("right", flush=True)
    for buffer in buffers:
        card.free(buffer)


np.seterr(over="ignore")
main()
