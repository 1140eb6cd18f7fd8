/* An NVML whose answers come from a scenario file. The ABI is NVIDIA's own (nvml.h), so that the
   real pynvml runs unchanged. A function that is not here is "not found", as with an old driver. */
#include "scenario.h"

#include <fcntl.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

enum { OK = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6,
       INSUFFICIENT_SIZE = 7, DRIVER_NOT_LOADED = 9, VERSION_MISMATCH = 25 };

typedef unsigned long long u64;
typedef struct gpu *device; /* a struct gpu or, for a MIG instance, a struct mig */

struct pci_v2 { char bus[16]; unsigned domain, number, device, id, subsystem, reserved[4]; };
struct pci_v3 { char legacy[16]; unsigned domain, number, device, id, subsystem; char bus[32]; };
struct memory { u64 total, free, used; };
struct memory_v2 { unsigned version; u64 total, reserved, free, used; };
struct process_v1 { unsigned pid; u64 used; };
struct process_v2 { unsigned pid; u64 used; unsigned gpu_instance, compute_instance; };
struct bar1 { u64 total, free, used; };
struct histogram { unsigned max, high, partial, low, none; };
struct fabric_v1 { unsigned char cluster[16]; int status; unsigned clique; unsigned char state; };
struct fabric_v3 { unsigned version; unsigned char cluster[16]; int status; unsigned clique;
                   unsigned char state; unsigned mask; unsigned char summary; };
struct sram { unsigned version; u64 counts[11]; unsigned exceeded; };
struct margin { unsigned version; int left; };
struct utilization { unsigned gpu, memory; };
struct field { unsigned id, scope; long long timestamp, latency_us; unsigned type; int result;
               union { double d; unsigned u; u64 ull; } value; };

static struct scenario here;
static unsigned users, calls;

/* How many functions this process has asked: no part of NVML, for tests. */
unsigned emulator_calls(void) { return calls; }

/* ---- library ---- */

static void hang(void)
{
    sigset_t all;

    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, NULL);
    for (;;)
        pause();
}

static void block(void)
{
    int file = open(here.blocked_path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);

    if (file < 0 || write(file, "x", 1) != 1)
        perror("NVML emulator");
}

static unsigned used_ms(void)
{
    struct timespec used;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
    return used.tv_sec * 1000 + used.tv_nsec / 1000000;
}

static void compute(unsigned milliseconds)
{
    unsigned began = used_ms();

    while (used_ms() - began < milliseconds)
        continue;
}

int nvmlInitWithFlags(unsigned flags)
{
    struct timespec pause_s;

    (void)flags;
    if (users) {
        users++;
        return OK;
    }
    if (scenario_read(&here))
        return DRIVER_NOT_LOADED;
    if (here.init == INIT_HANGS)
        hang();
    if (here.init == INIT_BLOCKS)
        block();
    if (here.init == INIT_FAILS)
        return here.init_error;
    pause_s.tv_sec = here.slow_ms / 1000;
    pause_s.tv_nsec = here.slow_ms % 1000 * 1000000L;
    nanosleep(&pause_s, NULL);
    compute(here.busy_ms);
    users = 1;
    return OK;
}

int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlInit(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) { return users ? (users--, OK) : UNINITIALIZED; }

const char *nvmlErrorString(int result)
{
    static const char *const words[] = {
        "Success", "Uninitialized", "Invalid Argument", "Not Supported", "Insufficient Permissions",
        "Already Initialized", "Not Found", "Insufficient Size", "Insufficient External Power",
        "Driver Not Loaded", "Timeout", "Interrupt Request Issue", "NVML Shared Library Not Found",
        "Function Not Found", "Corrupted infoROM", "GPU is lost", "GPU requires reset",
        "The operating system has blocked the request", "RM has detected an NVML/RM version mismatch.",
        "In use by another client", "Insufficient Memory", "No data",
        "Operation not available with ECC", "Insufficient Resources" };

    return result >= 0 && result <= 23 ? words[result] : "Unknown Error";
}

static int text(const char *value, char *into, unsigned size)
{
    if (strlen(value) + 1 > size)
        return INSUFFICIENT_SIZE;
    strcpy(into, value);
    return OK;
}

#define NEED_INIT() if (calls++, !users) return UNINITIALIZED

int nvmlSystemGetDriverVersion(char *into, unsigned size) { NEED_INIT(); return text(here.driver, into, size); }
int nvmlSystemGetNVMLVersion(char *into, unsigned size) { return text(here.nvml, into, size); }
int nvmlSystemGetCudaDriverVersion_v2(int *into) { *into = here.cuda; return OK; }
int nvmlSystemGetCudaDriverVersion(int *into) { *into = here.cuda; return OK; }

/* ---- handles ---- */

static struct mig *as_mig(device handle)
{
    for (unsigned i = 0; i < here.gpus; i++)
        for (unsigned m = 0; m < here.gpu[i].migs; m++)
            if ((void *)handle == (void *)&here.gpu[i].mig[m])
                return &here.gpu[i].mig[m];
    return NULL;
}

static int usable(device handle)
{
    if (!users)
        return UNINITIALIZED;
    for (unsigned i = 0; i < here.gpus; i++)
        if (handle == &here.gpu[i])
            return handle->error;
    return INVALID_ARGUMENT;
}

static u64 counted(device d, const char *name);

/* What every reading below begins with: the scenario may have it answer an NVML error. */
static int refused(device d, const char *name)
{
    int trouble = usable(d);

    for (unsigned i = 0; !trouble && i < d->refusals; i++)
        if (!strcmp(d->refusal[i].name, name))
            trouble = d->refusal[i].value;
    return trouble;
}

static const char *word(device d, const char *name, const char *healthy)
{
    for (unsigned i = 0; i < d->words; i++)
        if (!strcmp(d->word[i].name, name))
            return d->word[i].text;
    return healthy;
}

static u64 number(device d, const char *name, u64 healthy)
{
    for (unsigned i = 0; i < d->counters; i++)
        if (!strcmp(d->counter[i].name, name))
            return d->counter[i].value;
    return healthy;
}

#define ASK(handle, name) do { int no = refused(handle, name); calls++; if (no) return no; } while (0)
#define NEED(handle) do { int trouble = usable(handle); calls++; if (trouble) return trouble; } while (0)

int nvmlDeviceGetCount_v2(unsigned *count) { NEED_INIT(); *count = here.gpus; return OK; }
int nvmlDeviceGetCount(unsigned *count) { return nvmlDeviceGetCount_v2(count); }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, device *handle)
{
    NEED_INIT();
    if (index >= here.gpus)
        return INVALID_ARGUMENT;
    *handle = &here.gpu[index];
    return refused(*handle, "handle");
}
int nvmlDeviceGetHandleByIndex(unsigned index, device *handle) { return nvmlDeviceGetHandleByIndex_v2(index, handle); }

int nvmlDeviceGetHandleByUUID(const char *uuid, device *handle)
{
    NEED_INIT();
    for (unsigned i = 0; i < here.gpus; i++) {
        struct gpu *gpu = &here.gpu[i];
        if (!strcmp(gpu->uuid, uuid))
            return *handle = gpu, gpu->error;
        for (unsigned m = 0; m < gpu->migs; m++)
            if (!strcmp(gpu->mig[m].uuid, uuid))
                return *handle = (device)&gpu->mig[m], OK;
    }
    return NOT_FOUND;
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, device *handle)
{
    NEED_INIT();
    for (unsigned i = 0; i < here.gpus; i++) /* "0000:1b:00.0" and "00000000:1B:00.0" are one */
        if (strlen(bus) >= 12 && !strcasecmp(here.gpu[i].bus + 4, bus + strlen(bus) - 12))
            return *handle = &here.gpu[i], here.gpu[i].error;
    return NOT_FOUND;
}
int nvmlDeviceGetHandleByPciBusId(const char *bus, device *handle) { return nvmlDeviceGetHandleByPciBusId_v2(bus, handle); }

/* ---- identity ---- */

int nvmlDeviceGetName(device d, char *into, unsigned size)
{
    if (as_mig(d)) {
        char name[128];
        snprintf(name, sizeof name, "%s MIG 1g.10gb", here.name);
        return text(name, into, size);
    }
    NEED(d);
    return text(here.name, into, size);
}

int nvmlDeviceGetUUID(device d, char *into, unsigned size)
{
    if (as_mig(d))
        return text(as_mig(d)->uuid, into, size);
    NEED(d);
    return text(d->uuid, into, size);
}

int nvmlDeviceGetSerial(device d, char *into, unsigned size) { NEED(d); return text(d->serial, into, size); }
int nvmlDeviceGetVbiosVersion(device d, char *into, unsigned size)
{
    ASK(d, "vbios");
    return text(word(d, "vbios", "96.00.89.00.01"), into, size);
}
int nvmlDeviceGetInforomImageVersion(device d, char *into, unsigned size)
{
    ASK(d, "inforom");
    return text(word(d, "inforom", "G520.0200.00.05"), into, size);
}
int nvmlDeviceGetGspFirmwareVersion(device d, char *into)
{
    ASK(d, "gsp_version");
    return text(word(d, "gsp_version", here.driver), into, 64);
}
int nvmlDeviceValidateInforom(device d) { return refused(d, "inforom_valid"); }

static int pci(const char *bus, struct pci_v3 *into)
{
    memset(into, 0, sizeof *into);
    if (sscanf(bus, "%x:%x:%x.0", &into->domain, &into->number, &into->device) != 3)
        return NOT_SUPPORTED;
    into->id = 0x233010DE; /* H100 SXM5 80GB */
    into->subsystem = 0x16C110DE;
    snprintf(into->bus, sizeof into->bus, "%s", bus);
    snprintf(into->legacy, sizeof into->legacy, "%04X:%02X:%02X.0", into->domain & 0xffff,
             into->number & 0xff, into->device & 0xff);
    return OK;
}

static int pci_short(const char *bus, struct pci_v2 *into)
{
    struct pci_v3 whole;
    int trouble = pci(bus, &whole);

    memset(into, 0, sizeof *into);
    memcpy(into, &whole, offsetof(struct pci_v3, bus));
    return trouble;
}

static void dawdle(void)
{
    struct timespec pause_s = { here.slow_call_ms / 1000, here.slow_call_ms % 1000 * 1000000L };

    if (here.slow_call_ms)
        nanosleep(&pause_s, NULL);
}

int nvmlDeviceGetPciInfo_v3(device d, struct pci_v3 *into) { ASK(d, "pci"); dawdle(); return pci(d->bus, into); }
int nvmlDeviceGetPciInfo_v2(device d, struct pci_v2 *into) { NEED(d); return pci_short(d->bus, into); }
int nvmlDeviceGetPciInfo(device d, struct pci_v2 *into) { NEED(d); return pci_short(d->bus, into); }

/* ---- memory and processes ---- */

static const u64 MIB = 1 << 20;

int nvmlDeviceGetMemoryInfo(device d, struct memory *into)
{
    NEED(d); /* the old call counts what the driver keeps for itself as used */
    into->total = here.memory_mib * MIB;
    into->used = (d->used_mib + here.reserved_mib) * MIB;
    into->free = into->total - into->used;
    return OK;
}

int nvmlDeviceGetMemoryInfo_v2(device d, struct memory_v2 *into)
{
    NEED(d);
    into->total = here.memory_mib * MIB;
    into->reserved = here.reserved_mib * MIB;
    into->used = d->used_mib * MIB;
    into->free = into->total - into->reserved - into->used;
    return OK;
}

int nvmlDeviceGetComputeRunningProcesses_v3(device d, unsigned *count, struct process_v2 *into)
{
    unsigned room = *count;

    NEED(d);
    *count = d->processes;
    if (room < d->processes)
        return INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < d->processes; i++)
        into[i] = (struct process_v2){ d->process[i].pid, d->process[i].used_mib * MIB, -1U, -1U };
    return OK;
}
int nvmlDeviceGetComputeRunningProcesses_v2(device d, unsigned *count, struct process_v2 *into)
{
    return nvmlDeviceGetComputeRunningProcesses_v3(d, count, into);
}
int nvmlDeviceGetComputeRunningProcesses(device d, unsigned *count, struct process_v1 *into)
{
    unsigned room = *count;

    NEED(d);
    *count = d->processes;
    if (room < d->processes)
        return INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < d->processes; i++)
        into[i] = (struct process_v1){ d->process[i].pid, d->process[i].used_mib * MIB };
    return OK;
}

static int nobody(device d, unsigned *count) { NEED(d); *count = 0; return OK; }
int nvmlDeviceGetGraphicsRunningProcesses_v3(device d, unsigned *count, void *into) { (void)into; return nobody(d, count); }
int nvmlDeviceGetGraphicsRunningProcesses_v2(device d, unsigned *count, void *into) { (void)into; return nobody(d, count); }
int nvmlDeviceGetGraphicsRunningProcesses(device d, unsigned *count, void *into) { (void)into; return nobody(d, count); }

/* ---- topology ---- */

static int link_of(device d, unsigned link, struct link **into)
{
    NEED(d);
    if (!d->links)
        return NOT_SUPPORTED;
    if (link >= d->links)
        return INVALID_ARGUMENT;
    *into = &d->link[link];
    return OK;
}

int nvmlDeviceGetNvLinkState(device d, unsigned number, unsigned *up)
{
    struct link *link;
    int trouble = link_of(d, number, &link);

    if (!trouble)
        *up = link->up;
    return trouble;
}

int nvmlDeviceGetNvLinkRemoteDeviceType(device d, unsigned number, unsigned *kind)
{
    struct link *link;
    int trouble = link_of(d, number, &link);

    if (!trouble && !link->up)
        return NOT_SUPPORTED; /* nobody answers at the far end */
    trouble = trouble ?: refused(d, "nvlink_kind");
    if (!trouble)
        *kind = link->kind;
    return trouble;
}

int nvmlDeviceGetNvLinkRemotePciInfo_v2(device d, unsigned number, struct pci_v3 *into)
{
    struct link *link;
    int trouble = link_of(d, number, &link);

    trouble = trouble ?: refused(d, "nvlink_remote");
    return trouble ? trouble : link->up ? pci(link->remote, into) : NOT_SUPPORTED;
}
int nvmlDeviceGetNvLinkRemotePciInfo(device d, unsigned number, struct pci_v2 *into)
{
    struct link *link;
    int trouble = link_of(d, number, &link);

    return trouble ? trouble : link->up ? pci_short(link->remote, into) : NOT_SUPPORTED;
}

int nvmlDeviceGetNvLinkVersion(device d, unsigned number, unsigned *version)
{
    struct link *link;
    int trouble = link_of(d, number, &link);

    *version = 4;
    return trouble;
}

int nvmlDeviceGetTopologyCommonAncestor(device a, device b, unsigned *level)
{
    ASK(a, "ancestor");
    NEED(b);
    *level = a->ancestor[b->index];
    return OK;
}

int nvmlDeviceGetP2PStatus(device a, device b, unsigned caps, unsigned *status)
{
    NEED(a);
    NEED(b);
    if (caps >= P2P_CAPS)
        return INVALID_ARGUMENT;
    *status = a->p2p[b->index][caps];
    return OK;
}

int nvmlDeviceGetCpuAffinity(device d, unsigned words, unsigned long *set)
{
    unsigned width = 8 * sizeof *set, first, last;
    const char *rest;

    NEED(d);
    memset(set, 0, words * sizeof *set);
    for (rest = d->cpus; rest && *rest; rest = strchr(rest, ',') ? strchr(rest, ',') + 1 : NULL) {
        int found = sscanf(rest, "%u-%u", &first, &last);
        if (found < 1)
            return NOT_SUPPORTED;
        for (unsigned cpu = first; cpu <= (found == 2 ? last : first); cpu++)
            if (cpu / width < words)
                set[cpu / width] |= 1UL << cpu % width;
    }
    return OK;
}

int nvmlDeviceGetMemoryAffinity(device d, unsigned words, unsigned long *set, unsigned scope)
{
    (void)scope;
    NEED(d);
    memset(set, 0, words * sizeof *set);
    set[0] = 1UL << d->numa;
    return OK;
}

/* Numbered fields: of the GPU, of all its links together, or (by `scope`) of one of them. What an
   NVLink counts has other numbers from NVLink 5 on, and the old ones are not supported there. */
static const struct { unsigned id; const char *name; u64 healthy; } fields[] = {
    { 3, "ecc_corrected", 0 }, { 4, "ecc_uncorrected", 0 },
    { 29, "retired_single", 0 }, { 30, "retired_double", 0 }, { 82, "memory_temperature_c", 45 },
    { 94, "pcie_replay", 0 },
    { 194, "slowdown_at", (u64)-2 }, { 226, "reset_status", 0 }, { 227, "drain_status", 0 }, { 230, "recovery_action", 0 },
    { 270, "hw_thermal_ns", 0 }, { 271, "hw_brake_ns", 0 } };
static const struct { unsigned id; const char *kind; } total_fields[] = {
    { 38, "crc_flit" }, { 45, "crc_data" }, { 52, "dl_replay" }, { 59, "dl_recovery" } };
static const struct { unsigned id; const char *kind; unsigned since, until; u64 healthy; } link_fields[] = {
    { 161, "dl_replay", 1, 4, 0 }, { 162, "dl_recovery", 1, 4, 0 }, { 163, "crc_flit", 1, 4, 0 },
    { 164, "mbps", 1, 5, 26562 },
    { 208, "rcv_errors", 5, 5, 0 }, { 214, "recovery_failed", 5, 5, 0 }, { 215, "recovery", 5, 5, 0 } };
enum { UNSIGNED_INT = 1, UNSIGNED_LONG_LONG = 3, SIGNED_INT = 5, LINK_COUNT = 91 };

static u64 link_number(device d, unsigned link, const char *kind, u64 healthy)
{
    char name[32];

    snprintf(name, sizeof name, "nvlink%u_%s", link, kind);
    return number(d, name, healthy);
}

static int field_value(device d, struct field *into)
{
    unsigned generation = number(d, "nvlink_generation", 4);

    into->type = UNSIGNED_LONG_LONG;
    if (into->id == LINK_COUNT)
        return into->value.ull = d->links, OK;
    for (unsigned i = 0; i < sizeof fields / sizeof *fields; i++)
        if (fields[i].id == into->id) {
            into->type = into->id == 194 ? SIGNED_INT : UNSIGNED_LONG_LONG;
            into->value.ull = number(d, fields[i].name, fields[i].healthy);
            return refused(d, fields[i].name);
        }
    for (unsigned i = 0; i < sizeof total_fields / sizeof *total_fields; i++)
        if (total_fields[i].id == into->id) {
            into->value.ull = 0;
            for (unsigned link = 0; link < d->links; link++)
                into->value.ull += link_number(d, link, total_fields[i].kind, 0);
            return d->links && generation < 5 ? refused(d, "link_totals") : NOT_SUPPORTED;
        }
    for (unsigned i = 0; i < sizeof link_fields / sizeof *link_fields; i++)
        if (link_fields[i].id == into->id) {
            if (!d->links || generation < link_fields[i].since || generation > link_fields[i].until)
                return NOT_SUPPORTED;
            into->value.ull = link_number(d, into->scope, link_fields[i].kind, link_fields[i].healthy);
            return into->scope < d->links ? refused(d, "link_errors") : INVALID_ARGUMENT;
        }
    return NOT_SUPPORTED;
}

int nvmlDeviceGetFieldValues(device d, int count, struct field *values)
{
    NEED(d);
    scenario_recount(&here);
    for (int i = 0; i < count; i++)
        values[i].result = field_value(d, &values[i]);
    return OK;
}

/* ---- MIG ---- */

int nvmlDeviceGetMigMode(device d, unsigned *now, unsigned *pending)
{
    ASK(d, "mig_pending");
    *now = d->migs > 0;
    *pending = number(d, "mig_pending", *now);
    return OK;
}

int nvmlDeviceGetMaxMigDeviceCount(device d, unsigned *count) { NEED(d); *count = MAX_MIG; return OK; }

int nvmlDeviceGetMigDeviceHandleByIndex(device d, unsigned index, device *handle)
{
    NEED(d);
    if (index >= MAX_MIG)
        return INVALID_ARGUMENT;
    if (index >= d->migs)
        return NOT_FOUND;
    *handle = (device)&d->mig[index];
    return OK;
}

int nvmlDeviceIsMigDeviceHandle(device d, unsigned *is) { NEED_INIT(); *is = as_mig(d) != NULL; return OK; }

int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device d, device *handle)
{
    NEED_INIT();
    return as_mig(d) ? (*handle = as_mig(d)->parent, OK) : INVALID_ARGUMENT;
}

/* ---- the rest of a healthy H100 at rest ---- */

#define NUMBER(function, value) \
    int function(device d, unsigned *into) { NEED(d); *into = value; return OK; }
#define READING(function, name, healthy) \
    int function(device d, unsigned *into) { ASK(d, name); *into = number(d, name, healthy); return OK; }
#define TWO_READINGS(function, first, one, second, two) \
    int function(device d, unsigned *into, unsigned *other) \
    { ASK(d, first); *into = number(d, first, one); *other = number(d, second, two); return OK; }

NUMBER(nvmlDeviceGetIndex, d->index)
NUMBER(nvmlDeviceGetMinorNumber, d->minor)
NUMBER(nvmlDeviceGetArchitecture, 9)
READING(nvmlDeviceGetPersistenceMode, "persistence", 1)
READING(nvmlDeviceGetComputeMode, "compute_mode", 0)
READING(nvmlDeviceGetPowerUsage, "power_draw_mw", 70000)
READING(nvmlDeviceGetEnforcedPowerLimit, "power_limit_mw", 700000)
READING(nvmlDeviceGetPowerManagementDefaultLimit, "power_default_mw", 700000)
READING(nvmlDeviceGetCurrPcieLinkGeneration, "pcie_gen", d->idle ? 1 : 5)
READING(nvmlDeviceGetMaxPcieLinkGeneration, "pcie_gen_max", 5)
READING(nvmlDeviceGetCurrPcieLinkWidth, "pcie_width", 16)
READING(nvmlDeviceGetMaxPcieLinkWidth, "pcie_width_max", 16)
READING(nvmlDeviceGetPerformanceState, "performance_state", 0)
READING(nvmlDeviceGetRetiredPagesPendingStatus, "retired_pending", 0)
TWO_READINGS(nvmlDeviceGetEccMode, "ecc_on", 1, "ecc_pending", number(d, "ecc_on", 1))
TWO_READINGS(nvmlDeviceGetGspFirmwareMode, "gsp_on", 1, "gsp_default", 1)

int nvmlDeviceGetFanSpeed(device d, unsigned *percent)
{
    (void)percent;
    NEED(d);
    return refused(d, "fan_pct") ?: NOT_SUPPORTED; /* an SXM board has none */
}
int nvmlDeviceGetNumaNodeId(device d, unsigned *node) { (void)node; NEED(d); return NOT_SUPPORTED; } /* Grace only */
int nvmlDeviceGetTemperature(device d, unsigned sensor, unsigned *celsius)
{
    (void)sensor;
    ASK(d, "temperature_c");
    *celsius = number(d, "temperature_c", 31);
    return OK;
}
int nvmlDeviceGetTemperatureThreshold(device d, unsigned kind, unsigned *celsius)
{
    ASK(d, "slowdown_c");
    *celsius = kind == 1 ? number(d, "slowdown_c", 89) : 92;
    return OK;
}
int nvmlDeviceGetMarginTemperature(device d, struct margin *into)
{
    ASK(d, "margin_c");
    into->left = (int)number(d, "margin_c", 55);
    return OK;
}
int nvmlDeviceGetBAR1MemoryInfo(device d, struct bar1 *into)
{
    ASK(d, "bar1_total_mib");
    into->total = number(d, "bar1_total_mib", 131072) * MIB;
    into->used = MIB;
    into->free = into->total - into->used;
    return OK;
}
int nvmlDeviceGetUtilizationRates(device d, struct utilization *into)
{
    ASK(d, "utilization_pct");
    into->gpu = number(d, "utilization_pct", 0);
    d->idle = number(d, "job_ends", 0);
    into->memory = 0;
    return OK;
}
int nvmlDeviceGetCudaComputeCapability(device d, int *major, int *minor) { NEED(d); *major = 9; *minor = 0; return OK; }

/* ---- memory that fails, the fabric ---- */

int nvmlDeviceGetRemappedRows(device d, unsigned *corrected, unsigned *uncorrected,
                              unsigned *pending, unsigned *failed)
{
    ASK(d, "remap_pending");
    *corrected = number(d, "remapped_corrected", 0);
    *uncorrected = number(d, "remapped_uncorrected", 0);
    *pending = number(d, "remap_pending", 0);
    *failed = number(d, "remap_failed", 0);
    return OK;
}

int nvmlDeviceGetRowRemapperHistogram(device d, struct histogram *into)
{
    ASK(d, "banks_without_spares");
    *into = (struct histogram){ 2560, 0, 0, 0, number(d, "banks_without_spares", 0) };
    return OK;
}

int nvmlDeviceGetMemoryErrorCounter(device d, unsigned kind, unsigned span, unsigned where, u64 *count)
{
    (void)where;
    ASK(d, "sram_aggregate_uncorrected");
    *count = kind && span ? number(d, "sram_aggregate_uncorrected", 0) : 0;
    return OK;
}

int nvmlDeviceGetSramEccErrorStatus(device d, struct sram *into)
{
    if (into->version != 0x1000068)
        return VERSION_MISMATCH;
    ASK(d, "sram_threshold");
    into->exceeded = number(d, "sram_threshold", 0);
    return OK;
}

int nvmlDeviceGetGpuFabricInfoV(device d, struct fabric_v3 *into)
{
    if (into->version != 0x3000028)
        return VERSION_MISMATCH;
    ASK(d, "fabric_state");
    into->state = number(d, "fabric_state", d->links ? 3 : 0);
    into->status = number(d, "fabric_status", 0);
    into->mask = number(d, "fabric_mask", 0xAA); /* two bits each: no trouble of four kinds */
    into->summary = 1;
    memset(into->cluster, number(d, "fabric_cluster", 0), sizeof into->cluster);
    into->clique = number(d, "fabric_clique", 0);
    return OK;
}

/* ---- counters, which move ---- */

static u64 counted(device d, const char *name)
{
    scenario_recount(&here);
    for (unsigned i = 0; i < d->counters; i++)
        if (!strcmp(d->counter[i].name, name))
            return d->counter[i].value;
    return 0;
}

int nvmlDeviceGetPcieReplayCounter(device d, unsigned *count) { ASK(d, "pcie_replay"); *count = counted(d, "pcie_replay"); return OK; }
int nvmlDeviceGetTotalEccErrors(device d, unsigned kind, unsigned span, u64 *count)
{
    static const char *const names[] = { "ecc_corrected", "ecc_uncorrected",
        "ecc_aggregate_corrected", "ecc_aggregate_uncorrected" };

    ASK(d, names[kind + 2 * span]);
    *count = counted(d, names[kind + 2 * span]);
    return OK;
}
int nvmlDeviceGetNvLinkErrorCounter(device d, unsigned number, unsigned kind, u64 *count)
{
    static const char *const kinds[] = { "dl_replay", "dl_recovery", "crc_flit", "crc_data" };
    char name[32];
    struct link *link;
    int trouble = refused(d, "link_errors") ?: link_of(d, number, &link);

    if (trouble || kind > 3)
        return trouble ? trouble : INVALID_ARGUMENT;
    snprintf(name, sizeof name, "nvlink%u_%s", number, kinds[kind]);
    *count = counted(d, name);
    return OK;
}
int nvmlDeviceGetCurrentClocksEventReasons(device d, u64 *reasons)
{
    ASK(d, "clock_reasons");
    *reasons = (d->idle ? 0 : counted(d, "reasons")) ?: 1; /* GPU idle */
    return OK;
}

/* Its name till R530. */
int nvmlDeviceGetCurrentClocksThrottleReasons(device d, u64 *reasons)
{
    return nvmlDeviceGetCurrentClocksEventReasons(d, reasons);
}
