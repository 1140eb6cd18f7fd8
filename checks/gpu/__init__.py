"""The GPUs of a node, as NVML and the kernel log report them."""
