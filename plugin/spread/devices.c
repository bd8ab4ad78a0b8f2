/* Decides which way arrays of devices go, and waits for them. It must not know what they are. */
#include "devices.h"

#include "group.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool joined; /* by NCCL */

/* ---- which way ---- */

/* NCCL refuses two processes on one GPU. */
static bool share_a_card(const struct amp_device_member *m, int n, const char *(*host)(int rank),
                         int *a, int *b)
{
    for (*b = 1; *b < n; ++*b)
        for (*a = 0; *a < *b; ++*a)
            if (!strcmp(m[*a].card, m[*b].card) && !strcmp(host(*a), host(*b))) return true;
    return false;
}

bool amp_devices_decide(const struct amp_device_member *m, int n, const char *(*host)(int rank),
                        char *why, size_t size)
{
    int a, b;
    for (int r = 0; r < n; r++) {
        if (m[r].version < 0)
            snprintf(why, size,
                     "rank %d on %s has no NCCL 2.18 or later (%s): install libnccl2, or Python's "
                     "nvidia-nccl",
                     r, host(r), m[r].why);
        else if (m[r].version != m[0].version)
            snprintf(why, size, "rank %d on %s has NCCL %d, and rank 0 on %s NCCL %d", r, host(r),
                     m[r].version, host(0), m[0].version);
        else
            continue;
        return false;
    }
    if (!share_a_card(m, n, host, &a, &b)) return true;
    snprintf(why, size, "ranks %d and %d use the same GPU of %s", a, b, host(a));
    return false;
}

static void look(const struct ampk_backend *backend, struct ampk_context *context,
                 struct amp_device_member *own)
{
    memset(own, 0, sizeof *own);
    backend->card(context, own->card, sizeof own->card);
    own->version = amp_nccl_load(own->why, sizeof own->why);
    if (amp_group_rank() || own->version < 0 || !amp_nccl_make_id(own->id)) return;
    snprintf(own->why, sizeof own->why, "%s", amp_nccl_error());
    own->version = -1;
}

/* ---- waiting ---- */

static const struct ampk_backend *on;
static struct ampk_context *with;
static void *stream; /* that is waited for */

static int poll_stream(void)
{
    int handed_over = amp_nccl_poll();
    return handed_over == 1 ? on->done(with, stream) : handed_over;
}

static void finish(int began, int (*poll)(void))
{
    char why[400];
    if (!began && !amp_group_wait(poll)) return;
    snprintf(why, sizeof why, "an exchange with the other processes failed in NCCL: %s",
             amp_nccl_error());
    amp_nccl_abort();
    amp_group_fail(why);
}

void amp_devices_join(const struct ampk_backend *backend, struct ampk_context *context)
{
    static bool met;
    char why[400];
    struct amp_device_member own, *all;
    if (met || !backend->stream) return;
    met = true;
    look(backend, context, &own);
    all = calloc((size_t)amp_group_size(), sizeof *all);
    if (!all) amp_group_fail("out of memory");
    amp_group_gather(&own, all, sizeof own);
    joined = amp_devices_decide(all, amp_group_size(), amp_group_host, why, sizeof why);
    if (joined) {
        amp_group_abort_by(amp_nccl_abort);
        finish(amp_nccl_join(all[0].id, amp_group_rank(), amp_group_size()), amp_nccl_poll);
    }
    if (!amp_group_rank() && joined)
        fprintf(stderr, "darknet-amp: the processes exchange by NCCL %d.%d.%d\n",
                own.version / 10000, own.version / 100 % 100, own.version % 100);
    else if (!amp_group_rank())
        fprintf(stderr,
                "darknet-amp: what the processes exchange goes through the host, which takes "
                "longer: %s\n",
                why);
    free(all);
}

bool amp_devices_exchange(const struct ampk_backend *backend, struct ampk_context *context, void *x,
                          size_t n, const struct amp_exchange *exchange, int rank)
{
    size_t bytes = n * exchange->size;
    if (!backend->stream) { /* it is the host's memory */
        exchange->host(x, n, rank);
        return true;
    }
    if (joined) {
        on = backend;
        with = context;
        stream = backend->stream(context);
        finish(exchange->device(x, n, rank, stream), poll_stream);
        amp_group_count(bytes);
        return true;
    }
    void *host = malloc(bytes + 1);
    if (!host) return false;
    backend->read(context, host, x, bytes);
    exchange->host(host, n, rank);
    backend->write(context, x, host, bytes);
    free(host);
    return true;
}

/* ---- beside operations ---- */

bool amp_devices_have_nccl(void)
{
    return joined;
}

void amp_devices_begin(const struct ampk_backend *backend, struct ampk_context *context, void *x,
                       size_t n, const struct amp_exchange *exchange)
{
    on = backend;
    with = context;
    stream = backend->beside(context);
    if (!stream) amp_group_fail("no stream for what the processes exchange");
    finish(exchange->device(x, n, 0, stream), amp_nccl_poll);
    amp_group_count(n * exchange->size);
}

void amp_devices_finish(void)
{
    if (stream) finish(0, poll_stream);
}

/* ---- sums ---- */

static void add(void *x, size_t n, int rank)
{
    (void)rank;
    amp_group_add_floats(x, n);
}

static void add_bf16(void *x, size_t n, int rank)
{
    (void)rank;
    amp_group_add_bf16(x, n);
}

const struct amp_exchange amp_devices_adding = {sizeof(float), add, amp_nccl_add};
const struct amp_exchange amp_devices_adding_bf16 = {sizeof(uint16_t), add_bf16, amp_nccl_add_bf16};

static struct ampk_tensor flat(void *data, enum ampk_dtype dtype, size_t n)
{
    return (struct ampk_tensor){data, dtype, AMPK_NCHW, 1, 1, 1, (int)n, .image_stride = n};
}

enum { MOST = 1 << 24 }; /* floats at once */

void amp_devices_round(const struct ampk_backend *backend, struct ampk_context *context, float *x,
                       uint16_t *rounded, size_t n, bool back)
{
    for (size_t i = 0; i < n; i += MOST) {
        size_t part = n - i < MOST ? n - i : MOST;
        struct ampk_tensor exact = flat(x + i, AMPK_FP32, part);
        struct ampk_tensor sent = flat(rounded + i, AMPK_BF16, part);
        backend->convert(context, back ? &sent : &exact, back ? &exact : &sent, false, NULL);
    }
}

/* In pieces, so that a step takes 32 MiB more at most. */
bool amp_devices_add_rounded(const struct ampk_backend *backend, struct ampk_context *context,
                             float *x, size_t n)
{
    const size_t room = n < MOST ? n : MOST;
    bool done = true;
    uint16_t *rounded = backend->alloc(context, room * sizeof *rounded + 1);
    if (!rounded) return false;
    for (size_t i = 0; i < n && done; i += MOST) {
        size_t part = n - i < MOST ? n - i : MOST;
        amp_devices_round(backend, context, x + i, rounded, part, false);
        done = amp_devices_exchange(backend, context, rounded, part, &amp_devices_adding_bf16, 0);
        amp_devices_round(backend, context, x + i, rounded, part, true);
    }
    backend->free(context, rounded);
    return done;
}
