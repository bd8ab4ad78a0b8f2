/* The result of `amp data` as JSON; its fields: docs/commands.md. It must not count
 * (data_counts.c).
 */
#include "data_counts.h"

#include <stdlib.h>

#include "plugin/core/read/json.h"

static void write_classes(const struct amp_data_counts *r, int list, struct amp_json *j)
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

static void write_boxes(const struct amp_list_counts *c, bool at_size, struct amp_json *j)
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
    for (int g = 0; g < AMP_DATA_GROUPS; g++)
        amp_json_put(j, NULL, "%zu", c->groups[g]);
    amp_json_end(j, ']');
    amp_json_end(j, '}');
}

static void write_list(const struct amp_data_counts *r, int list, struct amp_json *j)
{
    const struct amp_list_counts *c = &r->counts[list];
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

static void write_copies(const struct amp_data_counts *r, struct amp_json *j)
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

static void write_quantiles(const struct amp_data_counts *r, struct amp_json *j)
{
    static const char *const keys[] = {"widths", "heights"};
    float found[AMP_DATA_QUANTILES];
    if (r->d->classifier) return;
    amp_json_line(j, 1);
    amp_json_begin(j, "box_sizes", '{');
    amp_json_string(j, "unit", r->d->extents ? "pixel" : "image");
    for (int heights = 0; heights < 2; heights++) {
        if (!amp_data_quantiles(r->d, heights, found)) continue;
        amp_json_begin(j, keys[heights], '[');
        for (int q = 0; q < AMP_DATA_QUANTILES; q++)
            amp_json_number(j, NULL, (double)found[q]);
        amp_json_end(j, ']');
    }
    amp_json_end(j, '}');
}

static int write_sizes(const struct amp_data_counts *r, struct amp_json *j)
{
    size_t n;
    struct amp_image_size *sizes = amp_data_sizes(r->d->survey, &n);
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
    int before = amp_data_layer_before(d->net, h->layer);
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
    struct amp_data_counts r;
    struct amp_json j = {.out = f, .digits = AMP_JSON_FLOAT};
    if (amp_data_count(&r, d)) return -1;
    amp_json_begin(&j, NULL, '{');
    amp_json_string(&j, "format", AMP_DATA_FORMAT);
    amp_json_string(&j, "data", d->data);
    amp_json_string(&j, "cfg", d->cfg);
    amp_json_string(&j, "kind", d->classifier ? "classifier" : "detector");
    amp_json_put(&j, "classes", "%d", r.classes);
    for (int list = 0; list < AMP_DATA_LISTS; list++)
        write_list(&r, list, &j);
    amp_json_put(&j, "in_both", "%zu", r.in_both);
    write_copies(&r, &j);
    int failed = write_sizes(&r, &j);
    write_anchors(d, &j);
    amp_json_line(&j, 0);
    amp_json_end(&j, '}');
    fputc('\n', f);
    amp_data_counts_free(&r);
    return failed;
}
