/* Writes sidecars. It decides which rows and names a run has. It must not know file names, nor when
 * a run is saved. */
#include "sidecar_format.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct out {
    int fd;
    struct amp_hash hash;
    bool failed; /* errno says why */
};

static void put(struct out *o, const void *data, size_t bytes)
{
    const char *p = data;
    /* The checksum is hashed too, but nobody reads the hash after that. */
    amp_hash_add(&o->hash, data, bytes);
    /* write may take less than all. */
    while (bytes && !o->failed) {
        ssize_t n = write(o->fd, p, bytes);
        if (n <= 0) {
            o->failed = true;
            return;
        }
        p += n;
        bytes -= (size_t)n;
    }
}

/* What a run has to name: SGD and Adam need no word, and counts of 0 none either. */
static uint32_t list_scalars(const struct amp_run *r, struct scalar scalars[SCALARS])
{
    uint32_t n = 0;
    memset(scalars, 0, SCALARS * sizeof *scalars);
    if (r->optimizer > AMP_OPTIMIZER_ADAM)
        scalars[n++] = (struct scalar){OPTIMIZER, (double)r->optimizer};
    if (r->counts.averaged) scalars[n++] = (struct scalar){AVERAGED, (double)r->counts.averaged};
    if (r->counts.clipped) scalars[n++] = (struct scalar){CLIPPED, (double)r->counts.clipped};
    return n;
}

static uint32_t count_averages(const struct amp_run *r)
{
    uint32_t n = 0;
    for (int i = 0; i < r->n_params; i++)
        n += r->params[i].average != NULL;
    for (int i = 0; i < r->n_rolling; i++)
        n += r->rolling[i].average != NULL;
    return n;
}

/* Unnamed members are 0, so that equal states give equal files. */
static struct head head_of(const struct amp_run *r, const struct amp_file_id *weights, bool names)
{
    const struct amp_scaler *s = &r->scaler;
    struct head h = {.version = names ? AMP_SIDECAR_VERSION : 2,
                     .n_layers = (uint32_t)r->n_layers,
                     .n_params = (uint32_t)r->n_params,
                     .weights_bytes = weights->bytes,
                     .weights_hash = weights->hash,
                     .seen = r->seen,
                     .t = r->t,
                     .scale = s->scale,
                     .dynamic = s->dynamic,
                     .searching = s->searching,
                     .tracker = s->tracker,
                     .floor_skips = s->floor_skips,
                     .redone = s->redone,
                     .skipped = s->skipped,
                     .applied = s->applied,
                     .grown = s->grown,
                     .backed_off = s->backed_off,
                     .dtype = r->dtype};
    memcpy(h.magic, magic, sizeof magic);
    for (int i = 0; i < r->n_layers; i++)
        h.n_demoted += r->demoted[i] != AMP_FORMATS;
    return h;
}

struct row amp_sidecar_row(const struct amp_run *r, const struct amp_param *p)
{
    return (struct row){.layer = (uint32_t)p->layer,
                        .kind = (uint32_t)p->kind,
                        .n = p->n,
                        .arrays = p->m || r->keeps_moments ? 3 : 1};
}

/* Without moments the row says so. */
static void put_arrays(struct out *o, const struct amp_param *p)
{
    size_t bytes = p->n * sizeof(float);
    put(o, p->update, bytes);
    if (!p->m) return;
    put(o, p->m, bytes);
    put(o, p->v, bytes);
}

static void put_entry(struct out *o, enum owner owner, int index, size_t n)
{
    struct array entry = {AVERAGE, (uint32_t)owner, (uint32_t)index, n};
    put(o, &entry, sizeof entry);
}

static void put_names(struct out *o, const struct amp_run *r, const struct names *names,
                      const struct scalar *scalars)
{
    put(o, names, sizeof *names);
    put(o, scalars, names->n_scalars * sizeof *scalars);
    for (int i = 0; i < r->n_params; i++)
        if (r->params[i].average) put_entry(o, OF_ROW, i, r->params[i].n);
    for (int i = 0; i < r->n_rolling; i++)
        if (r->rolling[i].average) put_entry(o, OF_STATISTICS, i, r->rolling[i].n);
}

/* In the order of their entries. */
static void put_averages(struct out *o, const struct amp_run *r)
{
    for (int i = 0; i < r->n_params; i++)
        if (r->params[i].average) put(o, r->params[i].average, r->params[i].n * sizeof(float));
    for (int i = 0; i < r->n_rolling; i++)
        if (r->rolling[i].average) put(o, r->rolling[i].average, r->rolling[i].n * sizeof(float));
}

int amp_sidecar_write(int fd, const struct amp_run *r, const struct amp_file_id *weights, char *err,
                      size_t err_size)
{
    struct out o = {.fd = fd};
    struct scalar scalars[SCALARS];
    struct names names = {list_scalars(r, scalars), count_averages(r)};
    bool has_names = names.n_scalars || names.n_arrays;
    struct head h = head_of(r, weights, has_names);
    amp_hash_begin(&o.hash);
    put(&o, &h, sizeof h);
    for (int i = 0; i < r->n_params; i++) {
        struct row row = amp_sidecar_row(r, &r->params[i]);
        put(&o, &row, sizeof row);
    }
    for (uint32_t i = 0; i < h.n_layers; i++)
        if (r->demoted[i] != AMP_FORMATS) put(&o, &i, sizeof i);
    if (has_names) put_names(&o, r, &names, scalars);
    for (int i = 0; i < r->n_params; i++)
        put_arrays(&o, &r->params[i]);
    put_averages(&o, r);
    uint64_t checksum = amp_hash_value(&o.hash);
    put(&o, &checksum, sizeof checksum);
    if (o.failed) snprintf(err, err_size, "cannot write: %s", strerror(errno));
    return o.failed ? -1 : 0;
}
