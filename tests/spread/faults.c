/* What goes wrong in one process, by LD_PRELOAD before the plugin: FAULT in the environment says
 * what. */
#define _GNU_SOURCE
#include "darknet.h"

#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#pragma GCC visibility push(default)

static int wants(const char *fault)
{
    const char *wanted = getenv("FAULT");
    return wanted && !strcmp(wanted, fault);
}

static _Atomic int steps; /* that have begun */
static pthread_t trains;  /* the thread */

/* room: in rank FAULT_RANK memory ends in step 6, where an exchange wants some (spread.c,
 * room_for: a whole number of doubles and one byte). Threads that load images want as much. */
extern void *__libc_malloc(size_t);
void *malloc(size_t n);
void *malloc(size_t n)
{
    const char *rank = getenv("OMPI_COMM_WORLD_RANK"), *ends = getenv("FAULT_RANK");
    bool asks = steps == 6 && pthread_equal(pthread_self(), trains) && n > 300 && n % 8 == 1;
    if (asks && wants("room") && rank && ends && !strcmp(rank, ends)) return NULL;
    return __libc_malloc(n);
}

/* memory: in rank FAULT_RANK memory ends in step FAULT_STEP, for an image that a thread loads. */
extern void *__libc_calloc(size_t, size_t);
void *calloc(size_t n, size_t size);
void *calloc(size_t n, size_t size)
{
    const char *rank = getenv("OMPI_COMM_WORLD_RANK"), *ends = getenv("FAULT_RANK");
    const char *step = getenv("FAULT_STEP");
    bool asks =
        step && steps >= atoi(step) && !pthread_equal(pthread_self(), trains) && n * size > 4096;
    if (asks && wants("memory") && rank && ends && !strcmp(rank, ends)) return NULL;
    return __libc_calloc(n, size);
}

/* drift: after 20 steps rank 1 has another weight than the others, as a bad memory module makes
 * it. */
float train_network(network *net, data d)
{
    const char *rank = getenv("OMPI_COMM_WORLD_RANK");
    float (*next)(network *, data);
    *(void **)&next = dlsym(RTLD_NEXT, "train_network");
    trains = pthread_self();
    steps++;
    float loss = next(net, d);
    if (wants("drift") && steps == 20 && rank && !strcmp(rank, "1"))
        net->layers[0].weights[0] += 1e-6f;
    return loss;
}

/* WHERE:K, with WHERE a function: at its K-th call the process makes a file "paused" and waits for
 * one with the name "go". */
static void pause_in(const char *where, int *calls)
{
    const char *wanted = getenv("FAULT");
    size_t length = strlen(where);
    if (!wanted || strncmp(wanted, where, length) || wanted[length] != ':') return;
    if (++*calls != atoi(wanted + length + 1)) return;
    FILE *f = fopen("paused", "w");
    if (f) fclose(f);
    while (access("go", F_OK))
        usleep(1000);
}

/* Every save makes sure of its files by it. */
int fsync(int fd)
{
    static int calls;
    int (*next)(int);
    *(void **)&next = dlsym(RTLD_NEXT, "fsync");
    pause_in("fsync", &calls);
    return next(fd);
}

/* -map calls it for every image. */
float *network_predict(network *net, float *input)
{
    static int calls;
    float *(*next)(network *, float *);
    *(void **)&next = dlsym(RTLD_NEXT, "network_predict");
    pause_in("network_predict", &calls);
    return next(net, input);
}

/* The name of a function of MPI: rank FAULT_RANK stops there. */
static void stop_in(const char *where)
{
    const char *rank = getenv("OMPI_COMM_WORLD_RANK"), *stops = getenv("FAULT_RANK");
    if (wants(where) && rank && stops && !strcmp(rank, stops)) raise(SIGSTOP);
}

/* Our first one after MPI_Init_thread. */
int MPI_Comm_idup(void *comm, void *newcomm, void *request);
int MPI_Comm_idup(void *comm, void *newcomm, void *request)
{
    int (*next)(void *, void *, void *);
    *(void **)&next = dlsym(RTLD_DEFAULT, "PMPI_Comm_idup");
    stop_in("MPI_Comm_idup");
    return next(comm, newcomm, request);
}

/* Our last one before the first beat. */
int MPI_Get_library_version(char *version, int *length);
int MPI_Get_library_version(char *version, int *length)
{
    int (*next)(char *, int *);
    *(void **)&next = dlsym(RTLD_DEFAULT, "PMPI_Get_library_version");
    stop_in("MPI_Get_library_version");
    return next(version, length);
}

int MPI_Finalize(void);
int MPI_Finalize(void)
{
    int (*next)(void);
    *(void **)&next = dlsym(RTLD_DEFAULT, "PMPI_Finalize");
    stop_in("MPI_Finalize");
    return next();
}

/* own: the program has started MPI itself, and every look at its clock takes an hour. The numbers
 * here and below are Open MPI's. */
int MPI_Initialized(int *is);
int MPI_Initialized(int *is)
{
    int level, (*next)(int *), (*begin)(int *, char ***, int, int *);
    *(void **)&next = dlsym(RTLD_DEFAULT, "PMPI_Initialized");
    *(void **)&begin = dlsym(RTLD_DEFAULT, "PMPI_Init_thread");
    int failed = wants("own") && begin(NULL, NULL, 3, &level);
    return failed || next(is);
}

double MPI_Wtime(void);
double MPI_Wtime(void)
{
    static int looks;
    double (*next)(void);
    *(void **)&next = dlsym(RTLD_DEFAULT, "PMPI_Wtime");
    return next() + (wants("own") ? 3600. * looks++ : 0);
}

/* threads: MPI says that it has no MPI_THREAD_MULTIPLE. */
int MPI_Init_thread(int *argc, char ***argv, int required, int *provided);
int MPI_Init_thread(int *argc, char ***argv, int required, int *provided)
{
    int (*next)(int *, char ***, int, int *);
    *(void **)&next = dlsym(RTLD_DEFAULT, "PMPI_Init_thread");
    int failed = next(argc, argv, required, provided);
    if (wants("threads")) *provided = 1;
    return failed;
}

#pragma GCC visibility pop
