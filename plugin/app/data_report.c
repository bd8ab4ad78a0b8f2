/* The result of `amp data` in words and as JSON. It decides which numbers are shown and which are
 * odd; it must not read files. */
#include "data.h"

#include <stdlib.h>
#include <string.h>

#include "plugin/core/read/json.h"

enum { LISTS = 2, GROUPS = 8, CLASSES_SHOWN = 12, COPIES_NAMED = 3 };
/* A class with so many times the boxes of another is told. */
static const double uneven = 10;

/* Of one list. */
struct counts {
    size_t images, empty, without_file, unsized, copies, named_again;
    size_t boxes, no_class, no_area, below_pixel, below_cell;
    size_t least, median, most; /* boxes of an image */
    size_t groups[GROUPS];      /* images with 0, 1, 2-3, 4-7, .. 64 or more */
    struct {
        size_t boxes, images;
    } * classes; /* images: of a classifier those of the class, else those with a box of it */
};

struct report {
    const struct amp_data *d;
    int lists, classes;
    struct counts counts[LISTS];
    size_t in_both; /* images of valid whose bytes train has, too */
    size_t *order;  /* classes, those with the most boxes first */
};

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
    for (; boxes && group < GROUPS - 1; boxes /= 2)
        group++;
    return group;
}

static size_t begin_of(const struct report *r, int list)
{
    return list ? r->d->survey->n_train : 0;
}

static size_t end_of(const struct report *r, int list)
{
    return list ? r->d->survey->n_images : r->d->survey->n_train;
}

static int count_images(struct report *r, int list)
{
    const struct amp_survey *s = r->d->survey;
    struct counts *c = &r->counts[list];
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

/* Sides of the smallest cells of a head, in pixels of the network. */
static struct amp_extent finest_cell(const struct amp_net_desc *net)
{
    struct amp_extent cell = {(float)net->w, (float)net->h};
    for (int i = 0; i < net->n; i++) {
        const struct amp_layer_desc *l = &net->layers[i];
        if (!amp_layer_is_head(l) || (float)net->w / (float)l->w >= cell.w) continue;
        cell = (struct amp_extent){(float)net->w / (float)l->w, (float)net->h / (float)l->h};
    }
    return cell;
}

static void count_extent(const struct amp_net_desc *net, struct amp_extent e, struct counts *c)
{
    struct amp_extent cell = finest_cell(net);
    c->below_pixel += e.w < 1 || e.h < 1;
    c->below_cell += e.w < cell.w && e.h < cell.h;
}

static void count_boxes(struct report *r, int list)
{
    const struct amp_survey *s = r->d->survey;
    struct counts *c = &r->counts[list];
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

static size_t amount(const struct report *r, int list, size_t class_id)
{
    return r->d->classifier ? r->counts[list].classes[class_id].images
                            : r->counts[list].classes[class_id].boxes;
}

/* Few enough, so that the simplest way will do. */
static void sort_classes(struct report *r)
{
    for (int i = 0; i < r->classes; i++) {
        int k = i;
        for (; k > 0 && amount(r, 0, r->order[k - 1]) < amount(r, 0, (size_t)i); k--)
            r->order[k] = r->order[k - 1];
        r->order[k] = (size_t)i;
    }
}

/* Nobody may have said how many. */
static int count_classes(const struct amp_data *d)
{
    enum { MOST = 100000 };
    int n = d->classes;
    for (size_t i = 0; i < d->survey->n_boxes && !d->classes; i++)
        if (d->survey->boxes[i].class_id >= n && n < MOST) n = d->survey->boxes[i].class_id + 1;
    return n < MOST || d->classes ? n : MOST;
}

static void end(struct report *r)
{
    for (int list = 0; list < LISTS; list++)
        free(r->counts[list].classes);
    free(r->order);
}

static int begin(struct report *r, const struct amp_data *d)
{
    *r = (struct report){.d = d, .lists = d->sources->valid ? 2 : 1, .classes = count_classes(d)};
    size_t n = (size_t)r->classes + 1;
    r->order = calloc(n, sizeof *r->order);
    for (int list = 0; list < LISTS; list++)
        r->counts[list].classes = calloc(n, sizeof *r->counts[list].classes);
    bool failed = !r->order || !r->counts[0].classes || !r->counts[1].classes;
    for (int list = 0; list < r->lists && !failed; list++) {
        failed = count_images(r, list);
        if (!failed) count_boxes(r, list);
    }
    if (failed) {
        end(r);
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

struct size {
    int w, h;
    size_t images;
};

static int by_sides(const void *a, const void *b)
{
    const struct size *x = a, *y = b;
    return x->w != y->w ? (x->w > y->w) - (x->w < y->w) : (x->h > y->h) - (x->h < y->h);
}

static int by_images(const void *a, const void *b)
{
    const struct size *x = a, *y = b;
    if (x->images != y->images) return x->images < y->images ? 1 : -1;
    return by_sides(a, b);
}

/* Of all images, the most frequent first; to be freed. NULL: no memory. */
static struct size *list_sizes(const struct amp_survey *s, size_t *n)
{
    struct size *sizes = malloc((s->n_images + 1) * sizeof *sizes);
    size_t all = 0;
    *n = 0;
    if (!sizes) return NULL;
    for (size_t i = 0; i < s->n_images; i++)
        if (s->images[i].w) sizes[all++] = (struct size){s->images[i].w, s->images[i].h, 1};
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

enum { QUANTILES = 5 };
static const double quantiles[QUANTILES] = {0, .05, .5, .95, 1};

/* Of the widths or heights of all boxes with an area: pixels of the network, or without a cfg
 * fractions of the image. False: there are none, or no memory. */
static bool find_quantiles(const struct amp_data *d, bool heights, float found[QUANTILES])
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
    for (int q = 0; n && q < QUANTILES; q++)
        found[q] = sides[(size_t)(quantiles[q] * (double)(n - 1) + .5)];
    free(sides);
    return n;
}

/* ---- words ---- */

/* A row of the table; offset: of a size_t in counts. */
static void print_row(const struct report *r, const char *title, size_t offset, FILE *f)
{
    fprintf(f, "%-34s", title);
    for (int list = 0; list < r->lists; list++) {
        size_t value;
        memcpy(&value, (const char *)&r->counts[list] + offset, sizeof value);
        fprintf(f, "%10zu", value);
    }
    fputc('\n', f);
}

#define ROW(title, member) print_row(r, title, offsetof(struct counts, member), f)

/* What nobody has is left out. */
#define ROW_IF(title, member)                                                                      \
    if (r->counts[0].member || r->counts[1].member) ROW(title, member)

static void print_groups(const struct report *r, FILE *f)
{
    static const char *const names[GROUPS] = {"0",    "1",     "2-3",   "4-7",
                                              "8-15", "16-31", "32-63", "64+"};
    const char *before = "  images of the training list by their boxes: ";
    for (int g = 0; g < GROUPS; g++) {
        if (!r->counts[0].groups[g]) continue;
        fprintf(f, "%s%zu with %s", before, r->counts[0].groups[g], names[g]);
        before = ", ";
    }
    fputc('\n', f);
}

static void print_boxes(const struct report *r, FILE *f)
{
    char cell[60];
    struct amp_extent c = r->d->net ? finest_cell(r->d->net) : (struct amp_extent){0, 0};
    ROW_IF("  without a box", empty);
    ROW_IF("  without a label file", without_file);
    ROW("boxes", boxes);
    ROW("  of an image: least", least);
    ROW("    median", median);
    ROW("    most", most);
    ROW_IF("  of a class that is not there", no_class);
    ROW_IF("  without area", no_area);
    ROW_IF("  below a pixel at its size", below_pixel);
    snprintf(cell, sizeof cell, "  below the finest cell, %gx%g", (double)c.w, (double)c.h);
    ROW_IF(cell, below_cell);
    print_groups(r, f);
}

static int print_sizes(const struct report *r, FILE *f)
{
    enum { SHOWN = 4 };
    size_t n;
    float w[QUANTILES], h[QUANTILES];
    struct size *sizes = list_sizes(r->d->survey, &n);
    if (!sizes) return -1;
    fprintf(f, "\nimage sizes (%zu):", n);
    for (size_t i = 0; i < n && i < SHOWN; i++)
        fprintf(f, "%s %dx%d (%zu)", i ? "," : "", sizes[i].w, sizes[i].h, sizes[i].images);
    fprintf(f, "%s\n", n > SHOWN ? ", ..." : "");
    free(sizes);
    if (!find_quantiles(r->d, false, w) || !find_quantiles(r->d, true, h)) return 0;
    double unit = r->d->extents ? 1 : 100;
    const char *what = r->d->extents ? "pixels of the network" : "% of the image";
    fprintf(f,
            "box widths and heights, %s: least %.3gx%.3g, 5 %% below %.3gx%.3g, median %.3gx%.3g, "
            "5 %% above %.3gx%.3g, most %.3gx%.3g\n",
            what, unit * (double)w[0], unit * (double)h[0], unit * (double)w[1],
            unit * (double)h[1], unit * (double)w[2], unit * (double)h[2], unit * (double)w[3],
            unit * (double)h[3], unit * (double)w[4], unit * (double)h[4]);
    return 0;
}

static void print_class(const struct report *r, size_t class_id, FILE *f)
{
    char number[16], name[80];
    size_t all = r->d->classifier ? r->counts[0].images : r->counts[0].boxes;
    snprintf(name, sizeof name, "%zu %s", class_id,
             amp_data_class_name(r->d, (int)class_id, number));
    fprintf(f, "%-34.34s%10zu%6.1f %%", name, amount(r, 0, class_id),
            all ? 100. * (double)amount(r, 0, class_id) / (double)all : 0.);
    if (!r->d->classifier) fprintf(f, "%10zu", r->counts[0].classes[class_id].images);
    if (r->lists > 1) fprintf(f, "%10zu", amount(r, 1, class_id));
    fputc('\n', f);
}

/* Of many classes the ends. Images with tags have many each. */
static void print_classes(const struct report *r, FILE *f)
{
    if (r->d->classifier && !r->d->sources->labels) return;
    int hidden = r->classes > CLASSES_SHOWN + 1 ? r->classes - CLASSES_SHOWN : 0;
    fprintf(f, "\n%-34s%10s%8s", "class", r->d->classifier ? "images" : "boxes", "share");
    if (!r->d->classifier) fprintf(f, "%10s", "images");
    if (r->lists > 1) fprintf(f, "%10s", "valid");
    fputc('\n', f);
    for (int i = 0; i < r->classes; i++) {
        if (hidden && i == CLASSES_SHOWN / 2) {
            fprintf(f, "... %d more, all in the file of --json\n", hidden);
            i += hidden;
        }
        print_class(r, r->order[i], f);
    }
}

/* From the class with the most to the one with the fewest that has any. */
static void print_unevenness(const struct report *r, FILE *f)
{
    char a[16], b[16];
    int last = r->classes - 1;
    while (last > 0 && !amount(r, 0, r->order[last]))
        last--;
    if (last < 1) return;
    size_t most = amount(r, 0, r->order[0]), fewest = amount(r, 0, r->order[last]);
    if ((double)most < uneven * (double)fewest) return;
    fprintf(f, "\nUneven: %s has %.3g times the %s of %s.\n",
            amp_data_class_name(r->d, (int)r->order[0], a), (double)most / (double)fewest,
            r->d->classifier ? "images" : "boxes",
            amp_data_class_name(r->d, (int)r->order[last], b));
}

static void print_copies(const struct report *r, FILE *f)
{
    const struct amp_survey *s = r->d->survey;
    size_t named = 0, all = r->counts[0].copies + r->counts[1].copies + r->in_both;
    if (!all) return;
    fprintf(f, "\nThe same bytes as an earlier image (%zu):\n", all);
    for (size_t i = 0; i < s->n_images && named < COPIES_NAMED; i++) {
        if (s->images[i].same_as == i) continue;
        fprintf(f, "  %s: %s\n", s->images[i].path, s->images[s->images[i].same_as].path);
        named++;
    }
    if (all > named) fprintf(f, "  ... and %zu more\n", all - named);
    if (r->in_both)
        fprintf(f,
                "Of them images of valid= that train= has, too: %zu. What is measured on them is "
                "too good.\n",
                r->in_both);
}

static const char *anchor_text(const struct amp_data *d, int i, char text[48])
{
    struct amp_extent e = d->anchors.sizes[i], unit = d->anchors.heads.unit;
    bool whole = unit.w == 1 && unit.h == 1;
    snprintf(text, 48, whole ? "%.0f,%.0f" : "%.4g,%.4g", (double)(e.w / unit.w),
             (double)(e.h / unit.h));
    return text;
}

/* The convolution that makes what a head reads; -1: it is another layer. */
static int layer_before(const struct amp_net_desc *net, int head)
{
    return head > 0 && net->layers[head - 1].type == AMP_CONVOLUTIONAL ? head - 1 : -1;
}

static void print_head(const struct amp_data *d, const struct amp_anchor_head *h, FILE *f)
{
    const struct amp_layer_desc *l = &d->net->layers[h->layer];
    int before = layer_before(d->net, h->layer);
    fprintf(f, "  %s:%d: %s of %dx%d cells:", d->cfg, l->line, l->type_name, l->w, l->h);
    for (int i = 0; l->type == AMP_YOLO && i < h->n; i++)
        fprintf(f, "%s%d", i ? "," : " mask=", h->first + i);
    fprintf(f, "%s filters=%d", l->type == AMP_YOLO ? ";" : "", h->filters);
    if (before < 0)
        fputs(" before it\n", f);
    else
        fprintf(f, " in line %d%s\n", amp_cfg_line(amp_cfg_layer(d->cfg_file, before), "filters"),
                d->net->layers[before].filters == h->filters ? ", as it is" : "");
}

static void print_anchors(const struct amp_data *d, FILE *f)
{
    const struct amp_data_anchors *a = &d->anchors;
    char text[48];
    if (!a->n) return;
    fprintf(f,
            "\nAnchors by k-means over %zu boxes of the training list: the mean IoU of a box with "
            "its nearest\nanchor is %.3f with the cfg's %d, %.3f with these %d:\n\n    anchors=",
            a->boxes, a->before, a->cfgs, a->after, a->n);
    for (int i = 0; i < a->n; i++)
        fprintf(f, "%s%s", i ? ", " : "", anchor_text(d, i, text));
    fprintf(f, "\n    num=%d\n\n", a->n);
    for (int i = 0; i < a->heads.n; i++)
        print_head(d, &a->heads.head[i], f);
}

static void print_title(const struct report *r, FILE *f)
{
    const struct amp_data *d = r->d;
    fprintf(f, "\namp data: %s: %s of %d classes", d->data,
            d->classifier ? "a classifier" : "a detector", r->classes);
    if (d->net)
        fprintf(f, ", at %dx%d (%s)%s", d->net->w, d->net->h, d->cfg,
                d->classifier               ? ""
                : amp_net_stretches(d->net) ? ", stretched"
                                            : ", with their aspect");
    fputs("\n\n", f);
    fprintf(f, "%-34s%10s%s\n", "", "train", r->lists > 1 ? "     valid" : "");
}

int amp_data_print(const struct amp_data *d, FILE *f)
{
    struct report all, *r = &all;
    if (begin(r, d)) return -1;
    print_title(r, f);
    ROW("images", images);
    ROW_IF("  with the bytes of an earlier one", copies);
    ROW_IF("  neither JPEG nor PNG: size unknown", unsized);
    if (!d->classifier) print_boxes(r, f);
    int failed = print_sizes(r, f);
    print_classes(r, f);
    print_unevenness(r, f);
    print_copies(r, f);
    print_anchors(d, f);
    end(r);
    return failed;
}

/* ---- JSON ---- */

static void write_classes(const struct report *r, int list, struct amp_json *j)
{
    char number[16];
    if (r->d->classifier && !r->d->sources->labels) return;
    amp_json_line(j, 2);
    amp_json_begin(j, "per_class", '[');
    for (int i = 0; i < r->classes; i++) {
        amp_json_line(j, 3);
        amp_json_begin(j, NULL, '{');
        amp_json_string(j, "name", amp_data_class_name(r->d, i, number));
        if (!r->d->classifier) amp_json_put(j, "boxes", "%zu", r->counts[list].classes[i].boxes);
        amp_json_put(j, "images", "%zu", r->counts[list].classes[i].images);
        amp_json_end(j, '}');
    }
    amp_json_end(j, ']');
}

static void write_boxes(const struct counts *c, bool at_size, struct amp_json *j)
{
    amp_json_put(j, "without_a_box", "%zu", c->empty);
    amp_json_put(j, "without_a_label_file", "%zu", c->without_file);
    amp_json_put(j, "boxes", "%zu", c->boxes);
    amp_json_put(j, "without_area", "%zu", c->no_area);
    amp_json_put(j, "of_no_class", "%zu", c->no_class);
    amp_json_put(j, "below_pixel", at_size ? "%zu" : "null", c->below_pixel);
    amp_json_put(j, "below_cell", at_size ? "%zu" : "null", c->below_cell);
    amp_json_begin(j, "boxes_an_image", '{');
    amp_json_put(j, "least", "%zu", c->least);
    amp_json_put(j, "median", "%zu", c->median);
    amp_json_put(j, "most", "%zu", c->most);
    amp_json_begin(j, "groups", '[');
    for (int g = 0; g < GROUPS; g++)
        amp_json_put(j, NULL, "%zu", c->groups[g]);
    amp_json_end(j, ']');
    amp_json_end(j, '}');
}

static void write_list(const struct report *r, int list, struct amp_json *j)
{
    const struct counts *c = &r->counts[list];
    const char *key = list ? "valid" : "train";
    amp_json_line(j, 1);
    if (list >= r->lists) {
        amp_json_string(j, key, NULL);
        return;
    }
    amp_json_begin(j, key, '{');
    amp_json_string(j, "list", list ? r->d->sources->valid : r->d->sources->train);
    amp_json_put(j, "images", "%zu", c->images);
    amp_json_put(j, "copies", "%zu", c->copies);
    amp_json_put(j, "unsized", "%zu", c->unsized);
    if (!r->d->classifier) write_boxes(c, r->d->extents, j);
    write_classes(r, list, j);
    amp_json_end(j, '}');
}

static void write_copies(const struct report *r, struct amp_json *j)
{
    const struct amp_survey *s = r->d->survey;
    amp_json_line(j, 1);
    amp_json_begin(j, "same_bytes", '[');
    for (size_t i = 0; i < s->n_images; i++) {
        if (s->images[i].same_as == i) continue;
        amp_json_begin(j, NULL, '{');
        amp_json_string(j, "image", s->images[i].path);
        amp_json_string(j, "as", s->images[s->images[i].same_as].path);
        amp_json_end(j, '}');
    }
    amp_json_end(j, ']');
}

static void write_quantiles(const struct report *r, struct amp_json *j)
{
    static const char *const keys[] = {"widths", "heights"};
    float found[QUANTILES];
    if (r->d->classifier) return;
    amp_json_line(j, 1);
    amp_json_begin(j, "box_sizes", '{');
    amp_json_string(j, "unit", r->d->extents ? "pixel" : "image");
    for (int heights = 0; heights < 2; heights++) {
        if (!find_quantiles(r->d, heights, found)) continue;
        amp_json_begin(j, keys[heights], '[');
        for (int q = 0; q < QUANTILES; q++)
            amp_json_number(j, NULL, (double)found[q]);
        amp_json_end(j, ']');
    }
    amp_json_end(j, '}');
}

static int write_sizes(const struct report *r, struct amp_json *j)
{
    size_t n;
    struct size *sizes = list_sizes(r->d->survey, &n);
    if (!sizes) return -1;
    amp_json_line(j, 1);
    amp_json_begin(j, "image_sizes", '[');
    for (size_t i = 0; i < n; i++) {
        amp_json_begin(j, NULL, '{');
        amp_json_put(j, "width", "%d", sizes[i].w);
        amp_json_put(j, "height", "%d", sizes[i].h);
        amp_json_put(j, "images", "%zu", sizes[i].images);
        amp_json_end(j, '}');
    }
    amp_json_end(j, ']');
    free(sizes);
    write_quantiles(r, j);
    return 0;
}

static void write_head(const struct amp_data *d, const struct amp_anchor_head *h,
                       struct amp_json *j)
{
    int before = layer_before(d->net, h->layer);
    amp_json_begin(j, NULL, '{');
    amp_json_put(j, "layer", "%d", h->layer);
    amp_json_put(j, "line", "%d", d->net->layers[h->layer].line);
    amp_json_begin(j, "mask", '[');
    for (int i = 0; i < h->n; i++)
        amp_json_put(j, NULL, "%d", h->first + i);
    amp_json_end(j, ']');
    amp_json_put(j, "filters", "%d", h->filters);
    amp_json_put(j, "filters_line", before < 0 ? "null" : "%d",
                 before < 0 ? 0 : amp_cfg_line(amp_cfg_layer(d->cfg_file, before), "filters"));
    amp_json_end(j, '}');
}

static void write_anchors(const struct amp_data *d, struct amp_json *j)
{
    const struct amp_data_anchors *a = &d->anchors;
    struct amp_extent unit = a->heads.unit;
    amp_json_line(j, 1);
    if (!a->n) {
        amp_json_string(j, "anchors", NULL);
        return;
    }
    amp_json_begin(j, "anchors", '{');
    amp_json_put(j, "boxes", "%zu", a->boxes);
    amp_json_number(j, "iou_before", a->before);
    amp_json_number(j, "iou_after", a->after);
    amp_json_begin(j, "values", '[');
    for (int i = 0; i < a->n; i++) {
        amp_json_begin(j, NULL, '[');
        amp_json_number(j, NULL, (double)(a->sizes[i].w / unit.w));
        amp_json_number(j, NULL, (double)(a->sizes[i].h / unit.h));
        amp_json_end(j, ']');
    }
    amp_json_end(j, ']');
    amp_json_begin(j, "heads", '[');
    for (int i = 0; i < a->heads.n; i++)
        write_head(d, &a->heads.head[i], j);
    amp_json_end(j, ']');
    amp_json_end(j, '}');
}

int amp_data_write_json(const struct amp_data *d, FILE *f)
{
    struct report r;
    struct amp_json j = {.out = f, .digits = AMP_JSON_FLOAT};
    if (begin(&r, d)) return -1;
    amp_json_begin(&j, NULL, '{');
    amp_json_string(&j, "format", "darknet-amp data 1");
    amp_json_string(&j, "data", d->data);
    amp_json_string(&j, "cfg", d->cfg);
    amp_json_string(&j, "kind", d->classifier ? "classifier" : "detector");
    amp_json_put(&j, "classes", "%d", r.classes);
    for (int list = 0; list < LISTS; list++)
        write_list(&r, list, &j);
    amp_json_put(&j, "in_both", "%zu", r.in_both);
    write_copies(&r, &j);
    int failed = write_sizes(&r, &j);
    write_anchors(d, &j);
    amp_json_line(&j, 0);
    amp_json_end(&j, '}');
    fputc('\n', f);
    end(&r);
    return failed;
}
