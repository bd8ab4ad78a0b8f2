/* The engine of MPI (engine.h). It must not know what is exchanged, nor what a failure means.
 *
 * Works with any implementation of MPI 3; the processes must be started by the mpirun of the one
 * that this file is compiled for. */
#include "engine.h"

#include <limits.h>
#include <math.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static MPI_Comm all = MPI_COMM_NULL, beats = MPI_COMM_NULL;
static MPI_Request request = MPI_REQUEST_NULL, hearing = MPI_REQUEST_NULL;
static MPI_Request *beating; /* of every process: the last beat to it */
static char **sent;          /* and what it said */
static char *heard;
static int own_rank, processes;

/* A sum in BF16, which MPI does not have: each process gets a share of the elements from all, adds
 * it up, and hands its sums to all. */
static struct {
    uint16_t *x;           /* NULL: no process has its share yet */
    uint16_t *received;    /* the own share, of every process */
    int *counts, *at;      /* of every process: its share of x */
    int *parts, *parts_at; /* and its part of `received` */
} sum;

/* Communicators of our own: the program may use MPI as well. Nobody beats yet, so that whoever does
 * not come cannot be named. */
static int make(MPI_Comm *c, double timeout, char *err, size_t err_size)
{
    int done = 0;
    double since = MPI_Wtime();
    int failed = MPI_Comm_idup(MPI_COMM_WORLD, c, &request);
    while (!failed && !done && MPI_Wtime() - since < timeout) {
        failed = MPI_Test(&request, &done, MPI_STATUS_IGNORE);
        if (!done) usleep(100);
    }
    if (failed || (done && MPI_Comm_set_errhandler(*c, MPI_ERRORS_RETURN)))
        snprintf(err, err_size, "MPI has no communicator for us");
    else if (!done)
        snprintf(err, err_size,
                 "another process has not come to the start of MPI for %.0f s (amp_rank_timeout)",
                 timeout);
    else
        return 0;
    return -1;
}

static int start(double timeout, int *rank, int *size, bool *threads, char *err, size_t err_size)
{
    int running = 0, level, length;
    char version[MPI_MAX_LIBRARY_VERSION_STRING];
    MPI_Initialized(&running);
    if (running ? MPI_Query_thread(&level)
                : MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &level)) {
        snprintf(err, err_size, "MPI does not start");
        return -1;
    }
    if (running) timeout = HUGE_VAL; /* the program may let the others wait for one */
    if (make(&all, timeout, err, err_size) || make(&beats, timeout, err, err_size)) return -1;
    *threads = level == MPI_THREAD_MULTIPLE;
    MPI_Comm_rank(all, rank);
    own_rank = *rank;
    MPI_Comm_size(all, &processes);
    *size = processes;
    beating = malloc((size_t)processes * sizeof *beating);
    sent = calloc((size_t)processes, sizeof *sent);
    sum.counts = calloc((size_t)processes, 4 * sizeof *sum.counts);
    if (!beating || !sent || !sum.counts) {
        snprintf(err, err_size, "out of memory");
        return -1;
    }
    sum.at = sum.counts + processes;
    sum.parts = sum.at + processes;
    sum.parts_at = sum.parts + processes;
    for (int r = 0; r < processes; r++)
        beating[r] = MPI_REQUEST_NULL;
    MPI_Get_library_version(version, &length);
    snprintf(err, err_size, "%.60s", version); /* for a message about its size */
    return 0;
}

/* What still travels of the beats nobody wants. */
static void end(void)
{
    if (hearing != MPI_REQUEST_NULL) MPI_Cancel(&hearing);
    for (int r = 0; r < processes; r++)
        if (beating[r] != MPI_REQUEST_NULL) MPI_Request_free(&beating[r]);
    MPI_Comm_free(&all);
    MPI_Comm_free(&beats);
    MPI_Finalize();
}

static int began(int error)
{
    return error == MPI_SUCCESS ? 0 : -1;
}

static int count(size_t n)
{
    return n > INT_MAX ? -1 : (int)n; /* MPI refuses -1 */
}

static int gather(const void *mine, void *to, size_t bytes)
{
    return began(
        MPI_Iallgather(mine, count(bytes), MPI_BYTE, to, count(bytes), MPI_BYTE, all, &request));
}

static int add_floats(float *x, size_t n)
{
    return began(MPI_Iallreduce(MPI_IN_PLACE, x, count(n), MPI_FLOAT, MPI_SUM, all, &request));
}

static int add_doubles(double *x, size_t n)
{
    return began(MPI_Iallreduce(MPI_IN_PLACE, x, count(n), MPI_DOUBLE, MPI_SUM, all, &request));
}

static float from_bf16(uint16_t v)
{
    uint32_t bits = (uint32_t)v << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

/* To nearest even; a NaN stays one, as a carry could make it inf. */
static uint16_t to_bf16(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    if (f != f) return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static int add_bf16(uint16_t *x, size_t n)
{
    size_t share = (n + (size_t)processes - 1) / (size_t)processes, at = 0;
    for (int r = 0; r < processes; r++) {
        size_t length = n - at < share ? n - at : share;
        sum.counts[r] = count(length);
        sum.at[r] = count(at);
        at += length;
    }
    for (int r = 0; r < processes; r++) {
        sum.parts[r] = sum.counts[own_rank];
        sum.parts_at[r] = r * sum.parts[r];
    }
    free(sum.received);
    sum.received = malloc(share * (size_t)processes * sizeof *x + 1);
    if (!sum.received) return -1;
    sum.x = x;
    return began(MPI_Ialltoallv(x, sum.counts, sum.at, MPI_UINT16_T, sum.received, sum.parts,
                                sum.parts_at, MPI_UINT16_T, all, &request));
}

static int hand_out_sums(void)
{
    uint16_t *x = sum.x;
    int n = sum.counts[own_rank];
    for (int i = 0; i < n; i++) {
        float total = 0;
        for (int r = 0; r < processes; r++)
            total += from_bf16(sum.received[sum.parts_at[r] + i]);
        x[sum.at[own_rank] + i] = to_bf16(total);
    }
    sum.x = NULL;
    return began(MPI_Iallgatherv(MPI_IN_PLACE, 0, MPI_UINT16_T, x, sum.counts, sum.at, MPI_UINT16_T,
                                 all, &request));
}

static int broadcast(void *x, size_t bytes, int from)
{
    return began(MPI_Ibcast(x, count(bytes), MPI_BYTE, from, all, &request));
}

static int send(const void *x, size_t bytes, int to)
{
    return began(MPI_Isend(x, count(bytes), MPI_BYTE, to, 0, all, &request));
}

static int receive(void *x, size_t bytes, int from)
{
    return began(MPI_Irecv(x, count(bytes), MPI_BYTE, from, 0, all, &request));
}

static int poll(void)
{
    int done = 0;
    if (MPI_Test(&request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS) return -1;
    return done && sum.x ? hand_out_sums() : done;
}

static void beat(const void *x, size_t bytes, int to)
{
    int done = 1;
    if (!sent[to] && !(sent[to] = malloc(bytes))) return;
    if (MPI_Test(&beating[to], &done, MPI_STATUS_IGNORE) != MPI_SUCCESS || !done) return;
    memcpy(sent[to], x, bytes);
    MPI_Isend(sent[to], count(bytes), MPI_BYTE, to, 0, beats, &beating[to]);
}

/* One receive always stands ready. */
static int hear(void *x, size_t bytes)
{
    int done = 0, from = -1;
    MPI_Status status;
    if (!heard && !(heard = malloc(bytes))) return -1;
    if (hearing != MPI_REQUEST_NULL && MPI_Test(&hearing, &done, &status) == MPI_SUCCESS && done) {
        from = status.MPI_SOURCE;
        memcpy(x, heard, bytes);
    }
    if (hearing == MPI_REQUEST_NULL)
        MPI_Irecv(heard, count(bytes), MPI_BYTE, MPI_ANY_SOURCE, 0, beats, &hearing);
    return from;
}

__attribute__((visibility("default"))) const struct amp_engine amp_engine_mpi = {
    AMP_ENGINE_LAYOUT, start, end,     gather, add_floats, add_doubles, add_bf16,
    broadcast,         send,  receive, poll,   beat,       hear};
