"""What the job's Python would load: torch, CUDA, NCCL."""
