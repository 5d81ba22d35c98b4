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

struct addressing_mode_v1 {
    unsigned version, mode;
};

struct sram_errors_v1 {
    unsigned version;
    uint64_t aggregate_parity, aggregate_secded, aggregate_corrected;
    uint64_t volatile_parity, volatile_secded, volatile_corrected;
    uint64_t bucket_l2, bucket_sm, bucket_pcie, bucket_mcu, bucket_other;
    unsigned threshold_exceeded;
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

/* As drivers of release 535 had it at first, under the name of the one above. */
struct process_info_early_535 {
    unsigned pid;
    uint64_t used_gpu_memory;
    unsigned gpu_instance, compute_instance;
    uint64_t used_protected_memory;
};

struct process_sample {
    unsigned pid;
    uint64_t timestamp;
    unsigned sm, memory, encoder, decoder;
};

struct process_utilization_v1 {
    uint64_t timestamp;
    unsigned pid, sm, memory, encoder, decoder, jpeg, ofa;
};

struct processes_utilization_v1 {
    unsigned version, count;
    uint64_t last_seen;
    struct process_utilization_v1 *entries;
};

union value {
    double real;
    unsigned uint;
    int sint;
    uint64_t ulong;
    int64_t slong;
};

enum value_type { UNSIGNED_INT = 1, UNSIGNED_LONG_LONG = 3, SIGNED_INT = 5 };

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

struct event_data {
    struct handle *device;
    uint64_t type, data;
    unsigned gpu_instance, compute_instance;
};

struct gpm_support {
    unsigned version, supported;
};

struct gpm_metric {
    unsigned id, code;
    double value;
    const char *short_name, *long_name, *unit;
};

#define GPM_METRICS 477

struct gpm_metrics {
    unsigned version, count;
    struct gpm_sample *older, *newer;
    struct gpm_metric metrics[GPM_METRICS];
};

struct attributes {
    unsigned multiprocessors, copy_engines, decoders, encoders, jpeg_engines, ofa_engines;
    unsigned gpu_instance_slices, compute_instance_slices;
    uint64_t memory_mib;
};

#endif
