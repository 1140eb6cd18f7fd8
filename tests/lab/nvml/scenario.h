/* What the emulated driver of this host has to say, read from a file of "key value" lines. */
#ifndef SCENARIO_H
#define SCENARIO_H

enum { MAX_GPUS = 16, MAX_LINKS = 18, MAX_PROCESSES = 32, MAX_MIG = 7, P2P_CAPS = 5,
       MAX_COUNTERS = 96, MAX_WORDS = 16 };

enum init_mode { INIT_ANSWERS, INIT_FAILS, INIT_HANGS, INIT_BLOCKS };

struct link {
    unsigned up;
    unsigned kind; /* NVML_NVLINK_DEVICE_TYPE_* */
    char remote[32];
};

struct process {
    unsigned pid;
    unsigned long long used_mib;
};

struct mig {
    struct gpu *parent;
    char uuid[96];
};

struct counter {
    char name[32];
    unsigned long long value;
};

/* What NVML says in words in place of what a healthy H100 says: `word I vbios 96.00.61.00.01`. */
struct word {
    char name[32], text[80];
};

struct gpu {
    char bus[32], uuid[96], serial[32], cpus[128];
    unsigned index, minor, numa;
    unsigned long long used_mib;
    int error; /* every call on this GPU answers so; 0 is healthy */
    int idle;  /* its job has ended, as the counter "job_ends" has it do once its utilization is told */
    unsigned links, processes, migs, counters, refusals, words;
    struct link link[MAX_LINKS];
    struct process process[MAX_PROCESSES];
    struct mig mig[MAX_MIG];
    struct counter counter[MAX_COUNTERS];
    struct counter refusal[MAX_COUNTERS]; /* reading, and the NVML error that it answers with */
    struct word word[MAX_WORDS];
    unsigned ancestor[MAX_GPUS];
    unsigned p2p[MAX_GPUS][P2P_CAPS];
};

struct scenario {
    enum init_mode init;
    int init_error;
    unsigned slow_ms, slow_call_ms; /* nvmlInit; each question for a PCI address */
    unsigned busy_ms;               /* nvmlInit, of CPU time */
    char blocked_path[256]; /* INIT_BLOCKS: written to; on a frozen file system that never ends */
    char driver[80], nvml[80], name[96];
    int cuda;
    unsigned long long memory_mib, reserved_mib;
    unsigned gpus;
    struct gpu gpu[MAX_GPUS];
};

/* Fill `into` from $PREFLIGHT_NVML_SCENARIO, else <folder of this library>/scenarios/<uname -n>.
   Returns 0, or -1 where there is no such file or a line of it is not understood. */
int scenario_read(struct scenario *into);

/* Read the counters of all GPUs again, if the file has changed: they move while a driver is open. */
void scenario_recount(struct scenario *into);

#endif
