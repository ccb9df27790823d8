/* NVML of one GPU: FAKE_NVML is "errors,pages,corrected,uncorrected,pending,failed"; a negative figure isn't supported. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static long told[6];
static int device;

int nvmlInit_v2(void) {
    const char *said = getenv("FAKE_NVML");
    return said && sscanf(said, "%ld,%ld,%ld,%ld,%ld,%ld", told, told + 1, told + 2, told + 3, told + 4, told + 5) == 6 ? 0 : 9;
}
int nvmlDeviceGetHandleByUUID(const char *uuid, void **handle) {
    *handle = &device;
    return strcmp(uuid, "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f") ? 6 : 0;
}
int nvmlDeviceGetTotalEccErrors(void *handle, int kind, int counter, unsigned long long *errors) {
    *errors = (unsigned long long)told[0];
    return handle != &device || kind != 1 || counter != 0 ? 2 : told[0] < 0 ? 3 : 0;
}
int nvmlDeviceGetRetiredPagesPendingStatus(void *handle, int *pending) {
    *pending = (int)told[1];
    return handle != &device ? 2 : told[1] < 0 ? 3 : 0;
}
int nvmlDeviceGetRemappedRows(void *handle, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed) {
    *corrected = (unsigned)told[2], *uncorrected = (unsigned)told[3], *pending = (unsigned)told[4], *failed = (unsigned)told[5];
    return handle != &device ? 2 : told[2] < 0 ? 3 : 0;
}
