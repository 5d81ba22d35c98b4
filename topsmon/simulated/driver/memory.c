/* The calls of NVML on memory and its errors. */
#define _GNU_SOURCE
#include "export.h"

#include <stddef.h>

#define PAGE 65536

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

/* ---- errors ----------------------------------------------------------------------------- */

/* Error type: 0 corrected, 1 uncorrected. Counter: 0 since the driver was loaded, 1 for life. */
EXPORT int nvmlDeviceGetTotalEccErrors(struct handle *handle, unsigned type, unsigned counter,
                                       uint64_t *out)
{
    static const char *const fields[2][2] = {
        {"ecc_corrected_volatile", "ecc_corrected_aggregate"},
        {"ecc_uncorrected_volatile", "ecc_uncorrected_aggregate"},
    };
    double value;
    int code = read_number(__func__, handle,
                           type < 2 && counter < 2 ? fields[type][counter] : "", &value);
    if (code != SUCCESS)
        return code;
    if (!out)
        return INVALID_ARGUMENT;
    *out = to_uint64(value);
    return SUCCESS;
}

EXPORT int nvmlDeviceGetRemappedRows(struct handle *handle, unsigned *corrected,
                                     unsigned *uncorrected, unsigned *pending, unsigned *failed)
{
    return read_uints(__func__, handle, 4, (const struct output[]){
        {"row_remap_corrected", 1, corrected}, {"row_remap_uncorrected", 1, uncorrected},
        {"row_remap_pending", 1, pending}, {"row_remap_failed", 1, failed}});
}

/* Cause: 0 several single-bit errors, 1 a double-bit error. Addresses are made up. */
EXPORT int nvmlDeviceGetRetiredPages(struct handle *handle, unsigned cause, unsigned *count,
                                     uint64_t *addresses)
{
    static const char *const fields[] = {"pages_retired_single_bit", "pages_retired_double_bit"};
    double value;
    int code = read_number(__func__, handle, cause < 2 ? fields[cause] : "", &value);
    if (code != SUCCESS)
        return code;
    if (!count)
        return INVALID_ARGUMENT;
    unsigned capacity = addresses ? *count : 0;
    *count = to_uint(value);
    if (*count > capacity)
        return INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < *count; i++)
        addresses[i] = (uint64_t)(2 * i + cause + 1) * PAGE;
    return SUCCESS;
}

EXPORT int nvmlDeviceGetRetiredPagesPendingStatus(struct handle *handle, unsigned *out)
{
    struct output pending = {"pages_retirement_pending", 1, out};
    return read_uints(__func__, handle, 1, &pending);
}

#if DRIVER > 470
EXPORT int nvmlDeviceGetSramEccErrorStatus(struct handle *handle, struct sram_errors_v1 *out)
{
    static const struct {
        const char *field;
        size_t offset;
    } counters[] = {
        {"sram_corrected_aggregate", offsetof(struct sram_errors_v1, aggregate_corrected)},
        {"sram_parity_aggregate", offsetof(struct sram_errors_v1, aggregate_parity)},
        {"sram_secded_aggregate", offsetof(struct sram_errors_v1, aggregate_secded)},
        {"sram_corrected_volatile", offsetof(struct sram_errors_v1, volatile_corrected)},
        {"sram_parity_volatile", offsetof(struct sram_errors_v1, volatile_parity)},
        {"sram_secded_volatile", offsetof(struct sram_errors_v1, volatile_secded)},
    };
    struct sram_errors_v1 found = {.version = VERSION(struct sram_errors_v1, 1)};
    double exceeded;
    int code = read_number(__func__, handle, "sram_threshold_exceeded", &exceeded);
    if (code != SUCCESS)
        return code;
    if (!out)
        return INVALID_ARGUMENT;
    if (out->version != found.version)
        return ARGUMENT_VERSION_MISMATCH;
    found.threshold_exceeded = exceeded != 0;
    for (size_t i = 0; i < sizeof counters / sizeof *counters; i++) {
        double value;
        if (!number(handle->index, counters[i].field, &value))
            return NOT_SUPPORTED;
        *(uint64_t *)((char *)&found + counters[i].offset) = to_uint64(value);
    }
    *out = found;
    return SUCCESS;
}
#endif
