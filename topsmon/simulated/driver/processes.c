/* The calls of NVML on processes: lists, shares of time, names. */
#define _GNU_SOURCE
#include "export.h"

#include <string.h>

#define MAX_PROCESSES 256
#define BYTES_NOT_AVAILABLE UINT64_MAX
#define SAMPLES_PER_SECOND 6

/* ---- lists ------------------------------------------------------------------------------ */

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
/* Which structure the third version fills changed within release 535. */
static int read_version_3(const char *call, struct handle *handle, const char *kind,
                          unsigned *count, struct process_info_v2 *out)
{
    struct process found[MAX_PROCESSES];
    struct process_info_early_535 *early = (struct process_info_early_535 *)(void *)out;
    double bytes = sizeof *out;
    int code = read_processes(call, handle, kind, count, found);
    number(SYSTEM, "process_entry_bytes", &bytes);
    for (unsigned i = 0; code == SUCCESS && i < *count; i++) {
        struct process_info_early_535 entry;
        memset(&entry, 0, sizeof entry); /* the gaps too, which the wrong structure would show */
        entry.pid = found[i].pid;
        entry.used_gpu_memory = used_memory(&found[i]);
        entry.gpu_instance = found[i].gpu_instance;
        entry.compute_instance = found[i].compute_instance;
        if (bytes == sizeof *early)
            early[i] = entry;
        else
            memcpy(&out[i], &entry, sizeof *out);
    }
    return code;
}

#define PROCESSES_V3(call, kind)                                                                 \
    EXPORT int call(struct handle *handle, unsigned *count, struct process_info_v2 *out)         \
    {                                                                                            \
        return read_version_3(__func__, handle, kind, count, out);                               \
    }

PROCESSES_V3(nvmlDeviceGetComputeRunningProcesses_v3, "compute")
PROCESSES_V3(nvmlDeviceGetGraphicsRunningProcesses_v3, "graphics")
PROCESSES_V3(nvmlDeviceGetMPSComputeRunningProcesses_v3, "mps")
#endif

EXPORT int nvmlSystemGetProcessName(unsigned pid, char *out, unsigned size)
{
    int code = enter(__func__, SYSTEM);
    if (code != SUCCESS)
        return code;
    if (!out || size == 0)
        return INVALID_ARGUMENT;
    return process_name(pid, out, size) ? SUCCESS : NOT_FOUND;
}

/* ---- shares of time --------------------------------------------------------------------- */

/* Enters and reads the samples newer than `last_seen`; `*count` holds the caller's capacity, then
 * how many there are. Where there is none the scenario chooses the code. */
static int read_samples(const char *call, struct handle *handle, uint64_t last_seen,
                        unsigned *count, bool room, struct process *found, uint64_t *stamp)
{
    int code = enter(call, handle->index);
    if (code != SUCCESS)
        return code;
    double period = (double)(int64_t)(scenario_time() * SAMPLES_PER_SECOND) / SAMPLES_PER_SECOND;
    *stamp = timestamp(handle->index, period);
    int existing = list_processes(handle->index, "*", found, MAX_PROCESSES);
    unsigned sampled = 0, capacity = room ? *count : 0;
    for (int i = 0; i < existing && i < MAX_PROCESSES; i++)
        if (found[i].sm >= 0 && *stamp > last_seen)
            found[sampled++] = found[i];
    *count = sampled;
    if (sampled == 0) {
        double chosen = NOT_FOUND;
        number(handle->index, "no_process_samples_code", &chosen);
        return (int)chosen;
    }
    return sampled > capacity ? INSUFFICIENT_SIZE : SUCCESS;
}

static unsigned share(double percent) { return percent < 0 ? 0 : to_uint(percent); }

EXPORT int nvmlDeviceGetProcessUtilization(struct handle *handle, struct process_sample *out,
                                           unsigned *count, uint64_t last_seen)
{
    struct process found[MAX_PROCESSES];
    uint64_t stamp;
    if (!count)
        return INVALID_ARGUMENT;
    int code = read_samples(__func__, handle, last_seen, count, out != NULL, found, &stamp);
    for (unsigned i = 0; code == SUCCESS && i < *count; i++)
        out[i] = (struct process_sample){found[i].pid, stamp, share(found[i].sm),
                                         share(found[i].memory), share(found[i].encoder),
                                         share(found[i].decoder)};
    return code;
}

#if DRIVER > 535
EXPORT int nvmlDeviceGetProcessesUtilizationInfo(struct handle *handle,
                                                 struct processes_utilization_v1 *out)
{
    struct process found[MAX_PROCESSES];
    uint64_t stamp;
    if (!out)
        return INVALID_ARGUMENT;
    if (out->version != VERSION(struct processes_utilization_v1, 1))
        return ARGUMENT_VERSION_MISMATCH;
    int code = read_samples(__func__, handle, out->last_seen, &out->count, out->entries != NULL,
                            found, &stamp);
    for (unsigned i = 0; code == SUCCESS && i < out->count; i++)
        out->entries[i] = (struct process_utilization_v1){
            stamp, found[i].pid, share(found[i].sm), share(found[i].memory),
            share(found[i].encoder), share(found[i].decoder), 0, 0};
    return code;
}
#endif
