/* Calls that the driver has and that no scenario supports. They take more arguments than written
 * here; none is touched. */
#include "export.h"

static int not_supported(const char *call, int device)
{
    int code = enter(call, device);
    return code == SUCCESS ? NOT_SUPPORTED : code;
}

#define OF_DEVICE(call)                                                                          \
    EXPORT int call(struct handle *handle) { return not_supported(__func__, handle->index); }
#define OF_LIBRARY(call)                                                                         \
    EXPORT int call(void) { return not_supported(__func__, SYSTEM); }

OF_DEVICE(nvmlDeviceGetSamples)
OF_DEVICE(nvmlDeviceGetProcessUtilization)
OF_DEVICE(nvmlDeviceGetNvLinkState)
OF_DEVICE(nvmlDeviceGetRetiredPages)
OF_DEVICE(nvmlDeviceGetAccountingMode)
OF_DEVICE(nvmlDeviceGetAccountingStats)
OF_DEVICE(nvmlDeviceRegisterEvents)
OF_LIBRARY(nvmlEventSetCreate)
OF_LIBRARY(nvmlEventSetWait_v2)
OF_LIBRARY(nvmlEventSetFree)
#if DRIVER > 470
OF_DEVICE(nvmlDeviceGetGspFirmwareVersion)
OF_DEVICE(nvmlDeviceGetSramEccErrorStatus)
OF_DEVICE(nvmlGpmQueryDeviceSupport)
OF_DEVICE(nvmlGpmSampleGet)
OF_DEVICE(nvmlGpmMigSampleGet)
OF_LIBRARY(nvmlGpmSampleAlloc)
OF_LIBRARY(nvmlGpmSampleFree)
OF_LIBRARY(nvmlGpmMetricsGet)
#endif
#if DRIVER > 535
OF_DEVICE(nvmlDeviceGetProcessesUtilizationInfo)
OF_DEVICE(nvmlDeviceGetPciInfoExt)
OF_DEVICE(nvmlDeviceGetAddressingMode)
#endif
