/* Decides how an image becomes rows of detections: loaded, resized, run and suppressed as Darknet's
 * `detector valid` does. It must not know what average precision is; amp_detect_ap only hands both
 * sides over.
 *
 * As many threads as there are cores load ahead, since decoding takes longer than a small network.
 * JPEGs go from bytes to input in one pass (plugin/images/), what that cannot read through Darknet.
 */
#define _GNU_SOURCE

#include "detect.h"

#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "amp_observe.h"
#include "plugin/core/host.h"
#include "plugin/core/read/text.h"
#include "plugin/images/place.h"

/* From Darknet's stb_image: true if this file has an image header that can be read; sets its
 * size. */
int stbi_info(const char *path, int *width, int *height, int *channels);

static bool is_head(layer l)
{
    return l.type == YOLO || l.type == REGION || l.type == DETECTION;
}

static bool is_stretched(const network *net)
{
    return net->layers[net->n - 1].type == DETECTION || amp_stretches(net);
}

const char *amp_detect_resize(const network *net)
{
    return is_stretched(net) ? "stretched" : "letterboxed";
}

/* ---- images, loaded ahead ---- */

enum { MOST_LOADERS = 64 };

struct loader {
    pthread_t thread;
    bool started;
    const network *net;
    char *path;
    struct amp_jpeg_memory memory;
    image original; /* without data if Darknet has not read it */
    image resized;
};

static int count_loaders(void)
{
    int n = amp_cores();
    return n < MOST_LOADERS ? n : MOST_LOADERS;
}

/* In the middle of the input as letterbox_image has it, or all over it. */
static struct amp_placement place_in(const network *net, int w, int h)
{
    struct amp_placement p = {.canvas_w = net->w,
                              .canvas_h = net->h,
                              .w = net->w,
                              .h = net->h,
                              .sampling = amp_maps_as_fork(net) ? AMP_SAMPLE_AS_RESIZE_IMAGE_ENDS
                                                                : AMP_SAMPLE_AS_RESIZE_IMAGE};
    if (is_stretched(net)) return p;
    if ((float)net->w / (float)w < (float)net->h / (float)h)
        p.h = h * net->w / w;
    else
        p.w = w * net->h / h;
    p.left = (net->w - p.w) / 2;
    p.top = (net->h - p.h) / 2;
    return p;
}

static bool load_jpeg(struct loader *l)
{
    const struct amp_pixels *pixels = amp_jpeg_read(l->path, 0, &l->memory);
    if (!pixels) return false;
    struct amp_placement p = place_in(l->net, pixels->w, pixels->h);
    l->original = (image){.w = pixels->w, .h = pixels->h, .c = 3};
    l->resized = make_image(l->net->w, l->net->h, 3);
    amp_image_tell_if_cut(l->path);
    if (amp_place(pixels, &p, l->resized.data)) return true;
    free_image(l->resized);
    return false;
}

static void *load(void *argument)
{
    struct loader *l = argument;
    if (load_jpeg(l)) return NULL;
    l->original = load_image_color(l->path, 0, 0);
    l->resized = is_stretched(l->net) ? resize_image(l->original, l->net->w, l->net->h)
                                      : letterbox_image(l->original, l->net->w, l->net->h);
    return NULL;
}

/* If no thread can be started, this one loads. */
static void start_loading(struct loader *l, const network *net, char *path)
{
    l->net = net;
    l->path = path;
    l->started = !pthread_create(&l->thread, NULL, load, l);
    if (!l->started) load(l);
}

static void finish_loading(const struct loader *l)
{
    if (l->started) pthread_join(l->thread, NULL);
}

/* Darknet gives a black image of 10 x 10 for a file that it cannot decode. A real image of 10 x 10
 * may be black too, so the file's header decides. */
bool amp_detect_is_decoded(image im, const char *path)
{
    if (im.w != 10 || im.h != 10 || !im.data) return true;
    for (int i = 0; i < im.w * im.h * im.c; i++) {
        if (im.data[i] != 0) return true;
    }
    int w = 0, h = 0, c = 0;
    return stbi_info(path, &w, &h, &c) && w == 10 && h == 10;
}

static void free_images(struct loader *loader)
{
    free_image(loader->original);
    free_image(loader->resized);
}

/* ---- detections ---- */

/* get_network_boxes counts boxes and then fills them; with a NaN among the scores it writes past
 * its array. So this check comes first. */
static int check_outputs(const network *net, const char *path)
{
    for (int i = 0; i < net->n; i++) {
        layer l = net->layers[i];
        for (int k = 0; is_head(l) && k < l.outputs; k++) {
            if (isfinite(l.output[k])) continue;
            fprintf(stderr,
                    "error: %s: output %d of layer %d is %g: the weights do not give finite "
                    "results\n",
                    path, k, i, l.output[k]);
            return -1;
        }
    }
    return 0;
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

static int collect(network *net, const struct amp_eval_set *set, int image_index, image original,
                   float thresh, float nms, struct amp_detections *all)
{
    const float tree_thresh = .5; /* as in `detector valid` */
    int n = 0, failed = 0, fractions = amp_maps_as_fork(net);
    int w = fractions ? 1 : original.w, h = fractions ? 1 : original.h;
    detection *found = get_network_boxes(net, original.w, original.h, thresh, tree_thresh, set->map,
                                         fractions, &n);
    if (nms > 0) do_nms_sort(found, n, set->n_classes, nms);
    for (int i = 0; i < n && !failed; i++) {
        struct amp_box b = to_box(found[i].bbox, w, h, &all->unbounded);
        for (int k = 0; k < set->n_classes && !failed; k++) {
            if (found[i].prob[k] > 0)
                failed = append(all, (struct amp_prediction){image_index, k, found[i].prob[k], b});
        }
    }
    free_detections(found, n);
    return failed;
}

/* Runs the network on one loaded image. After the first image that cannot be decoded the result is
 * lost; the others are then only loaded, so that all bad ones are named at once. */
static int evaluate_image(network *net, const struct amp_eval_set *set, int i,
                          const struct loader *loader, float thresh, float nms, int *undecoded,
                          struct amp_detections *detections)
{
    const char *path = set->images.line[i];
    if (!amp_detect_is_decoded(loader->original, path)) {
        fprintf(stderr, "error: %s: cannot be decoded as an image\n", path);
        ++*undecoded;
    }
    if (*undecoded) return 0;
    network_predict(net, loader->resized.data);
    if (check_outputs(net, path)) return -1;
    return collect(net, set, i, loader->original, thresh, nms, detections);
}

int amp_detect_run(network *net, const struct amp_eval_set *set, struct amp_detect_images images,
                   float thresh, float nms, bool progress, struct amp_detections *detections)
{
    struct loader loaders[MOST_LOADERS] = {0};
    struct amp_progress shown;
    int n = images.end, ahead = count_loaders();
    int started = images.first, done = images.first, undecoded = 0, failed = 0;
    /* network_predict takes one image. */
    set_batch_network(net, 1);
    if (progress) amp_progress_start(&shown, stderr, "evaluating", (size_t)(n - done));
    while (done < n && !failed) {
        for (; started < n && started < done + ahead; started++)
            start_loading(&loaders[started % ahead], net, set->images.line[started]);
        struct loader *loader = &loaders[done % ahead];
        finish_loading(loader);
        failed = evaluate_image(net, set, done, loader, thresh, nms, &undecoded, detections);
        free_images(loader);
        done++;
        if (progress) amp_progress_update(&shown, (size_t)(done - images.first));
    }
    /* After a failure: threads still write into loaders[], which is on this stack. */
    for (; done < started; done++) {
        finish_loading(&loaders[done % ahead]);
        free_images(&loaders[done % ahead]);
    }
    for (int i = 0; i < ahead; i++)
        amp_jpeg_free(&loaders[i].memory);
    return failed || undecoded ? -1 : 0;
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
    struct amp_detect_images all = {0, set->images.count};
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
    struct amp_detect_images share = {(int)((int64_t)n * own / processes),
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
