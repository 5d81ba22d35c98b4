"""Sources of events about this machine: NVIDIA GPUs through NVML, the CPU through the kernel."""
