"""Small native programs for states that Python cannot reach by itself."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

STUCK = """
#define _GNU_SOURCE
#include <stdio.h>
#include <unistd.h>
/* The parent of vfork sleeps uninterruptibly (state D) until its child execs or ends. */
int main(void) { if (vfork() == 0) { pause(); _exit(0); } return 0; }
"""

UNREADABLE = """
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>
/* Whoever reads this process's environment waits for a page that never comes. */
int main(void)
{
    struct uffdio_api api = { .api = UFFD_API };
    int fd = syscall(SYS_userfaultfd, O_CLOEXEC);
    char *page = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct uffdio_register range = { .range = { (unsigned long)page, 4096 },
                                     .mode = UFFDIO_REGISTER_MODE_MISSING };
    if (fd < 0 || ioctl(fd, UFFDIO_API, &api) || ioctl(fd, UFFDIO_REGISTER, &range)
        || prctl(PR_SET_MM, PR_SET_MM_ENV_START, page, 0, 0)
        || prctl(PR_SET_MM, PR_SET_MM_ENV_END, page + 4096, 0, 0))
        return 1;
    puts("ready");
    fflush(stdout);
    pause();
    return 0;
}
"""


def compiled(source: str, into: Path) -> Path:
    """Compile a program; skips the test where there is no compiler."""
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc")
    program = into / "program"
    subprocess.run(["gcc", "-o", program, "-x", "c", "-"], input=source, text=True, check=True)
    return program
