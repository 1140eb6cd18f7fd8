#define _GNU_SOURCE
#include "scenario.h"

#include <dlfcn.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/utsname.h>

static void scenario_path(char *path, size_t size)
{
    const char *given = getenv("PREFLIGHT_NVML_SCENARIO");
    struct utsname host;
    char library[4096];
    Dl_info here;

    if (given) {
        snprintf(path, size, "%s", given);
        return;
    }
    dladdr((void *)scenario_read, &here);
    snprintf(library, sizeof library, "%s", here.dli_fname);
    uname(&host);
    snprintf(path, size, "%s/scenarios/%s", dirname(library), host.nodename);
}

/* `gpu I bus uuid serial minor numa cpus used_mib error` starts a GPU; I counts up from 0. */
static int read_gpu(struct scenario *s, const char *rest)
{
    struct gpu *gpu = &s->gpu[s->gpus];

    if (s->gpus == MAX_GPUS || sscanf(rest, "%u %31s %95s %31s %u %u %127s %llu %d", &gpu->index,
            gpu->bus, gpu->uuid, gpu->serial, &gpu->minor, &gpu->numa, gpu->cpus, &gpu->used_mib,
            &gpu->error) != 9 || gpu->index != s->gpus)
        return -1;
    s->gpus++;
    return 0;
}

/* Lines about a GPU that an earlier `gpu` line started: `key I ...`. */
static int read_part(struct scenario *s, const char *key, const char *rest)
{
    unsigned index, peer, caps, value;
    int used = 0;
    struct gpu *gpu;

    if (sscanf(rest, "%u %n", &index, &used) != 1 || index >= s->gpus)
        return -1;
    gpu = &s->gpu[index];
    rest += used;
    if (!strcmp(key, "link") && gpu->links < MAX_LINKS) {
        struct link *link = &gpu->link[gpu->links++];
        return sscanf(rest, "%u %u %31s", &link->up, &link->kind, link->remote) == 3 ? 0 : -1;
    }
    if (!strcmp(key, "process") && gpu->processes < MAX_PROCESSES) {
        struct process *process = &gpu->process[gpu->processes++];
        return sscanf(rest, "%u %llu", &process->pid, &process->used_mib) == 2 ? 0 : -1;
    }
    if (!strcmp(key, "mig") && gpu->migs < MAX_MIG) {
        struct mig *mig = &gpu->mig[gpu->migs++];
        mig->parent = gpu;
        return sscanf(rest, "%95s", mig->uuid) == 1 ? 0 : -1;
    }
    if (!strcmp(key, "counter") && gpu->counters < MAX_COUNTERS) {
        struct counter *counter = &gpu->counter[gpu->counters++];
        return sscanf(rest, "%31s %llu", counter->name, &counter->value) == 2 ? 0 : -1;
    }
    if (!strcmp(key, "refuse") && gpu->refusals < MAX_COUNTERS) {
        struct counter *refusal = &gpu->refusal[gpu->refusals++];
        return sscanf(rest, "%31s %llu", refusal->name, &refusal->value) == 2 ? 0 : -1;
    }
    if (!strcmp(key, "word") && gpu->words < MAX_WORDS) {
        struct word *word = &gpu->word[gpu->words++];
        return sscanf(rest, "%31s %79[^\n]", word->name, word->text) == 2 ? 0 : -1;
    }
    if (!strcmp(key, "ancestor") && sscanf(rest, "%u %u", &peer, &value) == 2 && peer < MAX_GPUS) {
        gpu->ancestor[peer] = value;
        return 0;
    }
    if (!strcmp(key, "p2p") && sscanf(rest, "%u %u %u", &peer, &caps, &value) == 3
        && peer < MAX_GPUS && caps < P2P_CAPS) {
        gpu->p2p[peer][caps] = value;
        return 0;
    }
    return -1;
}

static int read_init(struct scenario *s, const char *rest)
{
    if (!strcmp(rest, "hangs"))
        s->init = INIT_HANGS;
    else if (sscanf(rest, "slow_ms %u", &s->slow_ms) == 1
             || sscanf(rest, "busy_ms %u", &s->busy_ms) == 1)
        s->init = INIT_ANSWERS;
    else if (sscanf(rest, "error %d", &s->init_error) == 1)
        s->init = INIT_FAILS;
    else if (sscanf(rest, "blocks %255s", s->blocked_path) == 1)
        s->init = INIT_BLOCKS;
    else
        return -1;
    return 0;
}

static int read_line(struct scenario *s, char *line)
{
    char *rest = line + strcspn(line, " ");

    line[strcspn(line, "\n")] = 0;
    if (*rest)
        *rest++ = 0;
    if (!strcmp(line, "init"))
        return read_init(s, rest);
    if (!strcmp(line, "driver"))
        return snprintf(s->driver, sizeof s->driver, "%s", rest) < 0;
    if (!strcmp(line, "nvml"))
        return snprintf(s->nvml, sizeof s->nvml, "%s", rest) < 0;
    if (!strcmp(line, "name"))
        return snprintf(s->name, sizeof s->name, "%s", rest) < 0;
    if (!strcmp(line, "cuda"))
        return sscanf(rest, "%d", &s->cuda) - 1;
    if (!strcmp(line, "memory_mib"))
        return sscanf(rest, "%llu", &s->memory_mib) - 1;
    if (!strcmp(line, "reserved_mib"))
        return sscanf(rest, "%llu", &s->reserved_mib) - 1;
    if (!strcmp(line, "slow_call_ms"))
        return sscanf(rest, "%u", &s->slow_call_ms) - 1;
    if (!strcmp(line, "gpu"))
        return read_gpu(s, rest);
    return read_part(s, line, rest);
}

int scenario_read(struct scenario *into)
{
    char path[4096], line[512];
    int bad = 0;
    FILE *file;

    memset(into, 0, sizeof *into);
    scenario_path(path, sizeof path);
    if (!(file = fopen(path, "re")))
        return -1;
    while (!bad && fgets(line, sizeof line, file))
        if (*line != '\n' && *line != '#' && (bad = read_line(into, line)))
            fprintf(stderr, "NVML emulator: cannot read \"%s\" in %s\n", line, path);
    fclose(file);
    return bad ? -1 : 0;
}

void scenario_recount(struct scenario *into)
{
    static struct scenario fresh;
    static struct timespec seen;
    char path[4096];
    struct stat file;

    scenario_path(path, sizeof path);
    if (stat(path, &file) || !memcmp(&seen, &file.st_mtim, sizeof seen) || scenario_read(&fresh))
        return;
    seen = file.st_mtim;
    for (unsigned i = 0; i < into->gpus && i < fresh.gpus; i++) {
        into->gpu[i].counters = fresh.gpu[i].counters;
        memcpy(into->gpu[i].counter, fresh.gpu[i].counter, sizeof fresh.gpu[i].counter);
    }
}
