/* nvmlDeviceGetSamples: the buffer in which the driver keeps its own readings. */
#define _GNU_SOURCE
#include "export.h"

#include <math.h>

#define PER_SECOND 6
#define KEPT 120

EXPORT int nvmlDeviceGetSamples(struct handle *handle, unsigned type, uint64_t last_seen,
                                unsigned *value_type, unsigned *count, struct sample *out)
{
    static const struct {
        const char *field;
        double scale;
    } types[] = {
        {"power_watts", 1000},
        {"busy_percent", 1},
        {"memory_busy_percent", 1},
        {"encoder_busy_percent", 1},
        {"decoder_busy_percent", 1},
        {"sm_clock_mhz", 1},
        {"memory_clock_mhz", 1},
    };
    double value;
    if (!value_type || !count)
        return INVALID_ARGUMENT;
    bool known = type < sizeof types / sizeof *types;
    int code = read_number(__func__, handle, known ? types[type].field : "", &value);
    if (code != SUCCESS)
        return code;
    double last = floor(scenario_time() * PER_SECOND);
    unsigned found = 0;
    for (double at = fmax(0, last - KEPT + 1); at <= last; at++) {
        double seconds = at / PER_SECOND;
        uint64_t stamp = timestamp(handle->index, seconds);
        if (stamp <= last_seen || !number_at(handle->index, types[type].field, seconds, &value))
            continue;
        if (out && found == *count)
            return INSUFFICIENT_SIZE;
        if (out)
            out[found] = (struct sample){stamp, {.uint = to_uint(value * types[type].scale)}};
        found++;
    }
    *value_type = UNSIGNED_INT;
    *count = found;
    return found ? SUCCESS : NOT_FOUND;
}
