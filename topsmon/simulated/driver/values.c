/* Values of the scenario at a time, devices and processes. */
#define _GNU_SOURCE
#include "store.h"

#include <fcntl.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

#define MAX_STACK MAX_TOKENS
#define NOISE_PERIOD 0.5 /* s for which a noisy value stays */
#define MEAN_POINTS 32

static double monotonic(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* A clock file, while it exists, holds the scenario time; else it is the time since the start. */
double scenario_time(void)
{
    const char *path = getenv("TOPSMON_SIMULATED_CLOCK");
    const char *start = getenv("TOPSMON_SIMULATED_START");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file >= 0) {
        char content[64];
        ssize_t length = read(file, content, sizeof content - 1);
        close(file);
        if (length > 0) {
            content[length] = '\0';
            return strtod(content, NULL);
        }
    }
    return monotonic() - (start ? strtod(start, NULL) : 0);
}

/* splitmix64 (public domain, S. Vigna), reduced to [-1, 1]. */
static double unit_noise(double seed, double step)
{
    uint64_t x = (uint64_t)seed * 0x9e3779b97f4a7c15u + (uint64_t)(int64_t)step;
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    x ^= x >> 31;
    return (double)(x >> 11) / 4503599627370496.0 - 1.0;
}

static const int operands[OPERATORS] = {
    [WAVE] = 4, [NOISE] = 3, [RAMP] = 4, [COUNT] = 3, [STEP] = 3, [ADD] = 2, [WRAP] = 2,
};

static double apply(enum operator operator, const double *a, double time)
{
    switch (operator) {
    case WAVE:
        return a[0] + a[1] * sin(2 * M_PI * (time / a[2] + a[3]));
    case NOISE:
        return a[0] + a[1] * unit_noise(a[2], floor(time / NOISE_PERIOD));
    case RAMP:
        if (time <= a[2])
            return a[0];
        return time >= a[3] ? a[1] : a[0] + (a[1] - a[0]) * (time - a[2]) / (a[3] - a[2]);
    case COUNT:
        return a[0] + a[1] * fmax(0, time - a[2]);
    case STEP:
        return time < a[2] ? a[0] : a[1];
    case WRAP:
        return fmod(a[0], a[1]);
    default:
        return a[0] + a[1];
    }
}

static double evaluate(const struct number_field *field, double time)
{
    double stack[MAX_STACK] = {0};
    int top = 0;
    for (int i = 0; i < field->length; i++) {
        const struct token *token = &field->tokens[i];
        double value = token->value;
        if (token->operator != PUSH) {
            if (top < operands[token->operator])
                return 0;
            top -= operands[token->operator];
            value = apply(token->operator, stack + top, time);
        }
        if (top < MAX_STACK)
            stack[top++] = value;
    }
    return top ? stack[top - 1] : 0;
}

/* The caller holds the lock. */
static const struct number_field *find_number(const struct device *device, const char *field)
{
    for (int i = 0; device && i < device->numbers; i++)
        if (!strcmp(device->number[i].name, field))
            return &device->number[i];
    return NULL;
}

bool mean_number(int index, const char *field, double from, double until, double *value)
{
    pthread_mutex_lock(&store_lock);
    const struct number_field *found = find_number(stored_device(index), field);
    if (found) {
        double sum = 0;
        for (int i = 0; i < MEAN_POINTS; i++)
            sum += evaluate(found, from + (until - from) * (i + 0.5) / MEAN_POINTS);
        *value = sum / MEAN_POINTS;
    }
    pthread_mutex_unlock(&store_lock);
    return found != NULL;
}

bool number_at(int index, const char *field, double time, double *value)
{
    pthread_mutex_lock(&store_lock);
    const struct number_field *found = find_number(stored_device(index), field);
    if (found)
        *value = evaluate(found, time);
    pthread_mutex_unlock(&store_lock);
    return found != NULL;
}

/* The clock is a file: a constant does without it. */
static double evaluate_now(const struct number_field *field)
{
    if (field->length == 1 && field->tokens[0].operator == PUSH)
        return field->tokens[0].value;
    return evaluate(field, scenario_time());
}

bool number(int index, const char *field, double *value)
{
    pthread_mutex_lock(&store_lock);
    const struct number_field *found = find_number(stored_device(index), field);
    if (found)
        *value = evaluate_now(found);
    pthread_mutex_unlock(&store_lock);
    return found != NULL;
}

bool part_number(int index, const char *field, unsigned part, double *value)
{
    char own[MAX_NAME];
    snprintf(own, sizeof own, "%s.%u", field, part);
    return number(index, own, value) || number(index, field, value);
}

static const char *text_value(const struct device *device, const char *field)
{
    for (int i = 0; device && i < device->texts; i++)
        if (!strcmp(device->text[i].name, field))
            return device->text[i].value;
    return NULL;
}

bool text(int index, const char *field, char *out, size_t size)
{
    pthread_mutex_lock(&store_lock);
    const char *value = text_value(stored_device(index), field);
    if (value && size)
        snprintf(out, size, "%s", value);
    pthread_mutex_unlock(&store_lock);
    return value != NULL;
}

/* The caller holds the lock. */
static bool is_present(int index)
{
    const struct device *device = stored_device(index);
    const struct number_field *present = find_number(device, "present");
    return device && (!present || evaluate_now(present) != 0);
}

int nth_device(int nth)
{
    int found = SYSTEM;
    pthread_mutex_lock(&store_lock);
    for (int index = 0; index < MAX_DEVICES && found == SYSTEM; index++)
        if (is_present(index) && stored_device(index)->parent == -1 && nth-- == 0)
            found = index;
    pthread_mutex_unlock(&store_lock);
    return found;
}

int nth_instance(int parent, int nth)
{
    int found = SYSTEM;
    pthread_mutex_lock(&store_lock);
    for (int index = 0; index < MAX_DEVICES && nth >= 0; index++) {
        const struct device *device = stored_device(index);
        if (device && device->parent == parent && nth-- == 0 && is_present(index))
            found = index;
    }
    pthread_mutex_unlock(&store_lock);
    return found;
}

int count_devices(void)
{
    int count = 0;
    pthread_mutex_lock(&store_lock);
    for (int index = 0; index < MAX_DEVICES; index++)
        count += is_present(index) && stored_device(index)->parent == -1;
    pthread_mutex_unlock(&store_lock);
    return count;
}

int find_instance(int parent, unsigned gpu_instance)
{
    int found = SYSTEM;
    pthread_mutex_lock(&store_lock);
    for (int index = 0; index < MAX_DEVICES && found == SYSTEM; index++) {
        const struct device *device = stored_device(index);
        const struct number_field *id = find_number(device, "gpu_instance");
        if (device && device->parent == parent && id && is_present(index) &&
            evaluate_now(id) == gpu_instance)
            found = index;
    }
    pthread_mutex_unlock(&store_lock);
    return found;
}

int find_device(const char *field, const char *value)
{
    int found = SYSTEM;
    pthread_mutex_lock(&store_lock);
    for (int index = 0; index < MAX_DEVICES && found == SYSTEM; index++) {
        const char *known = text_value(stored_device(index), field);
        if (known && !strcasecmp(known, value) && is_present(index))
            found = index;
    }
    pthread_mutex_unlock(&store_lock);
    return found;
}

int parent_of(int index)
{
    pthread_mutex_lock(&store_lock);
    const struct device *device = stored_device(index);
    int parent = device ? device->parent : SYSTEM;
    pthread_mutex_unlock(&store_lock);
    return parent;
}

int list_processes(int index, const char *kind, struct process *out, int capacity)
{
    int count = 0;
    double now = scenario_time();
    pthread_mutex_lock(&store_lock);
    const struct device *device = stored_device(index);
    for (int i = 0; device && i < device->processes; i++) {
        const struct process_entry *entry = &device->process[i];
        bool wanted = !strcmp(kind, "*") || !strcmp(kind, entry->kind);
        if (!wanted || now < entry->from || now >= entry->until)
            continue;
        if (count < capacity)
            out[count] = entry->process;
        count++;
    }
    pthread_mutex_unlock(&store_lock);
    return count;
}


bool process_name(unsigned pid, char *out, size_t size)
{
    bool found = false;
    double now = scenario_time();
    pthread_mutex_lock(&store_lock);
    for (int index = 0; index < MAX_DEVICES && !found; index++) {
        const struct device *device = stored_device(index);
        for (int i = 0; device && i < device->processes && !found; i++) {
            const struct process_entry *entry = &device->process[i];
            found = entry->process.pid == pid && *entry->name && now >= entry->from &&
                    now < entry->until;
            if (found)
                snprintf(out, size, "%s", entry->name);
        }
    }
    pthread_mutex_unlock(&store_lock);
    return found;
}

bool next_event(int index, uint64_t types, double after, double until, struct event *out)
{
    bool found = false;
    pthread_mutex_lock(&store_lock);
    const struct device *device = stored_device(index);
    for (int i = 0; device && i < device->events && !found; i++) {
        const struct event *event = &device->event[i];
        found = event->time > after && event->time <= until && (event->type & types) != 0;
        if (found)
            *out = *event;
    }
    pthread_mutex_unlock(&store_lock);
    return found;
}
