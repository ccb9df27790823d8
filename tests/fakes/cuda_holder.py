"""A process that holds device memory, through the driver's own library: `take BYTES`, `give` and `end` on stdin, `done` on stdout.

With `--worker` it starts another one of itself and hands its orders on, as engines do that compute in a worker.
"""

import ctypes
import subprocess
import sys


def check(result: int) -> None:
    if result:
        raise SystemExit(f"CUDA error {result}")


def context() -> ctypes.CDLL:
    cuda = ctypes.CDLL("libcuda.so.1")
    device, made = ctypes.c_int(), ctypes.c_void_p()
    check(cuda.cuInit(0))
    check(cuda.cuDeviceGet(ctypes.byref(device), 0))
    check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(made), device))
    check(cuda.cuCtxSetCurrent(made))
    return cuda


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def hold() -> None:
    cuda = context()
    held: list[ctypes.c_uint64] = []
    say("done")
    for line in sys.stdin:
        order, _, size = line.strip().partition(" ")
        if order == "take":
            pointer = ctypes.c_uint64()
            check(cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(int(size))))
            held.append(pointer)
        elif order == "give":
            while held:
                check(cuda.cuMemFree_v2(held.pop()))
        else:
            return
        say("done")


def main() -> None:
    if "--worker" in sys.argv:
        with subprocess.Popen([sys.executable, __file__]):
            return
    hold()


if __name__ == "__main__":
    main()
