/* What of CUDA's driver library tells where a GPU sits, on the machine of the NVML emulator. The
   rules are cuda.h's and the CUDA C++ Programming Guide's ("CUDA Environment Variables"): nothing
   before cuInit; CUDA_VISIBLE_DEVICES by index or by the beginning of a UUID, in that order, up to
   the first entry that is none. All GPUs are alike, so that either CUDA_DEVICE_ORDER is NVML's. */
#include "scenario.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { SUCCESS = 0, INVALID_VALUE = 1, NOT_INITIALIZED = 3, NO_DEVICE = 100, INVALID_DEVICE = 101 };

static struct scenario here;
static int ready, visible, slot[MAX_GPUS];

static int find(const char *entry)
{
    char *end;
    long index = strtol(entry, &end, 10);

    if (end != entry && !*end)
        return index >= 0 && index < (long)here.gpus ? (int)index : -1;
    for (unsigned i = 0; i < here.gpus; i++)
        if (!strncmp(entry, "GPU-", 4) && !strncasecmp(entry, here.gpu[i].uuid, strlen(entry)))
            return (int)i;
    return -1;
}

int cuInit(unsigned flags)
{
    const char *given = getenv("CUDA_VISIBLE_DEVICES");
    char list[1024], *rest = list, *entry;
    int found;

    if (ready)
        return SUCCESS;
    if (flags || scenario_read(&here))
        return flags ? INVALID_VALUE : NO_DEVICE;
    if (!given)
        for (visible = 0; visible < (int)here.gpus; visible++)
            slot[visible] = visible;
    snprintf(list, sizeof list, "%s", given ? given : "");
    while (given && visible < MAX_GPUS && (entry = strsep(&rest, ",")) && (found = find(entry)) >= 0)
        slot[visible++] = found;
    ready = visible > 0;
    return ready ? SUCCESS : NO_DEVICE;
}

int cuDeviceGet(int *device, int ordinal)
{
    if (!ready)
        return NOT_INITIALIZED;
    if (ordinal < 0 || ordinal >= visible)
        return INVALID_DEVICE;
    *device = ordinal;
    return SUCCESS;
}

int cuDeviceGetPCIBusId(char *into, int size, int device)
{
    if (!ready)
        return NOT_INITIALIZED;
    if (device < 0 || device >= visible)
        return INVALID_DEVICE;
    if (size < 13)
        return INVALID_VALUE;
    snprintf(into, size, "%s", here.gpu[slot[device]].bus + 4); /* domains have four digits here */
    return SUCCESS;
}
