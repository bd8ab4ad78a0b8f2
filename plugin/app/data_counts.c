/* Decides what is counted of a data set. It must not know how that is shown, nor read files. */
#include "data_counts.h"

#include <stdlib.h>
#include <string.h>

/* ---- counting ---- */

static int by_size(const void *a, const void *b)
{
    const size_t *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

/* The number of bits: 0, 1, 2-3, 4-7 ... */
static int group_of(size_t boxes)
{
    int group = 0;
    for (; boxes && group < AMP_DATA_GROUPS - 1; boxes /= 2)
        group++;
    return group;
}

static size_t begin_of(const struct amp_data_counts *r, int list)
{
    return list ? r->d->survey->n_train : 0;
}

static size_t end_of(const struct amp_data_counts *r, int list)
{
    return list ? r->d->survey->n_images : r->d->survey->n_train;
}

static int count_images(struct amp_data_counts *r, int list)
{
    const struct amp_survey *s = r->d->survey;
    struct amp_list_counts *c = &r->counts[list];
    size_t begin = begin_of(r, list), n = end_of(r, list) - begin;
    size_t *boxes = malloc((n + 1) * sizeof *boxes);
    if (!boxes) return -1;
    c->images = n;
    for (size_t i = 0; i < n; i++) {
        const struct amp_surveyed_image *image = &s->images[begin + i];
        boxes[i] = image->boxes;
        c->empty += !image->boxes;
        c->without_file += !image->has_labels;
        c->unsized += !image->w;
        c->copies += image->same_as >= begin && image->same_as < begin + i;
        r->in_both += list && image->same_as < begin;
        c->groups[group_of(image->boxes)]++;
        if (image->class_id >= 0) c->classes[image->class_id].images++;
    }
    qsort(boxes, n, sizeof *boxes, by_size);
    if (n) {
        c->least = boxes[0];
        c->median = boxes[n / 2];
        c->most = boxes[n - 1];
    }
    free(boxes);
    return 0;
}

struct amp_extent amp_data_finest_cell(const struct amp_net_desc *net)
{
    struct amp_extent cell = {(float)net->w, (float)net->h};
    for (int i = 0; i < net->n; i++) {
        const struct amp_layer_desc *l = &net->layers[i];
        if (!amp_layer_is_head(l) || (float)net->w / (float)l->w >= cell.w) continue;
        cell = (struct amp_extent){(float)net->w / (float)l->w, (float)net->h / (float)l->h};
    }
    return cell;
}

static void count_extent(const struct amp_net_desc *net, struct amp_extent e,
                         struct amp_list_counts *c)
{
    struct amp_extent cell = amp_data_finest_cell(net);
    c->below_pixel += e.w < 1 || e.h < 1;
    c->below_cell += e.w < cell.w && e.h < cell.h;
}

static void count_boxes(struct amp_data_counts *r, int list)
{
    const struct amp_survey *s = r->d->survey;
    struct amp_list_counts *c = &r->counts[list];
    size_t begin = list ? s->n_train_boxes : 0, end = list ? s->n_boxes : s->n_train_boxes;
    c->boxes = end - begin;
    for (size_t i = begin; i < end; i++) {
        const struct amp_surveyed_box *b = &s->boxes[i];
        bool first = true; /* box of its class in its image */
        for (size_t k = i; k-- > begin && s->boxes[k].image == b->image && first;)
            first = s->boxes[k].class_id != b->class_id;
        c->no_class += b->class_id >= r->classes;
        if (b->class_id < r->classes) c->classes[b->class_id].boxes++;
        if (b->class_id < r->classes) c->classes[b->class_id].images += first;
        if (!(b->w > 0 && b->h > 0))
            c->no_area++;
        else if (r->d->extents)
            count_extent(r->d->net, r->d->extents[i], c);
    }
}

size_t amp_data_amount(const struct amp_data_counts *r, int list, size_t class_id)
{
    return r->d->classifier ? r->counts[list].classes[class_id].images
                            : r->counts[list].classes[class_id].boxes;
}

/* Few enough, so that the simplest way will do. */
static void sort_classes(struct amp_data_counts *r)
{
    for (int i = 0; i < r->classes; i++) {
        int k = i;
        for (; k > 0 && amp_data_amount(r, 0, r->order[k - 1]) < amp_data_amount(r, 0, (size_t)i);
             k--)
            r->order[k] = r->order[k - 1];
        r->order[k] = (size_t)i;
    }
}

/* Nobody may have said how many. */
static int count_classes(const struct amp_data *d)
{
    enum { MOST = 10000 };
    int n = d->classes;
    for (size_t i = 0; i < d->survey->n_boxes && !d->classes; i++)
        if (d->survey->boxes[i].class_id >= n && n < MOST) n = d->survey->boxes[i].class_id + 1;
    return n < MOST || d->classes ? n : MOST;
}

void amp_data_counts_free(struct amp_data_counts *r)
{
    for (int list = 0; list < AMP_DATA_LISTS; list++)
        free(r->counts[list].classes);
    free(r->order);
}

int amp_data_count(struct amp_data_counts *r, const struct amp_data *d)
{
    *r = (struct amp_data_counts){
        .d = d, .lists = d->sources->valid ? 2 : 1, .classes = count_classes(d)};
    size_t n = (size_t)r->classes + 1;
    r->order = calloc(n, sizeof *r->order);
    for (int list = 0; list < AMP_DATA_LISTS; list++)
        r->counts[list].classes = calloc(n, sizeof *r->counts[list].classes);
    bool failed = !r->order || !r->counts[0].classes || !r->counts[1].classes;
    for (int list = 0; list < r->lists && !failed; list++) {
        failed = count_images(r, list);
        if (!failed) count_boxes(r, list);
    }
    if (failed) {
        amp_data_counts_free(r);
        return -1;
    }
    sort_classes(r);
    return 0;
}

const char *amp_data_class_name(const struct amp_data *d, int class_id, char number[16])
{
    if (class_id < d->names->count && *d->names->line[class_id]) return d->names->line[class_id];
    snprintf(number, 16, "%d", class_id);
    return number;
}

/* ---- sizes ---- */

static int by_sides(const void *a, const void *b)
{
    const struct amp_image_size *x = a, *y = b;
    return x->w != y->w ? (x->w > y->w) - (x->w < y->w) : (x->h > y->h) - (x->h < y->h);
}

static int by_images(const void *a, const void *b)
{
    const struct amp_image_size *x = a, *y = b;
    if (x->images != y->images) return x->images < y->images ? 1 : -1;
    return by_sides(a, b);
}

struct amp_image_size *amp_data_sizes(const struct amp_survey *s, size_t *n)
{
    struct amp_image_size *sizes = malloc((s->n_images + 1) * sizeof *sizes);
    size_t all = 0;
    *n = 0;
    if (!sizes) return NULL;
    for (size_t i = 0; i < s->n_images; i++)
        if (s->images[i].w)
            sizes[all++] = (struct amp_image_size){s->images[i].w, s->images[i].h, 1};
    qsort(sizes, all, sizeof *sizes, by_sides);
    for (size_t i = 0; i < all; i++) {
        if (*n && !by_sides(&sizes[*n - 1], &sizes[i]))
            sizes[*n - 1].images++;
        else
            sizes[(*n)++] = sizes[i];
    }
    qsort(sizes, *n, sizeof *sizes, by_images);
    return sizes;
}

static int by_value(const void *a, const void *b)
{
    const float *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

static const double quantiles[AMP_DATA_QUANTILES] = {0, .05, .5, .95, 1};

bool amp_data_quantiles(const struct amp_data *d, bool heights, float found[AMP_DATA_QUANTILES])
{
    const struct amp_survey *s = d->survey;
    float *sides = malloc((s->n_boxes + 1) * sizeof *sides);
    size_t n = 0;
    for (size_t i = 0; sides && i < s->n_boxes; i++) {
        const struct amp_surveyed_box *b = &s->boxes[i];
        float w = d->extents ? d->extents[i].w : b->w, h = d->extents ? d->extents[i].h : b->h;
        if (w > 0 && h > 0) sides[n++] = heights ? h : w;
    }
    if (n) qsort(sides, n, sizeof *sides, by_value);
    for (int q = 0; n && q < AMP_DATA_QUANTILES; q++)
        found[q] = sides[(size_t)(quantiles[q] * (double)(n - 1) + .5)];
    free(sides);
    return n;
}

int amp_data_layer_before(const struct amp_net_desc *net, int head)
{
    return head > 0 && net->layers[head - 1].type == AMP_CONVOLUTIONAL ? head - 1 : -1;
}
