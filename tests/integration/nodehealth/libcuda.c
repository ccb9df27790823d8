/* A CUDA driver with one GPU whose memory is the host's, for what is passed to it and what becomes of its errors.
 *
 * FAKE_CUDA: nothing, or what is wrong: "none" (no GPU), "hang" (a call never returns), "wrong" (memory with a stuck bit),
 * "ecc" (an error of memory ends the kernel), "jit" (no compiler), "full" (all memory is taken). "whole": nothing is, and areas are
 * swept to their end. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef uint64_t u64;
static const size_t TOTAL = 320u << 20;
static size_t used;

static int is(const char *what) {
    const char *said = getenv("FAKE_CUDA");
    return said && !strcmp(said, what);
}

int cuInit(unsigned flags) {
    while (is("hang")) pause();
    return is("none") ? 100 : flags ? 1 : 0;
}
int cuDeviceGetCount(int *count) { *count = 1; return 0; }
int cuDeviceGet(int *device, int ordinal) { *device = 40 + ordinal; return ordinal ? 101 : 0; }
int cuDeviceGetAttribute(int *value, int what, int device) { *value = what + device; return 0; }
int cuDeviceGetUuid(unsigned char *uuid, int device) {
    if (device != 40) return 101;
    for (int i = 0; i < 16; i++) uuid[i] = i;
    return 0;
}
int cuDevicePrimaryCtxRetain(void **context, int device) { *context = &used; return device == 40 ? 0 : 101; }
int cuCtxSetCurrent(void *context) { return context == &used ? 0 : 201; }
int cuGetErrorName(int code, const char **name) {
    *name = code == 214 ? "CUDA_ERROR_ECC_UNCORRECTABLE" : code == 100 ? "CUDA_ERROR_NO_DEVICE"
          : code == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : code == 221 ? "CUDA_ERROR_JIT_COMPILER_NOT_FOUND" : "CUDA_ERROR_X";
    return 0;
}
int cuMemGetInfo_v2(size_t *left, size_t *total) {
    *total = TOTAL;
    *left = is("full") ? 1 << 20 : TOTAL - used;
    return 0;
}

static struct { u64 address; size_t size; } held[64];

int cuMemAlloc_v2(u64 *address, size_t size) {
    if (used + size > TOTAL) return 2;
    for (int i = 0; i < 64; i++) {
        if (held[i].address) continue;
        held[i].address = *address = (u64)(uintptr_t)malloc(size);
        used += held[i].size = size;
        return *address ? 0 : 2;
    }
    return 2;
}
int cuMemFree_v2(u64 address) {
    for (int i = 0; i < 64; i++) {
        if (held[i].address != address) continue;
        free((void *)(uintptr_t)address);
        used -= held[i].size;
        held[i].address = 0;
        return 0;
    }
    return 1;
}
int cuMemcpyDtoH_v2(void *to, u64 from, size_t size) { memcpy(to, (void *)(uintptr_t)from, size); return 0; }
int cuMemcpyHtoD_v2(u64 to, const void *from, size_t size) { memcpy((void *)(uintptr_t)to, from, size); return 0; }
int cuModuleLoadData(void **module, const char *image) {
    *module = held;
    return is("jit") ? 221 : strstr(image, ".entry sweep(") ? 0 : 200;
}
int cuModuleGetFunction(void **function, void *module, const char *name) {
    *function = &held[1];
    return module == held && !strcmp(name, "sweep") ? 0 : 500;
}

static u64 word(u64 address, unsigned turn, u64 mask) {
    return (turn > 63 ? address : (u64)1 << ((address / 8 + turn) & 63)) ^ mask;
}
int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void *stream, void **given, void **extra) {
    if (function != &held[1] || !gx || gy != 1 || gz != 1 || !bx || by != 1 || bz != 1 || shared || stream || extra) return 1;
    u64 *first = *(u64 **)given[0], words = *(u64 *)given[1], *result = *(u64 **)given[2];
    unsigned compares = *(unsigned *)given[3], turn = *(unsigned *)given[4];
    u64 mask = *(u64 *)given[5];
    unsigned writes = *(unsigned *)given[6], next = *(unsigned *)given[7];
    u64 after = *(u64 *)given[8];
    int broken = is("wrong");
    if (words > 4096 && !is("whole")) words = 4096; /* the rest of an area is as its beginning */
    for (u64 i = 0; i < words; i++) {
        u64 at = (u64)(uintptr_t)(first + i), found = first[i] | (broken && i == 5);
        u64 differs = compares ? found ^ word(at, turn, mask) : 0;
        if (differs) {
            result[0]++;
            if (at < result[1]) result[1] = at;
            result[2] |= differs;
        }
        if (writes) first[i] = word(at, next, after);
    }
    return 0;
}
int cuCtxSynchronize(void) { return is("ecc") ? 214 : 0; }

#define NOT_NEEDED(name) int name(void) { return 801; }
NOT_NEEDED(cuMemGetAllocationGranularity) NOT_NEEDED(cuMemAddressReserve) NOT_NEEDED(cuMemAddressFree) NOT_NEEDED(cuMemCreate)
NOT_NEEDED(cuMemExportToShareableHandle) NOT_NEEDED(cuMemImportFromShareableHandle) NOT_NEEDED(cuMemMap)
NOT_NEEDED(cuMemSetAccess) NOT_NEEDED(cuMemUnmap) NOT_NEEDED(cuMemRelease) NOT_NEEDED(cuMemHostRegister_v2)
NOT_NEEDED(cuMemHostUnregister) NOT_NEEDED(cuMemcpyHtoDAsync_v2) NOT_NEEDED(cuStreamCreate) NOT_NEEDED(cuStreamSynchronize)
NOT_NEEDED(cuStreamDestroy_v2) NOT_NEEDED(cuMemcpyDtoDAsync_v2)
NOT_NEEDED(cuStreamWaitEvent) NOT_NEEDED(cuEventCreate) NOT_NEEDED(cuEventDestroy_v2)
NOT_NEEDED(cuEventRecord) NOT_NEEDED(cuEventQuery)
