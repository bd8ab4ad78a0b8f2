/* Decides which of the boxes that overlap keep their probability, and in which order the list is
 * left behind. The rules are in boxes.h. It must not know which head or network the boxes come
 * from.
 *
 * What it computes is done in double precision from the floats of the rows. */

#include "boxes.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const double greedy_beta = 0.6;

int amp_nms_kind_read(const char *word, enum amp_nms_kind *kind)
{
    static const char *const words[] = {[AMP_NMS_DEFAULT] = "default",
                                        [AMP_NMS_GREEDY] = "greedynms",
                                        [AMP_NMS_DIOU] = "diounms",
                                        [AMP_NMS_CORNERS] = "cornersnms"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        if (strcmp(word, words[i])) continue;
        *kind = (enum amp_nms_kind)i;
        return 0;
    }
    return -1;
}

/* ---- overlap ---- */

struct edges {
    double left, top, right, bottom, area;
};

static struct edges find_edges(struct amp_centre_box b)
{
    double x = b.x, y = b.y, w = b.w, h = b.h;
    return (struct edges){x - w / 2, y - h / 2, x + w / 2, y + h / 2, w * h};
}

/* 0 for boxes that do not overlap, also for boxes that are not finite. */
static double find_iou(const struct edges *a, const struct edges *b)
{
    double width = fmin(a->right, b->right) - fmax(a->left, b->left);
    double height = fmin(a->bottom, b->bottom) - fmax(a->top, b->top);
    if (!(width > 0 && height > 0)) return 0;
    double both = width * height;
    return both / (a->area + b->area - both);
}

/* d^2 / c^2: 0 for boxes with one centre, also where both are the same point. */
static double find_distance(const struct edges *a, const struct edges *b)
{
    double x = (a->left + a->right - b->left - b->right) / 2;
    double y = (a->top + a->bottom - b->top - b->bottom) / 2;
    double width = fmax(a->right, b->right) - fmin(a->left, b->left);
    double height = fmax(a->bottom, b->bottom) - fmin(a->top, b->top);
    double distance = x * x + y * y;
    return distance > 0 ? distance / (width * width + height * height) : 0;
}

/* The distance only ever lowers the overlap, so it is not computed where IoU alone does not
 * suppress: the power takes longer than all the rest. */
static bool suppresses(const struct amp_nms *nms, const struct edges *a, const struct edges *b)
{
    double iou = find_iou(a, b);
    if (!(iou > (double)nms->thresh)) return false;
    if (nms->kind != AMP_NMS_GREEDY && nms->kind != AMP_NMS_DIOU) return true;
    double beta = nms->kind == AMP_NMS_GREEDY ? greedy_beta : (double)nms->beta;
    return iou - pow(find_distance(a, b), beta) > (double)nms->thresh;
}

/* ---- order ---- */

/* What a class's sort works on. The position in the list so far breaks ties: qsort keeps no order
 * of equals. */
struct candidate {
    float prob;
    int position, row;
};

static int compare_candidates(const void *pa, const void *pb)
{
    const struct candidate *a = pa, *b = pb;
    if (a->prob != b->prob) return a->prob > b->prob ? -1 : 1;
    return a->position < b->position ? -1 : 1;
}

struct list {
    const struct amp_nms_row *rows;
    struct edges *edges;          /* [n] of each row */
    int *order, *rest;            /* [n] rows in the order of the list; scratch */
    struct candidate *candidates; /* [n] of one class */
    int n;                        /* rows that take part: the first ones of order */
};

/* Rows with objectness 0 go to the end, by exchange with the last that is not there yet, as
 * do_nms_sort does. */
static int order_rows(struct list *list, int n)
{
    int taking_part = n;
    for (int i = 0; i < n; i++)
        list->order[i] = i;
    for (int i = 0; i < taking_part;) {
        int row = list->order[i];
        if (list->rows[row].objectness != 0) {
            i++;
            continue;
        }
        list->order[i] = list->order[--taking_part];
        list->order[taking_part] = row;
    }
    return taking_part;
}

/* Sorts the list by this class. Only what has a probability is sorted; the others follow in the
 * order that they have. Returns how many have one. */
static int sort_class(struct list *list, int k)
{
    int m = 0, others = 0;
    for (int i = 0; i < list->n; i++) {
        int row = list->order[i];
        float prob = list->rows[row].prob[k];
        if (prob > 0)
            list->candidates[m++] = (struct candidate){prob, i, row};
        else
            list->rest[others++] = row;
    }
    qsort(list->candidates, (size_t)m, sizeof *list->candidates, compare_candidates);
    for (int i = 0; i < m; i++)
        list->order[i] = list->candidates[i].row;
    memcpy(list->order + m, list->rest, (size_t)others * sizeof *list->rest);
    return m;
}

/* ---- suppression ---- */

/* Each one that is still there removes what it suppresses from those behind it, which move up: what
 * is gone is never looked at again. */
static void suppress_class(const struct amp_nms *nms, struct list *list, int k)
{
    int left = sort_class(list, k);
    struct candidate *c = list->candidates;
    for (int i = 0; i < left; i++) {
        int kept = i + 1;
        for (int j = i + 1; j < left; j++) {
            if (suppresses(nms, &list->edges[c[i].row], &list->edges[c[j].row]))
                list->rows[c[j].row].prob[k] = 0;
            else
                c[kept++] = c[j];
        }
        left = kept;
    }
}

static void free_list(struct list *list)
{
    free(list->edges);
    free(list->order);
    free(list->rest);
    free(list->candidates);
}

static int make_list(struct list *list, int n, char *err, size_t err_size)
{
    size_t size = (size_t)n + 1;
    list->edges = malloc(size * sizeof *list->edges);
    list->order = malloc(size * sizeof *list->order);
    list->rest = malloc(size * sizeof *list->rest);
    list->candidates = malloc(size * sizeof *list->candidates);
    if (list->edges && list->order && list->rest && list->candidates) return 0;
    snprintf(err, err_size, "no memory to suppress among %d boxes", n);
    free_list(list);
    return -1;
}

int amp_nms_run(const struct amp_nms *nms, const struct amp_nms_row *rows, int n, int classes,
                int *order, char *err, size_t err_size)
{
    struct list list = {.rows = rows};
    if (make_list(&list, n, err, err_size)) return -1;
    for (int i = 0; i < n; i++)
        list.edges[i] = find_edges(rows[i].box);
    list.n = order_rows(&list, n);
    for (int k = 0; k < classes; k++)
        suppress_class(nms, &list, k);
    if (order) memcpy(order, list.order, (size_t)n * sizeof *order);
    free_list(&list);
    return 0;
}
