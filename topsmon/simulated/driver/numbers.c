/* The calls of NVML that answer with numbers of the scenario. */
#define _GNU_SOURCE
#include "export.h"

#include <limits.h>
#include <math.h>
#include <stddef.h>

uint64_t to_uint64(double value)
{
    if (!(value > 0))
        return 0;
    return value < 18446744073709549568.0 ? (uint64_t)(value + 0.5) : UINT64_MAX;
}

unsigned to_uint(double value) { return value < UINT_MAX ? (unsigned)to_uint64(value) : UINT_MAX; }

int read_uints(const char *call, struct handle *handle, int count, const struct output *outputs)
{
    double values[MAX_OUTPUTS];
    int code = enter(call, handle->index);
    if (code != SUCCESS)
        return code;
    for (int i = 0; i < count; i++) {
        if (!outputs[i].out)
            return INVALID_ARGUMENT;
        if (!number(handle->index, outputs[i].field, &values[i]))
            return NOT_SUPPORTED;
    }
    for (int i = 0; i < count; i++)
        *outputs[i].out = to_uint(values[i] * outputs[i].scale);
    return SUCCESS;
}

#define UINT(call, field, scale)                                                                 \
    EXPORT int call(struct handle *handle, unsigned *out)                                        \
    {                                                                                            \
        return read_uints(__func__, handle, 1, (const struct output[]){{field, scale, out}});    \
    }
#define TWO_UINTS(call, first, second, scale)                                                    \
    EXPORT int call(struct handle *handle, unsigned *one, unsigned *two)                         \
    {                                                                                            \
        return read_uints(__func__, handle, 2,                                                   \
                          (const struct output[]){{first, scale, one}, {second, scale, two}});   \
    }

UINT(nvmlDeviceGetArchitecture, "architecture", 1)
UINT(nvmlDeviceGetMinorNumber, "minor_number", 1)
UINT(nvmlDeviceGetMemoryBusWidth, "memory_bus_bits", 1)
UINT(nvmlDeviceGetPowerUsage, "power_watts", 1000)
UINT(nvmlDeviceGetEnforcedPowerLimit, "power_limit_watts", 1000)
UINT(nvmlDeviceGetPowerManagementLimit, "power_management_limit_watts", 1000)
UINT(nvmlDeviceGetPowerManagementDefaultLimit, "power_limit_default_watts", 1000)
TWO_UINTS(nvmlDeviceGetPowerManagementLimitConstraints, "power_limit_min_watts",
          "power_limit_max_watts", 1000)
UINT(nvmlDeviceGetPerformanceState, "performance_state", 1)
UINT(nvmlDeviceGetCurrPcieLinkGeneration, "pcie_generation", 1)
UINT(nvmlDeviceGetMaxPcieLinkGeneration, "pcie_generation_max", 1)
UINT(nvmlDeviceGetCurrPcieLinkWidth, "pcie_width", 1)
UINT(nvmlDeviceGetMaxPcieLinkWidth, "pcie_width_max", 1)
UINT(nvmlDeviceGetPersistenceMode, "persistence_mode", 1)
UINT(nvmlDeviceGetComputeMode, "compute_mode", 1)
UINT(nvmlDeviceGetMaxMigDeviceCount, "mig_count_max", 1)
TWO_UINTS(nvmlDeviceGetMigMode, "mig_mode", "mig_mode_pending", 1)
TWO_UINTS(nvmlDeviceGetEccMode, "ecc_mode", "ecc_mode_pending", 1)

EXPORT int nvmlDeviceGetUtilizationRates(struct handle *handle, struct utilization *out)
{
    return read_uints(__func__, handle, 2, (const struct output[]){
        {"busy_percent", 1, out ? &out->gpu : NULL},
        {"memory_busy_percent", 1, out ? &out->memory : NULL}});
}

#if DRIVER > 470
UINT(nvmlDeviceGetNumGpuCores, "cores", 1)
UINT(nvmlDeviceGetGpuMaxPcieLinkGeneration, "pcie_generation_gpu_max", 1)
#endif

static int read_uint64(const char *call, struct handle *handle, const char *field, double scale,
                       uint64_t *out)
{
    double value;
    int code = enter(call, handle->index);
    if (code != SUCCESS)
        return code;
    if (!out)
        return INVALID_ARGUMENT;
    if (!number(handle->index, field, &value))
        return NOT_SUPPORTED;
    *out = to_uint64(value * scale);
    return SUCCESS;
}

#define UINT64(call, field, scale)                                                               \
    EXPORT int call(struct handle *handle, uint64_t *out)                                        \
    {                                                                                            \
        return read_uint64(__func__, handle, field, scale, out);                                 \
    }

/* Error type: 0 corrected, 1 uncorrected. Counter: 0 since the driver was loaded, 1 for life. */
EXPORT int nvmlDeviceGetTotalEccErrors(struct handle *handle, unsigned type, unsigned counter,
                                       uint64_t *out)
{
    static const char *const fields[2][2] = {
        {"ecc_corrected_volatile", "ecc_corrected_aggregate"},
        {"ecc_uncorrected_volatile", "ecc_uncorrected_aggregate"},
    };
    const char *field = type < 2 && counter < 2 ? fields[type][counter] : "";
    return read_uint64(__func__, handle, field, 1, out);
}

EXPORT int nvmlDeviceGetRemappedRows(struct handle *handle, unsigned *corrected,
                                     unsigned *uncorrected, unsigned *pending, unsigned *failed)
{
    return read_uints(__func__, handle, 4, (const struct output[]){
        {"row_remap_corrected", 1, corrected}, {"row_remap_uncorrected", 1, uncorrected},
        {"row_remap_pending", 1, pending}, {"row_remap_failed", 1, failed}});
}

UINT64(nvmlDeviceGetTotalEnergyConsumption, "energy_joules", 1000)
UINT64(nvmlDeviceGetCurrentClocksThrottleReasons, "clock_event_mask", 1)
UINT64(nvmlDeviceGetSupportedClocksThrottleReasons, "clock_event_mask_supported", 1)
#if DRIVER > 470
UINT64(nvmlDeviceGetCurrentClocksEventReasons, "clock_event_mask", 1)
UINT64(nvmlDeviceGetSupportedClocksEventReasons, "clock_event_mask_supported", 1)
#endif

/* A call whose argument chooses the field. */
#define CHOICE(call, ...)                                                                        \
    EXPORT int call(struct handle *handle, unsigned choice, unsigned *out)                       \
    {                                                                                            \
        static const char *const fields[] = {__VA_ARGS__};                                       \
        bool known = choice < sizeof fields / sizeof *fields;                                    \
        struct output output = {known ? fields[choice] : "", 1, out};                            \
        return read_uints(__func__, handle, 1, &output);                                         \
    }

CHOICE(nvmlDeviceGetClockInfo, "graphics_clock_mhz", "sm_clock_mhz", "memory_clock_mhz",
       "video_clock_mhz")
CHOICE(nvmlDeviceGetMaxClockInfo, "graphics_clock_max_mhz", "sm_clock_max_mhz",
       "memory_clock_max_mhz", "video_clock_max_mhz")
CHOICE(nvmlDeviceGetMaxCustomerBoostClock, "graphics_clock_customer_max_mhz",
       "sm_clock_customer_max_mhz", "memory_clock_customer_max_mhz",
       "video_clock_customer_max_mhz")
CHOICE(nvmlDeviceGetTemperature, "temperature_celsius")
CHOICE(nvmlDeviceGetTemperatureThreshold, "temperature_shutdown_celsius",
       "temperature_slowdown_celsius", "temperature_memory_max_celsius",
       "temperature_gpu_max_celsius")
CHOICE(nvmlDeviceGetPcieThroughput, "pcie_transmit_kib_per_second",
       "pcie_receive_kib_per_second")

#if DRIVER > 535
static int to_int(double value)
{
    return (int)fmin(fmax(floor(value + 0.5), INT_MIN), INT_MAX);
}

EXPORT int nvmlDeviceGetTemperatureV(struct handle *handle, struct temperature_v1 *reading)
{
    double value;
    int code = enter(__func__, handle->index);
    if (code != SUCCESS)
        return code;
    if (!reading || reading->sensor != 0)
        return INVALID_ARGUMENT;
    if (reading->version != VERSION(struct temperature_v1, 1))
        return ARGUMENT_VERSION_MISMATCH;
    if (!number(handle->index, "temperature_celsius", &value))
        return NOT_SUPPORTED;
    reading->celsius = to_int(value);
    return SUCCESS;
}

EXPORT int nvmlDeviceGetMarginTemperature(struct handle *handle,
                                          struct margin_temperature_v1 *reading)
{
    double value;
    int code = enter(__func__, handle->index);
    if (code != SUCCESS)
        return code;
    if (!reading)
        return INVALID_ARGUMENT;
    if (reading->version != VERSION(struct margin_temperature_v1, 1))
        return ARGUMENT_VERSION_MISMATCH;
    if (!number(handle->index, "temperature_margin_celsius", &value))
        return NOT_SUPPORTED;
    reading->celsius = to_int(value);
    return SUCCESS;
}
#endif
