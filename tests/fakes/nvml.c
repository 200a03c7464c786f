/* In place of the NVIDIA driver's libnvidia-ml.so.1: two whole GPUs and a MIG slice, with the calls that hpctrain makes.
   FAKE_NVML_INIT and FAKE_NVML_MEMORY are status codes that the first and each memory call end with.
   FAKE_NVML_TENANT is the process that holds 60 GB of the first GPU; without it no process is seen on any. */
#include <stdlib.h>
#include <string.h>

enum { OK = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NO_PERMISSION = 4, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7 };
struct gpu { const char *uuid; unsigned long long total, used; unsigned percent, milliwatts; int is_slice; };
struct memory { unsigned long long total, free, used; };
struct rates { unsigned gpu, memory; };
struct process { unsigned pid; unsigned long long used; unsigned instance, slice; };

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

int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return OK; }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
    if (index >= 2) return INVALID_ARGUMENT;
    *handle = &gpus[index];
    return OK;
}

int nvmlDeviceGetComputeRunningProcesses_v3(struct gpu *gpu, unsigned *count, struct process *processes) {
    const char *tenant = getenv("FAKE_NVML_TENANT");
    if (!tenant || gpu != gpus) { *count = 0; return OK; }
    if (*count == 0) { *count = 1; return INSUFFICIENT_SIZE; }
    *count = 1;
    processes[0] = (struct process){atoi(tenant), gpu->used, 0, 0};
    return OK;
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
