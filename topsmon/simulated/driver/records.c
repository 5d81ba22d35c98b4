/* The calls of NVML that fill structures and lists: memory, processes, field values, MIG. */
#define _GNU_SOURCE
#include "export.h"

#include <stdio.h>
#include <string.h>

#define MAX_PROCESSES 256
#define MIB 1048576.0
#define BYTES_NOT_AVAILABLE UINT64_MAX

/* ---- memory ----------------------------------------------------------------------------- */

static int read_memory(const char *call, struct handle *handle, struct memory_info_v2 *memory)
{
    double total, reserved, used;
    int code = enter(call, handle->index);
    if (code != SUCCESS)
        return code;
    if (!number(handle->index, "memory_total_mib", &total) ||
        !number(handle->index, "memory_reserved_mib", &reserved) ||
        !number(handle->index, "memory_used_mib", &used))
        return NOT_SUPPORTED;
    memory->total = to_uint64(total * MIB);
    memory->reserved = to_uint64(reserved * MIB);
    memory->used = to_uint64(used * MIB);
    memory->free = to_uint64((total - reserved - used) * MIB);
    return SUCCESS;
}

/* Version 1 counts reserved memory as used from driver 510 on. */
EXPORT int nvmlDeviceGetMemoryInfo(struct handle *handle, struct memory_info *out)
{
    struct memory_info_v2 memory;
    if (!out)
        return INVALID_ARGUMENT;
    int code = read_memory(__func__, handle, &memory);
    if (code != SUCCESS)
        return code;
    out->total = memory.total;
    out->used = memory.used + (DRIVER >= 510 ? memory.reserved : 0);
    out->free = memory.free + (DRIVER >= 510 ? 0 : memory.reserved);
    return SUCCESS;
}

#if DRIVER > 470
EXPORT int nvmlDeviceGetMemoryInfo_v2(struct handle *handle, struct memory_info_v2 *out)
{
    if (!out)
        return INVALID_ARGUMENT;
    if (out->version != VERSION(struct memory_info_v2, 2))
        return ARGUMENT_VERSION_MISMATCH;
    return read_memory(__func__, handle, out);
}
#endif

/* ---- processes -------------------------------------------------------------------------- */

static int read_processes(const char *call, struct handle *handle, const char *kind,
                          unsigned *count, struct process *found)
{
    int code = enter(call, handle->index);
    if (code != SUCCESS)
        return code;
    if (!count)
        return INVALID_ARGUMENT;
    unsigned capacity = *count;
    int existing = list_processes(handle->index, kind, found, MAX_PROCESSES);
    *count = (unsigned)(existing < MAX_PROCESSES ? existing : MAX_PROCESSES);
    return *count > capacity ? INSUFFICIENT_SIZE : SUCCESS;
}

static uint64_t used_memory(const struct process *process)
{
    return process->mib < 0 ? BYTES_NOT_AVAILABLE : to_uint64(process->mib * MIB);
}

#define PROCESSES_V1(call, kind)                                                                 \
    EXPORT int call(struct handle *handle, unsigned *count, struct process_info_v1 *out)         \
    {                                                                                            \
        struct process found[MAX_PROCESSES];                                                     \
        int code = read_processes(__func__, handle, kind, count, found);                         \
        for (unsigned i = 0; code == SUCCESS && i < *count; i++)                                 \
            out[i] = (struct process_info_v1){found[i].pid, used_memory(&found[i])};             \
        return code;                                                                             \
    }
#define PROCESSES_V2(call, kind)                                                                 \
    EXPORT int call(struct handle *handle, unsigned *count, struct process_info_v2 *out)         \
    {                                                                                            \
        struct process found[MAX_PROCESSES];                                                     \
        int code = read_processes(__func__, handle, kind, count, found);                         \
        for (unsigned i = 0; code == SUCCESS && i < *count; i++)                                 \
            out[i] = (struct process_info_v2){found[i].pid, used_memory(&found[i]),              \
                                              found[i].gpu_instance, found[i].compute_instance}; \
        return code;                                                                             \
    }

PROCESSES_V1(nvmlDeviceGetComputeRunningProcesses, "compute")
PROCESSES_V1(nvmlDeviceGetGraphicsRunningProcesses, "graphics")
PROCESSES_V1(nvmlDeviceGetMPSComputeRunningProcesses, "mps")
PROCESSES_V2(nvmlDeviceGetComputeRunningProcesses_v2, "compute")
PROCESSES_V2(nvmlDeviceGetGraphicsRunningProcesses_v2, "graphics")
PROCESSES_V2(nvmlDeviceGetMPSComputeRunningProcesses_v2, "mps")
#if DRIVER > 470
PROCESSES_V2(nvmlDeviceGetComputeRunningProcesses_v3, "compute")
PROCESSES_V2(nvmlDeviceGetGraphicsRunningProcesses_v3, "graphics")
PROCESSES_V2(nvmlDeviceGetMPSComputeRunningProcesses_v3, "mps")
#endif

/* ---- field values ----------------------------------------------------------------------- */

struct field {
    unsigned id;
    const char *name;
    double scale;
    enum value_type type;
};

static const struct field fields[] = {
    {82, "memory_temperature_celsius", 1, UNSIGNED_INT},
    {83, "energy_joules", 1000, UNSIGNED_LONG_LONG},
    {185, "power_average_watts", 1000, UNSIGNED_INT},
    {186, "power_instant_watts", 1000, UNSIGNED_INT},
};

static int read_field(int device, struct field_value *entry)
{
    const struct field *field = NULL;
    double value;
    char call[32];
    snprintf(call, sizeof call, "field:%u", entry->field);
    int code = strike(call, device);
    if (code != SUCCESS)
        return code;
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (fields[i].id == entry->field)
            field = &fields[i];
    if (!field || !number(device, field->name, &value))
        return NOT_SUPPORTED;
    entry->value_type = field->type;
    if (field->type == UNSIGNED_INT)
        entry->value.uint = to_uint(value * field->scale);
    else
        entry->value.ulong = to_uint64(value * field->scale);
    return SUCCESS;
}

EXPORT int nvmlDeviceGetFieldValues(struct handle *handle, int count, struct field_value *entries)
{
    int code = enter(__func__, handle->index);
    if (code != SUCCESS)
        return code;
    if (!entries || count < 0)
        return INVALID_ARGUMENT;
    for (int i = 0; i < count; i++) {
        entries[i].timestamp = (int64_t)(scenario_time() * 1e6);
        entries[i].code = (unsigned)read_field(handle->index, &entries[i]);
    }
    return SUCCESS;
}

/* ---- MIG -------------------------------------------------------------------------------- */

EXPORT int nvmlDeviceGetMigDeviceHandleByIndex(struct handle *handle, unsigned index,
                                               struct handle **out)
{
    int instance = nth_child(handle->index, (int)index);
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
