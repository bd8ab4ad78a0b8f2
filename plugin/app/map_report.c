/* Decides what a reader of `detector map` sees: table, JSON and the drawings of the bootstrap. It
 * must not compute average precision. Settings are always part of the result, so that two results
 * can be compared at all. */

#define _GNU_SOURCE
#include "counts.h"
#include "map.h"

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "plugin/core/files/file.h"
#include "plugin/core/read/json.h"
#include "plugin/core/read/text.h"
#include "plugin/core/stream.h"

/* ---- the table ---- */

static size_t count_predictions(const struct amp_map_result *result)
{
    size_t n = 0;
    for (int k = 0; k < result->n_classes; k++)
        n += result->classes[k].predictions;
    return n;
}

/* Percent with two decimals, or a dash where there is no number. */
static const char *percent(double value, char text[16])
{
    if (isnan(value))
        strcpy(text, "-");
    else
        snprintf(text, 16, "%.2f %%", 100 * value);
    return text;
}

static void print_settings(FILE *out, const struct amp_map_settings *s,
                           const struct amp_eval_set *set, const struct amp_map_result *result)
{
    fprintf(out, "\ndetector map: %s, %s, %s\n", s->data, s->cfg, s->weights);
    fprintf(out, "  images        %d from %s\n", set->images.count, set->valid_path);
    fprintf(out, "  network       %d x %d, images %s\n", s->width, s->height, s->resize);
    fprintf(out, "  detections    %zu of score %g or more, nms %g\n", count_predictions(result),
            s->thresh, s->nms);
    fprintf(out, "  truth boxes   %zu, neither they nor detections are clipped\n", set->n_truths);
    if (set->over_edge)
        fprintf(out, "  warning       %zu truth boxes reach over the edge of their image\n",
                set->over_edge);
    fprintf(out,
            "  matching      by falling score, ties by input order; VOC rule for AP@one IoU,\n"
            "                COCO rule (maxDets %d, area all) for AP@[.5:.95]\n",
            AMP_COCO_MAX_DETECTIONS);
}

/* The first AP column is at --iou; COCO's has its own rule. */
static void print_classes(FILE *out, const struct amp_map_settings *s,
                          const struct amp_eval_set *set, const struct amp_map_result *result)
{
    char a[16], b[16], c[16], title[16];
    snprintf(title, sizeof title, "AP@%.4g", s->iou);
    fprintf(out, "\n%-24s %8s %10s %10s %10s %11s\n", "class", "truths", "detections", title,
            "AP@0.75", "AP@[.5:.95]");
    for (int k = 0; k < result->n_classes; k++) {
        const struct amp_class_result *r = &result->classes[k];
        fprintf(out, "%-24s %8zu %10zu %10s %10s %11s\n", amp_eval_set_class_name(set, k),
                r->truths, r->predictions, percent(r->row.ap_iou, a), percent(r->row.ap75, b),
                percent(r->row.ap, c));
    }
}

static void print_mean(FILE *out, const char *name, const char *how, double value)
{
    char text[16];
    fprintf(out, "%-16s %10s   %s\n", name, percent(value, text), how);
}

void amp_map_print(FILE *out, const struct amp_map_settings *settings,
                   const struct amp_eval_set *set, const struct amp_map_result *result,
                   bool all_ious)
{
    const struct amp_map_row *mean = &result->mean;
    char name[32];
    print_settings(out, settings, set, result);
    print_classes(out, settings, set, result);
    fputc('\n', out);
    print_mean(out, "mAP@0.5", "area under the curve", mean->ap50);
    print_mean(out, "mAP@0.5", "VOC 11 points", mean->ap50_11pt);
    print_mean(out, "mAP@0.75", "area under the curve", mean->ap75);
    /* 0.5 and 0.75 are printed already. */
    if (settings->iou != 0.5 && settings->iou != 0.75) {
        snprintf(name, sizeof name, "mAP@%.4g", settings->iou);
        print_mean(out, name, "area under the curve", mean->ap_iou);
        print_mean(out, name, "VOC 11 points", mean->ap_iou_11pt);
    }
    print_mean(out, "mAP@[.5:.95]", "COCO, 101 points", mean->ap);
    for (int t = 0; all_ious && t < AMP_COCO_IOUS; t++) {
        snprintf(name, sizeof name, "  COCO AP@%.2f", amp_coco_iou(t));
        print_mean(out, name, "COCO, 101 points", mean->coco[t]);
    }
    if (set->n_truths == 0) fprintf(out, "There are no truth boxes at all: nothing is defined.\n");
}

/* ---- JSON ---- */

/* The rules stand there in words, too: other programs compute mAP by other rules. */
static void write_settings(struct amp_json *j, const struct amp_map_settings *s,
                           const struct amp_eval_set *set)
{
    amp_json_line(j, 2);
    amp_json_begin(j, "settings", '{');
    amp_json_line(j, 4);
    amp_json_string(j, "data", s->data);
    amp_json_line(j, 4);
    amp_json_string(j, "cfg", s->cfg);
    amp_json_line(j, 4);
    amp_json_string(j, "weights", s->weights);
    amp_json_line(j, 4);
    amp_json_string(j, "valid", set->valid_path);
    amp_json_line(j, 4);
    amp_json_put(j, "images", "%d", set->images.count);
    amp_json_put(j, "truths", "%zu", set->n_truths);
    amp_json_put(j, "truths_over_edge", "%zu", set->over_edge);
    amp_json_put(j, "truths_no_area", "%zu", set->no_area);
    amp_json_line(j, 4);
    amp_json_put(j, "width", "%d", s->width);
    amp_json_put(j, "height", "%d", s->height);
    amp_json_string(j, "resize", s->resize);
    amp_json_line(j, 4);
    amp_json_number(j, "iou", s->iou);
    amp_json_number(j, "thresh", s->thresh);
    amp_json_number(j, "nms", s->nms);
    amp_json_line(j, 4);
    amp_json_put(j, "coco_max_detections", "%d", AMP_COCO_MAX_DETECTIONS);
    amp_json_string(j, "area", "all");
    amp_json_string(j, "boxes", "not clipped");
    amp_json_string(j, "ties", "input order");
    amp_json_line(j, 2);
    amp_json_end(j, '}');
}

static void write_class(struct amp_json *j, const char *name, const struct amp_class_result *r)
{
    amp_json_line(j, 4);
    amp_json_begin(j, NULL, '{');
    amp_json_string(j, "name", name);
    amp_json_number(j, "ap50", r->row.ap50);
    amp_json_number(j, "ap50_11pt", r->row.ap50_11pt);
    amp_json_number(j, "ap75", r->row.ap75);
    amp_json_number(j, "ap_iou", r->row.ap_iou);
    amp_json_number(j, "ap", r->row.ap);
    amp_json_put(j, "truths", "%zu", r->truths);
    amp_json_put(j, "detections", "%zu", r->predictions);
    amp_json_end(j, '}');
}

static void begin_list(struct amp_json *j, const char *key)
{
    amp_json_line(j, 2);
    amp_json_begin(j, key, '[');
}

static void end_list(struct amp_json *j)
{
    amp_json_line(j, 2);
    amp_json_end(j, ']');
}

static void write_means(struct amp_json *j, const struct amp_map_row *mean)
{
    const struct {
        const char *key;
        double value;
    } numbers[] = {{"map50", mean->ap50},     {"map50_11pt", mean->ap50_11pt},
                   {"map75", mean->ap75},     {"map", mean->ap},
                   {"map_iou", mean->ap_iou}, {"map_iou_11pt", mean->ap_iou_11pt}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        amp_json_line(j, 2);
        amp_json_number(j, numbers[i].key, numbers[i].value);
    }
    begin_list(j, "coco");
    for (int t = 0; t < AMP_COCO_IOUS; t++) {
        amp_json_line(j, 4);
        amp_json_begin(j, NULL, '{');
        amp_json_put(j, "iou", "%.2f", amp_coco_iou(t));
        amp_json_number(j, "map", mean->coco[t]);
        amp_json_end(j, '}');
    }
    end_list(j);
}

/* Writes one of the three means of every drawing; offset: of that mean in struct amp_map_means. Ten
 * digits, since there may be a million. */
static void write_drawings(struct amp_json *j, const char *key,
                           const struct amp_bootstrap *bootstrap, size_t offset)
{
    amp_json_line(j, 4);
    amp_json_begin(j, key, '[');
    j->digits = 10;
    for (int b = 0; b < bootstrap->count; b++) {
        double value;
        memcpy(&value, (const char *)&bootstrap->means[b] + offset, sizeof value);
        amp_json_number(j, NULL, value);
    }
    j->digits = AMP_JSON_EXACT;
    amp_json_end(j, ']');
}

static void write_bootstrap(struct amp_json *j, const struct amp_bootstrap *bootstrap)
{
    if (bootstrap->count == 0) return;
    amp_json_line(j, 2);
    amp_json_begin(j, "bootstrap", '{');
    write_drawings(j, "map50", bootstrap, offsetof(struct amp_map_means, map50));
    write_drawings(j, "map75", bootstrap, offsetof(struct amp_map_means, map75));
    write_drawings(j, "map", bootstrap, offsetof(struct amp_map_means, map));
    amp_json_line(j, 2);
    amp_json_end(j, '}');
}

/* All digits: comparisons of two JSON files must not see rounding. */
void amp_map_write_object(FILE *out, const struct amp_map_settings *settings,
                          const struct amp_eval_set *set, const struct amp_map_result *result,
                          const struct amp_bootstrap *bootstrap, const struct amp_counts *counts)
{
    struct amp_json j = {.out = out, .digits = AMP_JSON_EXACT};
    amp_json_begin(&j, NULL, '{');
    amp_json_line(&j, 2);
    amp_json_string(&j, "format", AMP_MAP_FORMAT);
    write_means(&j, &result->mean);
    begin_list(&j, "classes");
    for (int k = 0; k < result->n_classes; k++)
        write_class(&j, amp_eval_set_class_name(set, k), &result->classes[k]);
    end_list(&j);
    write_bootstrap(&j, bootstrap);
    amp_counts_write(&j, counts, set);
    write_settings(&j, settings, set);
    amp_json_line(&j, 0);
    amp_json_end(&j, '}');
}

/* ---- the file ---- */

struct printed {
    const struct amp_map_settings *settings;
    const struct amp_eval_set *set;
    const struct amp_map_result *result;
    const struct amp_bootstrap *bootstrap;
    const struct amp_counts *counts;
};

static int print_object(FILE *f, const void *user)
{
    const struct printed *p = user;
    amp_map_write_object(f, p->settings, p->set, p->result, p->bootstrap, p->counts);
    fputc('\n', f);
    return 0;
}

int amp_map_write_json(const char *path, const struct amp_map_settings *settings,
                       const struct amp_eval_set *set, const struct amp_map_result *result,
                       const struct amp_bootstrap *bootstrap, const struct amp_counts *counts,
                       char *err, size_t err_size)
{
    const struct printed p = {settings, set, result, bootstrap, counts};
    return amp_whole_print(path, print_object, &p, err, err_size);
}

/* ---- the bootstrap ---- */

/* Stream b of seed 0, whatever the network: two networks are compared drawing by drawing. The
 * product's upper half maps 32 bits evenly to images. */
void amp_bootstrap_draw(int b, int n_images, int *draws)
{
    struct amp_stream stream;
    amp_stream_open(&stream, 0, AMP_STREAM_DRAW, (uint64_t)b, 0);
    memset(draws, 0, (size_t)n_images * sizeof *draws);
    for (int i = 0; i < n_images; i++)
        draws[((uint64_t)amp_stream_bits(&stream) * (uint64_t)n_images) >> 32]++;
}

static void draw_all(struct amp_ap_outcomes *outcomes, int n_images, int *draws,
                     struct amp_bootstrap *bootstrap, FILE *log)
{
    struct amp_progress progress;
    amp_progress_start(&progress, log, "drawing", (size_t)bootstrap->count);
    progress.unit = "drawings";
    for (int b = 0; b < bootstrap->count; b++) {
        amp_bootstrap_draw(b, n_images, draws);
        bootstrap->means[b] = amp_ap_outcomes_means(outcomes, draws);
        amp_progress_update(&progress, (size_t)b + 1);
    }
}

int amp_bootstrap_run(const struct amp_ap_set *set, int n_images, int count,
                      struct amp_bootstrap *bootstrap, FILE *log, char *err, size_t err_size)
{
    *bootstrap = (struct amp_bootstrap){0};
    if (count == 0) return 0;
    int *draws = malloc(((size_t)n_images + 1) * sizeof *draws);
    bootstrap->means = malloc((size_t)count * sizeof *bootstrap->means);
    struct amp_ap_outcomes *outcomes = amp_ap_outcomes_new(set, err, err_size);
    if (outcomes && (!draws || !bootstrap->means))
        snprintf(err, err_size, "no memory for %d drawings", count);
    bool ready = outcomes && draws && bootstrap->means;
    if (ready) {
        bootstrap->count = count;
        draw_all(outcomes, n_images, draws, bootstrap, log);
    } else {
        amp_bootstrap_free(bootstrap);
    }
    amp_ap_outcomes_free(outcomes);
    free(draws);
    return ready ? 0 : -1;
}

void amp_bootstrap_free(struct amp_bootstrap *bootstrap)
{
    free(bootstrap->means);
    *bootstrap = (struct amp_bootstrap){0};
}
