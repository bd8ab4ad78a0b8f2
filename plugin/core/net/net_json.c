/* Writes a description as JSON, for programs that build the network elsewhere: the weights file's
 * order, and what each layer computes in inference. It must not know who reads it. What only
 * training needs stays out. */
#include "net.h"

#include "plugin/core/read/json.h"
#include "weights_file.h"

/* A key of the section that the description does not keep. */
struct keys {
    const struct amp_cfg_section *section;
    enum amp_layer_type type;
    enum amp_dialect dialect;
    struct amp_json *j;
};

static void write_int(struct amp_json *j, const char *key, int value)
{
    amp_json_put(j, key, "%d", value);
}

static void write_number_key(const struct keys *k, const char *key)
{
    amp_json_number(k->j, key, amp_key_float(k->section, k->type, k->dialect, key));
}

static void write_switch_key(const struct keys *k, const char *key)
{
    amp_json_bool(k->j, key, amp_key_int(k->section, k->type, k->dialect, key) != 0);
}

static void write_ints(struct amp_json *j, const char *key, const int *list, int n)
{
    amp_json_begin(j, key, '[');
    for (int i = 0; i < n; i++)
        write_int(j, NULL, list[i]);
    amp_json_end(j, ']');
}

static void write_shape(struct amp_json *j, const char *key, int w, int h, int c)
{
    write_ints(j, key, (const int[]){w, h, c}, 3);
}

/* ---- one function per kind of layer ---- */

static void write_matrix(struct amp_json *j, const struct amp_layer_desc *l)
{
    write_int(j, "filters", l->filters);
    write_int(j, "size", l->size);
    write_int(j, "stride", l->stride);
    write_int(j, "padding", l->pad);
    write_int(j, "groups", l->groups);
    amp_json_bool(j, "batch_normalize", l->batch_normalize);
    amp_json_bool(j, "binary", l->binary || l->xnor);
}

static void write_anchors(struct amp_json *j, const struct amp_layer_desc *l)
{
    amp_json_begin(j, "anchors", '[');
    for (int i = 0; i < 2 * l->num; i++) {
        int anchor = l->loss.mask ? l->loss.mask[i / 2] : i / 2;
        amp_json_number(j, NULL, (double)l->loss.anchor_sizes[2 * anchor + i % 2]);
    }
    amp_json_end(j, ']');
}

static void write_head(const struct keys *k, const struct amp_layer_desc *l)
{
    struct amp_json *j = k->j;
    write_int(j, "classes", l->classes);
    write_int(j, "coords", l->coords);
    write_int(j, "boxes", l->num);
    if (l->type == AMP_DETECTION) {
        write_int(j, "side", l->w);
        write_switch_key(k, "softmax");
        write_switch_key(k, "sqrt");
        return;
    }
    write_anchors(j, l);
    if (l->type == AMP_REGION) {
        amp_json_bool(j, "softmax", l->loss.softmax);
        amp_json_bool(j, "background", l->loss.background);
        amp_json_string(j, "tree", l->loss.tree);
        return;
    }
    amp_json_number(j, "scale_x_y", (double)l->loss.yolo.scale_x_y);
    amp_json_bool(j, "new_coords", l->loss.yolo.new_coords);
}

static void write_softmax(struct amp_json *j, const struct amp_layer_desc *l)
{
    write_int(j, "groups", l->loss.groups);
    amp_json_number(j, "temperature", (double)l->loss.temperature);
    amp_json_string(j, "tree", l->loss.tree);
}

/* Of layers that compute more than an activation. */
static void write_own(const struct keys *k, const struct amp_layer_desc *l)
{
    struct amp_json *j = k->j;
    switch (l->type) {
    case AMP_CONVOLUTIONAL:
        write_switch_key(k, "flipped");
        write_matrix(j, l);
        break;
    case AMP_DECONVOLUTIONAL:
    case AMP_LOCAL:
    case AMP_CONNECTED:
        write_matrix(j, l);
        break;
    case AMP_MAXPOOL:
        write_int(j, "size", l->size);
        write_int(j, "stride", l->stride);
        write_int(j, "padding", l->pad);
        break;
    case AMP_UPSAMPLE:
        write_int(j, "stride", l->stride);
        amp_json_bool(j, "reverse", l->reverse);
        amp_json_number(j, "scale", (double)l->scale);
        break;
    case AMP_REORG:
        write_int(j, "stride", l->stride);
        amp_json_bool(j, "reverse", l->reverse);
        amp_json_bool(j, "flatten", l->flatten);
        write_int(j, "extra", l->extra);
        break;
    case AMP_ROUTE:
        write_int(j, "groups", l->groups);
        write_int(j, "group_id", l->group_id);
        break;
    case AMP_SHORTCUT:
        amp_json_number(j, "alpha", (double)l->alpha);
        amp_json_number(j, "beta", (double)l->beta);
        break;
    case AMP_NORMALIZATION:
        write_number_key(k, "size");
        write_number_key(k, "alpha");
        write_number_key(k, "beta");
        write_number_key(k, "kappa");
        break;
    case AMP_CROP:
        write_switch_key(k, "noadjust");
        break;
    case AMP_SOFTMAX:
        write_softmax(j, l);
        break;
    case AMP_YOLO:
    case AMP_REGION:
    case AMP_DETECTION:
        write_head(k, l);
        break;
    default:
        break;
    }
}

/* In the order of the file. numload= is no part of it: a file that lacks filters is no whole one.
 */
static void write_weights(struct amp_json *j, const struct amp_layer_desc *l)
{
    struct amp_weight_tensor list[AMP_LAYER_TENSORS_MAX];
    int n = amp_weights_layer_tensors(l, AMP_WEIGHTS_LOAD, list);
    amp_json_begin(j, "weights", '[');
    for (int i = 0; i < n; i++) {
        amp_json_begin(j, NULL, '[');
        amp_json_string(j, NULL, list[i].name);
        amp_json_put(j, NULL, "%llu", (unsigned long long)list[i].floats);
        amp_json_end(j, ']');
    }
    amp_json_end(j, ']');
}

static void write_layer(const struct keys *k, const struct amp_layer_desc *l, int index)
{
    struct amp_json *j = k->j;
    amp_json_line(j, 2);
    amp_json_begin(j, NULL, '{');
    write_int(j, "index", index);
    amp_json_string(j, "type", amp_layer_type_name(l->type));
    write_int(j, "line", l->line);
    write_ints(j, "reads", l->sources, l->n_sources);
    write_shape(j, "output", l->out_w, l->out_h, l->out_c);
    write_int(j, "outputs", l->outputs);
    amp_json_bool(j, "loss", amp_layer_is_loss(l));
    amp_json_string(j, "activation", amp_activation_name(l->activation));
    amp_json_bool(j, "fp32", l->override == 0);
    bool part = l->numload > 0 && l->numload < l->filters;
    amp_json_bool(j, "not_loaded",
                  l->dontload || part || (l->dontloadscales && l->batch_normalize));
    write_own(k, l);
    write_weights(j, l);
    amp_json_end(j, '}');
}

void amp_net_write_json(const struct amp_net_desc *net, const struct amp_cfg_file *cfg,
                        bool bn_under_root, struct amp_json *j)
{
    write_shape(j, "input", net->w, net->h, net->c);
    write_int(j, "inputs", net->inputs);
    amp_json_string(j, "resize", amp_net_stretches(net) ? "stretched" : "letterboxed");
    amp_json_bool(j, "bn_under_root", bn_under_root);
    amp_json_begin(j, "layers", '[');
    for (int i = 0; i < net->n; i++) {
        const struct keys k = {amp_cfg_layer(cfg, i), net->layers[i].type, net->dialect, j};
        write_layer(&k, &net->layers[i], i);
    }
    amp_json_line(j, 0);
    amp_json_end(j, ']');
}
