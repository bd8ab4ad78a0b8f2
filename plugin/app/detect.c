/* Decides how an image becomes rows of detections: loaded, resized, run and suppressed exactly as
 * Darknet's `detector valid` does. It must not know what average precision is; amp_detect_ap only
 * hands both sides over.
 *
 * LOADERS threads load ahead, since decoding takes longer than a small network. */

#include "detect.h"

#include <math.h>
#include <stdbool.h>

#include "plugin/core/text.h"

/* From Darknet's stb_image: true if this file has an image header that can be read; sets its
 * size. */
int stbi_info(const char *path, int *width, int *height, int *channels);

enum { LOADERS = 4 }; /* as in `detector valid` */

static bool is_head(layer l)
{
    return l.type == YOLO || l.type == REGION || l.type == DETECTION;
}

static bool is_stretched(const network *net)
{
    return net->layers[net->n - 1].type == DETECTION;
}

const char *amp_detect_resize(const network *net)
{
    return is_stretched(net) ? "stretched" : "letterboxed";
}

/* ---- images, loaded ahead ---- */

struct loader {
    pthread_t thread;
    image original, resized;
};

static void start_loading(struct loader *loader, const network *net, char *path)
{
    load_args args = {0};
    args.type = is_stretched(net) ? IMAGE_DATA : LETTERBOX_DATA;
    args.w = net->w;
    args.h = net->h;
    args.path = path;
    args.im = &loader->original;
    args.resized = &loader->resized;
    loader->thread = load_data_in_thread(args);
}

/* Darknet gives a black image of 10 x 10 for a file that it cannot decode. A real image of 10 x 10
 * may be black too, so the file's header decides. */
bool amp_detect_is_decoded(image im, const char *path)
{
    if (im.w != 10 || im.h != 10) return true;
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

/* Turns centre and size in pixels into a box in fractions of the image. A box that is not finite
 * becomes empty; so does one with a negative size, which a [detection] head may give. */
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
    int n = 0, failed = 0;
    detection *found =
        get_network_boxes(net, original.w, original.h, thresh, tree_thresh, set->map, 0, &n);
    if (nms > 0) do_nms_sort(found, n, set->n_classes, nms);
    for (int i = 0; i < n && !failed; i++) {
        struct amp_box b = to_box(found[i].bbox, original.w, original.h, &all->unbounded);
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

int amp_detect_run(network *net, const struct amp_eval_set *set, float thresh, float nms,
                   struct amp_detections *detections)
{
    struct loader loaders[LOADERS];
    struct amp_progress progress;
    int n = set->images.count, started = 0, done = 0, undecoded = 0, failed = 0;
    /* network_predict takes one image. */
    set_batch_network(net, 1);
    amp_progress_start(&progress, stderr, "evaluating", (size_t)n);
    while (done < n && !failed) {
        for (; started < n && started < done + LOADERS; started++)
            start_loading(&loaders[started % LOADERS], net, set->images.line[started]);
        struct loader *loader = &loaders[done % LOADERS];
        pthread_join(loader->thread, NULL);
        failed = evaluate_image(net, set, done, loader, thresh, nms, &undecoded, detections);
        free_images(loader);
        amp_progress_update(&progress, (size_t)++done);
    }
    /* After a failure: threads still write into loaders[], which is on this stack. */
    for (; done < started; done++) {
        pthread_join(loaders[done % LOADERS].thread, NULL);
        free_images(&loaders[done % LOADERS]);
    }
    return failed || undecoded ? -1 : 0;
}

struct amp_ap_set *amp_detect_ap(network *net, const struct amp_eval_set *set, float thresh,
                                 float nms)
{
    char err[512];
    struct amp_detections found = {0};
    struct amp_ap_set *ap = NULL;
    int failed = amp_detect_run(net, set, thresh, nms, &found);
    if (found.unbounded)
        fprintf(stderr, "warning: %zu detections have no finite box and match nothing\n",
                found.unbounded);
    if (!failed)
        ap = amp_ap_set_new(found.rows, found.count, set->truths, set->n_truths, set->images.count,
                            set->n_classes, err, sizeof err);
    if (!failed && !ap) fprintf(stderr, "error: %s\n", err);
    amp_detections_free(&found);
    return ap;
}

void amp_detections_free(struct amp_detections *detections)
{
    free(detections->rows);
    *detections = (struct amp_detections){0};
}
