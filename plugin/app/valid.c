/* Decides which file a detection goes to and how it is written there: as validate_detector of
 * Darknet's examples does, whose files others read. It must not know how images become detections
 * (detect.c).
 *
 * Darknet's own takes one image at a time, and stays in use where that costs nothing. */
#define _GNU_SOURCE
#include "valid.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "amp.h"
#include "amp_observe.h"
#include "darknet.h"
#include "detect.h"
#include "measuring.h"
#include "results.h"

/* Of Darknet's examples: lines of one class's file each, and of one file for all. */
void print_detector_detections(FILE **files, char *name, detection *, int n, int classes, int w,
                               int h);
void print_imagenet_detections(FILE *, int number, detection *, int n, int classes, int w, int h);

enum { IMAGENET_CLASSES = 200 };

struct valid {
    list *options;
    char **paths, **names;
    int images, classes;
    bool coco, imagenet; /* else a file for each class */
    FILE **files;
    int n_files;
    bool any; /* a line of COCO's has been written */
};

/* ---- COCO's ---- */

/* The classes of 2014, whose numbers have gaps. */
static int coco_class(int k)
{
    static const int gaps[] = {12, 26, 29, 30, 45, 66, 68, 69, 71, 83};
    int number = k + 1;
    for (size_t i = 0; i < sizeof gaps / sizeof *gaps; i++)
        number += number >= gaps[i];
    return number;
}

static int coco_image(const char *path)
{
    const char *mark = strrchr(path, '_');
    if (!mark) mark = strrchr(path, '/');
    return mark ? atoi(mark + 1) : 0;
}

static void print_coco(struct valid *v, const char *path, const detection *found, int n, int w,
                       int h)
{
    FILE *f = v->files[0];
    for (int i = 0; i < n; i++) {
        box b = found[i].bbox;
        float left = (float)(b.x - b.w / 2.), right = (float)(b.x + b.w / 2.);
        float top = (float)(b.y - b.h / 2.), bottom = (float)(b.y + b.h / 2.);
        left = left < 0 ? 0 : left;
        top = top < 0 ? 0 : top;
        right = right > (float)w ? (float)w : right;
        bottom = bottom > (float)h ? (float)h : bottom;
        for (int k = 0; k < v->classes; k++) {
            if (found[i].prob[k] == 0) continue;
            fprintf(f,
                    "%s{\"image_id\":%d, \"category_id\":%d, \"bbox\":[%f, %f, %f, %f], "
                    "\"score\":%f}",
                    v->any ? ",\n" : "", coco_image(path), coco_class(k), (double)left, (double)top,
                    (double)(right - left), (double)(bottom - top), (double)found[i].prob[k]);
            v->any = true;
        }
    }
}

/* ---- the files ---- */

static void open_file(struct valid *v, const char *folder, const char *name, const char *end)
{
    char path[3 * PATH_MAX];
    snprintf(path, sizeof path, "%s/%s%s", folder, name, end);
    v->files[v->n_files++] = fopen(path, "w"); /* results.c ends the program where it cannot */
}

static int open_files(struct valid *v, const char *out)
{
    const char *folder = option_find_str(v->options, "results", "results");
    const char *type = option_find_str(v->options, "eval", "voc");
    char name[PATH_MAX];
    v->coco = !strcmp(type, "coco");
    v->imagenet = !strcmp(type, "imagenet");
    v->files = calloc((size_t)v->classes, sizeof *v->files);
    if (!v->files) return amp_complain(strerror(errno));
    if (v->imagenet) {
        v->classes = IMAGENET_CLASSES;
        open_file(v, folder, out ? out : "imagenet-detection", ".txt");
    } else if (v->coco) {
        open_file(v, folder, out ? out : "coco_results", ".json");
        fputs("[\n", v->files[0]);
    }
    for (int k = 0; !v->imagenet && !v->coco && k < v->classes; k++) {
        snprintf(name, sizeof name, "%s%s", out ? out : "comp4_det_test_", v->names[k]);
        open_file(v, folder, name, ".txt");
    }
    return 0;
}

/* ---- the run ---- */

static int write_image(void *user, int i, int w, int h, detection *found, int n)
{
    struct valid *v = user;
    if (v->coco) {
        print_coco(v, v->paths[i], found, n, w, h);
    } else if (v->imagenet) {
        print_imagenet_detections(v->files[0], i + 1, found, n, v->classes, w, h);
    } else {
        char *name = basecfg(v->paths[i]);
        print_detector_detections(v->files, name, found, n, v->classes, w, h);
        free(name);
    }
    return 0;
}

static int run(struct valid *v, network *net)
{
    char *map = option_find_str(v->options, "map", NULL);
    const struct amp_detector d = {.net = net,
                                   .fit = amp_stretches(net) ? AMP_FIT_STRETCH : AMP_FIT_LETTERBOX,
                                   .list = v->paths,
                                   .map = map ? read_map(map) : NULL,
                                   .classes = v->classes,
                                   .thresh = .005f,
                                   .nms = .45f};
    const struct amp_image_range all = {0, v->images};
    int failed = amp_detect_each(&d, all, true, write_image, v);
    if (v->coco && !failed) fputs("\n]\n", v->files[0]);
    free(d.map);
    return failed;
}

static list *read_list(list *options)
{
    return get_paths(option_find_str(options, "valid", "data/train.list"));
}

int amp_valid_count(const char *data)
{
    return read_list(read_data_cfg((char *)data))->size;
}

int amp_valid_run(const struct amp_valid *asked)
{
    struct valid v = {.options = read_data_cfg((char *)asked->data)};
    list *images = read_list(v.options);
    v.paths = (char **)list_to_array(images);
    v.images = images->size;
    v.names = get_labels(option_find_str(v.options, "names", "data/names.list"));
    network *net = amp_inference_load(&asked->inference, asked->weights);
    v.classes = net->layers[net->n - 1].classes;
    amp_refuse_bad_images(0); /* images_ahead.c names all of them instead */
    double start = what_time_is_it_now();
    int failed = open_files(&v, asked->out) || run(&v, net);
    failed = amp_results_end() || failed;
    free(v.files);
    if (!failed)
        fprintf(stderr, "Total Detection Time: %f Seconds\n", what_time_is_it_now() - start);
    free_network(net);
    return failed ? -1 : 0;
}
