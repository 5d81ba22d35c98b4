/* Structures of NVML's binary interface, as its header (nvml.h, API 13) fixes them. The tests
 * compare their sizes and offsets with the ctypes structures of nvidia-ml-py. */
#ifndef TOPSMON_LAYOUT_H
#define TOPSMON_LAYOUT_H

#include <stdint.h>

struct handle {
    int index;
};

struct pci_info {
    char bus_id_legacy[16];
    unsigned domain, bus, device;
    unsigned pci_device_id, pci_subsystem_id;
    char bus_id[32];
};

struct memory_info {
    uint64_t total, free, used;
};

struct memory_info_v2 {
    unsigned version;
    uint64_t total, reserved, free, used;
};

struct utilization {
    unsigned gpu, memory;
};

struct temperature_v1 {
    unsigned version, sensor;
    int celsius;
};

struct margin_temperature_v1 {
    unsigned version;
    int celsius;
};

struct process_info_v1 {
    unsigned pid;
    uint64_t used_gpu_memory;
};

struct process_info_v2 {
    unsigned pid;
    uint64_t used_gpu_memory;
    unsigned gpu_instance, compute_instance;
};

union value {
    double real;
    unsigned uint;
    uint64_t ulong;
    int64_t slong;
};

enum value_type { DOUBLE = 0, UNSIGNED_INT = 1, UNSIGNED_LONG_LONG = 3 };

struct field_value {
    uint32_t field, scope;
    int64_t timestamp, latency_microseconds;
    unsigned value_type, code;
    union value value;
};

struct sample {
    uint64_t timestamp;
    union value value;
};

struct attributes {
    unsigned multiprocessors, copy_engines, decoders, encoders, jpeg_engines, ofa_engines;
    unsigned gpu_instance_slices, compute_instance_slices;
    uint64_t memory_mib;
};

#endif
