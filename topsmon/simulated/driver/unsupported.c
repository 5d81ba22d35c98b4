/* Calls that the driver has and that no scenario supports. They take more arguments than written
 * here; none is touched. */
#include "export.h"

#define OF_DEVICE(call)                                                                          \
    EXPORT int call(struct handle *handle)                                                       \
    {                                                                                            \
        int code = enter(__func__, handle->index);                                               \
        return code == SUCCESS ? NOT_SUPPORTED : code;                                           \
    }

OF_DEVICE(nvmlDeviceGetAccountingMode)
OF_DEVICE(nvmlDeviceGetAccountingStats)
#if DRIVER > 535
OF_DEVICE(nvmlDeviceGetPciInfoExt)
#endif
