/* Decides what a reader sees of hits and false alarms: a table, AlexeyAB's lines, JSON. It must not
 * count. */

#include "counts.h"

#include <math.h>

/* ---- the table ---- */

/* Three digits, or a dash where there is no number. */
static const char *share(double value, char text[16])
{
    snprintf(text, 16, isnan(value) ? "-" : "%.3f", value);
    return text;
}

static void print_row(FILE *out, const char *name, const struct amp_counted *c)
{
    char precision[16], recall[16], f1[16], iou[16], best[16], at[16];
    fprintf(out, "%-24s %7zu %7zu %7zu %9s %7s %7s %8s %8s %11s\n", name, c->tp, c->fp, c->fn,
            share(c->precision, precision), share(c->recall, recall), share(c->f1, f1),
            share(c->mean_iou, iou), share(c->best_f1, best), share(c->best_thresh, at));
}

void amp_counts_print(FILE *out, const struct amp_counts *counts, const struct amp_eval_set *set)
{
    const struct amp_counted *all = &counts->all;
    fprintf(out, "\nAt scores above %g, IoU %.4g; the best F1 and the --thresh that gives it:\n",
            (double)counts->settings.thresh, counts->settings.iou);
    fprintf(out, "%-24s %7s %7s %7s %9s %7s %7s %8s %8s %11s\n", "class", "TP", "FP", "FN",
            "precision", "recall", "F1", "mean IoU", "best F1", "at --thresh");
    for (int k = 0; k < counts->n_classes; k++)
        print_row(out, amp_eval_set_class_name(set, k), &counts->classes[k]);
    print_row(out, "all", all);
}

/* ---- AlexeyAB's ---- */

static int count_without_truths(const struct amp_counts *counts)
{
    int n = 0;
    for (int k = 0; k < counts->n_classes; k++)
        n += counts->classes[k].truths == 0;
    return n;
}

void amp_counts_print_classes(FILE *out, const struct amp_counts *counts,
                              const struct amp_eval_set *set)
{
    for (int k = 0; k < counts->n_classes; k++) {
        const struct amp_counted *c = &counts->classes[k];
        fprintf(out, "class_id = %d, name = %s, ap = %.2f%%   \t (TP = %zu, FP = %zu)\n", k,
                amp_eval_set_class_name(set, k), 100 * c->ap, c->tp, c->fp);
    }
}

void amp_counts_print_fork(FILE *out, const struct amp_counts *counts,
                           const struct amp_eval_set *set)
{
    const struct amp_counts_settings *s = &counts->settings;
    const struct amp_counted *all = &counts->all;
    int without = count_without_truths(counts);
    fprintf(out, "detections_count = %zu, unique_truth_count = %zu\n", counts->predictions,
            all->truths);
    amp_counts_print_classes(out, counts, set);
    fprintf(out, "for conf_thresh = %.2f, precision = %.2f, recall = %.2f, F1-score = %.2f\n",
            (double)s->thresh, all->precision, all->recall, all->f1);
    fprintf(out, "for conf_thresh = %.2f, TP = %zu, FP = %zu, FN = %zu, average IoU = %.2f %%\n",
            (double)s->thresh, all->tp, all->fp, all->fn, 100 * all->mean_iou);
    fprintf(out, "IoU threshold = %.0f %%, ", 100 * s->iou);
    if (s->points)
        fprintf(out, "used %d Recall-points\n", s->points);
    else
        fprintf(out, "used Area-Under-Curve for each unique Recall\n");
    fprintf(out, "mean average precision (mAP@%.2f) = %.6f, or %.2f %%\n", s->iou, all->ap,
            100 * all->ap);
    if (without)
        fprintf(out, "%d of %d classes without truth boxes count 0 in the mean\n", without,
                counts->n_classes);
}

/* ---- JSON ---- */

/* For pictures: four digits. */
static void write_curve(struct amp_json *j, const char *key, const double *values)
{
    int digits = j->digits;
    amp_json_begin(j, key, '[');
    j->digits = 4;
    for (int i = 0; i < AMP_CURVE_POINTS; i++)
        amp_json_number(j, NULL, values[i]);
    j->digits = digits;
    amp_json_end(j, ']');
}

static void write_counted(struct amp_json *j, const struct amp_counted *c)
{
    amp_json_put(j, "truths", "%zu", c->truths);
    amp_json_put(j, "tp", "%zu", c->tp);
    amp_json_put(j, "fp", "%zu", c->fp);
    amp_json_put(j, "fn", "%zu", c->fn);
    amp_json_number(j, "precision", c->precision);
    amp_json_number(j, "recall", c->recall);
    amp_json_number(j, "f1", c->f1);
    amp_json_number(j, "mean_iou", c->mean_iou);
    amp_json_number(j, "best_f1", c->best_f1);
    amp_json_number(j, "best_thresh", c->best_thresh);
    amp_json_line(j, 6);
    write_curve(j, "precisions", c->precisions);
    amp_json_line(j, 6);
    write_curve(j, "f1s", c->f1s);
}

static void write_class(struct amp_json *j, const char *name, const struct amp_counted *c)
{
    amp_json_line(j, 6);
    amp_json_begin(j, NULL, '{');
    amp_json_string(j, "name", name);
    amp_json_number(j, "ap", c->ap);
    write_counted(j, c);
    amp_json_end(j, '}');
}

/* A list, since most pairs of classes are never taken for each other. */
static void write_confusion(struct amp_json *j, const struct amp_counts *counts)
{
    amp_json_line(j, 4);
    amp_json_begin(j, "confusion", '[');
    for (size_t i = 0; i < counts->n_confusions; i++) {
        const struct amp_confusion *c = &counts->confusions[i];
        amp_json_put(j, NULL, "[%d, %d, %zu]", c->truth, c->prediction, c->count);
    }
    amp_json_end(j, ']');
}

void amp_counts_write(struct amp_json *j, const struct amp_counts *counts,
                      const struct amp_eval_set *set)
{
    const struct amp_counts_settings *s = &counts->settings;
    amp_json_line(j, 2);
    amp_json_begin(j, "counts", '{');
    amp_json_string(j, "rules", s->rule == AMP_MATCH_FORK ? "fork" : "stock");
    amp_json_number(j, "iou_thresh", s->iou);
    amp_json_number(j, "conf_thresh", (double)s->thresh);
    amp_json_put(j, "points", "%d", s->points);
    amp_json_line(j, 4);
    amp_json_number(j, "map", counts->all.ap);
    write_counted(j, &counts->all);
    amp_json_line(j, 4);
    amp_json_begin(j, "classes", '[');
    for (int k = 0; k < counts->n_classes; k++)
        write_class(j, amp_eval_set_class_name(set, k), &counts->classes[k]);
    amp_json_end(j, ']');
    write_confusion(j, counts);
    amp_json_line(j, 2);
    amp_json_end(j, '}');
}
