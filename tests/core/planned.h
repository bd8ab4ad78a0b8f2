/* Plans of a cfg, and what must hold for every plan. */
#ifndef AMP_TEST_PLANNED_H
#define AMP_TEST_PLANNED_H

#include "plugin/core/engine/layers.h"
#include "plugin/core/plan/plan.h"

#include "tests/rig/harness.h"

static char err[1024];
static struct amp_cfg_file *cfg;
static struct amp_net_desc *net;
static struct amp_plan *plan;
static struct amp_options options;
static unsigned own_losses;

static inline void forget(void)
{
    amp_plan_free(plan);
    amp_net_desc_free(net);
    amp_cfg_free(cfg);
    plan = NULL, net = NULL, cfg = NULL;
}

static inline void plan_cfg(const enum amp_format *demoted, bool train)
{
    if (!cfg || amp_options_read(cfg, &options, NULL, 0, err, sizeof err)) TEST_FAIL("%s", err);
    REQUIRE(cfg && !test_failures);
    amp_options_settle_dtype(&options, false, false);
    net = amp_net_describe(cfg, 0, 0, true, err, sizeof err);
    plan = net ? amp_plan_make(net, &options, amp_layers_ours(NULL) | own_losses, demoted, train,
                               err, sizeof err)
               : NULL;
    if (!plan) TEST_FAIL("%s", err);
    REQUIRE(plan);
}

static inline void plan_text(const char *text, bool train)
{
    cfg = amp_cfg_parse("a.cfg", text, strlen(text), err, sizeof err);
    plan_cfg(NULL, train);
}

/* The plan of a description that has been changed. */
static inline void plan_again(bool train)
{
    amp_plan_free(plan);
    plan = amp_plan_make(net, &options, amp_layers_ours(NULL) | own_losses, NULL, train, err,
                         sizeof err);
    if (!plan) TEST_FAIL("%s", err);
    REQUIRE(plan);
}

/* layers below a [net] of 16 x 16 x 3 with mixed precision and these keys. */
static inline void plan_layers(const char *keys, const char *layers)
{
    char text[4096];
    snprintf(text, sizeof text,
             "[net]\nmixed_precision=1\nbatch=2\nwidth=16\nheight=16\nchannels=3\n%s\n%s", keys,
             layers);
    plan_text(text, true);
}

/* One of Darknet's own cfgs. */
static inline void plan_stock(const char *name)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", AMP_STOCK_CFG, name);
    cfg = amp_cfg_read(path, err, sizeof err);
    plan_cfg(NULL, true);
}

/* ---- what must hold for every plan ---- */

static inline bool is_matrix(int i)
{
    return net->layers[i].type == AMP_CONVOLUTIONAL || net->layers[i].type == AMP_DECONVOLUTIONAL ||
           net->layers[i].type == AMP_LOCAL || net->layers[i].type == AMP_CONNECTED;
}

static int backward_step(int i)
{
    return 2 * net->n - 1 - i;
}

static size_t bytes_of(int i, enum amp_format f)
{
    int outputs = i < 0 ? net->inputs : net->layers[i].outputs;
    return (size_t)net->batch * (size_t)outputs *
           (f == AMP_FORMAT_FP16 || f == AMP_FORMAT_BF16 ? 2 : 4);
}

/* What check_buffer and check_made were told about each buffer, together; what NULL: nothing. */
enum { MOST_BUFFERS = 2000 };
static struct amp_buffer needed[MOST_BUFFERS];

static void need(int b, const char *what, size_t bytes, int first, int last)
{
    REQUIRE(b < MOST_BUFFERS);
    struct amp_buffer *n = &needed[b];
    if (!n->what) *n = (struct amp_buffer){.first = first, .last = last};
    n->what = what;
    if (bytes > n->bytes) n->bytes = bytes;
    if (first < n->first) n->first = first;
    if (last > n->last) n->last = last;
}

/* The buffer exists, is large enough and lives over these steps. */
static void check_buffer(int b, int layer, const char *what, size_t bytes, int first, int last)
{
    if (b < 0 || b >= plan->n_buffers) {
        TEST_FAIL("layer %d: no buffer for %s", layer, what);
        return;
    }
    const struct amp_buffer *buffer = &plan->buffers[b];
    need(b, what, bytes, first, last);
    if (buffer->bytes < bytes || buffer->first > first || buffer->last < last)
        TEST_FAIL("layer %d: %s has %zu bytes from step %d to %d; needed %zu from %d to %d", layer,
                  what, buffer->bytes, buffer->first, buffer->last, bytes, first, last);
}

/* The step at which a recomputed layer is computed again. */
static int again_step(int i)
{
    for (int at = i; at < net->n; at++)
        if (plan->layers[at].again >= 0 && plan->layers[at].again <= i &&
            i < plan->layers[at].again_end)
            return backward_step(at);
    TEST_FAIL("layer %d is never computed again", i);
    return 0;
}

/* How long something lives that backward reads last at step `last`: of the input (-1) and where
 * backward may run again, to the end. */
static int kept_until(int i, int last)
{
    return i < 0 || plan->replays ? 2 * net->n : last;
}

/* What layer i makes for backward, which reads it last at step `last`; if the layer is recomputed,
 * there from that time on. */
static void check_made(int b, int i, const char *what, size_t bytes, int first, int last)
{
    if (!plan->layers[i].recomputed) {
        check_buffer(b, i, what, bytes, first, last < 0 ? first : kept_until(i, last));
        return;
    }
    int again = again_step(i);
    check_buffer(b, i, what, bytes, first, first);
    if (b < 0 || plan->buffers[b].last == 2 * net->n) return;
    const struct amp_buffer *buffer = &plan->buffers[b];
    if (last > needed[b].again_last) needed[b].again_last = last;
    if (again > needed[b].again_last) needed[b].again_last = again;
    CHECK(again >= net->n && buffer->again_first <= again && buffer->again_last >= again);
    if (buffer->again_last < last)
        TEST_FAIL("layer %d: %s lives again to step %d; needed to %d", i, what, buffer->again_last,
                  last);
}

/* Where the output or the delta of a layer is: a slice of a route's, or of its own. */
static inline int out_buffer(int i)
{
    const struct amp_plan_layer *p = &plan->layers[i];
    return (p->route < 0 ? p : &plan->layers[p->route])->buffer[AMP_BUFFER_OUT];
}

static inline int delta_buffer(int i)
{
    const struct amp_plan_layer *p = &plan->layers[i];
    return (p->delta_slice ? &plan->layers[p->route] : p)->buffer[AMP_BUFFER_DELTA];
}

/* A source that a dropout follows is read after the dropout: Darknet's works in place. */
static int after_dropout(int reader, int source)
{
    for (int d = source + 1; source >= 0 && d < reader && net->layers[d].type == AMP_DROPOUT; d++)
        source = d;
    return source;
}

static void check_reads(int i)
{
    const struct amp_plan_layer *p = &plan->layers[i];
    for (int k = 0; k < net->layers[i].n_sources; k++) {
        int s = p->sources[k];
        CHECK_INT(s, after_dropout(i, net->layers[i].sources[k]));
        if (p->fused && k == 0) continue; /* written here at once */
        bool in_backward = p->backward && is_matrix(i), again = amp_plan_runs_again(plan, i);
        bool one_run = s >= 0 && plan->layers[s].recomputed &&
                       (plan->layers[i].recomputed ? p : p - 1)->run == plan->layers[s].run;
        bool twice = s >= 0 && plan->layers[s].recomputed && (!again || one_run);
        int until = in_backward ? kept_until(s, backward_step(i)) : i;
        if (again) until = 2 * net->n;
        if (twice) until = i;
        int from = s < 0 ? 0 : s;
        enum amp_format home = s < 0 ? AMP_FORMAT_BORDER : plan->layers[s].out;
        int b = -1;
        if (p->in == AMP_FORMAT_BORDER)
            CHECK(home == AMP_FORMAT_BORDER || plan->layers[s].border_copy);
        else if (p->in == home)
            check_buffer(b = out_buffer(s), s, "output", bytes_of(s, home), from, until);
        else
            check_buffer(b = s < 0 ? plan->input_copy[p->in] : plan->layers[s].copy[p->in], s,
                         "copy", bytes_of(s, p->in), from, until);
        if (twice && b >= 0)
            check_made(b, s, "what is read", bytes_of(s, p->in), s,
                       in_backward ? backward_step(i) : 0);
    }
}

/* There in forward, in backward, and where forward runs again for it. */
static void check_unfolded(int i)
{
    const struct amp_plan_layer *p = &plan->layers[i];
    const struct amp_layer_desc *l = &net->layers[i];
    int b = p->buffer[AMP_BUFFER_UNFOLDED];
    size_t seen = (size_t)(l->out_w * l->out_h * l->c * l->size * l->size);
    size_t bytes = seen * (size_t)net->batch * (p->in == AMP_FORMAT_FP32 ? 4 : 2);
    check_buffer(b, i, "unfolded input", bytes, i, i);
    if (b < 0 || !p->backward) return;
    needed[b].again_last = backward_step(i);
    CHECK_INT(plan->buffers[b].again_last, backward_step(i));
    CHECK_INT(plan->buffers[b].again_first, p->recomputed ? again_step(i) : backward_step(i));
}

static void check_saved(int i)
{
    const struct amp_plan_layer *p = &plan->layers[i];
    const struct amp_layer_desc *l = &net->layers[i];
    int end = 2 * net->n, b = backward_step(i);
    size_t elements = bytes_of(i, AMP_FORMAT_FP32) / 4;
    bool has_y = p->ours && l->batch_normalize;
    bool of_input = l->activation == AMPK_MISH || l->activation == AMPK_SWISH;
    bool own_gradient_reads = l->activation != AMPK_LINEAR && !(has_y && of_input) &&
                              !(has_y && !p->frozen &&
                                (l->activation == AMPK_LEAKY || l->activation == AMPK_RELU ||
                                 l->activation == AMPK_RELIE));
    bool is_continued = i + 1 < net->n && plan->layers[i + 1].fused;
    bool is_pooled = is_continued && net->layers[i + 1].type == AMP_MAXPOOL;
    int made = p->fused ? i - 1 : i;
    if (is_continued)
        CHECK_INT(p->buffer[AMP_BUFFER_OUT], -1);
    else if (p->ours && p->out != AMP_FORMAT_BORDER)
        check_made(out_buffer(i), i, "output", bytes_of(i, p->out), made,
                   p->backward && own_gradient_reads ? b : -1);
    bool written_again = !p->recomputed && amp_plan_runs_again(plan, i);
    if (!is_continued && p->ours && p->out != AMP_FORMAT_BORDER)
        check_buffer(out_buffer(i), i, "output", bytes_of(i, p->out), made,
                     written_again ? end : i);
    if (p->ours && l->batch_normalize)
        check_made(p->buffer[AMP_BUFFER_Y], i, "batch-norm input", bytes_of(i, p->in), i,
                   p->backward ? b : -1);
    if (l->type == AMP_MAXPOOL) {
        int index = p->buffer[AMP_BUFFER_INDEX];
        check_buffer(index, i, "index", elements * (l->size > 15 ? 4 : 1), made, i);
        check_made(index, i, "index", elements, made, p->backward ? (p->fused ? b + 1 : b) : -1);
    }
    if (l->type == AMP_DROPOUT && plan->train)
        check_buffer(p->buffer[AMP_BUFFER_INDEX], i, "mask", elements, 0,
                     p->backward ? kept_until(i, b) : i);
    if (l->type == AMP_LOCAL) check_unfolded(i);
    if (!p->backward) {
        CHECK_INT(p->buffer[AMP_BUFFER_DELTA], -1);
        CHECK_INT(p->buffer[AMP_BUFFER_DY], -1);
        CHECK_INT(p->buffer[AMP_BUFFER_DX], -1);
    } else if (is_pooled) {
        CHECK_INT(p->buffer[AMP_BUFFER_DELTA], -1);
        check_buffer(p->buffer[AMP_BUFFER_DY], i, "dy", bytes_of(i, p->in), b, b);
    } else if (p->ours) {
        check_buffer(delta_buffer(i), i, "delta", bytes_of(i, p->out), b, p->fused ? b + 1 : b);
        bool read_later = plan->buffers[delta_buffer(i)].last > b;
        bool part = p->delta_slice && net->layers[p->route].n_sources > 1;
        if (p->in != p->out || (is_matrix(i) && (part || read_later)))
            check_buffer(p->buffer[AMP_BUFFER_DY], i, "dy", bytes_of(i, p->in), b, b);
    }
}

/* Contributions in the order in which backward makes them: the first overwrites, the rest add. */
static void check_contributions(int s)
{
    bool first = !plan->layers[s].loss;
    for (int j = net->n - 1; j > s; j--)
        for (int k = 0; k < net->layers[j].n_sources; k++) {
            const struct amp_plan_layer *p = &plan->layers[j];
            if (p->sources[k] != s) continue;
            bool wanted =
                p->backward && plan->layers[s].backward && net->layers[s].type != AMP_CROP;
            CHECK_INT(p->source_wanted[k], wanted);
            CHECK_INT(p->source_first[k], wanted && first);
            if (!wanted) continue;
            first = false;
            if (plan->layers[s].ours && plan->layers[s].delta_owner >= 0)
                check_buffer(delta_buffer(s), s, "delta", bytes_of(s, plan->layers[s].out),
                             backward_step(j), backward_step(s));
            bool direct = p->in == plan->layers[s].out && (p->ours || p->source_first[k]);
            if (!direct)
                check_buffer(p->buffer[AMP_BUFFER_DX], j, "dx", bytes_of(s, p->in),
                             backward_step(j), backward_step(j));
        }
    CHECK_INT(plan->layers[s].delta_from_nobody, first && net->layers[s].type != AMP_CROP);
}

/* A Darknet layer always writes somewhere, wanted or not. */
static void check_native(int i)
{
    const struct amp_plan_layer *p = &plan->layers[i];
    CHECK_INT(p->in, AMP_FORMAT_BORDER);
    CHECK_INT(p->out, AMP_FORMAT_BORDER);
    if (p->backward && p->sources[0] >= 0 && !p->source_wanted[0])
        check_buffer(p->buffer[AMP_BUFFER_DX], i, "dx", bytes_of(p->sources[0], p->in),
                     backward_step(i), backward_step(i));
}

static void check_storage(int i)
{
    const struct amp_plan_layer *p = &plan->layers[i];
    bool read_by_ours = false;
    for (int j = i + 1; j < net->n; j++)
        for (int k = 0; k < net->layers[j].n_sources; k++)
            read_by_ours |= plan->layers[j].sources[k] == i && plan->layers[j].ours;
    bool head = is_matrix(i) && net->layers[i].type != AMP_LOCAL && !read_by_ours;
    CHECK_INT(p->out == AMP_FORMAT_BORDER, !p->ours || head);
    if (p->out != AMP_FORMAT_BORDER) CHECK_INT(p->out, p->in);
    if (net->layers[i].override == 0 && p->ours) CHECK_INT(p->in, AMP_FORMAT_FP32);
    bool free_choice = net->layers[i].override != 0;
    if (is_matrix(i) && p->ours && free_choice) CHECK_INT(p->in, plan->island);
    if (p->ours && net->layers[i].override == 1) CHECK_INT(p->in, plan->island);
    CHECK(p->reason[0]);
}

static int readers_of(int i)
{
    int count = 0;
    for (int j = i + 1; j < net->n; j++)
        for (int k = 0; k < net->layers[j].n_sources; k++)
            count += plan->layers[j].sources[k] == i;
    return count;
}

/* What layer j adds up is what both its sources and it have, and nobody has contributed to a shared
 * delta before. */
static void check_fused_sum(int j)
{
    const struct amp_plan_layer *p = &plan->layers[j], *before = &plan->layers[j - 1];
    const struct amp_layer_desc *l = &net->layers[j];
    CHECK(l->alpha == 1 && l->beta == 1 && l->activation == AMPK_LINEAR);
    CHECK_INT(net->layers[p->sources[1]].outputs, l->outputs);
    CHECK(strstr(p->reason, "added by layer"));
    if (before->backward) CHECK_INT(before->buffer[AMP_BUFFER_DELTA], p->buffer[AMP_BUFFER_DELTA]);
}

static void check_fused_pool(int j)
{
    const struct amp_layer_desc *l = &net->layers[j];
    CHECK_INT(l->type, AMP_MAXPOOL);
    CHECK(l->size == 2 && l->stride == 2);
    CHECK(l->out_w == l->w / 2 || l->out_w == (l->w + 1) / 2);
    CHECK(l->out_h == l->h / 2 || l->out_h == (l->h + 1) / 2);
    CHECK(strstr(plan->layers[j].reason, "pooled by layer"));
}

/* Nobody else wants the convolution's output, neither forward nor for its gradient. */
static void check_fused(int j)
{
    const struct amp_plan_layer *p = &plan->layers[j], *before = &plan->layers[j - 1];
    const struct amp_layer_desc *l = &net->layers[j - 1];
    CHECK(p->ours && before->ours && is_matrix(j - 1) && l->batch_normalize);
    bool of_input = l->activation == AMPK_MISH || l->activation == AMPK_SWISH;
    CHECK(l->activation == AMPK_LINEAR || l->activation == AMPK_LEAKY ||
          l->activation == AMPK_RELU || l->activation == AMPK_RELIE ||
          (of_input && net->layers[j].type == AMP_SHORTCUT));
    CHECK_INT(p->sources[0], j - 1);
    CHECK_INT(readers_of(j - 1), 1);
    CHECK(!before->border_copy);
    CHECK(before->in == p->in && before->out == p->in && p->out == p->in);
    CHECK(!p->recomputed || before->recomputed);
    if (net->layers[j].type == AMP_SHORTCUT)
        check_fused_sum(j);
    else
        check_fused_pool(j);
}

/* Nobody but the route reads a slice of it, and there it has its place. A route of one source alone
 * may have it from one that others read before. */
static void check_slice(int i)
{
    const struct amp_plan_layer *p = &plan->layers[i], *route = &plan->layers[p->route];
    const struct amp_layer_desc *l = &net->layers[i], *whole = &net->layers[p->route];
    int first = 0, named = 0;
    CHECK_INT(whole->type, AMP_ROUTE);
    CHECK(l->type == AMP_UPSAMPLE || l->type == AMP_MAXPOOL ||
          (l->type == AMP_REORG && !l->extra) ||
          (is_matrix(i) && l->type != AMP_CONNECTED && l->batch_normalize));
    bool alias = whole->n_sources == 1;
    CHECK(alias || readers_of(i) == 1);
    for (int j = p->route + 1; j < net->n; j++)
        for (int k = 0; k < net->layers[j].n_sources; k++)
            CHECK(plan->layers[j].sources[k] != i);
    for (int k = 0; k < whole->n_sources && !named; k++) {
        named = route->sources[k] == i;
        if (!named) first += net->layers[route->sources[k]].out_c;
    }
    CHECK(named && p->first_channel == first && first + l->out_c <= whole->out_c);
    CHECK(l->out_w == whole->out_w && l->out_h == whole->out_h);
    CHECK(p->ours && route->ours && (alias || !p->border_copy) && !p->fused);
    CHECK(p->in == route->in && p->out == route->out);
    CHECK_INT(p->buffer[AMP_BUFFER_OUT], -1);
    CHECK_INT(p->delta_slice, p->backward);
    if (p->delta_slice) CHECK_INT(p->buffer[AMP_BUFFER_DELTA], -1);
    CHECK(strstr(p->reason, "writes into route"));
}

/* Deltas share a buffer only along fused sums. */
static void check_shared(int i)
{
    int delta = plan->layers[i].buffer[AMP_BUFFER_DELTA];
    for (int j = i + 1; delta >= 0 && j < net->n; j++) {
        const struct amp_plan_layer *p = &plan->layers[j];
        if (p->buffer[AMP_BUFFER_DELTA] != delta) continue;
        bool is_term = j + 1 < net->n && plan->layers[j + 1].fused;
        CHECK(p->fused || is_term);
        CHECK_INT(p->out, plan->layers[i].out);
        CHECK_INT(net->layers[j].outputs, net->layers[i].outputs);
        int added = p->fused ? p->sources[1] : -1;
        if (added >= 0 && plan->layers[added].buffer[AMP_BUFFER_DELTA] == delta)
            CHECK(p->source_first[1]);
    }
}

static bool meet(int first, int last, int other_first, int other_last)
{
    return first <= other_last && other_first <= last;
}

static bool alive_together(const struct amp_buffer *x, const struct amp_buffer *y)
{
    bool twice = x->again_last > 0, other_twice = y->again_last > 0;
    return meet(x->first, x->last, y->first, y->last) ||
           (twice && meet(x->again_first, x->again_last, y->first, y->last)) ||
           (other_twice && meet(x->first, x->last, y->again_first, y->again_last)) ||
           (twice && other_twice &&
            meet(x->again_first, x->again_last, y->again_first, y->again_last));
}

static void check_no_overlap(void)
{
    for (int a = 0; a < plan->n_buffers; a++) {
        const struct amp_buffer *x = &plan->buffers[a];
        CHECK(x->offset + x->bytes <= plan->arena_bytes);
        CHECK(x->first <= x->last);
        for (int b = 0; b < a; b++) {
            const struct amp_buffer *y = &plan->buffers[b];
            if (alive_together(x, y) && x->offset < y->offset + y->bytes &&
                y->offset < x->offset + x->bytes)
                TEST_FAIL("%s of layer %d and %s of layer %d overlap", x->what, x->layer, y->what,
                          y->layer);
        }
    }
}

/* No buffer is larger than it has to be or lives longer. Of the products of recurrent layers:
 * test_products.c. */
static void check_thrift(void)
{
    for (int b = 0; b < plan->n_buffers; b++) {
        const struct amp_buffer *x = &plan->buffers[b], *n = &needed[b];
        if (x->layer >= 0 && plan->layers[x->layer].products) continue;
        if (x->bytes != n->bytes || x->first != n->first || x->last != n->last ||
            x->again_last != n->again_last)
            TEST_FAIL(
                "layer %d: %s has %zu bytes from step %d to %d, again to %d; needed: %zu from "
                "%d to %d, again to %d",
                x->layer, x->what, x->bytes, x->first, x->last, x->again_last, n->bytes, n->first,
                n->last, n->again_last);
    }
}

/* All readers of the input read it in that format, and none the input itself. */
static void check_input_format(void)
{
    bool same = true;
    enum amp_format format = AMP_FORMATS;
    for (int j = 0; j < net->n; j++)
        for (int k = 0; k < net->layers[j].n_sources; k++) {
            if (plan->layers[j].sources[k] >= 0) continue;
            same = same && (format == AMP_FORMATS || format == plan->layers[j].in);
            format = plan->layers[j].in;
        }
    CHECK_INT(plan->input_format, same && format != AMP_FORMAT_BORDER ? format : AMP_FORMATS);
}

static inline void check_plan(void)
{
    memset(needed, 0, sizeof needed);
    check_input_format();
    int first_backward = 0;
    bool frozen = false; /* which layers then go back is tested apart */
    for (int i = 0; i < net->n; i++) {
        if (net->layers[i].stopbackward) first_backward = i + 1;
        frozen |= net->layers[i].freeze;
    }
    if (!frozen) CHECK_INT(plan->first_backward, first_backward);
    for (int i = 0; i < net->n; i++) {
        if (!frozen) CHECK_INT(plan->layers[i].backward, plan->train && i >= first_backward);
        check_storage(i);
        check_reads(i);
        check_saved(i);
        check_contributions(i);
        if (!plan->layers[i].ours) check_native(i);
        if (plan->layers[i].fused) check_fused(i);
        if (plan->layers[i].route >= 0) check_slice(i);
        check_shared(i);
    }
    check_no_overlap();
    check_thrift();
    CHECK(plan->flop_reduced <= plan->flop);
}

#endif
