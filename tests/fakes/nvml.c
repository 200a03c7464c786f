/* In place of the NVIDIA driver's libnvidia-ml.so.1: two whole GPUs and a MIG slice, with the calls that hpctrain makes.
   FAKE_NVML_INIT and FAKE_NVML_MEMORY are status codes that the first and each memory call end with. */
#include <stdlib.h>
#include <string.h>

enum { OK = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NO_PERMISSION = 4, NOT_FOUND = 6 };
struct gpu { const char *uuid; unsigned long long total, used; unsigned percent, milliwatts; int is_slice; };
struct memory { unsigned long long total, free, used; };
struct rates { unsigned gpu, memory; };

static struct gpu gpus[] = {
    {"GPU-aaaa", 80000000000ULL, 60000000000ULL, 97, 412345, 0},
    {"GPU-bbbb", 80000000000ULL, 1000000000ULL, 0, 71000, 0},
    {"MIG-cccc", 10000000000ULL, 9000000000ULL, 0, 0, 1},
};

static int status_of(const char *name) { const char *text = getenv(name); return text ? atoi(text) : OK; }

int nvmlInitWithFlags(unsigned flags) { (void)flags; return status_of("FAKE_NVML_INIT"); }

const char *nvmlErrorString(int status) { (void)status; return "made up"; }

int nvmlDeviceGetHandleByUUID(const char *uuid, void **handle) {
    if (!strcmp(uuid, "GPU-forbidden")) return NO_PERMISSION;
    for (unsigned i = 0; i < sizeof gpus / sizeof *gpus; i++)
        if (!strcmp(uuid, gpus[i].uuid)) { *handle = &gpus[i]; return OK; }
    return NOT_FOUND;
}

int nvmlDeviceGetMemoryInfo(struct gpu *gpu, struct memory *memory) {
    memory->total = gpu->total; memory->used = gpu->used; memory->free = gpu->total - gpu->used;
    return status_of("FAKE_NVML_MEMORY");
}

int nvmlDeviceGetUtilizationRates(struct gpu *gpu, struct rates *rates) {
    rates->gpu = gpu->percent; rates->memory = 1;
    return gpu->is_slice ? NOT_SUPPORTED : OK;
}

int nvmlDeviceGetPowerUsage(struct gpu *gpu, unsigned *milliwatts) {
    *milliwatts = gpu->milliwatts;
    return gpu->is_slice ? INVALID_ARGUMENT : OK;
}
