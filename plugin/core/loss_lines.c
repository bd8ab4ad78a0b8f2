#include "loss_lines.h"

/* Averages over no truths come out as NaN, as Darknet's do. */
static void print_yolo(const struct ampk_loss_sums *s, int layer, float boxes, FILE *to)
{
    fprintf(to,
            "Region %d Avg IOU: %f, Class: %f, Obj: %f, No Obj: %f, .5R: %f, .75R: %f,  "
            "count: %d\n",
            layer, (double)(s->iou / s->count), (double)(s->category / s->category_count),
            (double)(s->object / s->count), (double)(s->any_object / boxes),
            (double)(s->recall / s->count), (double)(s->recall75 / s->count), (int)s->count);
}

static void print_region(const struct ampk_loss_sums *s, float boxes, FILE *to)
{
    fprintf(to, "Region Avg IOU: %f, Class: %f, Obj: %f, No Obj: %f, Avg Recall: %f,  count: %d\n",
            (double)(s->iou / s->count), (double)(s->category / s->category_count),
            (double)(s->object / s->count), (double)(s->any_object / boxes),
            (double)(s->recall / s->count), (int)s->count);
}

void amp_loss_lines_print(const struct amp_graph *g, FILE *to)
{
    for (int i = 0; i < g->n; i++) {
        const struct amp_layer_desc *l = &g->net->layers[i];
        const struct ampk_loss_sums *s = amp_graph_loss(g, i);
        float boxes = (float)l->w * (float)l->h * (float)l->num * (float)g->net->batch;
        if (s && l->type == AMP_YOLO) print_yolo(s, i, boxes, to);
        if (s && l->type == AMP_REGION) print_region(s, boxes, to);
    }
}
