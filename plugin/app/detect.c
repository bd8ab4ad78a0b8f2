/* Decides how images become detections, and rows of an evaluation: run and suppressed as Darknet's
 * `detector valid` does. It must not know what average precision is (amp_detect_ap only hands both
 * sides over), nor how images are loaded (images_ahead.c).
 */
#define _GNU_SOURCE

#include "detect.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "amp_observe.h"
#include "images_ahead.h"

static bool is_head(layer l)
{
    return l.type == YOLO || l.type == REGION || l.type == DETECTION;
}

static enum amp_fit fit_of(const network *net)
{
    bool stretched = net->layers[net->n - 1].type == DETECTION || amp_stretches(net);
    return stretched ? AMP_FIT_STRETCH : AMP_FIT_LETTERBOX;
}

const char *amp_detect_resize(const network *net)
{
    return fit_of(net) == AMP_FIT_STRETCH ? "stretched" : "letterboxed";
}

/* ---- detections ---- */

/* get_network_boxes counts boxes and then fills them; with a NaN among the scores it writes past
 * its array. So this check comes first. */
static int check_outputs(const network *net, const char *path)
{
    char err[200];
    if (!amp_outputs_check(net, err, sizeof err)) return 0;
    fprintf(stderr, "error: %s: %s\n", path, err);
    return -1;
}

/* Turns centre and size, of an image of this size, into a box in fractions of the image. A box that
 * is not finite becomes empty; so does one with a negative size, which a [detection] head may give.
 */
static struct amp_box to_box(box b, int width, int height, size_t *unbounded)
{
    double w = b.w > 0 ? b.w : 0, h = b.h > 0 ? b.h : 0;
    struct amp_box result = {(b.x - w / 2) / width, (b.y - h / 2) / height, w / width, h / height};
    if (isfinite(result.left + result.top + result.width + result.height)) return result;
    ++*unbounded;
    return (struct amp_box){0, 0, 0, 0};
}

static int append(struct amp_detections *all, struct amp_prediction row)
{
    if (all->count == all->capacity) {
        size_t capacity = all->capacity ? 2 * all->capacity : 1024;
        struct amp_prediction *rows = realloc(all->rows, capacity * sizeof *rows);
        if (!rows) {
            fprintf(stderr, "error: no memory for %zu detections\n", capacity);
            return -1;
        }
        all->rows = rows;
        all->capacity = capacity;
    }
    all->rows[all->count++] = row;
    return 0;
}

/* ---- images, as many at a time as the network takes ---- */

struct picture {
    int index, w, h;
};

struct batch {
    const struct amp_detector *d;
    float *input; /* of net->batch images; those that are not filled have what was there */
    struct picture *pictures; /* the filled ones */
    int n;
    amp_each_detections *each;
    void *user;
};

static int give_detections(const struct batch *b, const struct picture *p)
{
    const float tree_thresh = .5; /* as in `detector valid` */
    const struct amp_detector *d = b->d;
    int n = 0;
    if (check_outputs(d->net, d->list[p->index])) return -1;
    detection *found =
        get_network_boxes(d->net, p->w, p->h, d->thresh, tree_thresh, d->map, d->fractions, &n);
    if (d->nms > 0) do_nms_sort(found, n, d->classes, d->nms);
    int failed = b->each(b->user, p->index, p->w, p->h, found, n);
    free_detections(found, n);
    return failed;
}

/* Darknet looks for boxes at the first image's place, and takes a batch of two for an image and its
 * mirror image. */
static void show_image_of(network *net, int k)
{
    for (int i = 0; i < net->n; i++) {
        layer *l = &net->layers[i];
        if (!is_head(*l)) continue;
        l->batch = 1;
        if (k) memcpy(l->output, l->output + k * l->outputs, (size_t)l->outputs * sizeof(float));
    }
}

static int run_batch(struct batch *b)
{
    network *net = b->d->net;
    int failed = 0, n = b->n;
    b->n = 0;
    if (n) network_predict(net, b->input);
    for (int k = 0; k < n && !failed; k++) {
        show_image_of(net, k);
        failed = give_detections(b, &b->pictures[k]);
    }
    for (int i = 0; i < net->n; i++)
        if (is_head(net->layers[i])) net->layers[i].batch = net->batch;
    return failed;
}

static int take_image(void *user, int i, const struct amp_loaded_image *loaded)
{
    struct batch *b = user;
    size_t inputs = (size_t)b->d->net->inputs;
    memcpy(b->input + (size_t)b->n * inputs, loaded->resized.data, inputs * sizeof(float));
    b->pictures[b->n++] = (struct picture){i, loaded->original.w, loaded->original.h};
    return b->n < b->d->net->batch ? 0 : run_batch(b);
}

int amp_detect_each(const struct amp_detector *d, struct amp_image_range images, bool progress,
                    amp_each_detections *each, void *user)
{
    size_t n = (size_t)d->net->batch;
    struct batch b = {.d = d,
                      .input = calloc(n * (size_t)d->net->inputs, sizeof(float)),
                      .pictures = calloc(n, sizeof *b.pictures),
                      .each = each,
                      .user = user};
    int failed = !b.input || !b.pictures;
    if (failed) fprintf(stderr, "error: no memory for %zu images\n", n);
    failed = failed || amp_images_run(d->net, d->fit, d->list, images, progress, take_image, &b) ||
             run_batch(&b);
    free(b.input);
    free(b.pictures);
    return failed ? -1 : 0;
}

/* ---- as rows of an evaluation ---- */

struct rows {
    const struct amp_eval_set *set;
    bool fractions;
    struct amp_detections *all;
};

static int collect(void *user, int image, int w, int h, detection *found, int n)
{
    struct rows *r = user;
    int failed = 0;
    for (int i = 0; i < n && !failed; i++) {
        struct amp_box b =
            to_box(found[i].bbox, r->fractions ? 1 : w, r->fractions ? 1 : h, &r->all->unbounded);
        for (int k = 0; k < r->set->n_classes && !failed; k++) {
            if (found[i].prob[k] > 0)
                failed = append(r->all, (struct amp_prediction){image, k, found[i].prob[k], b});
        }
    }
    return failed;
}

int amp_detect_run(network *net, const struct amp_eval_set *set, struct amp_image_range images,
                   float thresh, float nms, bool progress, struct amp_detections *detections)
{
    const struct amp_detector d = {.net = net,
                                   .fit = fit_of(net),
                                   .list = set->images.line,
                                   .map = set->map,
                                   .classes = set->n_classes,
                                   .thresh = thresh,
                                   .nms = nms,
                                   .fractions = amp_maps_as_fork(net)};
    struct rows r = {set, d.fractions, detections};
    return amp_detect_each(&d, images, progress, collect, &r);
}

static int sort_detections(const struct amp_eval_set *set, const struct amp_detections *found,
                           struct amp_ap_set **ap)
{
    char err[512];
    if (found->unbounded)
        fprintf(stderr, "warning: %zu detections have no finite box and match nothing\n",
                found->unbounded);
    *ap = amp_ap_set_new(found->rows, found->count, set->truths, set->n_truths, set->images.count,
                         set->n_classes, err, sizeof err);
    if (!*ap) fprintf(stderr, "error: %s\n", err);
    return *ap ? 0 : -1;
}

struct amp_ap_set *amp_detect_ap(network *net, const struct amp_eval_set *set, float thresh,
                                 float nms)
{
    struct amp_detections found = {0};
    struct amp_ap_set *ap = NULL;
    struct amp_image_range all = {0, set->images.count};
    if (!amp_detect_run(net, set, all, thresh, nms, true, &found))
        sort_detections(set, &found, &ap);
    amp_detections_free(&found);
    return ap;
}

/* Process 0 has all rows in the order of the images, as if it had run all of them. */
int amp_detect_ap_shared(network *net, const struct amp_eval_set *set, float thresh, float nms,
                         struct amp_ap_set **ap)
{
    int processes, own = amp_process(&processes), n = set->images.count;
    struct amp_detections found = {0};
    struct amp_image_range share = {(int)((int64_t)n * own / processes),
                                    (int)((int64_t)n * (own + 1) / processes)};
    *ap = NULL;
    int failed = amp_detect_run(net, set, share, thresh, nms, own == 0, &found);
    size_t bytes = found.count * sizeof *found.rows;
    void *rows = found.rows, *unbounded = malloc(sizeof found.unbounded);
    size_t counts = unbounded ? sizeof found.unbounded : 0;
    if (unbounded) memcpy(unbounded, &found.unbounded, counts);
    failed = amp_processes_collect(&rows, &bytes, failed || !unbounded) ||
             amp_processes_collect(&unbounded, &counts, 0);
    found.rows = rows;
    found.count = bytes / sizeof *found.rows;
    for (size_t r = 1; !failed && r < counts / sizeof found.unbounded; r++)
        found.unbounded += ((size_t *)unbounded)[r];
    if (!failed && own == 0) failed = sort_detections(set, &found, ap);
    free(unbounded);
    amp_detections_free(&found);
    return failed ? -1 : 0;
}

void amp_detections_free(struct amp_detections *detections)
{
    free(detections->rows);
    *detections = (struct amp_detections){0};
}
