/* Reads sidecars, and decides whether one is sound and belongs to given weights and a given
 * network. It must not know file names or which pair to load (checkpoint.c), how one is written
 * (sidecar_write.c), nor when a run resumes.
 *
 * Reading is in two parts. Opening reads the whole file and checks everything, so that a damaged
 * file is refused before training begins. Restoring reads the arrays again, straight into the run's
 * memory, since a copy of them would take as much memory as the momentum itself. */
#include "sidecar_format.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct amp_sidecar {
    char path[PATH_MAX];
    int fd;
    /* Offsets: the next byte to read, and the first array. */
    uint64_t at, arrays_at;
    struct amp_hash hash, arrays_hash; /* of everything before at, before arrays_at */
    struct head head;
    struct row *rows;
    uint32_t *demoted;
    struct names names;
    struct scalar *scalars;
    struct array *named;
};

/* ---- reading ---- */

static int fail(const struct amp_sidecar *s, const char *what, char *err, size_t err_size)
{
    snprintf(err, err_size, "%s: %s", s->path, what);
    return -1;
}

/* Reads and hashes the next bytes; -1 if the file ends before. pread keeps the position in `at`, so
 * that restoring can start again at the arrays. */
static int take(struct amp_sidecar *s, void *to, uint64_t bytes)
{
    char *p = to;
    for (uint64_t left = bytes; left;) {
        ssize_t n = pread(s->fd, p, left, (off_t)s->at);
        if (n <= 0) return -1;
        p += n;
        s->at += (uint64_t)n;
        left -= (uint64_t)n;
    }
    amp_hash_add(&s->hash, to, bytes);
    return 0;
}

static int open_and_size(struct amp_sidecar *s, uint64_t *bytes, char *err, size_t err_size)
{
    struct stat info;
    /* O_NONBLOCK: a pipe in place of the file must not make the program wait. */
    s->fd = open(s->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (s->fd < 0 || fstat(s->fd, &info)) return fail(s, strerror(errno), err, err_size);
    if (!S_ISREG(info.st_mode)) return fail(s, "not a regular file", err, err_size);
    *bytes = (uint64_t)info.st_size;
    return 0;
}

/* Magic and version come first in every version; the version decides how the rest is read. */
static int read_head(struct amp_sidecar *s, uint64_t bytes, char *err, size_t err_size)
{
    char what[100];
    struct head *h = &s->head;
    amp_hash_begin(&s->hash);
    if (bytes < offsetof(struct head, n_layers) || take(s, h, offsetof(struct head, n_layers)))
        return fail(s, "is cut off", err, err_size);
    if (memcmp(h->magic, magic, sizeof magic)) return fail(s, "not a sidecar", err, err_size);
    if (h->version < 1 || h->version > AMP_SIDECAR_VERSION) {
        snprintf(what, sizeof what,
                 "has format version %" PRIu32 "; this program reads versions 1 to %d", h->version,
                 AMP_SIDECAR_VERSION);
        return fail(s, what, err, err_size);
    }
    h->dtype = AMP_DTYPE_FP16;
    size_t end = h->version == 1 ? offsetof(struct head, dtype) : sizeof *h;
    size_t begin = offsetof(struct head, n_layers);
    return take(s, &h->n_layers, end - begin) ? fail(s, "is cut off", err, err_size) : 0;
}

/* sum += n * each; false if that is more than any file has. */
static bool add_bytes(uint64_t *sum, uint64_t n, uint64_t each)
{
    uint64_t bytes;
    return !__builtin_mul_overflow(n, each, &bytes) && !__builtin_add_overflow(*sum, bytes, sum);
}

/* Bytes of all arrays; UINT64_MAX: more than any file has. */
static uint64_t array_bytes(const struct amp_sidecar *s)
{
    uint64_t sum = 0;
    bool good = true;
    for (uint32_t i = 0; i < s->head.n_params; i++)
        good = good && add_bytes(&sum, s->rows[i].n, sizeof(float) * s->rows[i].arrays);
    for (uint32_t i = 0; i < s->names.n_arrays; i++)
        good = good && add_bytes(&sum, s->named[i].n, sizeof(float));
    return good ? sum : UINT64_MAX;
}

/* Allocates and reads a table of n entries. Checked before malloc: a damaged count must not
 * allocate more than the file holds. */
static int read_table(struct amp_sidecar *s, uint64_t bytes, void *table, uint64_t n, size_t each,
                      char *err, size_t err_size)
{
    void **to = table;
    if (n * each + sizeof(uint64_t) > bytes - s->at) return fail(s, "is cut off", err, err_size);
    if (n > MAX_ROWS) return fail(s, "holds more than any network has", err, err_size);
    *to = malloc(n * each + 1);
    if (!*to) return fail(s, "out of memory", err, err_size);
    return take(s, *to, n * each) ? fail(s, "is cut off", err, err_size) : 0;
}

static int read_names(struct amp_sidecar *s, uint64_t bytes, char *err, size_t err_size)
{
    struct names *n = &s->names;
    if (s->head.version < 3) return 0;
    if (sizeof *n + sizeof(uint64_t) > bytes - s->at || take(s, n, sizeof *n))
        return fail(s, "is cut off", err, err_size);
    return read_table(s, bytes, &s->scalars, n->n_scalars, sizeof *s->scalars, err, err_size) ||
           read_table(s, bytes, &s->named, n->n_arrays, sizeof *s->named, err, err_size);
}

static int read_tables(struct amp_sidecar *s, uint64_t bytes, char *err, size_t err_size)
{
    const struct head *h = &s->head;
    if (sizeof(uint64_t) > bytes - s->at) return fail(s, "is cut off", err, err_size);
    if (read_table(s, bytes, &s->rows, h->n_params, sizeof *s->rows, err, err_size) ||
        read_table(s, bytes, &s->demoted, h->n_demoted, sizeof *s->demoted, err, err_size) ||
        read_names(s, bytes, err, err_size))
        return -1;
    for (uint32_t i = 0; i < h->n_params; i++)
        if (s->rows[i].arrays != 1 && s->rows[i].arrays != 3)
            return fail(s, "is damaged", err, err_size);
    s->arrays_at = s->at;
    /* Restoring goes on from here and compares the same checksum again. */
    s->arrays_hash = s->hash;
    uint64_t floats = array_bytes(s), there = bytes - s->at - sizeof(uint64_t);
    if (floats > there) return fail(s, "is cut off", err, err_size);
    return floats < there ? fail(s, "has bytes after its end", err, err_size) : 0;
}

/* Reads an array in pieces, only to check it. -1: the file ended; 1: a value is not finite. */
static int skip_array(struct amp_sidecar *s, uint64_t n)
{
    float piece[4096];
    int bad = 0;
    for (uint64_t left = n; left;) {
        size_t some = left < 4096 ? (size_t)left : 4096;
        if (take(s, piece, some * sizeof *piece)) return -1;
        bad |= !amp_all_finite(piece, some);
        left -= some;
    }
    return bad;
}

/* The hash is taken before the checksum is read, since reading hashes too. */
static int check_checksum(struct amp_sidecar *s)
{
    uint64_t expected = amp_hash_value(&s->hash), found;
    return take(s, &found, sizeof found) || found != expected ? -1 : 0;
}

/* The checksum is judged before the values: in a damaged file a value that is not finite is
 * damage. */
static int check_arrays(struct amp_sidecar *s, char *err, size_t err_size)
{
    int bad = 0;
    for (uint32_t i = 0; i < s->head.n_params; i++)
        for (uint32_t k = 0; k < s->rows[i].arrays; k++) {
            int got = skip_array(s, s->rows[i].n);
            if (got < 0) return fail(s, "is cut off", err, err_size);
            bad |= got;
        }
    for (uint32_t i = 0; i < s->names.n_arrays; i++) {
        int got = skip_array(s, s->named[i].n);
        if (got < 0) return fail(s, "is cut off", err, err_size);
        bad |= got;
    }
    if (check_checksum(s)) return fail(s, "is damaged (its checksum differs)", err, err_size);
    return bad ? fail(s, "holds momentum that is not finite", err, err_size) : 0;
}

static bool is_count(int64_t n)
{
    return n >= 0 && n <= INT64_MAX / 2;
}

/* The value of a scalar; 0 if it is not there. */
static double scalar_of(const struct amp_sidecar *s, const char *name)
{
    for (uint32_t i = 0; i < s->names.n_scalars; i++)
        if (!strcmp(s->scalars[i].name, name)) return s->scalars[i].value;
    return 0;
}

/* Names end with a zero; the counts and the choice that this version knows are whole numbers. */
static bool are_names_good(const struct amp_sidecar *s)
{
    bool good = true;
    for (uint32_t i = 0; i < s->names.n_scalars; i++)
        good = good && !s->scalars[i].name[NAME_SIZE - 1] && isfinite(s->scalars[i].value);
    for (uint32_t i = 0; i < s->names.n_arrays; i++)
        good = good && !s->named[i].name[NAME_SIZE - 1] && s->named[i].owner < OWNERS;
    if (!good) return false;
    static const struct {
        const char *name;
        double most;
    } known[] = {{OPTIMIZER, AMP_OPTIMIZERS - 1}, {AVERAGED, 1e15}, {CLIPPED, 1e15}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        double value = scalar_of(s, known[i].name);
        good = good && value >= 0 && value <= known[i].most && value == floor(value);
    }
    return good;
}

/* The checksum is right, but no run writes such values: another program made this file. Counters
 * stay below half of their range, so that a run can count on without overflow. */
static int check_values(const struct amp_sidecar *s, char *err, size_t err_size)
{
    const struct head *h = &s->head;
    int exponent;
    bool good = h->n_layers <= INT_MAX && h->n_params <= INT_MAX && h->n_demoted <= h->n_layers &&
                h->seen <= INT64_MAX && h->t >= 0 && h->t <= INT_MAX && h->dynamic <= 1 &&
                h->searching <= 1 && h->scale >= 1 && h->scale <= AMP_LOSS_SCALE_MAX &&
                frexp(h->scale, &exponent) == 0.5 && h->tracker >= 0 && h->tracker <= INT_MAX &&
                h->floor_skips >= 0 && h->floor_skips <= AMP_SCALER_FLOOR_STOP &&
                is_count(h->redone) && is_count(h->skipped) && is_count(h->applied) &&
                is_count(h->grown) && is_count(h->backed_off) && h->dtype >= AMP_DTYPE_FP16 &&
                h->dtype <= AMP_DTYPE_FP32 && !h->zero;
    for (uint32_t i = 0; i < h->n_params; i++)
        good = good && s->rows[i].layer < h->n_layers && s->rows[i].kind <= AMP_PARAM_SCALES &&
               !s->rows[i].zero;
    for (uint32_t i = 0; i < h->n_demoted; i++)
        good = good && s->demoted[i] < h->n_layers && (!i || s->demoted[i] > s->demoted[i - 1]);
    good = good && are_names_good(s);
    return good ? 0 : fail(s, "holds values that no run has", err, err_size);
}

/* Values come last: only a right checksum makes them worth a message of their own. */
static int read_all(struct amp_sidecar *s, char *err, size_t err_size)
{
    uint64_t bytes;
    return open_and_size(s, &bytes, err, err_size) || read_head(s, bytes, err, err_size) ||
           read_tables(s, bytes, err, err_size) || check_arrays(s, err, err_size) ||
           check_values(s, err, err_size);
}

struct amp_sidecar *amp_sidecar_open(const char *path, char *err, size_t err_size)
{
    struct amp_sidecar *s = calloc(1, sizeof *s);
    if (!s) {
        snprintf(err, err_size, "%s: out of memory", path);
        return NULL;
    }
    snprintf(s->path, sizeof s->path, "%s", path);
    /* fd is 0 after calloc only until open_and_size, which runs first and sets it. */
    if (!read_all(s, err, err_size)) return s;
    amp_sidecar_close(s);
    return NULL;
}

void amp_sidecar_close(struct amp_sidecar *s)
{
    if (!s) return;
    if (s->fd >= 0) close(s->fd);
    free(s->rows);
    free(s->demoted);
    free(s->scalars);
    free(s->named);
    free(s);
}

const char *amp_sidecar_path(const struct amp_sidecar *s)
{
    return s->path;
}

enum amp_dtype_choice amp_sidecar_dtype(const struct amp_sidecar *s)
{
    return s->head.dtype;
}

uint64_t amp_sidecar_seen(const struct amp_sidecar *s)
{
    return s->head.seen;
}

int amp_sidecar_demoted(const struct amp_sidecar *s, const uint32_t **layers)
{
    *layers = s->demoted;
    return (int)s->head.n_demoted;
}

bool amp_sidecar_has_averages(const struct amp_sidecar *s)
{
    bool has = false;
    for (uint32_t i = 0; i < s->names.n_arrays; i++)
        has |= !strcmp(s->named[i].name, AVERAGE);
    return has;
}

/* ---- does it belong here ---- */

int amp_sidecar_check_weights(const struct amp_sidecar *s, const struct amp_file_id *weights,
                              const char *name, char *err, size_t err_size)
{
    if (s->head.weights_bytes == weights->bytes && s->head.weights_hash == weights->hash) return 0;
    snprintf(err, err_size, "%s: belongs to other weights than those in %s", s->path, name);
    return -1;
}

/* Names the first array that differs, so that the user sees which layer of the cfg has changed. */
static int differ(const struct amp_sidecar *s, const struct row *here, const struct row *there,
                  char *err, size_t err_size)
{
    static const char *const kinds[] = {"weights", "biases", "scales"};
    snprintf(err, err_size,
             "%s: belongs to another network: it has %" PRIu64 " %s of layer %" PRIu32
             "%s, this one %" PRIu64 " %s of layer %" PRIu32 "%s",
             s->path, there->n, kinds[there->kind], there->layer,
             there->arrays > 1 ? " with Adam moments" : "", here->n, kinds[here->kind], here->layer,
             here->arrays > 1 ? " with Adam moments" : "");
    return -1;
}

/* SGD and Adam are told apart by their arrays: their files name no optimizer. */
static int check_optimizer(const struct amp_sidecar *s, const struct amp_run *r, char *err,
                           size_t err_size)
{
    enum amp_optimizer there = (enum amp_optimizer)scalar_of(s, OPTIMIZER), here = r->optimizer;
    if (there == (here > AMP_OPTIMIZER_ADAM ? here : 0)) return 0;
    snprintf(err, err_size, "%s: is of optimizer=%s, this cfg has %s", s->path,
             there ? amp_optimizer_word(there) : "sgd or adam", amp_optimizer_word(here));
    return -1;
}

int amp_sidecar_check_net(const struct amp_sidecar *s, const struct amp_run *r, char *err,
                          size_t err_size)
{
    const struct head *h = &s->head;
    if ((int)h->n_layers != r->n_layers || (int)h->n_params != r->n_params) {
        snprintf(err, err_size,
                 "%s: belongs to another network: it has %" PRIu32 " layers and %" PRIu32
                 " arrays of parameters, this one %d and %d",
                 s->path, h->n_layers, h->n_params, r->n_layers, r->n_params);
        return -1;
    }
    for (int i = 0; i < r->n_params; i++) {
        /* Compared as bytes: rows have no padding. */
        struct row here = amp_sidecar_row(r, &r->params[i]);
        if (memcmp(&here, &s->rows[i], sizeof here))
            return differ(s, &here, &s->rows[i], err, err_size);
    }
    return check_optimizer(s, r, err, err_size);
}

/* ---- restoring ---- */

/* Where the run keeps a named array; NULL: nowhere. */
static float *place_of(const struct amp_run *r, const struct array *a)
{
    if (strcmp(a->name, AVERAGE)) return NULL;
    bool of_row = a->owner == OF_ROW;
    if (a->index >= (uint32_t)(of_row ? r->n_params : r->n_rolling)) return NULL;
    size_t n = of_row ? r->params[a->index].n : r->rolling[a->index].n;
    if (a->n != n) return NULL;
    return of_row ? r->params[a->index].average : r->rolling[a->index].average;
}

static int take_named(struct amp_sidecar *s, const struct amp_run *r)
{
    for (uint32_t i = 0; i < s->names.n_arrays; i++) {
        const struct array *a = &s->named[i];
        float *to = place_of(r, a);
        if (to ? take(s, to, a->n * sizeof *to) : skip_array(s, a->n) < 0) return -1;
    }
    return 0;
}

/* Straight into the run's arrays; after an error they hold a mixture, which is why the run must
 * end. */
static int take_arrays(struct amp_sidecar *s, const struct amp_run *r)
{
    s->at = s->arrays_at;
    s->hash = s->arrays_hash;
    for (int i = 0; i < r->n_params; i++) {
        const struct amp_param *p = &r->params[i];
        size_t bytes = p->n * sizeof(float);
        if (take(s, p->update, bytes)) return -1;
        if (p->m && (take(s, p->m, bytes) || take(s, p->v, bytes))) return -1;
    }
    return take_named(s, r) || check_checksum(s) ? -1 : 0;
}

int amp_sidecar_restore(struct amp_sidecar *s, struct amp_run *r, char *err, size_t err_size)
{
    const struct head *h = &s->head;
    if (amp_sidecar_check_net(s, r, err, err_size)) return -1;
    if (take_arrays(s, r)) return fail(s, "changed after it was checked", err, err_size);
    /* Settings such as limits and window are not saved: those of the cfg count. */
    struct amp_scaler saved = {.dynamic = h->dynamic,
                               .searching = h->searching,
                               .scale = h->scale,
                               .tracker = (int)h->tracker,
                               .floor_skips = (int)h->floor_skips,
                               .redone = h->redone,
                               .skipped = h->skipped,
                               .applied = h->applied,
                               .grown = h->grown,
                               .backed_off = h->backed_off};
    amp_scaler_resume(&r->scaler, &saved);
    r->seen = h->seen;
    /* Adam's bias correction depends on the count of steps. */
    r->t = h->t;
    r->counts.clipped = (int64_t)scalar_of(s, CLIPPED);
    r->counts.averaged = (int64_t)scalar_of(s, AVERAGED);
    for (int i = 0; i < r->n_layers; i++)
        r->demoted[i] = AMP_FORMATS;
    for (uint32_t i = 0; i < h->n_demoted; i++)
        /* Layers only ever leave FP16 for FP32, so the file needs no format. */
        r->demoted[s->demoted[i]] = AMP_FORMAT_FP32;
    return 0;
}
