/* The scenario as the simulated driver sees it: values, faults, clock and call log.
 *
 * The table is a text file written by table.py, one record a line, words separated by spaces:
 *
 *   topsmon-simulated 1
 *   device INDEX PARENT            INDEX -1 is the system; PARENT -1 unless a MIG instance
 *   text FIELD HEX                 of the device above; the bytes in hexadecimal
 *   number FIELD TOKEN...          postfix expression of scenario time, see store.h
 *   process KIND PID MIB GI CI FROM UNTIL SM MEMORY ENCODER DECODER HEX
 *                                  KIND: compute, graphics, mps; shares in %, -1 for none; a name
 *   event TYPE DATA GI CI TIME     in order of time
 *   fault CALL DEVICE ACTION ARGUMENT FROM UNTIL AFTER COUNT EVERY    CALL: glob; DEVICE -2: any
 *
 * A field of one NVLink, fan or peer is a number of its own, named FIELD.PART.
 */
#ifndef TOPSMON_TABLE_H
#define TOPSMON_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SYSTEM (-1)
#define ANY_DEVICE (-2)
#define MAX_DEVICES 64

/* Return codes of NVML, as its header numbers them. NULL_HANDLE is ours: see begin(). */
enum {
    SUCCESS = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    TIMEOUT = 10,
    ARGUMENT_VERSION_MISMATCH = 25,
    UNKNOWN = 999,
    NULL_HANDLE = -1,
};

struct process {
    unsigned pid;
    double mib; /* negative: the driver cannot tell */
    unsigned gpu_instance;
    unsigned compute_instance;
    double sm, memory, encoder, decoder; /* %; negative: no sample */
};

struct event {
    uint64_t type, data;
    unsigned gpu_instance, compute_instance;
    double time;
};

/* Start of every call: reads the table again if it has changed, logs, then strike(). */
int begin(const char *call, int device);
/* Applies the faults that match. Returns the code that the call must return at once, SUCCESS to go
 * on, or NULL_HANDLE when a handle call must succeed with a NULL handle. A hang never returns and a
 * crash ends the process. */
int strike(const char *call, int device);
/* Reads the table again if it has changed. */
void refresh(void);
void sleep_seconds(double seconds);

/* Values at the present scenario time, of the table as the last begin() saw it.
 * False: the scenario has none, so the device does not support it. */
bool number(int device, const char *field, double *value);
/* The same of one link, fan or peer: its own value, else that of all. */
bool part_number(int device, const char *field, unsigned part, double *value);
bool number_at(int device, const char *field, double time, double *value);
/* The mean between two times. */
bool mean_number(int device, const char *field, double from, double until, double *value);
bool text(int device, const char *field, char *out, size_t size);

/* The physical devices that are there now: those whose field `present` is not 0. */
int count_devices(void);
/* The index of the nth of them, or SYSTEM. */
int nth_device(int nth);
/* The index of the device whose text field equals `value`, or SYSTEM. */
int find_device(const char *field, const char *value);
/* The parent of a MIG instance, -1 for a physical device. */
int parent_of(int device);
/* The index of the nth MIG instance of `parent`, or SYSTEM. One that is gone leaves a gap. */
int nth_instance(int parent, int nth);
/* The index of the instance of `parent` with this GPU instance id, or SYSTEM. */
int find_instance(int parent, unsigned gpu_instance);

/* Copies up to `capacity` processes that exist now and returns how many exist. KIND "*": all. */
int list_processes(int device, const char *kind, struct process *out, int capacity);
/* The name of a process on any device. */
bool process_name(unsigned pid, char *out, size_t size);
/* The first event of these types after one time and not after the other. */
bool next_event(int device, uint64_t types, double after, double until, struct event *out);

/* Seconds of scenario time. */
double scenario_time(void);

#endif
