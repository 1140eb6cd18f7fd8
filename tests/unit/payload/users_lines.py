"""Lines of the kernel in which a user's words stand, and words that imitate others of its lines."""

from __future__ import annotations

SEGFAULT = "segfault at 0 ip 00007f sp 00007f error 4 in {path}[400000+1000]"
OF_A_PROCESS = (
    "{comm}[4711]: " + SEGFAULT,
    "{comm}[4711]: segfault at 0 ip 0 sp 0 error 4 in a[1+2] likely on CPU 3 (core 1, socket 0)",
    "{comm}[4711]: unhandled exception: SP Alignment, ESR 0x9a000000, {comm} in {path}[1+2]",
    "{comm} invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0",
    "{comm}: page allocation failure: order:4, mode:0x40dc0(GFP_KERNEL), nodemask=(null)",
    "{comm} (4711): drop_caches: 3",
    "{comm} (4711) used greatest stack depth: 11000 bytes left",
    "{comm}/4711: potentially unexpected fatal signal 11.",
    "{comm}: attempt to access beyond end of device",
    "traps: {comm}[4711] general protection fault ip:0 sp:0 error:0 in {path}[1+2]",
    "process '{path}' started with executable stack",
    "INFO: task {comm}:4711 blocked for more than 120 seconds.",
    "watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [{comm}:4711]",
    "Out of memory: Killed process 4711 ({comm}) total-vm:1kB, anon-rss:1kB, UID:1000",
    "Memory cgroup out of memory: Killed process 4711 ({comm}) total-vm:1kB, anon-rss:1kB",
    "oom-kill:constraint=CONSTRAINT_MEMCG,task_memcg=/user/{path},task={comm},pid=4711,uid=1000",
    "CPU: 3 PID: 4711 Comm: {comm} Not tainted 6.1.0",
    "MCE: Killing {comm}:4711 due to hardware memory corruption fault at 4631e000",
    "EXT4-fs error (device sda1): ext4_lookup:1785: inode #2: comm {comm}: bad entry {path}",
    "BTRFS warning (device sdb): checksum error at logical 1, root 5, inode 1 (path: {path})",
    "XFS (nvme0n1p2): {comm} should use fallocate; XFS_IOC_{{ALLOC,FREE}}SP ioctl unsupported",
    "XFS: {comm}(4711) possible memory allocation deadlock size 65552 in kmem_alloc (mode:0x2)",
    "nfs: server filer not responding, still trying",
    "NVRM: Xid (PCI:0000:1b:00): 13, pid=4711, name={comm}, Graphics Exception: ESR 0x1",
    "NVRM: Xid (PCI:0000:1b:00): 31, pid=4711, name={comm}, Ch 00000008, intr 00000000",
    "NVRM: API mismatch: the client '{comm}' (pid 4711)\nNVRM: has the version {version}, but this",
    "NVRM: has the version {version}, but this kernel module has",
    "NVRM: option mode: invalid value ({version})",
    "NVRM: (slave {comm}): Enslaving as a backup interface with a down link",
    "mlx5_core: option mode: invalid value ({version})",
    "nvidia: option mode: invalid value ({version})",
    "XFS: option mode: invalid value ({version})",
)
"""As the kernel and the NVIDIA driver print them of a process of any user, all without a fault."""

FORGED = (
    "MCE: Killing x",
    "EDAC M: 9 UE on",
    "EDAC MC0: 1 UE ",
    "Memory failure:",
    "mce: [Hardware ",
    "BERT: records f",
    "NVRM: Xid (PCI:",
    "XFS (a): x",
    "a\nEDAC M: 9 UE",
    "Nonfatal",
    "a, X Nonfatal",
    "[Hardware Error",
    "DPC: containmen",
    "Oops: 1",
    "shutdown",
    "shut down",
    "Shutting down",
    "shut(0x2) error",
    "(a) Remounting",
)
VERSIONS = (
    "0000:1b:00 has fallen off the bus",
    "0000:1b:00 GPU likely needs to be reset",
    "GPU 0000:1b:00.0: GPU has fallen off the bus.",
    "GPU 0000:1b:00.0: RmInitAdapter failed! (0x26:0x56:1474)",
    "1\nNVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen",
    "GPU1 x: Error setting TX sublink mode",
    "mlx5_core 0000:1b:00.0: device's health compromised",
)
"""What a program claims to be: up to 63 characters, printed as they are."""
PATHS = (
    "shutdown",
    "forced readonly",
    "NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus.",
    "mce: [Hardware Error]: CPU 1: Machine Check: 0 Bank 9: be00000000800400",
    "EDAC MC0: 1 UE memory read error on DIMM0 (channel:0 page:0x1)",
    "mlx5_core 0000:1b:00.0: device's health compromised",
)
