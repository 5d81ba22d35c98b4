/* The library, device handles and identity. DRIVER is the major version whose symbols exist; what
 * the scenario does not give is NotSupported. */
#define _GNU_SOURCE
#include "export.h"
#include "layout.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

static struct handle handles[MAX_DEVICES];
static atomic_int users;

int enter(const char *call, int device)
{
    return atomic_load(&users) > 0 ? begin(call, device) : UNINITIALIZED;
}

/* ---- library ---------------------------------------------------------------------------- */

static int initialise(const char *call)
{
    int code = begin(call, SYSTEM);
    if (code == SUCCESS)
        atomic_fetch_add(&users, 1);
    return code;
}

EXPORT int nvmlInit_v2(void) { return initialise(__func__); }

EXPORT int nvmlInitWithFlags(unsigned flags)
{
    (void)flags;
    return initialise(__func__);
}

EXPORT int nvmlShutdown(void)
{
    int code = enter(__func__, SYSTEM);
    if (code == SUCCESS)
        atomic_fetch_sub(&users, 1);
    return code;
}

EXPORT const char *nvmlErrorString(int code)
{
    static const struct {
        int code;
        const char *words;
    } errors[] = {
        {SUCCESS, "Success"},
        {UNINITIALIZED, "Uninitialized"},
        {INVALID_ARGUMENT, "Invalid Argument"},
        {NOT_SUPPORTED, "Not Supported"},
        {4, "Insufficient Permissions"},
        {NOT_FOUND, "Not Found"},
        {INSUFFICIENT_SIZE, "Insufficient Size"},
        {9, "Driver Not Loaded"},
        {TIMEOUT, "Timeout"},
        {15, "GPU is lost"},
        {18, "Driver/library version mismatch"},
        {UNKNOWN, "Unknown Error"},
    };
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].code == code)
            return errors[i].words;
    return "Unknown Error";
}

static int read_text(const char *call, int device, const char *field, char *out, unsigned size)
{
    int code = enter(call, device);
    char value[MAX_TEXT];
    if (code != SUCCESS)
        return code;
    if (!out)
        return INVALID_ARGUMENT;
    if (!text(device, field, value, sizeof value))
        return NOT_SUPPORTED;
    if (strlen(value) >= size)
        return INSUFFICIENT_SIZE;
    strcpy(out, value);
    return SUCCESS;
}

EXPORT int nvmlSystemGetDriverVersion(char *out, unsigned size)
{
    return read_text(__func__, SYSTEM, "driver_version", out, size);
}

/* Later drivers tell the version of the library even after a failed init; 470 does not. */
EXPORT int nvmlSystemGetNVMLVersion(char *out, unsigned size)
{
    int code = DRIVER > 470 ? begin(__func__, SYSTEM) : enter(__func__, SYSTEM);
    if (code != SUCCESS)
        return code;
    return text(SYSTEM, "nvml_version", out, size) ? SUCCESS : NOT_SUPPORTED;
}

static int read_cuda_version(const char *call, int *out)
{
    double value;
    int code = enter(call, SYSTEM);
    if (code != SUCCESS)
        return code;
    if (!out)
        return INVALID_ARGUMENT;
    if (!number(SYSTEM, "cuda_version", &value))
        return NOT_SUPPORTED;
    *out = (int)value;
    return SUCCESS;
}

EXPORT int nvmlSystemGetCudaDriverVersion(int *out) { return read_cuda_version(__func__, out); }
EXPORT int nvmlSystemGetCudaDriverVersion_v2(int *out) { return read_cuda_version(__func__, out); }

/* ---- handles ---------------------------------------------------------------------------- */

struct handle *handle_of(int index)
{
    handles[index].index = index;
    return &handles[index];
}

int hand_out(const char *call, int index, struct handle **out)
{
    int code = enter(call, index);
    if (!out)
        return INVALID_ARGUMENT;
    *out = NULL;
    if (code == NULL_HANDLE)
        return SUCCESS;
    if (code == SUCCESS)
        *out = handle_of(index);
    return code;
}

EXPORT int nvmlDeviceGetCount_v2(unsigned *out)
{
    int code = enter(__func__, SYSTEM);
    if (code != SUCCESS)
        return code;
    if (!out)
        return INVALID_ARGUMENT;
    *out = (unsigned)count_devices();
    return SUCCESS;
}

EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned index, struct handle **out)
{
    int known = index < MAX_DEVICES ? nth_device((int)index) : SYSTEM;
    if (known != SYSTEM)
        return hand_out(__func__, known, out);
    int code = enter(__func__, SYSTEM);
    return code == SUCCESS ? INVALID_ARGUMENT : code;
}

static int hand_out_by(const char *call, const char *field, const char *value,
                       struct handle **out)
{
    int known = value ? find_device(field, value) : SYSTEM;
    if (known != SYSTEM)
        return hand_out(call, known, out);
    int code = enter(call, SYSTEM);
    if (code != SUCCESS)
        return code;
    return value ? NOT_FOUND : INVALID_ARGUMENT;
}

EXPORT int nvmlDeviceGetHandleByUUID(const char *uuid, struct handle **out)
{
    return hand_out_by(__func__, "uuid", uuid, out);
}

/* Takes 0000:1B:00.0 as well as 00000000:1B:00.0. */
EXPORT int nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, struct handle **out)
{
    unsigned domain, bus, device;
    char full[32];
    if (bus_id && sscanf(bus_id, "%x:%x:%x", &domain, &bus, &device) == 3) {
        snprintf(full, sizeof full, "%08X:%02X:%02X.0", domain, bus, device);
        bus_id = full;
    }
    return hand_out_by(__func__, "pci_bus_id", bus_id, out);
}

/* ---- identity --------------------------------------------------------------------------- */

#define TEXT(call, field)                                                                        \
    EXPORT int call(struct handle *handle, char *out, unsigned size)                             \
    {                                                                                            \
        return read_text(__func__, handle->index, field, out, size);                             \
    }

TEXT(nvmlDeviceGetName, "name")
TEXT(nvmlDeviceGetUUID, "uuid")
TEXT(nvmlDeviceGetSerial, "serial")

#if DRIVER > 470
/* The caller's buffer has the fixed size that NVML's header gives it. */
EXPORT int nvmlDeviceGetGspFirmwareVersion(struct handle *handle, char *out)
{
    return read_text(__func__, handle->index, "gsp_firmware_version", out, 0x40);
}
#endif

EXPORT int nvmlDeviceGetIndex(struct handle *handle, unsigned *out)
{
    int code = enter(__func__, handle->index);
    if (code == SUCCESS && out)
        *out = (unsigned)handle->index;
    return code;
}

EXPORT int nvmlDeviceGetPciInfo_v3(struct handle *handle, struct pci_info *out)
{
    double device_id, subsystem_id;
    int code = enter(__func__, handle->index);
    if (code != SUCCESS)
        return code;
    if (!out)
        return INVALID_ARGUMENT;
    memset(out, 0, sizeof *out);
    if (!text(handle->index, "pci_bus_id", out->bus_id, sizeof out->bus_id) ||
        sscanf(out->bus_id, "%x:%x:%x", &out->domain, &out->bus, &out->device) != 3 ||
        !number(handle->index, "pci_device_id", &device_id) ||
        !number(handle->index, "pci_subsystem_id", &subsystem_id))
        return NOT_SUPPORTED;
    snprintf(out->bus_id_legacy, sizeof out->bus_id_legacy, "%04X:%02X:%02X.0",
             out->domain & 0xffff, out->bus & 0xff, out->device & 0xff);
    out->pci_device_id = (unsigned)device_id;
    out->pci_subsystem_id = (unsigned)subsystem_id;
    return SUCCESS;
}

EXPORT int nvmlDeviceGetCudaComputeCapability(struct handle *handle, int *major, int *minor)
{
    unsigned tens, ones;
    int code = read_uints(__func__, handle, 2, (const struct output[]){
        {"compute_capability_major", 1, &tens}, {"compute_capability_minor", 1, &ones}});
    if (code == SUCCESS) {
        *major = (int)tens;
        *minor = (int)ones;
    }
    return code;
}
