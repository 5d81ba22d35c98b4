/* The calls of NVML on links between devices: NVLink, topology, peer access. */
#define _GNU_SOURCE
#include "export.h"

/* Enters and reads a field of one link. */
static int read_link(const char *call, struct handle *handle, unsigned link, const char *field,
                     double *value)
{
    double links;
    int code = read_number(call, handle, "nvlink_count", &links);
    if (code != SUCCESS)
        return code;
    if (link >= links)
        return INVALID_ARGUMENT;
    return part_number(handle->index, field, link, value) ? SUCCESS : NOT_SUPPORTED;
}

static int read_link_uint(const char *call, struct handle *handle, unsigned link,
                          const char *field, unsigned *out)
{
    double value;
    int code = read_link(call, handle, link, field, &value);
    if (code != SUCCESS)
        return code;
    if (!out)
        return INVALID_ARGUMENT;
    *out = to_uint(value);
    return SUCCESS;
}

EXPORT int nvmlDeviceGetNvLinkState(struct handle *handle, unsigned link, unsigned *out)
{
    return read_link_uint(__func__, handle, link, "nvlink_active", out);
}

EXPORT int nvmlDeviceGetNvLinkVersion(struct handle *handle, unsigned link, unsigned *out)
{
    return read_link_uint(__func__, handle, link, "nvlink_version", out);
}

EXPORT int nvmlDeviceGetNvLinkCapability(struct handle *handle, unsigned link,
                                         unsigned capability, unsigned *out)
{
    static const char *const fields[] = {
        "nvlink_peer_to_peer", "nvlink_system_memory", "nvlink_peer_atomics",
        "nvlink_system_atomics", "nvlink_sli_bridge", "nvlink_valid",
    };
    bool known = capability < sizeof fields / sizeof *fields;
    return read_link_uint(__func__, handle, link, known ? fields[capability] : "", out);
}

EXPORT int nvmlDeviceGetNvLinkErrorCounter(struct handle *handle, unsigned link,
                                           unsigned counter, uint64_t *out)
{
    static const char *const fields[] = {
        "nvlink_replay_errors", "nvlink_recovery_errors", "nvlink_crc_flit_errors",
        "nvlink_crc_data_errors", "nvlink_ecc_data_errors",
    };
    double value;
    bool known = counter < sizeof fields / sizeof *fields;
    int code = read_link(__func__, handle, link, known ? fields[counter] : "", &value);
    if (code != SUCCESS)
        return code;
    if (!out)
        return INVALID_ARGUMENT;
    *out = to_uint64(value);
    return SUCCESS;
}

/* Enters and reads a field that the first device has for the second. */
static int read_peer(const char *call, struct handle *first, struct handle *second,
                     const char *field, unsigned *out)
{
    double value;
    int code = enter(call, first->index);
    if (code != SUCCESS)
        return code;
    if (!out)
        return INVALID_ARGUMENT;
    if (!part_number(first->index, field, (unsigned)second->index, &value))
        return NOT_SUPPORTED;
    *out = to_uint(value);
    return SUCCESS;
}

EXPORT int nvmlDeviceGetTopologyCommonAncestor(struct handle *first, struct handle *second,
                                               unsigned *out)
{
    return read_peer(__func__, first, second, "topology_level", out);
}

EXPORT int nvmlDeviceGetP2PStatus(struct handle *first, struct handle *second, unsigned kind,
                                  unsigned *out)
{
    static const char *const fields[] = {
        "p2p_read_status", "p2p_write_status", "p2p_nvlink_status", "p2p_atomics_status",
        "p2p_pci_status",
    };
    bool known = kind < sizeof fields / sizeof *fields;
    return read_peer(__func__, first, second, known ? fields[kind] : "", out);
}
