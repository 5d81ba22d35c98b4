/* What the files with exported calls share. */
#ifndef TOPSMON_EXPORT_H
#define TOPSMON_EXPORT_H

#include "layout.h"
#include "table.h"

#define EXPORT __attribute__((visibility("default")))
#define MAX_TEXT 256
#define MAX_OUTPUTS 8
#define MIB 1048576.0
/* NVML's version word of a structure: its size and its version number. */
#define VERSION(type, number) ((unsigned)sizeof(type) | (number) << 24)

struct output {
    const char *field;
    double scale;
    unsigned *out;
};

/* begin(), unless the library is not initialised. */
int enter(const char *call, int device);
struct handle *handle_of(int index);
/* Enters and gives out the handle of a device. */
int hand_out(const char *call, int index, struct handle **out);
/* Enters and writes all outputs, or none. */
int read_uints(const char *call, struct handle *handle, int count, const struct output *outputs);
/* Rounded, and cut to the range of the type. */
unsigned to_uint(double value);
uint64_t to_uint64(double value);
int to_int(double value);
/* NVML's time stamp of a scenario time of a device: microseconds since 1970. */
uint64_t timestamp(int device, double seconds);
/* Enters and reads a field. */
int read_number(const char *call, struct handle *handle, const char *field, double *value);

#endif
