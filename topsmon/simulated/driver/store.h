/* The table in memory. Internal to store.c, values.c and faults.c. */
#ifndef TOPSMON_STORE_H
#define TOPSMON_STORE_H

#include "table.h"

#include <pthread.h>

#define MAX_NAME 64
#define MAX_TOKENS 48

/* Operators of number fields take their operands from a stack, the last one on top:
 *   MEAN AMPLITUDE PERIOD PHASE wave    mean + amplitude * sin(2 pi (time / period + phase))
 *   MEAN SPREAD SEED noise              mean + spread * [-1, 1], another one every 0.5 s
 *   FROM TO START END ramp              linear between two times, constant outside
 *   VALUE RATE FROM count               value + rate * (time since FROM)
 *   BEFORE AFTER TIME step              one before the time, the other from it on
 *   A B add
 *   A MODULUS wrap                      what is left of A, as in a counter of limited width */
enum operator { PUSH, WAVE, NOISE, RAMP, COUNT, STEP, ADD, WRAP, OPERATORS };

struct token {
    enum operator operator;
    double value;
};

struct number_field {
    char name[MAX_NAME];
    int length;
    struct token tokens[MAX_TOKENS];
};

struct text_field {
    char name[MAX_NAME];
    char *value;
};

struct process_entry {
    char kind[MAX_NAME];
    struct process process;
    double from, until;
    char *name;
};

enum action { RETURN, LATENCY, HANG, CRASH, NULL_RESULT, ACTIONS };

struct fault {
    char call[MAX_NAME];
    int device;
    enum action action;
    double argument;
    double from, until;
    long after, count, every, calls;
};

struct device {
    bool present;
    int parent;
    int numbers, texts, processes, events;
    struct number_field *number;
    struct text_field *text;
    struct process_entry *process;
    struct event *event;
};

/* Guards all below. No call sleeps while it holds it: a hanging call leaves the others alone. */
extern pthread_mutex_t store_lock;
extern struct device store_devices[MAX_DEVICES + 1]; /* [0] is the system */
extern struct fault *store_faults;
extern int store_fault_count;

/* Reads the table again if it has changed. The caller holds the lock. */
void refresh_store(void);
struct device *stored_device(int index);

#endif
