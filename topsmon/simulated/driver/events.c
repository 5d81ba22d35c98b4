/* Event sets: errors that the driver reports when they happen. */
#define _GNU_SOURCE
#include "export.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#define LOOK_SECONDS 0.01

/* What a set waits for on a device, and up to which scenario time it has told everything. */
struct watch {
    bool on;
    uint64_t types;
    double told;
};

struct event_set {
    struct watch watches[MAX_DEVICES];
};

static pthread_mutex_t sets_lock = PTHREAD_MUTEX_INITIALIZER;

EXPORT int nvmlEventSetCreate(struct event_set **out)
{
    int code = enter(__func__, SYSTEM);
    if (code != SUCCESS)
        return code;
    if (!out)
        return INVALID_ARGUMENT;
    *out = calloc(1, sizeof **out);
    if (!*out)
        abort();
    return SUCCESS;
}

EXPORT int nvmlDeviceRegisterEvents(struct handle *handle, uint64_t types, struct event_set *set)
{
    double supported;
    int code = read_number(__func__, handle, "event_types_supported", &supported);
    if (code != SUCCESS)
        return code;
    if (!set)
        return INVALID_ARGUMENT;
    if ((types & ~to_uint64(supported)) != 0)
        return NOT_SUPPORTED;
    pthread_mutex_lock(&sets_lock);
    set->watches[handle->index] = (struct watch){true, types, scenario_time()};
    pthread_mutex_unlock(&sets_lock);
    return SUCCESS;
}

/* The earliest event that is not told yet, of any device; its device, or SYSTEM. */
static int tell_next(struct event_set *set, struct event *out)
{
    int device = SYSTEM;
    double now = scenario_time();
    pthread_mutex_lock(&sets_lock);
    for (int index = 0; index < MAX_DEVICES; index++) {
        const struct watch *watch = &set->watches[index];
        struct event event;
        if (!watch->on || !next_event(index, watch->types, watch->told, now, &event))
            continue;
        if (device == SYSTEM || event.time < out->time) {
            *out = event;
            device = index;
        }
    }
    if (device != SYSTEM)
        set->watches[device].told = out->time;
    pthread_mutex_unlock(&sets_lock);
    return device;
}

static double real_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* Waits in real time, also while scenario time stands still. */
EXPORT int nvmlEventSetWait_v2(struct event_set *set, struct event_data *out, unsigned milliseconds)
{
    struct event event;
    int device;
    int code = enter(__func__, SYSTEM);
    if (code != SUCCESS)
        return code;
    if (!set || !out)
        return INVALID_ARGUMENT;
    double end = real_seconds() + milliseconds / 1e3;
    while ((device = tell_next(set, &event)) == SYSTEM) {
        if (real_seconds() >= end)
            return TIMEOUT;
        sleep_seconds(LOOK_SECONDS);
        refresh();
    }
    *out = (struct event_data){handle_of(device), event.type, event.data, event.gpu_instance,
                               event.compute_instance};
    return SUCCESS;
}

EXPORT int nvmlEventSetFree(struct event_set *set)
{
    int code = enter(__func__, SYSTEM);
    if (code == SUCCESS)
        free(set);
    return code;
}
