"""Holds memory with known bytes, through the driver alone, and compares it when it is told to.

usage: holds.py MIB ROUNDS       prints a line after each round; a line on standard input begins the next
"""

import ctypes
import sys
from ctypes import byref, c_int, c_size_t, c_ubyte, c_uint64, c_void_p

cuda = ctypes.CDLL("libcuda.so.1")


def call(name, *arguments):
    status = getattr(cuda, name)(*arguments)
    if status:
        raise SystemExit(f"{name}: error {status}")


mib, rounds = int(sys.argv[1]), int(sys.argv[2])
size = mib << 20
call("cuInit", 0)
context = c_void_p()
call("cuDevicePrimaryCtxRetain", byref(context), c_int(0))
call("cuCtxSetCurrent", context)
at = c_uint64()
call("cuMemAlloc_v2", byref(at), c_size_t(size))
pattern = bytes(range(251)) * (size // 251 + 1)
source = (c_ubyte * size).from_buffer_copy(pattern[:size])
call("cuMemcpyHtoD_v2", at, source, c_size_t(size))
found = (c_ubyte * size)()
print("holds", flush=True)
for _ in range(rounds):
    sys.stdin.readline()
    call("cuMemcpyDtoH_v2", found, at, c_size_t(size))
    assert bytes(found) == bytes(source), "memory is not what it was"
    ctypes.memset(found, 0, size)
    print("right", flush=True)
