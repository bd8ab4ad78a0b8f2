/* The precision plan: what must hold for every net, on stock and random ones, and what it decides
 * on chosen ones. */
#include "plugin/core/layers.h"
#include "plugin/core/plan.h"

#include "tests/rig/harness.h"
#include "tests/rig/random_net.h"
#include "tests/rig/files.h"

static char err[1024];
static struct amp_cfg_file *cfg;
static struct amp_net_desc *net;
static struct amp_plan *plan;
static struct amp_options options;
static unsigned own_losses;

static void forget(void)
{
    amp_plan_free(plan);
    amp_net_desc_free(net);
    amp_cfg_free(cfg);
    plan = NULL, net = NULL, cfg = NULL;
}

static void plan_cfg(const enum amp_format *demoted, bool train)
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

static void plan_text(const char *text, bool train)
{
    cfg = amp_cfg_parse("a.cfg", text, strlen(text), err, sizeof err);
    plan_cfg(NULL, train);
}

/* layers below a [net] of 16 x 16 x 3 with mixed precision and these keys. */
static void plan_layers(const char *keys, const char *layers)
{
    char text[4096];
    snprintf(text, sizeof text,
             "[net]\nmixed_precision=1\nbatch=2\nwidth=16\nheight=16\nchannels=3\n%s\n%s", keys,
             layers);
    plan_text(text, true);
}

/* ---- what must hold for every plan ---- */

static bool is_matrix(int i)
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

/* What layer i makes for backward, which reads it last at step `last`: kept to the end, or, if the
 * layer is recomputed, there from that time on. */
static void check_made(int b, int i, const char *what, size_t bytes, int first, int last)
{
    if (!plan->layers[i].recomputed) {
        check_buffer(b, i, what, bytes, first, last < 0 ? first : 2 * net->n);
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
static int out_buffer(int i)
{
    const struct amp_plan_layer *p = &plan->layers[i];
    return (p->route < 0 ? p : &plan->layers[p->route])->buffer[AMP_BUFFER_OUT];
}

static int delta_buffer(int i)
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
        int until = (in_backward || again) && !twice ? 2 * net->n : i;
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
    bool own_gradient_reads = l->activation != AMPK_LINEAR &&
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
        check_buffer(p->buffer[AMP_BUFFER_INDEX], i, "mask", elements, 0, p->backward ? end : i);
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
        if (p->in != p->out || (is_matrix(i) && read_later))
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
    CHECK(l->activation == AMPK_LINEAR || l->activation == AMPK_LEAKY ||
          l->activation == AMPK_RELU || l->activation == AMPK_RELIE);
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
    CHECK_INT(p->delta_slice, p->backward && (alias || !is_matrix(i)));
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

static void check_plan(void)
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

AMP_TEST(every_stock_cfg)
{
    static char paths[STOCK_MOST][4096];
    int n = stock_cfgs(paths);
    CHECK_INT(n, 45);
    for (int i = 0; i < n; i++)
        for (int train = 0; train < 2; train++) {
            cfg = amp_cfg_read(paths[i], err, sizeof err);
            plan_cfg(NULL, train);
            check_plan();
            for (int k = 0; k < net->n; k++)
                if (is_matrix(k)) CHECK_INT(plan->layers[k].compute, AMPK_COMPUTE_FP16);
            if (test_failures) TEST_FAIL("%s", paths[i]);
            REQUIRE(!test_failures);
            forget();
        }
}

AMP_TEST(random_nets)
{
    static const char *const keys[] = {"mixed_precision=1", "mixed_precision=1\namp_dtype=bf16",
                                       "mixed_precision=1\namp_dtype=fp32"};
    static char text[RANDOM_NET_SIZE];
    int pools = 0; /* fused */
    for (int round = 0; round < 300; round++) {
        random_net(text, keys[round % 3], NET_EVERYTHING, random_from(1, 25));
        plan_text(text, round % 4 > 0);
        check_plan();
        for (int i = 0; i < net->n; i++)
            pools += plan->layers[i].fused && net->layers[i].type == AMP_MAXPOOL;
        if (test_failures) TEST_FAIL("round %d:\n%s", round, text);
        REQUIRE(!test_failures);
        forget();
    }
    CHECK(pools > 0);
}

/* ---- layers that backward computes again ---- */

/* Asks for some of the layers that may be; the plan is made again. */
static void recompute_some(void)
{
    for (int i = 0; i < net->n; i++)
        net->layers[i].checkpoint =
            random_below(5) > 1 && plan->layers[i].ours && !plan->layers[i].loss;
    amp_plan_free(plan);
    plan = amp_plan_make(net, &options, amp_layers_ours(NULL), NULL, true, err, sizeof err);
    REQUIRE(plan);
}

AMP_TEST(random_nets_that_compute_again)
{
    static char text[RANDOM_NET_SIZE];
    int again = 0;
    for (int round = 0; round < 300; round++) {
        random_net(text, "mixed_precision=1", NET_EVERYTHING | NET_FREEZE, random_from(1, 25));
        plan_text(text, true);
        recompute_some();
        check_plan();
        for (int i = 0; i < net->n; i++)
            again += plan->layers[i].recomputed;
        if (test_failures) TEST_FAIL("round %d:\n%s", round, text);
        REQUIRE(!test_failures);
        forget();
    }
    CHECK(again > 300);
}

AMP_TEST(every_stock_cfg_that_computes_again)
{
    static char paths[STOCK_MOST][4096];
    int n = stock_cfgs(paths), kept = 0, both = 0;
    for (int i = 0; i < n; i++) {
        cfg = amp_cfg_read(paths[i], err, sizeof err);
        plan_cfg(NULL, true);
        recompute_some();
        check_plan();
        for (int k = 1; k < net->n; k++) { /* what a recomputed convolution writes of the next */
            bool fused = plan->layers[k].fused && plan->layers[k - 1].recomputed;
            both += fused && plan->layers[k].recomputed;
            kept += fused && !plan->layers[k].recomputed;
        }
        if (test_failures) TEST_FAIL("%s", paths[i]);
        REQUIRE(!test_failures);
        forget();
    }
    CHECK(kept > 20 && both > 20);
}

/* Layer 0 lies in the route's output, whose own reader needs it in forward only. */
AMP_TEST(what_a_route_passes_on_is_kept_for_layers_that_are_computed_again)
{
    plan_layers("", "[maxpool]\nsize=2\nstride=2\n[maxpool]\nsize=3\nstride=1\ncheckpoint=1\n"
                    "[route]\nlayers=0\n[maxpool]\nsize=2\nstride=2\n[cost]\n");
    CHECK_INT(plan->layers[0].route, 2);
    CHECK(plan->layers[1].recomputed);
    CHECK_INT(plan->buffers[out_buffer(0)].last, 2 * net->n);
    check_plan();
    forget();
}

/* ---- chosen nets ---- */

static void plan_stock(const char *name)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", AMP_STOCK_CFG, name);
    cfg = amp_cfg_read(path, err, sizeof err);
    plan_cfg(NULL, true);
}

/* As darknet53.conv.74 begins a yolov3: the part without backward takes hardly any memory. */
AMP_TEST(a_frozen_backbone_takes_a_third_at_most)
{
    plan_stock("yolov3.cfg");
    double plain = (double)plan->mixed_bytes;
    amp_plan_free(plan);
    for (int i = 0; i < 74; i++)
        net->layers[i].freeze = net->layers[i].n_weights > 0;
    plan = amp_plan_make(net, &options, amp_layers_ours(NULL), NULL, true, err, sizeof err);
    REQUIRE(plan != NULL);
    CHECK_INT(plan->first_backward, 75);
    CHECK((double)plan->mixed_bytes < .3 * plain);
    check_plan();
    forget();
}

/* The convolutions of yolov3's residual blocks: what is kept is the sums. */
AMP_TEST(blocks_that_are_computed_again)
{
    plan_stock("yolov3.cfg");
    double plain = (double)plan->mixed_bytes;
    amp_plan_free(plan);
    for (int i = 0; i < 75; i++)
        net->layers[i].checkpoint = net->layers[i].type == AMP_CONVOLUTIONAL;
    plan = amp_plan_make(net, &options, amp_layers_ours(NULL), NULL, true, err, sizeof err);
    REQUIRE(plan);
    CHECK_INT(plan->n_recomputed, 52);
    CHECK(strstr(plan->layers[2].reason, "computed again in backward") != NULL);
    CHECK((double)plan->mixed_bytes < .7 * plain);
    check_plan();
    forget();
}

AMP_TEST(a_budget_is_kept)
{
    static const char *const names[] = {"yolov3.cfg", "yolov3-tiny.cfg", "darknet19.cfg",
                                        "resnet50.cfg"};
    for (int k = 0; k < 4; k++) {
        plan_stock(names[k]);
        double plain = (double)plan->mixed_bytes;
        size_t least = SIZE_MAX;
        for (double share = 1; share > .75; share -= .1) {
            amp_plan_free(plan);
            options.checkpoint_gib = share * plain / (1 << 30);
            plan = amp_plan_make(net, &options, amp_layers_ours(NULL), NULL, true, err, sizeof err);
            REQUIRE(plan);
            CHECK((double)plan->mixed_bytes <= share * plain && !plan->over_budget);
            CHECK(plan->flop_again <= plan->flop);
            if (plan->mixed_bytes < least) least = plan->mixed_bytes;
            check_plan();
        }
        amp_plan_free(plan);
        options.checkpoint_gib = 1e-6;
        plan = amp_plan_make(net, &options, amp_layers_ours(NULL), NULL, true, err, sizeof err);
        REQUIRE(plan);
        CHECK(plan->over_budget && plan->mixed_bytes < least); /* whatever it computes again */
        check_plan();
        options.checkpoint_gib = 0;
        forget();
    }
}

/* Where a pool keeps twice as many bytes for the places of its maxima as for the maxima, a budget
 * is kept only if they count. */
AMP_TEST(a_budget_counts_the_places_of_maxima)
{
#define BLOCK(filters, size)                                                                       \
    "[conv]\nbatch_normalize=1\npad=1\nactivation=leaky\nfilters=" #filters "\nsize=" #size "\n"
    const char layers[] =
        BLOCK(16, 3) "[max]\nsize=17\nstride=1\n[max]\nsize=17\nstride=1\n" BLOCK(12, 3)
            BLOCK(12, 1) BLOCK(8, 3) "[conv]\nfilters=4\nsize=1\nactivation=linear\n[cost]\n";
    plan_layers("", layers);
    options.checkpoint_gib = .88 * (double)plan->mixed_bytes / (1 << 30);
    amp_plan_free(plan);
    plan = amp_plan_make(net, &options, amp_layers_ours(NULL), NULL, true, err, sizeof err);
    REQUIRE(plan);
    CHECK(!plan->over_budget && plan->flop_again < .5 * plan->flop);
    check_plan();
    options.checkpoint_gib = 0;
    forget();
#undef BLOCK
}

/* Processes that only infer exchange nothing. */
AMP_TEST(batch_norm_is_synced_in_training)
{
    static const char text[] = "[net]\nmixed_precision=1\namp_sync_bn=1\nwidth=8\nheight=8\n"
                               "channels=3\n[conv]\nbatch_normalize=1\nfilters=4\n[cost]\n";
    for (int train = 0; train < 2; train++) {
        plan_text(text, train);
        CHECK_INT(plan->synced_forward, train);
        CHECK_INT(plan->synced_backward, train);
        CHECK_INT(plan->synced_bytes > 0, train);
        forget();
    }
}

AMP_TEST(yolov3_leaves_no_convolution_in_fp32)
{
    plan_stock("yolov3.cfg");
    int convolutions = 0;
    for (int i = 0; i < net->n; i++) {
        if (net->layers[i].type != AMP_CONVOLUTIONAL) continue;
        convolutions++;
        CHECK_INT(plan->layers[i].compute, AMPK_COMPUTE_FP16);
        CHECK_INT(plan->layers[i].in, AMP_FORMAT_FP16);
        bool head = i == 81 || i == 93 || i == 105;
        CHECK_INT(plan->layers[i].out, head ? AMP_FORMAT_BORDER : AMP_FORMAT_FP16);
        CHECK_INT(strstr(plan->layers[i].reason, "writes FP32 for yolo") != NULL, head);
    }
    CHECK_INT(convolutions, 75);
    CHECK_INT(plan->input_format, AMP_FORMAT_FP16);
    CHECK_NEAR(plan->flop_reduced, plan->flop, 0);
    CHECK((double)plan->mixed_bytes < 0.3 * (double)plan->darknet_bytes);
    forget();
}

/* Layers 36, 61, 79 and 91 of yolov3 feed a convolution and, later, a route. */
AMP_TEST(yolov3_deltas_with_two_consumers)
{
    static const int twice[][3] = {{36, 37, 98}, {61, 62, 86}, {79, 80, 83}, {91, 92, 95}};
    plan_stock("yolov3.cfg");
    for (int i = 0; i < 4; i++) {
        const struct amp_plan_layer *near = &plan->layers[twice[i][1]],
                                    *far = &plan->layers[twice[i][2]];
        int k = net->layers[twice[i][2]].n_sources - 1;
        CHECK_INT(far->sources[k], twice[i][0]);
        CHECK(far->source_first[k] && !near->source_first[0]);
        CHECK(near->source_wanted[0]);
    }
    forget();
}

AMP_TEST(the_report_says_that_gru_does_not_learn)
{
    plan_layers("", "[connected]\n[gru]\n[cost]\n");
    CHECK(strstr(plan->layers[1].reason, "no backward on the CPU") != NULL);
    forget();
    plan_text("[net]\nmixed_precision=1\nbatch=16\ninputs=5\n[gru]\n[cost]\n", true);
    CHECK(plan->layers[0].products);
    CHECK(strstr(plan->layers[0].reason, "no backward on the CPU") != NULL);
    forget();
}

/* Of a recurrent layer the products alone, and only where a pass has enough vectors for them. */
AMP_TEST(products_of_recurrent_layers)
{
#define NET    "[net]\nmixed_precision=1\ninputs=5\n"
#define LAYERS "[rnn]\noutput=8\n[lstm]\noutput=8\nmixed_precision=0\n[cost]\n"
    plan_text(NET "batch=8\ntime_steps=2\n" LAYERS, true);
    CHECK(plan->layers[0].products && !plan->layers[0].ours);
    CHECK_INT(plan->layers[0].compute, AMPK_COMPUTE_FP16);
    CHECK_SAYS(plan->layers[0].reason, "FP16 operands of its products");
    CHECK_INT(plan->layers[1].compute, AMPK_COMPUTE_FP32);
    CHECK_SAYS(plan->layers[1].reason, "mixed_precision=0");
    CHECK(plan->flop_reduced > 0 && plan->flop_reduced < plan->flop);
    /* 16 vectors; output and delta of each layer, of three inside the first, and of eight inside
     * the second. */
    CHECK_INT(plan->darknet_bytes, 16 * 8 * (8 + 24 + 8 + 64 + 8));
    forget();
    plan_text(NET "batch=3\ntime_steps=5\n[rnn]\noutput=8\nmixed_precision=1\n[cost]\n", true);
    CHECK(!plan->layers[0].products);
    CHECK_SAYS(plan->layers[0].reason, "fewer than 16 vectors");
    CHECK_INT(plan->layers[0].buffer[AMP_BUFFER_Y], -1);
    forget();
#undef NET
#undef LAYERS
}

AMP_TEST(a_layer_can_be_kept_in_fp32)
{
    plan_layers("", "[conv]\nfilters=4\n[conv]\nfilters=4\nmixed_precision=0\n"
                    "[conv]\nfilters=4\n[shortcut]\nfrom=-2\n[conv]\n[cost]\n");
    CHECK_INT(plan->layers[0].in, AMP_FORMAT_FP16);
    CHECK_INT(plan->layers[1].in, AMP_FORMAT_FP32);
    CHECK_INT(plan->layers[1].compute, AMPK_COMPUTE_FP32);
    CHECK_INT(plan->layers[1].out, AMP_FORMAT_FP32);
    CHECK(plan->layers[0].copy[AMP_FORMAT_FP32] >= 0);
    CHECK(plan->layers[1].copy[AMP_FORMAT_FP16] >= 0);
    CHECK_INT(plan->layers[3].in, AMP_FORMAT_FP16);
    CHECK_STR(plan->layers[1].reason, "mixed_precision=0 in its section");
    CHECK(plan->flop_reduced < plan->flop && plan->flop_reduced > 0);
    check_plan();
    forget();
}

AMP_TEST(what_only_fp32_layers_feed_passes_fp32_unless_told_otherwise)
{
    const char *layers = "[conv]\nfilters=4\nmixed_precision=0\n[maxpool]\nsize=2\nstride=2\n"
                         "[maxpool]\nsize=2\nstride=2\nmixed_precision=1\n[conv]\n[cost]\n";
    plan_layers("", layers);
    CHECK_INT(plan->layers[1].in, AMP_FORMAT_FP32);
    CHECK_INT(plan->layers[2].in, AMP_FORMAT_FP16);
    check_plan();
    forget();
}

AMP_TEST(asking_for_the_impossible_is_told)
{
    plan_layers("", "[conv]\n[lrn]\nsize=3\nmixed_precision=1\n[conv]\n[cost]\n");
    CHECK(!plan->layers[1].ours);
    CHECK(strstr(plan->layers[1].reason, "mixed_precision=1 is asked for") != NULL);
    forget();
}

AMP_TEST(dtypes)
{
    static const struct {
        const char *key;
        enum amp_format island;
        enum ampk_compute compute;
    } expected[] = {{"amp_dtype=fp16", AMP_FORMAT_FP16, AMPK_COMPUTE_FP16},
                    {"amp_dtype=bf16", AMP_FORMAT_BF16, AMPK_COMPUTE_BF16},
                    {"amp_dtype=tf32", AMP_FORMAT_FP32, AMPK_COMPUTE_TF32},
                    {"amp_dtype=fp32", AMP_FORMAT_FP32, AMPK_COMPUTE_FP32}};
    for (int i = 0; i < 4; i++) {
        plan_layers(expected[i].key, "[conv]\n[conv]\n[cost]\n");
        CHECK_INT(plan->island, expected[i].island);
        CHECK_INT(plan->layers[0].in, expected[i].island);
        CHECK_INT(plan->layers[0].compute, expected[i].compute);
        check_plan();
        forget();
    }
}

AMP_TEST(binary_and_xnor_stay_darknets)
{
    plan_layers("", "[conv]\n[conv]\nbinary=1\n[conv]\nxnor=1\n[conv]\n[cost]\n");
    CHECK(plan->layers[0].ours && !plan->layers[1].ours && !plan->layers[2].ours);
    CHECK_STR(plan->layers[2].reason, "xnor weights: Darknet's own FP32 code");
    CHECK_INT(plan->layers[0].out, AMP_FORMAT_BORDER);
    check_plan();
    forget();
}

AMP_TEST(convolutions_that_smooth_stay_darknets)
{
    plan_layers("", "[conv]\nsmooth=0\n[conv]\nsmooth=.1\n[cost]\nsmooth=.1\n");
    CHECK(plan->layers[0].ours && !plan->layers[1].ours);
    CHECK_STR(plan->layers[1].reason, "smooth: Darknet's own FP32 code");
    check_plan();
    forget();
}

AMP_TEST(stopbackward_freezes_what_is_before_it)
{
    plan_layers("", "[conv]\nbatch_normalize=1\n[dropout]\n[conv]\nstopbackward=1\n[conv]\n"
                    "[route]\nlayers=1,-1\n[conv]\n[cost]\n");
    CHECK_INT(plan->first_backward, 3);
    CHECK(!plan->layers[3].source_wanted[0]);
    CHECK(!plan->layers[4].source_wanted[0]);
    CHECK(plan->layers[4].source_wanted[1] && plan->layers[4].source_first[1]);
    check_plan();
    forget();
}

AMP_TEST(stopbackward_leaves_decay_and_statistics)
{
    plan_layers("amp_dtype=fp16", "[conv]\nbatch_normalize=1\n[conv]\nfreeze=1\n[conv]\n"
                                  "stopbackward=1\n[conv]\n[cost]\n");
    CHECK_STR(
        plan->layers[2].reason,
        "FP16 operands, sums and bias in FP32; stopbackward: up to here decay still shrinks the "
        "weights of 2 layers and statistics move; freeze=1 keeps them");
    check_plan();
    forget();
}

/* Below the lowest layer that learns nothing runs backward, nor where no gradient is of use. */
AMP_TEST(frozen_layers_go_back_where_somebody_learns)
{
    plan_layers("", "[conv]\nfreeze=1\nbatch_normalize=1\n[maxpool]\n[conv]\n[conv]\nfreeze=1\n"
                    "[route]\nlayers=0\n[conv]\nfreeze=1\n[route]\nlayers=-1,-3\n[conv]\n"
                    "[cost]\n");
    static const bool backward[] = {0, 0, 1, 1, 0, 0, 1, 1, 1};
    CHECK_INT(plan->first_backward, 2);
    for (int i = 0; i < plan->n; i++)
        CHECK_INT(plan->layers[i].backward, backward[i]);
    CHECK(!plan->layers[2].source_wanted[0] && !plan->layers[6].source_wanted[0]);
    CHECK(plan->layers[3].frozen && plan->layers[3].source_wanted[0]);
    CHECK(strstr(plan->layers[3].reason, "; frozen, passes gradients on") != NULL);
    check_plan();
    forget();
}

/* The last stopbackward counts: Darknet's loop comes from the end. */
AMP_TEST(two_stopbackwards)
{
    plan_layers("", "[conv]\nstopbackward=1\n[conv]\n[conv]\nstopbackward=1\n[conv]\n[cost]\n");
    CHECK_INT(plan->first_backward, 3);
    forget();
}

AMP_TEST(readers_of_a_dropped_layer_read_the_dropout)
{
    plan_layers("",
                "[conv]\nfilters=2\n[conv]\nfilters=2\n[dropout]\n[dropout]\n[conv]\nfilters=2\n"
                "[route]\nlayers=1,-1,2\n[shortcut]\nfrom=1\n[conv]\n[cost]\n");
    CHECK_INT(plan->layers[2].sources[0], 1);
    CHECK_INT(plan->layers[3].sources[0], 2);
    CHECK_INT(plan->layers[5].sources[0], 3);
    CHECK_INT(plan->layers[5].sources[1], 4);
    CHECK_INT(plan->layers[5].sources[2], 3);
    CHECK_INT(plan->layers[6].sources[1], 3);
    check_plan();
    forget();
}

/* Darknet's crop has no delta: what is behind it has no gradient to take. */
AMP_TEST(a_crop_takes_no_delta)
{
    plan_layers("", "[crop]\ncrop_width=8\ncrop_height=8\n[conv]\n[conv]\n[cost]\n");
    CHECK(!plan->layers[1].source_wanted[0]);
    CHECK(!plan->layers[0].delta_from_nobody);
    check_plan();
    forget();
}

AMP_TEST(the_nets_output_keeps_fp32)
{
    plan_layers("", "[conv]\n[avgpool]\n[cost]\n");
    CHECK(plan->layers[1].border_copy);
    CHECK(!plan->layers[0].border_copy);
    forget();
    plan_layers("", "[conv]\n[maxpool]\nsize=2\n");
    CHECK(plan->layers[1].border_copy);
    forget();
    plan_layers("", "[conv]\n[conv]\n");
    CHECK_INT(plan->layers[1].out, AMP_FORMAT_BORDER);
    CHECK(strstr(plan->layers[1].reason, "the net's output") != NULL);
    forget();
}

AMP_TEST(a_loss_adds_to_what_is_in_its_delta)
{
    plan_layers("", "[conv]\nfilters=2\n[softmax]\n[cost]\n");
    CHECK(plan->layers[1].loss && plan->layers[2].loss);
    CHECK(plan->layers[2].source_wanted[0] && !plan->layers[2].source_first[0]);
    CHECK(plan->layers[1].source_first[0]);
    check_plan();
    forget();
}

/* With a backend that computes losses. */
AMP_TEST(losses_of_the_backend)
{
    own_losses = 1u << AMP_YOLO | 1u << AMP_SOFTMAX | 1u << AMP_COST;
    plan_layers("", "[conv]\nfilters=7\n[yolo]\nclasses=2\n");
    CHECK(plan->layers[1].ours && plan->layers[1].loss);
    CHECK_STR(plan->layers[1].reason, "FP32: loss");
    CHECK_INT(plan->layers[1].in, AMP_FORMAT_BORDER);
    CHECK_INT(plan->layers[1].buffer[AMP_BUFFER_DELTA], -1);
    CHECK_INT(plan->layers[0].out, AMP_FORMAT_BORDER);
    CHECK(strstr(plan->layers[0].reason, "writes FP32 for yolo 1") != NULL);
    forget();
    plan_layers("", "[conv]\nfilters=2\n[softmax]\n[cost]\n");
    CHECK(plan->layers[2].source_wanted[0] && plan->layers[2].source_first[0]);
    CHECK(plan->layers[1].buffer[AMP_BUFFER_DELTA] >= 0);
    forget();
    plan_layers("", "[conv]\nfilters=7\n[yolo]\nclasses=2\nonlyforward=1\n");
    CHECK(!plan->layers[1].ours);
    CHECK_STR(plan->layers[1].reason,
              "loss: stays FP32, its delta carries the loss scale; by Darknet's "
              "own code: onlyforward=1 in its section");
    forget();
    plan_layers("", "[conv]\nfilters=7\n[yolo]\nclasses=2\nmixed_precision=0\n");
    CHECK(!plan->layers[1].ours && plan->layers[1].loss);
    CHECK(strstr(plan->layers[1].reason, "by Darknet's own code: mixed_precision=0") != NULL);
    forget();
    plan_layers("", "[conv]\nfilters=7\ntruth=1\n[yolo]\nclasses=2\n");
    CHECK(!plan->layers[1].ours);
    CHECK(strstr(plan->layers[1].reason,
                 "by Darknet's own code: its truth is the output of a layer "
                 "with truth=1") != NULL);
    forget();
    plan_layers("", "[conv]\nfilters=7\n[region]\nclasses=2\n");
    CHECK(!plan->layers[1].ours);
    CHECK(strstr(plan->layers[1].reason, "own code") == NULL);
    forget();
    own_losses = 0;
    plan_layers("", "[conv]\nfilters=7\n[yolo]\nclasses=2\nmixed_precision=0\n");
    CHECK_STR(plan->layers[1].reason,
              "loss: stays FP32, its delta carries the loss scale; mixed_precision=0 changes "
              "nothing on a CPU: Darknet's code runs it anyway");
    forget();
    plan_layers("", "[lrn]\nmixed_precision=0\nsize=3\n[cost]\n");
    CHECK(strstr(plan->layers[0].reason, "; mixed_precision=0 changes nothing: ") != NULL);
    forget();
}

AMP_TEST(a_demoted_layer_leaves_fp16_and_says_why)
{
    enum amp_format demoted[] = {AMP_FORMATS, AMP_FORMAT_FP32, AMP_FORMATS, AMP_FORMATS};
    static const char text[] = "[net]\nmixed_precision=1\nwidth=8\nheight=8\nchannels=3\n"
                               "[conv]\n[conv]\nbatch_normalize=1\n[conv]\n[cost]\n";
    cfg = amp_cfg_parse("a.cfg", text, strlen(text), err, sizeof err);
    plan_cfg(demoted, true);
    CHECK_INT(plan->layers[1].in, AMP_FORMAT_FP32);
    CHECK_INT(plan->layers[1].compute, AMPK_COMPUTE_FP32);
    CHECK_STR(plan->layers[1].reason, "moved to FP32 during training: its values overflowed FP16");
    CHECK_INT(plan->layers[2].in, AMP_FORMAT_FP16);
    forget();
}

static bool is_fused(const char *layers, int i)
{
    plan_layers("", layers);
    check_plan();
    bool fused = plan->layers[i].fused;
    forget();
    return fused;
}

#define NORMALIZED(keys) "[conv]\nfilters=4\nbatch_normalize=1\n" keys
#define LEAKY            NORMALIZED("activation=leaky\n")
#define PLAIN            "[conv]\nfilters=4\nactivation=leaky\n"
#define ADD(keys)        "[shortcut]\nfrom=-2\nactivation=linear\n" keys
#define END              "[conv]\n[cost]\n"

AMP_TEST(sums_that_are_fused_and_that_are_not)
{
    CHECK(is_fused(LEAKY LEAKY ADD("") END, 2));
    CHECK(is_fused(PLAIN LEAKY ADD("") END, 2));
    CHECK(is_fused(LEAKY NORMALIZED("activation=relu\n") ADD("") END, 2));
    CHECK(is_fused(LEAKY NORMALIZED("activation=linear\n") ADD("") END, 2));
    /* The gradient needs an output of its own. */
    CHECK(!is_fused(LEAKY NORMALIZED("activation=elu\n") ADD("") END, 2));
    CHECK(!is_fused(LEAKY PLAIN ADD("") END, 2));
    /* More than a sum. */
    CHECK(!is_fused(LEAKY LEAKY "[shortcut]\nfrom=-2\nactivation=leaky\n" END, 2));
    CHECK(!is_fused(LEAKY LEAKY ADD("alpha=.5\n") END, 2));
    CHECK(!is_fused(LEAKY LEAKY ADD("beta=2\n") END, 2));
    /* Another reader, other shapes, other formats. */
    CHECK(!is_fused(LEAKY LEAKY ADD("") "[route]\nlayers=1,2\n" END, 2));
    CHECK(!is_fused(LEAKY NORMALIZED("activation=leaky\nstride=2\n") ADD("") END, 2));
    CHECK(!is_fused(LEAKY NORMALIZED("activation=leaky\nmixed_precision=0\n") ADD("") END, 2));
    CHECK(!is_fused(LEAKY LEAKY "[dropout]\n[shortcut]\nfrom=-3\nactivation=linear\n" END, 3));
}

/* Layer 0 has its delta in FP32, the sum in FP16. */
AMP_TEST(a_sum_has_no_delta_in_common_with_a_term_of_another_format)
{
    plan_layers("", NORMALIZED("activation=leaky\nmixed_precision=0\n") LEAKY ADD("") END);
    const struct amp_plan_layer *p = plan->layers;
    CHECK(p[2].fused && p[0].out == AMP_FORMAT_FP32 && p[2].out == AMP_FORMAT_FP16);
    CHECK(p[0].delta_owner == 0 && p[1].delta_owner == 1 && p[2].delta_owner == 1);
    forget();
    plan_layers("", LEAKY LEAKY ADD("") END);
    p = plan->layers;
    CHECK(p[0].delta_owner == 0 && p[1].delta_owner == 0 && p[2].delta_owner == 0);
    forget();
}

/* A byte counts the places of a window up to 15 x 15, and has one more for none. */
AMP_TEST(indices_of_large_pools_are_wider)
{
    plan_layers("", PLAIN "[maxpool]\nsize=15\nstride=2\n[maxpool]\nsize=16\nstride=2\n" END);
    for (int i = 1; i <= 2; i++) {
        int index = plan->layers[i].buffer[AMP_BUFFER_INDEX];
        CHECK_INT(net->layers[i].size, 14 + i);
        REQUIRE(index >= 0);
        CHECK_INT((long long)plan->buffers[index].bytes,
                  (i == 1 ? 1 : 4) * net->batch * net->layers[i].outputs);
    }
    forget();
}

#define POOL(keys) "[maxpool]\n" keys
#define HALVE      POOL("size=2\nstride=2\n")

AMP_TEST(pools_that_are_fused_and_that_are_not)
{
    CHECK(is_fused(LEAKY HALVE END, 1));
    CHECK(is_fused(LEAKY POOL("size=2\nstride=2\npadding=0\n") END, 1));
    CHECK(is_fused(NORMALIZED("activation=relu\nstride=3\n") HALVE END, 1)); /* an odd side */
    CHECK(is_fused(NORMALIZED("activation=linear\n") HALVE "[route]\nlayers=-1\n" END, 1));
    CHECK(is_fused(LEAKY HALVE "stopbackward=1\n" END, 1));
    CHECK(is_fused(NORMALIZED("activation=relie\nmixed_precision=0\n") HALVE END, 1));
    CHECK(is_fused(LEAKY LEAKY ADD("") LEAKY HALVE END, 4));
    /* The gradient needs an output of its own. */
    CHECK(!is_fused(NORMALIZED("activation=elu\n") HALVE END, 1));
    CHECK(!is_fused(PLAIN HALVE END, 1));
    /* Other windows. */
    CHECK(!is_fused(LEAKY POOL("size=2\nstride=1\n") END, 1));
    CHECK(!is_fused(LEAKY POOL("size=3\nstride=2\n") END, 1));
    CHECK(!is_fused(LEAKY POOL("size=3\nstride=3\n") END, 1));
    CHECK(!is_fused(LEAKY POOL("size=2\nstride=2\npadding=2\n") END, 1));
    /* Another reader, another format, another source. */
    CHECK(!is_fused(LEAKY HALVE "[route]\nlayers=0\n" END, 1));
    CHECK(!is_fused(LEAKY HALVE "[conv]\nfilters=4\nstride=2\n[shortcut]\nfrom=0\n" END, 1));
    CHECK(!is_fused(
        NORMALIZED("activation=leaky\nmixed_precision=0\n") HALVE "mixed_precision=1\n" END, 1));
    CHECK(!is_fused(LEAKY HALVE "mixed_precision=0\n" END, 1));
    CHECK(!is_fused(LEAKY LEAKY ADD("") HALVE END, 3));
    CHECK(!is_fused(LEAKY "[dropout]\n" HALVE END, 2));
    CHECK(!is_fused(NORMALIZED("activation=leaky\nbinary=1\n") HALVE END, 1));
}

/* A convolution that leaves FP16 takes its pool along, if not to BF16. */
AMP_TEST(a_pool_after_a_demoted_layer)
{
    static const char text[] =
        "[net]\nmixed_precision=1\nwidth=8\nheight=8\nchannels=3\n" LEAKY HALVE LEAKY HALVE
        "[conv]\n[cost]\n";
    enum amp_format demoted[] = {AMP_FORMAT_FP32, AMP_FORMATS, AMP_FORMAT_BF16,
                                 AMP_FORMATS,     AMP_FORMATS, AMP_FORMATS};
    cfg = amp_cfg_parse("a.cfg", text, strlen(text), err, sizeof err);
    plan_cfg(demoted, true);
    CHECK(plan->layers[1].fused && plan->layers[1].out == AMP_FORMAT_FP32);
    CHECK(!plan->layers[3].fused && plan->layers[3].out == AMP_FORMAT_FP16);
    forget();
}

/* Of yolov3-tiny's six all but the one that layer 8's route reads past and the one that does not
 * halve: neither an output nor a delta of the convolutions before them. */
AMP_TEST(yolov3_tiny_pools)
{
    static const int fused[] = {1, 3, 5, 7};
    plan_stock("yolov3-tiny.cfg");
    int count = 0;
    for (int i = 0; i < net->n; i++)
        count += plan->layers[i].fused;
    CHECK_INT(count, 4);
    for (int k = 0; k < 4; k++) {
        CHECK(plan->layers[fused[k]].fused);
        CHECK_INT(plan->layers[fused[k] - 1].buffer[AMP_BUFFER_OUT], -1);
        CHECK_INT(plan->layers[fused[k] - 1].buffer[AMP_BUFFER_DELTA], -1);
        CHECK_INT(plan->layers[fused[k] - 1].delta_owner, -1);
    }
    forget();
}

/* The residual blocks of yolov3 at 52 x 52, layers 13 to 36: one delta, and half of the outputs. */
AMP_TEST(yolov3_residual_blocks)
{
    plan_stock("yolov3.cfg");
    int fused = 0, owner = 12;
    for (int i = 0; i < net->n; i++) {
        CHECK_INT(plan->layers[i].fused, net->layers[i].type == AMP_SHORTCUT);
        fused += plan->layers[i].fused;
    }
    CHECK_INT(fused, 23);
    for (int j = 15; j <= 36; j += 3) {
        CHECK_INT(plan->layers[j].delta_owner, owner);
        CHECK_INT(plan->layers[j - 1].buffer[AMP_BUFFER_OUT], -1);
    }
    CHECK_INT(plan->layers[13].delta_owner, 13);
    forget();
}

/* The route that layer i writes into, or -1. */
static int route_of(const char *layers, int i, bool train)
{
    static char text[4096];
    snprintf(text, sizeof text, "[net]\nmixed_precision=1\nwidth=16\nheight=16\nchannels=3\n%s",
             layers);
    plan_text(text, train);
    check_plan();
    int route = plan->layers[i].route; /* check_slice has looked at it */
    forget();
    return route;
}

#define UP            "[upsample]\nstride=2\n"
#define ROUTE(layers) "[route]\nlayers=" layers "\n"

AMP_TEST(sources_that_are_slices_of_a_route_and_that_are_not)
{
    for (int train = 0; train < 2; train++) {
        CHECK_INT(route_of(LEAKY HALVE UP ROUTE("-1,0") END, 2, train), 3);
        CHECK_INT(route_of(LEAKY HALVE UP ROUTE("0,-1") END, 2, train), 3);
        CHECK_INT(route_of(LEAKY HALVE UP ROUTE("-1") END, 2, train), 3);
        CHECK_INT(route_of(LEAKY "[maxpool]\nsize=5\nstride=1\n" ROUTE("-1,0") END, 1, train), 2);
        CHECK_INT(route_of(LEAKY HALVE LEAKY "[route]\nlayers=0\n[reorg]\nstride=2\n" ROUTE("-1,2")
                               END,
                           4, train),
                  5);
        CHECK_INT(route_of(LEAKY LEAKY ROUTE("-1,0") END, 1, train), 2);
        CHECK_INT(route_of(LEAKY NORMALIZED("activation=elu\n") ROUTE("-1,0") END, 1, train), 2);
        /* From afar: the route's output is there as early. */
        CHECK_INT(route_of(LEAKY LEAKY ROUTE("0") LEAKY ROUTE("-1,1") END, 1, train), 4);
        /* Read by others before. */
        CHECK_INT(route_of(LEAKY LEAKY LEAKY ROUTE("1") END, 1, train), 3);
        CHECK_INT(route_of(LEAKY LEAKY PLAIN "[lrn]\n" ROUTE("1") LEAKY LEAKY END, 1, train), 4);
        CHECK_INT(route_of(LEAKY LEAKY LEAKY ROUTE("1") LEAKY ROUTE("-1,1") END, 1, train), -1);
        CHECK_INT(route_of(LEAKY LEAKY LEAKY ROUTE("1") ROUTE("1") END, 1, train), 4);
        /* Read twice, by another, as FP32; of another format, made by a library, a sum, a route. */
        CHECK_INT(route_of(LEAKY HALVE UP ROUTE("-1,-1") END, 2, train), -1);
        CHECK_INT(route_of(LEAKY HALVE UP LEAKY ROUTE("-1,-2") END, 2, train), -1);
        CHECK_INT(route_of(LEAKY HALVE UP "[lrn]\n" ROUTE("-2,0") END, 2, train), -1);
        CHECK_INT(
            route_of(NORMALIZED("mixed_precision=0\n") HALVE UP LEAKY ROUTE("-1,2") END, 2, train),
            -1);
        CHECK_INT(route_of(LEAKY PLAIN ROUTE("-1,0") END, 1, train), -1);
        CHECK_INT(route_of(LEAKY LEAKY ADD("") ROUTE("-1,0") END, 1, train), -1);
        CHECK_INT(route_of(LEAKY LEAKY ADD("") ROUTE("-1,0") END, 2, train), -1);
        CHECK_INT(route_of(LEAKY HALVE UP ROUTE("-1,0") ROUTE("-1,0") END, 3, train), -1);
        CHECK_INT(route_of(LEAKY HALVE UP "[dropout]\n" ROUTE("-1,0") END, 2, train), -1);
        CHECK_INT(route_of(LEAKY HALVE ROUTE("-1") END, 1, train), -1); /* fused */
        /* Images of other sizes are laid end to end. */
        CHECK_INT(route_of(LEAKY HALVE ROUTE("-1,0") "[connected]\n[cost]\n", 1, train), -1);
    }
}

/* The layer whose sums the data gradient of layer i can take along. */
static int sums_of(const char *keys, const char *layers, int i)
{
    plan_layers(keys, layers);
    int s = amp_plan_normalized_source(plan, net, i);
    forget();
    return s;
}

AMP_TEST(sums_that_data_gradients_can_take_along_and_that_not)
{
    CHECK_INT(sums_of("", LEAKY LEAKY END, 1), 0);
    CHECK_INT(sums_of("", LEAKY LEAKY END, 0), -1); /* of the image */
    CHECK_INT(sums_of("", NORMALIZED("activation=relu\n") PLAIN END, 1), 0);
    CHECK_INT(sums_of("", NORMALIZED("activation=linear\n") "[connected]\noutput=4\n[cost]\n", 1),
              0);
    CHECK_INT(sums_of("", LEAKY LEAKY LEAKY "[route]\nlayers=0\n[upsample]\nstride=1\n" END, 2), 1);
    /* Read twice, added to, pooled, dropped, in a route; no batch-norm, a curve; other formats. */
    CHECK_INT(sums_of("", LEAKY LEAKY ROUTE("-1,0") END, 1), -1);
    CHECK_INT(sums_of("", LEAKY LEAKY ADD("") LEAKY END, 3), -1);
    CHECK_INT(sums_of("", LEAKY LEAKY ADD("") LEAKY END, 1), -1);
    CHECK_INT(sums_of("", LEAKY HALVE LEAKY END, 2), -1);
    CHECK_INT(sums_of("", LEAKY "[dropout]\n" LEAKY END, 2), -1);
    CHECK_INT(sums_of("", LEAKY ROUTE("-1") LEAKY END, 2), -1);
    CHECK_INT(sums_of("", PLAIN LEAKY END, 1), -1);
    CHECK_INT(sums_of("", NORMALIZED("activation=elu\n") LEAKY END, 1), -1);
    CHECK_INT(sums_of("amp_dtype=bf16", LEAKY LEAKY END, 1), -1);
    CHECK_INT(sums_of("amp_dtype=fp32", LEAKY LEAKY END, 1), -1);
    CHECK_INT(sums_of("", NORMALIZED("mixed_precision=0\n") LEAKY END, 1), -1);
    CHECK_INT(sums_of("", LEAKY NORMALIZED("mixed_precision=0\n") END, 1), -1);
    CHECK_INT(sums_of("", NORMALIZED("stopbackward=1\n") LEAKY END, 1), -1);
    plan_stock("yolov3.cfg");
    int count = 0;
    for (int i = 0; i < net->n; i++)
        count += amp_plan_normalized_source(plan, net, i) >= 0;
    CHECK_INT(count, 40); /* 23 in residual blocks, 16 in front of heads, and the first */
    forget();
}

static int loss_behind(const char *keys, const char *layers, int i)
{
    plan_layers(keys, layers);
    int loss = amp_plan_loss_behind(plan, net, i);
    forget();
    return loss;
}

AMP_TEST(losses_whose_delta_a_convolution_reads_itself)
{
    CHECK_INT(loss_behind("", LEAKY END, 1), -1); /* Darknet's own loss */
    own_losses = 1u << AMP_YOLO | 1u << AMP_COST;
    CHECK_INT(loss_behind("", LEAKY END, 1), 2);
    CHECK_INT(loss_behind("amp_dtype=fp32", LEAKY END, 1), 2);
    CHECK_INT(loss_behind("", LEAKY PLAIN END, 1), -1);        /* another layer behind it */
    CHECK_INT(loss_behind("", PLAIN LEAKY "[cost]\n", 1), -1); /* batch-norm */
    CHECK_INT(loss_behind("", LEAKY PLAIN "[dropout]\n[cost]\n", 1), -1);
    CHECK_INT(loss_behind("", LEAKY "[conv]\nmixed_precision=0\n[cost]\n", 1), 2);
    plan_stock("yolov3.cfg");
    int count = 0;
    for (int i = 0; i < net->n; i++) {
        int loss = amp_plan_loss_behind(plan, net, i);
        if (loss >= 0) CHECK_INT(loss, i + 1);
        count += loss >= 0;
    }
    CHECK_INT(count, 3);
    forget();
    own_losses = 0;
}

AMP_TEST(yolov3_spp_pyramid)
{
    plan_stock("yolov3-spp.cfg");
    static const int slices[][3] = {{78, 83, 1024}, {80, 83, 512}, {82, 83, 0}, {92, 93, 0}};
    for (int i = 0; i < 4; i++) {
        CHECK_INT(plan->layers[slices[i][0]].route, slices[i][1]);
        CHECK_INT(plan->layers[slices[i][0]].first_channel, slices[i][2]);
    }
    CHECK_INT(plan->layers[77].route, -1);
    forget();
}

AMP_TEST(inference_needs_less)
{
    static char text[RANDOM_NET_SIZE];
    for (int round = 0; round < 20; round++) {
        random_net(text, "mixed_precision=1", NET_EVERYTHING, 15);
        plan_text(text, true);
        size_t training = plan->arena_bytes;
        forget();
        plan_text(text, false);
        CHECK(plan->arena_bytes <= training);
        forget();
    }
}

/* ---- the report ---- */

static char *report_of(bool json)
{
    char *text = NULL;
    size_t size;
    FILE *f = open_memstream(&text, &size);
    REQUIRE(f);
    (json ? amp_plan_print_json : amp_plan_print)(plan, net, f);
    fclose(f);
    return text;
}

/* A net of 16 MiB of moments and averages whose sums are set by hand. */
AMP_TEST(every_number_of_the_report)
{
    static const char *const words[] = {
        "mixed precision plan: fp16\nlayer type            output             math  storage    "
        "reason\n",
        "\n    0 convolutional   16 x 16 x 4        FP16  FP16       ",
        "\n    1 maxpool         8 x 8 x 4          FP32  FP16       ",
        "\n    2 connected       1 x 1 x 4096       FP16  FP32 NCHW  ",
        "\nmixed precision: 75.0 % of 4.000 GFLOP per image in reduced precision; activation "
        "memory for 2 images per pass: FP32 8.0 MiB, mixed 2.0 MiB (0.25x)\n"
        "mixed precision: checkpoint: backward computes 3 layers again, 25.0 % of forward's "
        "arithmetic\n"
        "update: optimizer=adamw, clip_grad_norm=2, ema_alpha=0.9; its moments and averages take "
        "12.0 MiB\n"};
    static const char *const json[] = {
        "{\"precision\": \"fp16\", \"precision_reason\": null, \"batch\": 2, \"layers\": [\n"
        "  {\"index\": 0, \"type\": \"convolutional\", \"output\": [16, 16, 4], \"outputs\": 1024, "
        "\"executor\": \"amp\", \"math\": \"FP16\", \"storage\": \"FP16\", \"flop\": 55296, "
        "\"recomputed\": false, \"reason\": \"",
        "{\"index\": 2, \"type\": \"connected\", \"output\": [1, 1, 4096], \"outputs\": 4096, ",
        "\n], \"flop\": 4000000000, \"flop_reduced\": 3000000000, \"flop_again\": 1000000000, "
        "\"activation_bytes_fp32\": 8388608, \"activation_bytes_mixed\": 2097152, "
        "\"optimizer\": \"adamw\", \"kept_bytes\": "};
    plan_layers("amp_dtype=fp16\noptimizer=adamw\nclip_grad_norm=2\nema_alpha=.9",
                "[conv]\nfilters=4\nsize=3\npad=1\n[maxpool]\nsize=2\nstride=2\n"
                "[connected]\noutput=4096\n[cost]\n");
    plan->flop = 4e9, plan->flop_reduced = 3e9, plan->flop_again = 1e9, plan->n_recomputed = 3;
    plan->darknet_bytes = 8 << 20, plan->mixed_bytes = 2 << 20;
    char *text = report_of(false), *object = report_of(true);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        CHECK_SAYS(text, words[i]);
    for (size_t i = 0; i < sizeof json / sizeof *json; i++)
        CHECK_SAYS(object, json[i]);
    free(text);
    free(object);
    plan->over_budget = true;
    plan->level = AMP_LEVEL_O3;
    plan->dtype_reason = "it is Friday";
    plan->rules = (struct amp_rules){.clip_value = .5};
    text = report_of(false), object = report_of(true);
    CHECK_SAYS(text, "plan: fp16 (amp_dtype=auto: it is Friday); amp_level=O3 stands for "
                     "amp_dtype=fp16, loss_scale=1\n");
    CHECK_SAYS(text, "; no choice of layers fits in what checkpoint=auto allows, this is the "
                     "least: lower batch, or raise subdivisions\n"
                     "update: optimizer=sgd, clip_grad_value=0.5\n");
    CHECK_SAYS(object, "\"precision_reason\": \"it is Friday\", ");
    free(text);
    free(object);
    plan->rules = (struct amp_rules){.clip_value = 0};
    text = report_of(false);
    CHECK(!strstr(text, "update: ")); /* stock Darknet's */
    free(text);
    forget();
}

AMP_TEST_MAIN
