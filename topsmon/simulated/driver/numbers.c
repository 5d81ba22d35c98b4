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

int to_int(double value) { return (int)fmin(fmax(floor(value + 0.5), INT_MIN), INT_MAX); }

/* Scenario time counts from some day, as real time stamps do. */
#define EPOCH_SECONDS 1.7e9

uint64_t timestamp(int device, double seconds)
{
    double offset = 0;
    number(device, "timestamp_offset_seconds", &offset);
    return to_uint64((EPOCH_SECONDS + seconds + offset) * 1e6);
}

int read_number(const char *call, struct handle *handle, const char *field, double *value)
{
    int code = enter(call, handle->index);
    if (code != SUCCESS)
        return code;
    return number(handle->index, field, value) ? SUCCESS : NOT_SUPPORTED;
}

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
UINT(nvmlDeviceGetPcieReplayCounter, "pcie_replays", 1)
UINT(nvmlDeviceGetPersistenceMode, "persistence_mode", 1)
UINT(nvmlDeviceGetComputeMode, "compute_mode", 1)
TWO_UINTS(nvmlDeviceGetMigMode, "mig_mode", "mig_mode_pending", 1)
TWO_UINTS(nvmlDeviceGetEccMode, "ecc_mode", "ecc_mode_pending", 1)

/* What the driver averages over, in microseconds: the longest that NVML's header names. */
#define SAMPLING_PERIOD 1000000

#define CODEC(call, field)                                                                       \
    EXPORT int call(struct handle *handle, unsigned *out, unsigned *period)                      \
    {                                                                                            \
        int code = read_uints(__func__, handle, 1, (const struct output[]){{field, 1, out}});    \
        if (code == SUCCESS && period)                                                           \
            *period = SAMPLING_PERIOD;                                                           \
        return code;                                                                             \
    }

CODEC(nvmlDeviceGetEncoderUtilization, "encoder_busy_percent")
CODEC(nvmlDeviceGetDecoderUtilization, "decoder_busy_percent")

/* Fans have numbers; the older call knows the first alone. */
static int read_fan(const char *call, struct handle *handle, unsigned fan, unsigned *out)
{
    double count, percent;
    int code = read_number(call, handle, "fan_count", &count);
    if (code != SUCCESS)
        return code;
    if (!out || fan >= count)
        return INVALID_ARGUMENT;
    if (!part_number(handle->index, "fan_percent", fan, &percent))
        return NOT_SUPPORTED;
    *out = to_uint(percent);
    return SUCCESS;
}

EXPORT int nvmlDeviceGetFanSpeed(struct handle *handle, unsigned *out)
{
    return read_fan(__func__, handle, 0, out);
}

EXPORT int nvmlDeviceGetFanSpeed_v2(struct handle *handle, unsigned fan, unsigned *out)
{
    return read_fan(__func__, handle, fan, out);
}

EXPORT int nvmlDeviceGetUtilizationRates(struct handle *handle, struct utilization *out)
{
    return read_uints(__func__, handle, 2, (const struct output[]){
        {"busy_percent", 1, out ? &out->gpu : NULL},
        {"memory_busy_percent", 1, out ? &out->memory : NULL}});
}

#if DRIVER > 470
UINT(nvmlDeviceGetNumGpuCores, "cores", 1)
UINT(nvmlDeviceGetMemoryBusWidth, "memory_bus_bits", 1)
UINT(nvmlDeviceGetNumFans, "fan_count", 1)
UINT(nvmlDeviceGetGpuMaxPcieLinkGeneration, "pcie_generation_gpu_max", 1)
#endif

static int read_uint64(const char *call, struct handle *handle, const char *field, double scale,
                       uint64_t *out)
{
    double value;
    int code = read_number(call, handle, field, &value);
    if (code != SUCCESS)
        return code;
    if (!out)
        return INVALID_ARGUMENT;
    *out = to_uint64(value * scale);
    return SUCCESS;
}

#define UINT64(call, field, scale)                                                               \
    EXPORT int call(struct handle *handle, uint64_t *out)                                        \
    {                                                                                            \
        return read_uint64(__func__, handle, field, scale, out);                                 \
    }

UINT64(nvmlDeviceGetTotalEnergyConsumption, "energy_joules", 1000)
UINT64(nvmlDeviceGetSupportedEventTypes, "event_types_supported", 1)
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

/* The driver counts for so long in each of these calls, as NVML's header says. */
#define PCIE_WINDOW_SECONDS 0.02

EXPORT int nvmlDeviceGetPcieThroughput(struct handle *handle, unsigned counter, unsigned *out)
{
    static const char *const fields[] = {"pcie_transmit_kib_per_second",
                                         "pcie_receive_kib_per_second"};
    struct output output = {counter < 2 ? fields[counter] : "", 1, out};
    int code = read_uints(__func__, handle, 1, &output);
    if (code == SUCCESS)
        sleep_seconds(PCIE_WINDOW_SECONDS);
    return code;
}

#if DRIVER > 535
/* Structures of one number: a version word, then the rest. */
static int read_versioned(const char *call, struct handle *handle, const char *field,
                          const unsigned *version, unsigned wanted, double *value)
{
    int code = enter(call, handle->index);
    if (code != SUCCESS)
        return code;
    if (!version)
        return INVALID_ARGUMENT;
    if (*version != wanted)
        return ARGUMENT_VERSION_MISMATCH;
    return number(handle->index, field, value) ? SUCCESS : NOT_SUPPORTED;
}

EXPORT int nvmlDeviceGetTemperatureV(struct handle *handle, struct temperature_v1 *reading)
{
    double value;
    int code = read_versioned(__func__, handle, "temperature_celsius",
                              reading && reading->sensor == 0 ? &reading->version : NULL,
                              VERSION(struct temperature_v1, 1), &value);
    if (code == SUCCESS)
        reading->celsius = to_int(value);
    return code;
}

EXPORT int nvmlDeviceGetMarginTemperature(struct handle *handle,
                                          struct margin_temperature_v1 *reading)
{
    double value;
    int code = read_versioned(__func__, handle, "temperature_margin_celsius",
                              reading ? &reading->version : NULL,
                              VERSION(struct margin_temperature_v1, 1), &value);
    if (code == SUCCESS)
        reading->celsius = to_int(value);
    return code;
}

EXPORT int nvmlDeviceGetAddressingMode(struct handle *handle, struct addressing_mode_v1 *reading)
{
    double value;
    int code = read_versioned(__func__, handle, "addressing_mode",
                              reading ? &reading->version : NULL,
                              VERSION(struct addressing_mode_v1, 1), &value);
    if (code == SUCCESS)
        reading->mode = to_uint(value);
    return code;
}
#endif
