/* A stand-in for NCCL between emulated devices of several processes of one host: libnccl.so.2 with
 * the functions that plugin/spread/nccl.c uses. The processes share a file's memory.
 *
 * An operation is done as early or as late as a stream may, drawn by AMP_TEST_SEED; until then what
 * it will write is NaN, and nobody may touch it. Sums are added in the order of the ranks, those of
 * BF16 rounded each time. Calls that do not fit together end the program, with both named. In the
 * environment:
 *
 *   NCCL_HOST_DIFFERS=R:K   rank R says another length in its K-th operation
 *   NCCL_HOST_STOPS=R:K     rank R stops there, as by SIGSTOP
 *   NCCL_HOST_VERSION       the version that it says
 *   NCCL_HOST_TELLS=1       a line in nccl_calls.R for each operation of rank R: its name, its
 *                           length, and how many recordings the device had played before it
 */
#include "emulation.h"

#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
    SUCCESS = 0,
    IN_PROGRESS = 7,
    FLOAT = 7,
    BFLOAT16 = 9,
    MOST = 4,
    ROOM = 1 << 20 /* floats */,
    LATEST = 20 /* polls */
};

struct call {
    char name[16];
    size_t count;
    int type; /* FLOAT or BFLOAT16 */
    int peer; /* whom it is with, or the root; -1: all */
};

struct board {
    atomic_int joined;
    struct {
        atomic_uint posted; /* collective calls so far; data of the last two is kept */
        struct call calls[2];
        float data[2][ROOM];
    } ranks[MOST];
    struct {
        atomic_uint sent, taken;
        struct call call;
        float data[ROOM];
    } pipes[MOST][MOST]; /* from, to */
};

struct ncclComm {
    struct board *board;
    int rank, size, operations;
    unsigned collectives, random;
    bool aborted;
    struct operation *starting; /* not yet given to its stream */
    int polls;                  /* until it is */
};

struct operation {
    struct ncclComm *comm;
    struct call call;
    struct ampk_rt_a_stream *stream;
    void *input, *output; /* NULL: none */
    int late;             /* so often asked in vain */
    unsigned number;      /* of a collective call */
    bool posted;
};

typedef struct {
    char path[128];
} unique_id;

static size_t bytes_of(const struct call *c)
{
    return c->count * (c->type == FLOAT ? sizeof(float) : sizeof(uint16_t));
}

static void describe(const struct call *c, char *text, size_t size)
{
    int n = snprintf(text, size, "%s of %zu %s", c->name, c->count,
                     c->type == FLOAT ? "floats" : "BF16");
    if (c->peer >= 0) snprintf(text + n, size - (size_t)n, " with rank %d", c->peer);
}

static void differ(const struct operation *o, int rank, const struct call *other)
{
    char mine[100], theirs[100];
    describe(&o->call, mine, sizeof mine);
    describe(other, theirs, sizeof theirs);
    FILE *out = fopen("nccl_differs", "a"); /* stderr may be silent */
    if (out) fprintf(out, "rank %d calls %s, and rank %d %s\n", o->comm->rank, mine, rank, theirs);
    if (out) fclose(out);
    abort();
}

/* ---- operations, when the stream comes to them ---- */

static void post(struct operation *o)
{
    struct board *b = o->comm->board;
    int me = o->comm->rank, place = o->number % 2;
    b->ranks[me].calls[place] = o->call;
    memcpy(b->ranks[me].data[place], o->input, bytes_of(&o->call));
    atomic_store(&b->ranks[me].posted, o->number + 1);
    o->posted = true;
}

/* Whether this rank is at the same call. One that sends to us instead will never come. */
static bool is_there(const struct operation *o, int rank)
{
    struct board *b = o->comm->board;
    int me = o->comm->rank;
    const struct call *c = &b->ranks[rank].calls[o->number % 2];
    if (b->pipes[rank][me].sent > b->pipes[rank][me].taken)
        differ(o, rank, &b->pipes[rank][me].call);
    if (atomic_load(&b->ranks[rank].posted) <= o->number) return false;
    if (strcmp(c->name, o->call.name) || c->count != o->call.count || c->type != o->call.type ||
        c->peer != o->call.peer)
        differ(o, rank, c);
    return true;
}

static float from_bf16(uint16_t v)
{
    uint32_t bits = (uint32_t)v << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

/* Of finite numbers. */
static uint16_t to_bf16(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static void add(const struct call *c, void *to, const void *x)
{
    float *sum = to;
    uint16_t *rounded = to;
    for (size_t i = 0; i < c->count; i++)
        if (c->type == FLOAT)
            sum[i] += ((const float *)x)[i];
        else
            rounded[i] = to_bf16(from_bf16(rounded[i]) + from_bf16(((const uint16_t *)x)[i]));
}

static bool collect(struct operation *o)
{
    const struct board *b = o->comm->board;
    int place = o->number % 2, first = o->call.peer < 0 ? 0 : o->call.peer;
    int end = o->call.peer < 0 ? o->comm->size : first + 1;
    if (!o->posted) post(o);
    for (int r = 0; r < o->comm->size; r++)
        if (!is_there(o, r)) return false;
    memcpy(o->output, b->ranks[first].data[place], bytes_of(&o->call));
    for (int r = first + 1; r < end; r++)
        add(&o->call, o->output, b->ranks[r].data[place]);
    return true;
}

static bool send_on(struct operation *o)
{
    struct board *b = o->comm->board;
    int me = o->comm->rank, to = o->call.peer;
    if (b->pipes[me][to].sent > b->pipes[me][to].taken) return false;
    b->pipes[me][to].call = o->call;
    memcpy(b->pipes[me][to].data, o->input, bytes_of(&o->call));
    atomic_fetch_add(&b->pipes[me][to].sent, 1);
    return true;
}

static bool take(struct operation *o)
{
    struct board *b = o->comm->board;
    int me = o->comm->rank, from = o->call.peer;
    if (atomic_load(&b->pipes[from][me].sent) == b->pipes[from][me].taken) return false;
    if (b->pipes[from][me].call.count != o->call.count) differ(o, from, &b->pipes[from][me].call);
    memcpy(o->output, b->pipes[from][me].data, bytes_of(&o->call));
    atomic_fetch_add(&b->pipes[from][me].taken, 1);
    return true;
}

/* What an operation will write to belongs to it until it is done. */
static void check_untouched(const struct operation *o)
{
    const unsigned char *output = o->output;
    for (size_t i = 0; output && i < bytes_of(&o->call); i++)
        if (output[i] != 0xff) {
            FILE *out = fopen("nccl_touched", "a");
            if (out) fprintf(out, "rank %d writes to %s\n", o->comm->rank, o->call.name);
            if (out) fclose(out);
            abort();
        }
}

static bool run(void *data)
{
    struct operation *o = data;
    bool done = o->comm->aborted;
    if (!done && o->late-- > 0) return false;
    if (!done) check_untouched(o);
    if (!done && !strcmp(o->call.name, "ncclSend"))
        done = send_on(o);
    else if (!done)
        done = strcmp(o->call.name, "ncclRecv") ? collect(o) : take(o);
    if (done) free(o->input);
    return done;
}

/* ---- operations, when they are called ---- */

static bool wants(const char *what, const struct ncclComm *c)
{
    char here[40];
    const char *wanted = getenv(what);
    snprintf(here, sizeof here, "%d:%d", c->rank, c->operations);
    return wanted && !strcmp(wanted, here);
}

static unsigned draw(struct ncclComm *c, unsigned below)
{
    return (unsigned)rand_r(&c->random) % below;
}

static void tell(const struct ncclComm *c, const struct call *call)
{
    char path[40];
    if (!getenv("NCCL_HOST_TELLS")) return;
    snprintf(path, sizeof path, "nccl_calls.%d", c->rank);
    FILE *out = fopen(path, "a");
    if (!out) abort();
    fprintf(out, "%s %zu %zu\n", call->name, call->count, emulation_replays());
    fclose(out);
}

/* The input is read now, which is as early as a stream may: all before it is done. */
static int call(const char *name, const void *input, void *output, size_t count, int type, int peer,
                struct ncclComm *c, void *stream)
{
    struct operation *o = calloc(1, sizeof *o);
    if (!o || count > ROOM || c->aborted || c->starting) abort();
    *o = (struct operation){.comm = c, .stream = stream, .output = output};
    snprintf(o->call.name, sizeof o->call.name, "%s", name);
    o->call.count = count;
    o->call.type = type;
    o->call.peer = peer;
    c->operations++;
    if (wants("NCCL_HOST_STOPS", c)) raise(SIGSTOP);
    tell(c, &o->call);
    emulation_check_behind(stream, name);
    emulation_check_memory(output ? output : input, name);
    if (input) {
        o->input = malloc(bytes_of(&o->call) + 1);
        if (!o->input) abort();
        memcpy(o->input, input, bytes_of(&o->call));
    }
    if (output) memset(output, 0xff, bytes_of(&o->call));
    if (wants("NCCL_HOST_DIFFERS", c)) o->call.count--;
    if (input && output) o->number = c->collectives++;
    o->late = draw(c, 2) ? (int)draw(c, LATEST) : 0;
    if (draw(c, 2)) {
        emulation_later(stream, run, o);
        return SUCCESS;
    }
    c->starting = o;
    c->polls = (int)draw(c, LATEST);
    return IN_PROGRESS;
}

#pragma GCC visibility push(default)

int ncclAllReduce(const void *input, void *output, size_t count, int type, int operation,
                  struct ncclComm *c, void *stream)
{
    if ((type != FLOAT && type != BFLOAT16) || operation != 0) abort();
    return call("ncclAllReduce", input, output, count, type, -1, c, stream);
}

int ncclBroadcast(const void *input, void *output, size_t count, int type, int root,
                  struct ncclComm *c, void *stream)
{
    if (type != FLOAT) abort();
    return call("ncclBroadcast", input, output, count, type, root, c, stream);
}

int ncclSend(const void *input, size_t count, int type, int to, struct ncclComm *c, void *stream)
{
    if (type != FLOAT) abort();
    return call("ncclSend", input, NULL, count, type, to, c, stream);
}

int ncclRecv(void *output, size_t count, int type, int from, struct ncclComm *c, void *stream)
{
    if (type != FLOAT) abort();
    return call("ncclRecv", NULL, output, count, type, from, c, stream);
}

int ncclCommGetAsyncError(struct ncclComm *c, int *state)
{
    struct operation *o = c->starting;
    *state = c->board->joined < c->size || (o && c->polls-- > 0) ? IN_PROGRESS : SUCCESS;
    if (*state == SUCCESS && o) {
        c->starting = NULL;
        emulation_later(o->stream, run, o);
    }
    return SUCCESS;
}

int ncclCommAbort(struct ncclComm *c)
{
    FILE *out = fopen("nccl_aborted", "a");
    if (out) fclose(out);
    c->aborted = true;
    return SUCCESS;
}

const char *ncclGetLastError(struct ncclComm *c)
{
    (void)c;
    return "the stand-in says no more";
}

int ncclGetVersion(int *version)
{
    const char *wanted = getenv("NCCL_HOST_VERSION");
    *version = wanted ? atoi(wanted) : 21800;
    return SUCCESS;
}

/* In the folder that all work in; the file goes when all have opened it. */
int ncclGetUniqueId(unique_id *id)
{
    memset(id, 0, sizeof *id);
    snprintf(id->path, sizeof id->path, "nccl_host.XXXXXX");
    int fd = mkstemp(id->path);
    if (fd < 0 || ftruncate(fd, sizeof(struct board))) return 1;
    close(fd);
    return SUCCESS;
}

/* As nccl.h 2.18 has it. */
struct config {
    size_t size;
    unsigned magic, version;
    int blocking, cga_cluster_size, min_ctas, max_ctas;
    const char *net_name;
    int split_share;
};

int ncclCommInitRankConfig(struct ncclComm **made, int size, unique_id id, int rank,
                           struct config *config)
{
    struct ncclComm *c = calloc(1, sizeof *c);
    const char *seed = getenv("AMP_TEST_SEED");
    int fd = open(id.path, O_RDWR);
    if (!c || fd < 0 || size > MOST || config->size != sizeof *config ||
        config->magic != 0xcafebeef || config->blocking)
        return 4; /* an invalid argument */
    c->board = mmap(NULL, sizeof *c->board, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (c->board == MAP_FAILED) return 2;
    c->rank = rank;
    c->size = size;
    c->random = (unsigned)(seed ? atoi(seed) : 1) + 1000u * (unsigned)rank;
    if (atomic_fetch_add(&c->board->joined, 1) == size - 1) unlink(id.path);
    *made = c;
    return IN_PROGRESS;
}

#pragma GCC visibility pop
