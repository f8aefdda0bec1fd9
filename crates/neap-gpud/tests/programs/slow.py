"""Kernels that hold their memory for longer than a slice of time.

usage: slow.py MIB JOBS
"""

import sys

import numpy as np
from driver import Card
from steps_of import mix

np.seterr(over="ignore")
mib, jobs = int(sys.argv[1]), int(sys.argv[2])
card = Card()
count = (mib << 20) // 8
buffer = card.allocate(8 * count)
stream = card.stream()
card.launch("fill_u64", buffer, count, 7, stream=stream)
expected = mix(np.uint64(7) + np.arange(count, dtype=np.uint64))
for _ in range(jobs):
    card.launch("slow_step_u64", buffer, count, 30, stream=stream)
    expected = mix(expected)
card.wait()
found = np.empty(count, dtype=np.uint64)
card.read(buffer, found)
assert np.array_equal(found, expected)
print("right", flush=True)
