/* GPM: performance counters as means between two samples. Absent before driver 535. */
#define _GNU_SOURCE
#include "export.h"

#include <stdio.h>
#include <stdlib.h>

#if DRIVER > 470
/* A sample keeps the time alone: the table has the values of all times. */
struct gpm_sample {
    int device;
    double time;
};

/* Metrics as NVML's header numbers them. */
static const struct {
    unsigned id;
    const char *field;
} metrics[] = {
    {1, "gpm_graphics_percent"},
    {2, "gpm_sm_percent"},
    {3, "gpm_occupancy_percent"},
    {4, "gpm_integer_percent"},
    {5, "gpm_tensor_percent"},
    {6, "gpm_tensor_dfma_percent"},
    {7, "gpm_tensor_hmma_percent"},
    {8, "gpm_tensor_dmma_percent"},
    {9, "gpm_tensor_imma_percent"},
    {10, "gpm_dram_percent"},
    {11, "gpm_fp64_percent"},
    {12, "gpm_fp32_percent"},
    {13, "gpm_fp16_percent"},
    {20, "gpm_pcie_transmit_mib_per_second"},
    {21, "gpm_pcie_receive_mib_per_second"},
    {60, "gpm_nvlink_receive_mib_per_second"},
    {61, "gpm_nvlink_transmit_mib_per_second"},
};

EXPORT int nvmlGpmQueryDeviceSupport(struct handle *handle, struct gpm_support *out)
{
    double supported = 0;
    int code = enter(__func__, handle->index);
    if (code != SUCCESS)
        return code;
    if (!out)
        return INVALID_ARGUMENT;
    if (out->version != 1)
        return ARGUMENT_VERSION_MISMATCH;
    number(handle->index, "gpm_supported", &supported);
    out->supported = supported != 0;
    return SUCCESS;
}

EXPORT int nvmlGpmSampleAlloc(struct gpm_sample **out)
{
    int code = enter(__func__, SYSTEM);
    if (code != SUCCESS)
        return code;
    if (!out)
        return INVALID_ARGUMENT;
    *out = malloc(sizeof **out);
    if (!*out)
        abort();
    **out = (struct gpm_sample){SYSTEM, 0};
    return SUCCESS;
}

EXPORT int nvmlGpmSampleFree(struct gpm_sample *sample)
{
    int code = enter(__func__, SYSTEM);
    if (code == SUCCESS)
        free(sample);
    return code;
}

static int take(int device, struct gpm_sample *sample)
{
    double supported = 0;
    if (!sample)
        return INVALID_ARGUMENT;
    number(device, "gpm_supported", &supported);
    if (supported == 0)
        return NOT_SUPPORTED;
    *sample = (struct gpm_sample){device, scenario_time()};
    return SUCCESS;
}

EXPORT int nvmlGpmSampleGet(struct handle *handle, struct gpm_sample *sample)
{
    int code = enter(__func__, handle->index);
    return code == SUCCESS ? take(handle->index, sample) : code;
}

EXPORT int nvmlGpmMigSampleGet(struct handle *handle, unsigned gpu_instance,
                               struct gpm_sample *sample)
{
    int code = enter(__func__, handle->index);
    if (code != SUCCESS)
        return code;
    int instance = find_instance(handle->index, gpu_instance);
    return instance == SYSTEM ? NOT_FOUND : take(instance, sample);
}

static int read_metric(const struct gpm_sample *older, const struct gpm_sample *newer,
                       struct gpm_metric *metric)
{
    char call[32];
    snprintf(call, sizeof call, "gpm:%u", metric->id);
    int code = strike(call, newer->device);
    if (code != SUCCESS)
        return code;
    for (size_t i = 0; i < sizeof metrics / sizeof *metrics; i++)
        if (metrics[i].id == metric->id)
            return mean_number(newer->device, metrics[i].field, older->time, newer->time,
                               &metric->value)
                       ? SUCCESS
                       : NOT_SUPPORTED;
    return metric->id < GPM_METRICS ? NOT_SUPPORTED : INVALID_ARGUMENT;
}

EXPORT int nvmlGpmMetricsGet(struct gpm_metrics *wanted)
{
    if (!wanted || !wanted->older || !wanted->newer || wanted->count > GPM_METRICS)
        return INVALID_ARGUMENT;
    int code = enter(__func__, wanted->newer->device);
    if (code != SUCCESS)
        return code;
    if (wanted->version != 1)
        return ARGUMENT_VERSION_MISMATCH;
    if (wanted->newer->device == SYSTEM || wanted->older->device != wanted->newer->device ||
        wanted->older->time > wanted->newer->time)
        return INVALID_ARGUMENT;
    for (unsigned i = 0; i < wanted->count; i++)
        wanted->metrics[i].code =
            (unsigned)read_metric(wanted->older, wanted->newer, &wanted->metrics[i]);
    return SUCCESS;
}
#endif
