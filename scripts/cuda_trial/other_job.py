"""CuPy or JAX: products of matrices, the same bits after pauses in which memory leaves the card.

usage: other_job.py cupy|jax MIB ROUNDS
"""

import sys
import time

kind, mib, rounds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
side = int((mib * (1 << 20) / 4 / 3) ** 0.5)
if kind == "cupy":
    import cupy as np

    a = np.random.RandomState(1).rand(side, side, dtype=np.float32)
    product = lambda: (a @ a)
    bits = lambda x: np.asnumpy(x).tobytes()
else:
    import jax
    import jax.numpy as np

    a = jax.random.uniform(jax.random.PRNGKey(1), (side, side), dtype=np.float32)
    multiply = jax.jit(lambda x: x @ x)
    product = lambda: multiply(a).block_until_ready()
    import numpy

    bits = lambda x: numpy.asarray(x).tobytes()
first = bits(product())
for _ in range(rounds):
    time.sleep(0.05)
    assert bits(product()) == first, "other bits"
print(f"{kind}: right", flush=True)
