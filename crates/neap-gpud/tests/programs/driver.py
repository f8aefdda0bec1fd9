"""The CUDA driver through ctypes, as programs without a runtime use it."""

import ctypes
from ctypes import byref, c_char_p, c_float, c_int, c_size_t, c_uint, c_uint64, c_void_p

cuda = ctypes.CDLL("libcuda.so.1")


def check(status, what=""):
    if status != 0:
        raise RuntimeError(f"{what}: error {status}")


def call(name, *arguments):
    check(getattr(cuda, name)(*arguments), name)


class Card:
    def __init__(self):
        call("cuInit", 0)
        device = c_int()
        call("cuDeviceGet", byref(device), 0)
        self.context = c_void_p()
        call("cuDevicePrimaryCtxRetain", byref(self.context), device)
        call("cuCtxSetCurrent", self.context)
        self.module = c_void_p()
        call("cuModuleLoadData", byref(self.module), c_char_p(b"kernels"))
        self.functions = {}

    def allocate(self, count):
        out = c_uint64()
        call("cuMemAlloc_v2", byref(out), c_size_t(count))
        return out.value

    def free(self, address):
        call("cuMemFree_v2", c_uint64(address))

    def info(self):
        free, total = c_size_t(), c_size_t()
        call("cuMemGetInfo_v2", byref(free), byref(total))
        return free.value, total.value

    def launch(self, name, *values, stream=None):
        if name not in self.functions:
            function = c_void_p()
            call("cuModuleGetFunction", byref(function), self.module, c_char_p(name.encode()))
            self.functions[name] = function
        arguments = [c_uint64(value) for value in values]
        pointers = (c_void_p * len(arguments))(*[ctypes.addressof(a) for a in arguments])
        one = [c_uint(1)] * 6
        call("cuLaunchKernel", self.functions[name], *one, c_uint(0), stream, pointers, None)

    def read(self, address, array):
        call("cuMemcpyDtoH_v2", array.ctypes.data_as(c_void_p), c_uint64(address), c_size_t(array.nbytes))

    def write(self, address, array):
        call("cuMemcpyHtoD_v2", c_uint64(address), array.ctypes.data_as(c_void_p), c_size_t(array.nbytes))

    def wait(self):
        call("cuCtxSynchronize")

    def stream(self):
        out = c_void_p()
        call("cuStreamCreate", byref(out), 1)
        return out
