/* Faults and the call log. */
#define _GNU_SOURCE
#include "store.h"

#include <fcntl.h>
#include <fnmatch.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static void log_call(const char *call, int device)
{
    const char *path = getenv("TOPSMON_SIMULATED_LOG");
    int file = path ? open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600) : -1;
    if (file < 0)
        return;
    char line[160];
    int length = snprintf(line, sizeof line, "%.6f %s %d\n", scenario_time(), call, device);
    ssize_t written = write(file, line, (size_t)length);
    (void)written; /* a full disk must not change what the driver answers */
    close(file);
}

void sleep_seconds(double seconds)
{
    struct timespec rest = {(time_t)seconds, (long)((seconds - floor(seconds)) * 1e9)};
    while (nanosleep(&rest, &rest) != 0)
        ;
}

static bool strikes(struct fault *fault, const char *call, int device, double now)
{
    if (fault->device != ANY_DEVICE && fault->device != device)
        return false;
    if (now < fault->from || now >= fault->until || fnmatch(fault->call, call, 0) != 0)
        return false;
    long number = fault->calls++ - fault->after;
    if (number < 0 || number % fault->every != 0)
        return false;
    return fault->count < 0 || number / fault->every < fault->count;
}

int strike(const char *call, int device)
{
    int code = SUCCESS;
    double latency = 0;
    bool hang = false, crash = false;
    pthread_mutex_lock(&store_lock);
    double now = store_fault_count > 0 ? scenario_time() : 0;
    for (int i = 0; i < store_fault_count; i++) {
        struct fault *fault = &store_faults[i];
        if (!strikes(fault, call, device, now))
            continue;
        if (fault->action == RETURN && code == SUCCESS)
            code = (int)fault->argument;
        else if (fault->action == NULL_RESULT && code == SUCCESS)
            code = NULL_HANDLE;
        latency += fault->action == LATENCY ? fault->argument : 0;
        hang |= fault->action == HANG;
        crash |= fault->action == CRASH;
    }
    pthread_mutex_unlock(&store_lock);
    if (crash)
        *(volatile int *)NULL = 0; /* as a driver bug would: SIGSEGV, no clean-up */
    if (latency > 0)
        sleep_seconds(latency);
    while (hang)
        sleep_seconds(3600);
    return code;
}

void refresh(void)
{
    pthread_mutex_lock(&store_lock);
    refresh_store();
    pthread_mutex_unlock(&store_lock);
}

int begin(const char *call, int device)
{
    refresh();
    log_call(call, device);
    return strike(call, device);
}
