/* The result of `amp data` in words. It decides which numbers are shown and which are odd; it must
 * not count (data_counts.c). */
#include "data_counts.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

enum { CLASSES_SHOWN = 12, COPIES_NAMED = 3 };
/* A class with so many times the boxes of another is told. */
static const double uneven = 10;

/* A row of the table; offset: of a size_t in counts. */
static void print_row(const struct amp_data_counts *r, const char *title, size_t offset, FILE *f)
{
    fprintf(f, "%-34s", title);
    for (int list = 0; list < r->lists; list++) {
        size_t value;
        memcpy(&value, (const char *)&r->counts[list] + offset, sizeof value);
        fprintf(f, "%10zu", value);
    }
    fputc('\n', f);
}

#define ROW(title, member) print_row(r, title, offsetof(struct amp_list_counts, member), f)

/* What nobody has is left out. */
#define ROW_IF(title, member)                                                                      \
    if (r->counts[0].member || r->counts[1].member) ROW(title, member)

static void print_groups(const struct amp_data_counts *r, FILE *f)
{
    static const char *const names[AMP_DATA_GROUPS] = {"0",    "1",     "2-3",   "4-7",
                                                       "8-15", "16-31", "32-63", "64+"};
    const char *before = "  images of the training list by their boxes: ";
    for (int g = 0; g < AMP_DATA_GROUPS; g++) {
        if (!r->counts[0].groups[g]) continue;
        fprintf(f, "%s%zu with %s", before, r->counts[0].groups[g], names[g]);
        before = ", ";
    }
    fputc('\n', f);
}

static void print_boxes(const struct amp_data_counts *r, FILE *f)
{
    char cell[60];
    struct amp_extent c = r->d->net ? amp_data_finest_cell(r->d->net) : (struct amp_extent){0, 0};
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

static void print_quantiles(const struct amp_data_counts *r, const char *title,
                            const float found[AMP_DATA_QUANTILES], FILE *f)
{
    fprintf(f, "%-34s", title);
    for (int q = 0; q < AMP_DATA_QUANTILES; q++)
        fprintf(f, "%10.3g", (r->d->extents ? 1 : 100) * (double)found[q]);
    fputc('\n', f);
}

static int print_sizes(const struct amp_data_counts *r, FILE *f)
{
    enum { SHOWN = 4 };
    size_t n;
    float w[AMP_DATA_QUANTILES], h[AMP_DATA_QUANTILES];
    struct amp_image_size *sizes = amp_data_sizes(r->d->survey, &n);
    if (!sizes) return -1;
    fprintf(f, "\nimage sizes (%zu):", n);
    for (size_t i = 0; i < n && i < SHOWN; i++)
        fprintf(f, "%s %dx%d (%zu)", i ? "," : "", sizes[i].w, sizes[i].h, sizes[i].images);
    fprintf(f, "%s\n", n > SHOWN ? ", ..." : "");
    free(sizes);
    if (!amp_data_quantiles(r->d, false, w) || !amp_data_quantiles(r->d, true, h)) return 0;
    fprintf(f, "%-34s%10s%10s%10s%10s%10s\n",
            r->d->extents ? "box sizes in pixels of the network" : "box sizes in % of the image",
            "least", "5 % below", "median", "5 % above", "most");
    print_quantiles(r, "  widths", w, f);
    print_quantiles(r, "  heights", h, f);
    return 0;
}

static void print_class(const struct amp_data_counts *r, size_t class_id, FILE *f)
{
    char number[16], name[80];
    size_t all = r->d->classifier ? r->counts[0].images : r->counts[0].boxes;
    const char *own = amp_data_class_name(r->d, (int)class_id, number);
    snprintf(name, sizeof name, "%zu %s", class_id, own == number ? "" : own);
    fprintf(f, "%-34.34s%10zu%6.1f %%", name, amp_data_amount(r, 0, class_id),
            all ? 100. * (double)amp_data_amount(r, 0, class_id) / (double)all : 0.);
    if (!r->d->classifier) fprintf(f, "%10zu", r->counts[0].classes[class_id].images);
    if (r->lists > 1) fprintf(f, "%10zu", amp_data_amount(r, 1, class_id));
    fputc('\n', f);
}

/* Of many classes the ends. Images with tags have many each. */
static void print_classes(const struct amp_data_counts *r, FILE *f)
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
static void print_unevenness(const struct amp_data_counts *r, FILE *f)
{
    char a[16], b[16];
    int last = r->classes - 1;
    while (last > 0 && !amp_data_amount(r, 0, r->order[last]))
        last--;
    if (last < 1) return;
    size_t most = amp_data_amount(r, 0, r->order[0]),
           fewest = amp_data_amount(r, 0, r->order[last]);
    if ((double)most < uneven * (double)fewest) return;
    fprintf(f, "\nUneven: %s has %.3g times the %s of %s.\n",
            amp_data_class_name(r->d, (int)r->order[0], a), (double)most / (double)fewest,
            r->d->classifier ? "images" : "boxes",
            amp_data_class_name(r->d, (int)r->order[last], b));
}

static void print_copies(const struct amp_data_counts *r, FILE *f)
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

static void print_head(const struct amp_data *d, const struct amp_anchor_head *h, FILE *f)
{
    const struct amp_layer_desc *l = &d->net->layers[h->layer];
    int before = amp_data_layer_before(d->net, h->layer);
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

static void print_title(const struct amp_data_counts *r, FILE *f)
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

static void print_verdict(const struct amp_data_counts *r, FILE *f)
{
    if (!r->d->classifier && !r->counts[0].boxes)
        fprintf(
            f,
            "\nNo image of the training list has a box: nothing can be learned from it, whatever "
            "the loss says.\n");
    else
        fprintf(f, "\nAll that `%s train` looks at before it starts is fine.\n",
                r->d->classifier ? "classifier" : "detector");
}

int amp_data_print(const struct amp_data *d, FILE *f)
{
    struct amp_data_counts all, *r = &all;
    if (amp_data_count(r, d)) return -1;
    print_title(r, f);
    ROW("images", images);
    ROW_IF("  with the bytes of an earlier one", copies);
    ROW_IF("  not JPEG, PNG or BMP: no size", unsized);
    if (!d->classifier) print_boxes(r, f);
    int failed = print_sizes(r, f);
    print_classes(r, f);
    print_unevenness(r, f);
    print_copies(r, f);
    print_anchors(d, f);
    print_verdict(r, f);
    amp_data_counts_free(r);
    return failed;
}
