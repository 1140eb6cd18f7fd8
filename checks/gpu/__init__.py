"""The GPUs of a node, by what NVML and the kernel log say of them."""
