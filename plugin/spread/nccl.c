/* Loads NCCL and calls it. It must not know what is exchanged, nor who waits how. The types are
 * those of nccl.h 2.18, as far as they are used: NCCL's header is not needed to build this. */
#define _GNU_SOURCE
#include "nccl.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

enum {
    SUCCESS = 0,
    IN_PROGRESS = 7,
    FLOAT = 7,
    BFLOAT16 = 9,
    SUM = 0
}; /* ncclResult_t, ncclDataType_t, ncclRedOp_t */

typedef struct ncclComm *comm_t;
typedef struct {
    char internal[AMP_NCCL_ID];
} unique_id;

/* Later versions have more fields, and take the size for the number of those that are here. */
struct config {
    size_t size;
    unsigned magic, version;
    int blocking, cga_cluster_size, min_ctas, max_ctas;
    const char *net_name;
    int split_share;
};

static struct {
    int (*GetVersion)(int *);
    int (*GetUniqueId)(unique_id *);
    int (*CommInitRankConfig)(comm_t *, int, unique_id, int, struct config *);
    int (*CommGetAsyncError)(comm_t, int *);
    int (*CommAbort)(comm_t);
    const char *(*GetLastError)(comm_t);
    int (*AllReduce)(const void *, void *, size_t, int type, int operation, comm_t, void *stream);
    int (*Broadcast)(const void *, void *, size_t, int type, int root, comm_t, void *stream);
    int (*Send)(const void *, size_t, int type, int to, comm_t, void *stream);
    int (*Recv)(void *, size_t, int type, int from, comm_t, void *stream);
} nccl;

static const struct {
    const char *name;
    void *function;
} functions[] = {{"ncclGetVersion", &nccl.GetVersion},
                 {"ncclGetUniqueId", &nccl.GetUniqueId},
                 {"ncclCommInitRankConfig", &nccl.CommInitRankConfig},
                 {"ncclCommGetAsyncError", &nccl.CommGetAsyncError},
                 {"ncclCommAbort", &nccl.CommAbort},
                 {"ncclGetLastError", &nccl.GetLastError},
                 {"ncclAllReduce", &nccl.AllReduce},
                 {"ncclBroadcast", &nccl.Broadcast},
                 {"ncclSend", &nccl.Send},
                 {"ncclRecv", &nccl.Recv}};

static comm_t comm;

/* ---- loading ---- */

#define LIBRARY "libnccl.so.2"

/* Where the linker looks; else, if this process has its cuDNN from Python's packages
 * (nvidia/cudnn/lib), in those (nvidia/nccl/lib). */
static void *open_library(char *err, size_t err_size)
{
    char path[PATH_MAX];
    Dl_info cudnn;
    void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (library) return library;
    snprintf(err, err_size, "%s", dlerror());
    void *function = dlsym(RTLD_DEFAULT, "cudnnGetVersion");
    const char *end = function && dladdr(function, &cudnn) ? strrchr(cudnn.dli_fname, '/') : NULL;
    if (!end) return NULL;
    snprintf(path, sizeof path, "%.*s/../../nccl/lib/" LIBRARY, (int)(end - cudnn.dli_fname),
             cudnn.dli_fname);
    return dlopen(path, RTLD_NOW | RTLD_LOCAL);
}

int amp_nccl_load(char *err, size_t err_size)
{
    int version = 0;
    void *library = open_library(err, err_size);
    if (!library) return -1;
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        void *found = dlsym(library, functions[i].name);
        memcpy(functions[i].function, &found, sizeof found);
        if (found) continue;
        snprintf(err, err_size, LIBRARY " has no %s", functions[i].name);
        return -1;
    }
    if (nccl.GetVersion(&version) == SUCCESS && version >= AMP_NCCL_LEAST) return version;
    snprintf(err, err_size, LIBRARY " is version %d.%d, too old", version / 10000,
             version / 100 % 100);
    return -1;
}

/* ---- operations ---- */

const char *amp_nccl_error(void)
{
    return nccl.GetLastError(comm);
}

static int began(int result)
{
    return result == SUCCESS || result == IN_PROGRESS ? 0 : -1;
}

int amp_nccl_make_id(char id[AMP_NCCL_ID])
{
    unique_id made;
    if (began(nccl.GetUniqueId(&made))) return -1;
    memcpy(id, made.internal, AMP_NCCL_ID);
    return 0;
}

/* Not blocking: a call that waits for a lost process would never return. */
int amp_nccl_join(const char id[AMP_NCCL_ID], int rank, int size)
{
    unique_id made;
    struct config config = {.size = sizeof config,
                            .magic = 0xcafebeef,
                            .version = AMP_NCCL_LEAST,
                            .blocking = 0,
                            .cga_cluster_size = INT_MIN, /* the library's choice, as below */
                            .min_ctas = INT_MIN,
                            .max_ctas = INT_MIN,
                            .split_share = INT_MIN};
    memcpy(made.internal, id, AMP_NCCL_ID);
    return began(nccl.CommInitRankConfig(&comm, size, made, rank, &config));
}

int amp_nccl_add(void *x, size_t n, int unused, void *stream)
{
    (void)unused;
    return began(nccl.AllReduce(x, x, n, FLOAT, SUM, comm, stream));
}

int amp_nccl_add_bf16(void *x, size_t n, int unused, void *stream)
{
    (void)unused;
    return began(nccl.AllReduce(x, x, n, BFLOAT16, SUM, comm, stream));
}

int amp_nccl_broadcast(void *x, size_t n, int from, void *stream)
{
    return began(nccl.Broadcast(x, x, n, FLOAT, from, comm, stream));
}

int amp_nccl_send(void *x, size_t n, int to, void *stream)
{
    return began(nccl.Send(x, n, FLOAT, to, comm, stream));
}

int amp_nccl_receive(void *x, size_t n, int from, void *stream)
{
    return began(nccl.Recv(x, n, FLOAT, from, comm, stream));
}

int amp_nccl_poll(void)
{
    int state = SUCCESS;
    if (nccl.CommGetAsyncError(comm, &state) != SUCCESS || began(state)) return -1;
    return state == SUCCESS;
}

void amp_nccl_abort(void)
{
    if (comm) nccl.CommAbort(comm);
    comm = NULL;
}
