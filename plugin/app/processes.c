/* Decides how the processes of `-gpus 0,1` are started and which GPU each has. It must not know
 * what they exchange (plugin/spread). */
#define _GNU_SOURCE
#include "processes.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int amp_gpus_named(const char *gpus)
{
    int n = 1;
    for (; *gpus; gpus++)
        n += *gpus == ',';
    return n;
}

/* As a shell would want to read it. */
static void print_word(const char *word)
{
    bool plain = *word && !strpbrk(word, " \t\n\"'\\$&|;<>()*?[]#~`!{}");
    fputs(plain ? " " : " '", stderr);
    for (; *word; word++)
        fputs(*word == '\'' ? "'\\''" : (char[]){*word, 0}, stderr);
    if (!plain) fputc('\'', stderr);
}

/* Open MPI refuses root unless these are set; who gave the command as root means it. */
static void allow_root(void)
{
    if (geteuid()) return;
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 0);
    setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 0);
    fputs(" OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1", stderr);
}

int amp_start_processes(int argc, char **argv, const char *gpus)
{
    enum { OWN = 5 };
    char count[20], program[PATH_MAX] = "";
    char **words = calloc((size_t)argc + OWN + 1, sizeof *words);
    if (!words || readlink("/proc/self/exe", program, sizeof program - 1) < 0) {
        perror("error: -gpus");
        return -1;
    }
    snprintf(count, sizeof count, "%d", amp_gpus_named(gpus));
    const char *own[OWN] = {"mpirun", "-np", count, "--bind-to", "none"};
    memcpy(words, own, sizeof own);
    memcpy(words + OWN, argv, (size_t)argc * sizeof *words);
    words[OWN] = program;
    fprintf(stderr,
            "darknet-amp: -gpus %s with mixed_precision=1 is a process for each GPU:", gpus);
    allow_root();
    for (int i = 0; words[i]; i++)
        print_word(words[i]);
    fputc('\n', stderr);
    fflush(NULL);
    execvp(words[0], words);
    if (errno == ENOENT)
        fputs("error: there is no mpirun in the PATH: install openmpi-bin; if this program was "
              "built without MPI, libopenmpi-dev too, and build it again\n",
              stderr);
    else
        perror("error: mpirun");
    free(words);
    return -1;
}

int amp_gpu_of_process(const char *gpus, int local, char *err, size_t err_size)
{
    if (!gpus) return local;
    if (local >= amp_gpus_named(gpus)) {
        snprintf(err, err_size, "-gpus %s names %d GPUs, and this is process %d of its host", gpus,
                 amp_gpus_named(gpus), local + 1);
        return -1;
    }
    while (local-- > 0)
        gpus = strchr(gpus, ',') + 1;
    return atoi(gpus);
}
