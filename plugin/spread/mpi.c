/* The engine of MPI (engine.h). It must not know what is exchanged, nor what a failure means.
 *
 * Works with any implementation of MPI 3; the processes must be started by the mpirun of the one
 * that this file is compiled for. */
#include "engine.h"

#include <limits.h>
#include <mpi.h>
#include <stdio.h>

static MPI_Comm all = MPI_COMM_NULL;
static MPI_Request request = MPI_REQUEST_NULL;

static int start(int *rank, int *size, char *err, size_t err_size)
{
    int running = 0, level;
    char version[MPI_MAX_LIBRARY_VERSION_STRING];
    MPI_Initialized(&running);
    if (!running && MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &level)) {
        snprintf(err, err_size, "MPI does not start");
        return -1;
    }
    /* A communicator of our own: the program may use MPI as well. */
    if (MPI_Comm_dup(MPI_COMM_WORLD, &all) || MPI_Comm_set_errhandler(all, MPI_ERRORS_RETURN)) {
        snprintf(err, err_size, "MPI has no communicator for us");
        return -1;
    }
    MPI_Comm_rank(all, rank);
    MPI_Comm_size(all, size);
    MPI_Get_library_version(version, &level);
    snprintf(err, err_size, "%.60s", version); /* for a message about its size */
    return 0;
}

static void end(void)
{
    MPI_Comm_free(&all);
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
    return MPI_Test(&request, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS ? done : -1;
}

__attribute__((visibility("default"))) const struct amp_engine amp_engine_mpi = {
    start, end, gather, add_floats, add_doubles, broadcast, send, receive, poll};
