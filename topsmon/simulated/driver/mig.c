/* The calls of NVML on MIG instances. */
#define _GNU_SOURCE
#include "export.h"

#include <string.h>

EXPORT int nvmlDeviceGetMigDeviceHandleByIndex(struct handle *handle, unsigned index,
                                               struct handle **out)
{
    int instance = nth_instance(handle->index, (int)index);
    if (instance != SYSTEM)
        return hand_out(__func__, instance, out);
    int code = enter(__func__, handle->index);
    return code == SUCCESS ? NOT_FOUND : code;
}

EXPORT int nvmlDeviceIsMigDeviceHandle(struct handle *handle, unsigned *out)
{
    int code = enter(__func__, handle->index);
    if (code == SUCCESS && out)
        *out = parent_of(handle->index) != SYSTEM;
    return code;
}

EXPORT int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(struct handle *handle,
                                                        struct handle **out)
{
    int parent = parent_of(handle->index);
    return parent == SYSTEM ? INVALID_ARGUMENT : hand_out(__func__, parent, out);
}

EXPORT int nvmlDeviceGetAttributes_v2(struct handle *handle, struct attributes *out)
{
    unsigned memory;
    if (!out)
        return INVALID_ARGUMENT;
    memset(out, 0, sizeof *out);
    int code = read_uints(__func__, handle, 4, (const struct output[]){
        {"sm_count", 1, &out->multiprocessors},
        {"gpu_instance_slices", 1, &out->gpu_instance_slices},
        {"compute_instance_slices", 1, &out->compute_instance_slices},
        {"memory_total_mib", 1, &memory}});
    out->memory_mib = code == SUCCESS ? memory : 0;
    return code;
}

#define ID(call, field)                                                                          \
    EXPORT int call(struct handle *handle, unsigned *out)                                        \
    {                                                                                            \
        return read_uints(__func__, handle, 1, (const struct output[]){{field, 1, out}});        \
    }

ID(nvmlDeviceGetGpuInstanceId, "gpu_instance")
ID(nvmlDeviceGetComputeInstanceId, "compute_instance")
ID(nvmlDeviceGetMaxMigDeviceCount, "mig_count_max")
