"""What a program with a quota of 16 MiB sees, and what it is refused."""

import ctypes
from ctypes import byref, c_size_t, c_uint64

from driver import Card, cuda

MIB = 1 << 20
card = Card()
assert card.info() == (16 * MIB, 16 * MIB), card.info()
total = c_size_t()
assert cuda.cuDeviceTotalMem_v2(byref(total), 0) == 0 and total.value == 16 * MIB
first = card.allocate(10 * MIB)
out = c_uint64()
assert cuda.cuMemAlloc_v2(byref(out), c_size_t(8 * MIB)) == 2, "more than the quota"
free, _ = card.info()
assert free == 6 * MIB, free
# The management library says the same.
nvml = ctypes.CDLL("libnvidia-ml.so.1")
device = ctypes.c_void_p()
assert nvml.nvmlInit_v2() == 0 and nvml.nvmlDeviceGetHandleByIndex_v2(0, byref(device)) == 0
memory = (c_uint64 * 3)()
assert nvml.nvmlDeviceGetMemoryInfo(device, memory) == 0
assert list(memory) == [16 * MIB, 6 * MIB, 10 * MIB], list(memory)
# Memory that can leave the card is not shared with other processes.
handle = (ctypes.c_char * 64)()
assert cuda.cuIpcGetMemHandle(handle, c_uint64(first)) == 801
row = c_size_t()
card.free(first)
assert cuda.cuMemAllocPitch_v2(byref(out), byref(row), c_size_t(1000), c_size_t(10), 4) == 0
assert row.value == 1024
card.free(out.value)
# A reset forgets all that was allocated.
card.allocate(12 * MIB)
assert cuda.cuDevicePrimaryCtxReset_v2(0) == 0
card = Card()
card.allocate(12 * MIB)
print("right", flush=True)
