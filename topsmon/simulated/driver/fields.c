/* nvmlDeviceGetFieldValues: one call, a code of its own for each entry. */
#define _GNU_SOURCE
#include "export.h"

#include <stdio.h>

#define NANOSECONDS 1e9
#define ALL_LINKS UINT32_MAX

enum scope { DEVICE, LINK, LINK_TOTAL };

/* Ids as NVML's header numbers them. LINK: the entry's scope chooses the link; LINK_TOTAL: all. */
static const struct field {
    unsigned id;
    const char *name;
    double scale;
    enum value_type type;
    enum scope scope;
} fields[] = {
    {29, "pages_retired_single_bit", 1, UNSIGNED_LONG_LONG, DEVICE},
    {30, "pages_retired_double_bit", 1, UNSIGNED_LONG_LONG, DEVICE},
    {31, "pages_retirement_pending", 1, UNSIGNED_INT, DEVICE},
    {38, "nvlink_crc_flit_errors", 1, UNSIGNED_LONG_LONG, LINK_TOTAL},
    {45, "nvlink_crc_data_errors", 1, UNSIGNED_LONG_LONG, LINK_TOTAL},
    {52, "nvlink_replay_errors", 1, UNSIGNED_LONG_LONG, LINK_TOTAL},
    {59, "nvlink_recovery_errors", 1, UNSIGNED_LONG_LONG, LINK_TOTAL},
    {74, "throttle_power_seconds", NANOSECONDS, UNSIGNED_LONG_LONG, DEVICE},
    {75, "throttle_thermal_seconds", NANOSECONDS, UNSIGNED_LONG_LONG, DEVICE},
    {76, "throttle_sync_boost_seconds", NANOSECONDS, UNSIGNED_LONG_LONG, DEVICE},
    {77, "throttle_board_limit_seconds", NANOSECONDS, UNSIGNED_LONG_LONG, DEVICE},
    {78, "throttle_low_utilisation_seconds", NANOSECONDS, UNSIGNED_LONG_LONG, DEVICE},
    {79, "throttle_reliability_seconds", NANOSECONDS, UNSIGNED_LONG_LONG, DEVICE},
    {82, "memory_temperature_celsius", 1, UNSIGNED_INT, DEVICE},
    {83, "energy_joules", 1000, UNSIGNED_LONG_LONG, DEVICE},
    {91, "nvlink_count", 1, UNSIGNED_INT, DEVICE},
    {94, "pcie_replays", 1, UNSIGNED_INT, DEVICE},
    {95, "pcie_replay_rollovers", 1, UNSIGNED_INT, DEVICE},
    {138, "nvlink_transmit_kib", 1, UNSIGNED_LONG_LONG, LINK},
    {139, "nvlink_receive_kib", 1, UNSIGNED_LONG_LONG, LINK},
    {140, "nvlink_transmit_raw_kib", 1, UNSIGNED_LONG_LONG, LINK},
    {141, "nvlink_receive_raw_kib", 1, UNSIGNED_LONG_LONG, LINK},
    {142, "row_remap_corrected", 1, UNSIGNED_INT, DEVICE},
    {143, "row_remap_uncorrected", 1, UNSIGNED_INT, DEVICE},
    {144, "row_remap_pending", 1, UNSIGNED_INT, DEVICE},
    {145, "row_remap_failed", 1, UNSIGNED_INT, DEVICE},
    {173, "pcie_correctable_errors", 1, UNSIGNED_INT, DEVICE},
    {174, "pcie_naks_received", 1, UNSIGNED_INT, DEVICE},
    {175, "pcie_receiver_errors", 1, UNSIGNED_INT, DEVICE},
    {176, "pcie_bad_tlps", 1, UNSIGNED_INT, DEVICE},
    {177, "pcie_naks_sent", 1, UNSIGNED_INT, DEVICE},
    {178, "pcie_bad_dllps", 1, UNSIGNED_INT, DEVICE},
    {179, "pcie_non_fatal_errors", 1, UNSIGNED_INT, DEVICE},
    {180, "pcie_fatal_errors", 1, UNSIGNED_INT, DEVICE},
    {181, "pcie_unsupported_requests", 1, UNSIGNED_INT, DEVICE},
    {182, "pcie_lcrc_errors", 1, UNSIGNED_INT, DEVICE},
    {183, "pcie_lane_errors", 1, UNSIGNED_INT, DEVICE},
    {185, "power_average_watts", 1000, UNSIGNED_INT, DEVICE},
    {186, "power_instant_watts", 1000, UNSIGNED_INT, DEVICE},
    {187, "power_limit_min_watts", 1000, UNSIGNED_INT, DEVICE},
    {188, "power_limit_max_watts", 1000, UNSIGNED_INT, DEVICE},
    {193, "tlimit_shutdown_celsius", 1, SIGNED_INT, DEVICE},
    {194, "tlimit_slowdown_celsius", 1, SIGNED_INT, DEVICE},
    {195, "tlimit_memory_max_celsius", 1, SIGNED_INT, DEVICE},
    {196, "tlimit_gpu_max_celsius", 1, SIGNED_INT, DEVICE},
    {197, "pcie_transmit_bytes", 1, UNSIGNED_LONG_LONG, DEVICE},
    {198, "pcie_receive_bytes", 1, UNSIGNED_LONG_LONG, DEVICE},
    {201, "nvlink_transmit_packets", 1, UNSIGNED_LONG_LONG, LINK},
    {202, "nvlink_transmit_bytes", 1, UNSIGNED_LONG_LONG, LINK},
    {203, "nvlink_receive_packets", 1, UNSIGNED_LONG_LONG, LINK},
    {204, "nvlink_receive_bytes", 1, UNSIGNED_LONG_LONG, LINK},
    {269, "throttle_software_thermal_seconds", NANOSECONDS, UNSIGNED_LONG_LONG, DEVICE},
    {270, "throttle_hardware_thermal_seconds", NANOSECONDS, UNSIGNED_LONG_LONG, DEVICE},
    {271, "throttle_power_brake_seconds", NANOSECONDS, UNSIGNED_LONG_LONG, DEVICE},
};

static const struct field *find_field(unsigned id)
{
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (fields[i].id == id)
            return &fields[i];
    return NULL;
}

/* The sum over all links that have the field: those that are down count no traffic. */
static int read_all_links(int device, const struct field *field, double links, double *value)
{
    bool found = false;
    double one, active;
    *value = 0;
    for (unsigned link = 0; link < links; link++) {
        bool down = part_number(device, "nvlink_active", link, &active) && active == 0;
        if ((field->scope == LINK && down) || !part_number(device, field->name, link, &one))
            continue;
        *value += one;
        found = true;
    }
    return found ? SUCCESS : NOT_SUPPORTED;
}

static int read_link(int device, const struct field *field, unsigned link, double *value)
{
    double links, active;
    if (!number(device, "nvlink_count", &links))
        return NOT_SUPPORTED;
    if (field->scope == LINK_TOTAL || link == ALL_LINKS)
        return read_all_links(device, field, links, value);
    if (link >= links)
        return INVALID_ARGUMENT;
    if (part_number(device, "nvlink_active", link, &active) && active == 0)
        return NOT_SUPPORTED;
    return part_number(device, field->name, link, value) ? SUCCESS : NOT_SUPPORTED;
}

static int read_field(int device, struct field_value *entry)
{
    double value;
    char call[32];
    snprintf(call, sizeof call, "field:%u", entry->field);
    int code = strike(call, device);
    if (code != SUCCESS)
        return code;
    const struct field *field = find_field(entry->field);
    if (!field)
        return INVALID_ARGUMENT;
    if (field->scope == DEVICE)
        code = number(device, field->name, &value) ? SUCCESS : NOT_SUPPORTED;
    else
        code = read_link(device, field, entry->scope, &value);
    if (code != SUCCESS)
        return code;
    entry->value_type = field->type;
    if (field->type == UNSIGNED_INT)
        entry->value.uint = to_uint(value * field->scale);
    else if (field->type == SIGNED_INT)
        entry->value.sint = to_int(value * field->scale);
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
        entries[i].timestamp = (int64_t)timestamp(handle->index, scenario_time());
        entries[i].code = (unsigned)read_field(handle->index, &entries[i]);
    }
    return SUCCESS;
}
