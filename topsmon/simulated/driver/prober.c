/* What the simulated prober asks of the scenario. Not part of NVML. */
#include "export.h"

/* Applies the faults on the call "prober", as a CUDA call would meet them. */
EXPORT int topsmon_simulated_prober(int device) { return begin("prober", device); }

/* Reads a number field at the present scenario time: 1 if the device has it. */
EXPORT int topsmon_simulated_number(int device, const char *field, double *value)
{
    return number(device, field, value);
}
