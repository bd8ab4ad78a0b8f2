/* Loads images and notes when. It must not know what else runs meanwhile. */
#include "loading_trace.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "amp_observe.h"
#include "darknet.h"

#include "plugin/core/host.h"

struct amp_loading_trace {
    struct amp_trace *trace;
    const network *net;
    load_args args;
    int fast, images, first_row, started;
    atomic_int next, next_row;
    pthread_t threads[AMP_TRACE_THREADS];
};

struct image_time {
    struct amp_trace *trace;
    int row;
    double begin;
};

static void end_part(enum amp_load_part done, void *user)
{
    static const char *const names[AMP_LOAD_PARTS] = {[AMP_LOAD_READ] = "read",
                                                      [AMP_LOAD_DECODE] = "decode",
                                                      [AMP_LOAD_PLACE] = "place",
                                                      [AMP_LOAD_LABELS] = "labels",
                                                      [AMP_LOAD_DARKNET] = "Darknet's loader"};
    struct image_time *t = user;
    double now = amp_clock_seconds();
    amp_trace_add(t->trace, t->row, "loading", names[done], t->begin, now);
    t->begin = now;
}

static void load_one(const struct amp_loading_trace *l, int k, int row)
{
    data loaded;
    load_args a = l->args;
    struct image_time t = {l->trace, row, amp_clock_seconds()};
    double begin = t.begin;
    a.n = a.m = 1;
    a.d = &loaded;
    do /* the next one in place of one that cannot be decoded */
        a.paths = &l->args.paths[k++ % l->args.m];
    while (!amp_load_image(l->net, l->fast, &a, end_part, &t));
    free_data(loaded);
    const char *path = a.paths[0], *slash = strrchr(path, '/');
    amp_trace_add(l->trace, row, "image", slash ? slash + 1 : path, begin, amp_clock_seconds());
}

static void *work(void *p)
{
    struct amp_loading_trace *l = p;
    int k, row = l->first_row + atomic_fetch_add(&l->next_row, 1);
    while ((k = atomic_fetch_add(&l->next, 1)) < l->images)
        load_one(l, k, row);
    return NULL;
}

struct amp_loading_trace *amp_loading_trace_start(struct amp_trace *trace,
                                                  const struct amp_loading *loading,
                                                  const network *net, const load_args *args,
                                                  int images, int first_row)
{
    struct amp_loading_trace *l = calloc(1, sizeof *l);
    if (!l) return NULL;
    l->trace = trace;
    l->net = net;
    l->args = *args;
    l->fast = loading->loader == AMP_LOADER_FAST;
    l->images = images;
    l->first_row = first_row;
    int threads = loading->threads < AMP_TRACE_THREADS ? loading->threads : AMP_TRACE_THREADS;
    while (l->started < threads && !pthread_create(&l->threads[l->started], NULL, work, l))
        l->started++;
    if (l->started) return l;
    free(l);
    return NULL;
}

void amp_loading_trace_end(struct amp_loading_trace *l)
{
    for (int i = 0; i < l->started; i++)
        pthread_join(l->threads[i], NULL);
    free(l);
}
