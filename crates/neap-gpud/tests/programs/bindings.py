"""cuda-bindings from PyPI: plain, mapped and stream-ordered memory, a captured graph; every byte compared after each pause.

usage: bindings.py MIB ROUNDS
"""

import sys
import time

import numpy as np
from cuda.bindings import driver
from steps_of import mix


def ok(result):
    status, *values = result
    assert status == driver.CUresult.CUDA_SUCCESS, status
    return values[0] if len(values) == 1 else values


def arguments(*values):
    """What cuLaunchKernel takes: an array of pointers to arguments."""
    held = [np.array([value], dtype=np.uint64) for value in values]
    return np.array([h.ctypes.data for h in held], dtype=np.uint64), held


def mapped(size, device):
    """Memory that the program creates and maps itself, in two pieces behind one address."""
    properties = driver.CUmemAllocationProp()
    properties.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    properties.location.id = device
    access = driver.CUmemAccessDesc()
    access.location = properties.location
    access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    address = ok(driver.cuMemAddressReserve(2 * size, 0, 0, 0))
    handles = []
    for i in range(2):
        handle = ok(driver.cuMemCreate(size, properties, 0))
        ok(driver.cuMemMap(int(address) + i * size, size, 0, handle, 0))
        handles.append(handle)
    ok(driver.cuMemSetAccess(address, 2 * size, [access], 1))
    status, _ = driver.cuMemExportToShareableHandle(
        handles[0], driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0
    )
    return int(address), handles, status


def main():
    mib, rounds = int(sys.argv[1]), int(sys.argv[2])
    ok(driver.cuInit(0))
    device = ok(driver.cuDeviceGet(0))
    context = ok(driver.cuDevicePrimaryCtxRetain(device))
    ok(driver.cuCtxSetCurrent(context))
    free, total = ok(driver.cuMemGetInfo())
    assert 0 < free <= total
    stream = ok(driver.cuStreamCreate(1))
    module = ok(driver.cuModuleLoadData(b"kernels"))
    fill, step = (ok(driver.cuModuleGetFunction(module, n)) for n in (b"fill_u64", b"step_u64"))

    def launch(function, *values):
        packed, held = arguments(*values)
        ok(driver.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, packed.ctypes.data, 0))
        return held

    piece = 2 << 20
    at, handles, shared = mapped(piece, int(device))
    print("shared", shared)
    plain_bytes = (mib << 20) - 4 * piece
    plain = int(ok(driver.cuMemAlloc(plain_bytes)))
    start, length = ok(driver.cuMemGetAddressRange(plain + 12345))
    assert int(start) == plain and length >= plain_bytes
    buffers = [(at, 2 * piece // 8), (plain, plain_bytes // 8)]
    for seed, (buffer, count) in enumerate(buffers):
        launch(fill, buffer, count, seed)
    expected = [mix(np.uint64(s) + np.arange(n, dtype=np.uint64)) for s, (_, n) in enumerate(buffers)]

    ok(driver.cuStreamBeginCapture(stream, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
    for buffer, count in buffers:
        # A capture may last for longer than a turn.
        time.sleep(0.1)
        launch(step, buffer, count)
    graph = ok(driver.cuStreamEndCapture(stream))
    runs = ok(driver.cuGraphInstantiate(graph, 0))

    for round in range(rounds):
        ok(driver.cuGraphLaunch(runs, stream))
        expected = [mix(values) for values in expected]
        # What comes and goes in the order of the stream.
        for count in (1000, 100_000):
            short = int(ok(driver.cuMemAllocAsync(8 * count, stream)))
            launch(fill, short, count, round)
            found = np.empty(count, dtype=np.uint64)
            ok(driver.cuMemcpyDtoHAsync(found.ctypes.data, short, found.nbytes, stream))
            ok(driver.cuMemFreeAsync(short, stream))
            ok(driver.cuStreamSynchronize(stream))
            assert np.array_equal(found, mix(np.uint64(round) + np.arange(count, dtype=np.uint64)))
        time.sleep(0.01)
        for (buffer, count), values in zip(buffers, expected):
            found = np.empty(count, dtype=np.uint64)
            ok(driver.cuMemcpyDtoH(found.ctypes.data, buffer, found.nbytes))
            assert np.array_equal(found, values), "memory is not what it was"
    ok(driver.cuMemUnmap(at, 2 * piece))
    for handle in handles:
        ok(driver.cuMemRelease(handle))
    ok(driver.cuMemAddressFree(at, 2 * piece))
    ok(driver.cuMemFree(plain))
    after, _ = ok(driver.cuMemGetInfo())
    print("free", free - after)
    print("right", flush=True)


np.seterr(over="ignore")
main()
