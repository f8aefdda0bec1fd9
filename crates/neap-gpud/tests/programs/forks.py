"""A process with the hook that has not used the card forks; both use it. Then one that has used it forks a child that does not."""

import os

import numpy as np


def use():
    from driver import Card

    card = Card()
    buffer = card.allocate(8000)
    card.launch("fill_u64", buffer, 1000, 1)
    card.wait()
    found = np.empty(1000, dtype=np.uint64)
    card.read(buffer, found)
    assert len(set(found)) == 1000


child = os.fork()
if child == 0:
    use()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
use()
child = os.fork()
if child == 0:
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
use()
print("right", flush=True)
