/* Reads the scenario table. */
#define _GNU_SOURCE
#include "store.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

pthread_mutex_t store_lock = PTHREAD_MUTEX_INITIALIZER;
struct device store_devices[MAX_DEVICES + 1];
struct fault *store_faults;
int store_fault_count;

static const char *const operator_names[OPERATORS] = {
    [WAVE] = "wave", [NOISE] = "noise", [RAMP] = "ramp",
    [COUNT] = "count", [STEP] = "step", [ADD] = "add", [WRAP] = "wrap",
};
static const char *const action_names[ACTIONS] = {"return", "latency", "hang", "crash", "null"};
static struct stat loaded;

static void *grown(void *array, int count, size_t size)
{
    array = realloc(array, (size_t)(count + 1) * size);
    if (!array)
        abort();
    memset((char *)array + (size_t)count * size, 0, size);
    return array;
}

static void clear_table(void)
{
    for (int slot = 0; slot <= MAX_DEVICES; slot++) {
        struct device *device = &store_devices[slot];
        for (int i = 0; i < device->texts; i++)
            free(device->text[i].value);
        for (int i = 0; i < device->processes; i++)
            free(device->process[i].name);
        free(device->text);
        free(device->number);
        free(device->process);
        free(device->event);
        memset(device, 0, sizeof *device);
    }
    free(store_faults);
    store_faults = NULL;
    store_fault_count = 0;
}

static char *from_hex(const char *hex)
{
    size_t length = strlen(hex) / 2;
    char *bytes = calloc(length + 1, 1);
    unsigned byte;
    if (!bytes)
        abort();
    for (size_t i = 0; i < length && sscanf(hex + 2 * i, "%2x", &byte) == 1; i++)
        bytes[i] = (char)byte;
    return bytes;
}

static void copy_name(char *out, const char *word)
{
    snprintf(out, MAX_NAME, "%s", word ? word : "");
}

static double word_number(char **rest)
{
    const char *word = strtok_r(NULL, " ", rest);
    return word ? strtod(word, NULL) : 0;
}

static void read_number(struct device *device, char **rest)
{
    device->number = grown(device->number, device->numbers, sizeof *device->number);
    struct number_field *field = &device->number[device->numbers++];
    copy_name(field->name, strtok_r(NULL, " ", rest));
    const char *word;
    while ((word = strtok_r(NULL, " ", rest)) && field->length < MAX_TOKENS) {
        struct token *token = &field->tokens[field->length++];
        token->operator = PUSH;
        for (int i = PUSH + 1; i < OPERATORS; i++)
            if (!strcmp(word, operator_names[i]))
                token->operator = (enum operator)i;
        token->value = strtod(word, NULL);
    }
}

static void read_text(struct device *device, char **rest)
{
    device->text = grown(device->text, device->texts, sizeof *device->text);
    struct text_field *field = &device->text[device->texts++];
    copy_name(field->name, strtok_r(NULL, " ", rest));
    const char *hex = strtok_r(NULL, " ", rest);
    field->value = from_hex(hex ? hex : "");
}

static void read_process(struct device *device, char **rest)
{
    device->process = grown(device->process, device->processes, sizeof *device->process);
    struct process_entry *entry = &device->process[device->processes++];
    copy_name(entry->kind, strtok_r(NULL, " ", rest));
    entry->process.pid = (unsigned)word_number(rest);
    entry->process.mib = word_number(rest);
    entry->process.gpu_instance = (unsigned)word_number(rest);
    entry->process.compute_instance = (unsigned)word_number(rest);
    entry->from = word_number(rest);
    entry->until = word_number(rest);
    entry->process.sm = word_number(rest);
    entry->process.memory = word_number(rest);
    entry->process.encoder = word_number(rest);
    entry->process.decoder = word_number(rest);
    const char *hex = strtok_r(NULL, " ", rest);
    entry->name = from_hex(hex ? hex : "");
}

static void read_event(struct device *device, char **rest)
{
    device->event = grown(device->event, device->events, sizeof *device->event);
    struct event *event = &device->event[device->events++];
    event->type = (uint64_t)word_number(rest);
    event->data = (uint64_t)word_number(rest);
    event->gpu_instance = (unsigned)word_number(rest);
    event->compute_instance = (unsigned)word_number(rest);
    event->time = word_number(rest);
}

static void read_fault(char **rest)
{
    store_faults = grown(store_faults, store_fault_count, sizeof *store_faults);
    struct fault *fault = &store_faults[store_fault_count++];
    copy_name(fault->call, strtok_r(NULL, " ", rest));
    fault->device = (int)word_number(rest);
    const char *action = strtok_r(NULL, " ", rest);
    for (int i = 0; action && i < ACTIONS; i++)
        if (!strcmp(action, action_names[i]))
            fault->action = (enum action)i;
    fault->argument = word_number(rest);
    fault->from = word_number(rest);
    fault->until = word_number(rest);
    fault->after = (long)word_number(rest);
    fault->count = (long)word_number(rest);
    fault->every = (long)word_number(rest);
}

static void read_table(FILE *file)
{
    struct device *device = &store_devices[0];
    char *line = NULL;
    size_t size = 0;
    ssize_t length;
    while ((length = getline(&line, &size, file)) > 0) {
        char *rest = NULL;
        line[strcspn(line, "\n")] = '\0';
        const char *record = strtok_r(line, " ", &rest);
        if (!record)
            continue;
        if (!strcmp(record, "device")) {
            int index = (int)word_number(&rest);
            if (index < SYSTEM || index >= MAX_DEVICES)
                continue;
            device = &store_devices[index + 1];
            device->present = true;
            device->parent = (int)word_number(&rest);
        } else if (!strcmp(record, "number")) {
            read_number(device, &rest);
        } else if (!strcmp(record, "text")) {
            read_text(device, &rest);
        } else if (!strcmp(record, "process")) {
            read_process(device, &rest);
        } else if (!strcmp(record, "event")) {
            read_event(device, &rest);
        } else if (!strcmp(record, "fault")) {
            read_fault(&rest);
        }
    }
    free(line);
}

/* The table is replaced by renaming, so that a change always shows as another inode or time. */
void refresh_store(void)
{
    const char *path = getenv("TOPSMON_SIMULATED_TABLE");
    struct stat now;
    if (!path || stat(path, &now) != 0)
        return;
    if (now.st_ino == loaded.st_ino && now.st_size == loaded.st_size &&
        now.st_mtim.tv_sec == loaded.st_mtim.tv_sec &&
        now.st_mtim.tv_nsec == loaded.st_mtim.tv_nsec)
        return;
    FILE *file = fopen(path, "re");
    if (!file)
        return;
    loaded = now;
    clear_table();
    read_table(file);
    fclose(file);
}

struct device *stored_device(int index)
{
    bool valid = index >= SYSTEM && index < MAX_DEVICES && store_devices[index + 1].present;
    return valid ? &store_devices[index + 1] : NULL;
}
