/* Random small nets as cfg text: layers are drawn one by one, and what the net description refuses
 * is drawn again. Include after tests/rig/harness.h. */
#ifndef AMP_TEST_RANDOM_NET_H
#define AMP_TEST_RANDOM_NET_H

#include <stdarg.h>

#include "plugin/core/net/net.h"
#include "plugin/core/plan/plan.h"

/* What may occur besides convolutions without batch-norm. */
enum {
    NET_BATCHNORM = 1,
    NET_SHAPES = 2, /* pooling, upsample, reorg, route, shortcut, activation */
    NET_DROPOUT = 4,
    NET_NATIVE = 8, /* layers that Darknet runs, in the middle of the net */
    NET_HEADS = 16, /* yolo heads in the middle of the net */
    NET_FLAT = 32,  /* connected layers, vectors without an image shape */
    NET_STOPBACKWARD = 64,
    NET_OVERRIDES = 128,
    NET_NO_1X1 = 256, /* stock Darknet's CPU code overwrites their input's delta */
    NET_FREEZE = 512,
    NET_LOCAL = 1024,
    NET_GROUPED = 2048, /* routes of a part of their sources: keys must have mixed_precision=1 */
    NET_EVERYTHING = 255 | NET_LOCAL
};

#define RANDOM_NET_SIZE 8192

static int random_below(int n)
{
    return (int)(test_random() % (unsigned)n);
}

static int random_from(int low, int high)
{
    return low + random_below(high - low + 1);
}

__attribute__((format(printf, 2, 3))) static void random_append(char *text, const char *format, ...)
{
    size_t used = strlen(text);
    va_list args;
    va_start(args, format);
    vsnprintf(text + used, RANDOM_NET_SIZE - used, format, args);
    va_end(args);
}

static const char *random_activation(void)
{
    return amp_activation_name((enum ampk_activation)random_below(AMPK_STOCK_ACTIVATIONS));
}

static void random_freeze(char *text, unsigned features)
{
    if (features & NET_FREEZE && random_below(2)) random_append(text, "freeze=1\n");
}

static void random_deconvolution(char *text, unsigned features)
{
    int size = random_from(1, 4);
    random_append(text,
                  "[deconvolutional]\nsize=%d\nfilters=%d\nstride=%d\npadding=%d\nactivation=%s\n",
                  size, random_from(1, 9), random_from(1, 3), random_below(size),
                  random_below(3) ? "leaky" : random_activation());
    if (features & NET_BATCHNORM && random_below(2)) random_append(text, "batch_normalize=1\n");
    random_freeze(text, features);
}

/* Darknet's is right only without padding, and with 1 where size is 3. */
static void random_local(char *text, unsigned features)
{
    int size = random_from(1, 3);
    random_append(text, "[local]\nsize=%d\nfilters=%d\nstride=%d\npad=%d\nactivation=%s\n", size,
                  random_from(1, 5), random_from(1, 2), size == 3, random_activation());
    random_freeze(text, features);
}

static void random_convolution(char *text, unsigned features)
{
    if (random_below(5) == 0) {
        random_deconvolution(text, features);
        return;
    }
    if (features & NET_LOCAL && random_below(8) == 0) {
        random_local(text, features);
        return;
    }
    int size = random_below(3) * 2 + 1;
    int filters = features & NET_GROUPED && random_below(2) ? 6 : random_from(1, 9);
    if (size == 1 && features & NET_NO_1X1) size = 3;
    random_append(text, "[convolutional]\nsize=%d\nfilters=%d\nstride=%d\npad=%d\nactivation=%s\n",
                  size, filters, random_below(4) ? 1 : 2, random_below(4) > 0,
                  random_below(3) ? "leaky" : random_activation());
    if (random_below(4) == 0) random_append(text, "groups=%d\n", random_from(2, 4));
    if (features & NET_BATCHNORM && random_below(2)) random_append(text, "batch_normalize=1\n");
    random_freeze(text, features);
}

static void random_connected(char *text, unsigned features)
{
    random_append(text, "[connected]\noutput=%d\nactivation=%s\n", random_from(1, 20),
                  random_activation());
    if (features & NET_BATCHNORM && random_below(2)) random_append(text, "batch_normalize=1\n");
    random_freeze(text, features);
}

static void random_sources(char *text, const char *key, int n, int layers)
{
    random_append(text, "%s=", key);
    for (int i = 0; i < n; i++)
        random_append(text, "%s%d", i ? "," : "",
                      random_below(2) ? random_below(layers) : -random_from(1, layers));
    random_append(text, "\n");
}

static void random_route(char *text, unsigned features, int layers)
{
    bool grouped = features & NET_GROUPED && random_below(4);
    random_append(text, "[route]\n");
    random_sources(text, "layers", random_from(1, grouped ? 2 : 3), layers);
    if (!grouped) return;
    int groups = random_from(2, 3);
    random_append(text, "groups=%d\ngroup_id=%d\n", groups, random_below(groups));
}

static void random_shape_layer(char *text, unsigned features, int layers)
{
    switch (random_below(layers ? 12 : 6)) {
    case 0:
        random_append(text, "[maxpool]\nsize=%d\nstride=%d\n", random_from(2, 3),
                      random_from(1, 2));
        break;
    case 1:
        random_append(text, "[upsample]\nstride=%d\nscale=%g\n", random_below(2) ? 2 : -2,
                      random_below(2) ? 1 : 0.5);
        break;
    case 2:
        random_append(text, "[reorg]\nstride=2\nreverse=%d\n", random_below(2));
        break;
    case 3:
        random_append(text, "[reorg]\nstride=2\nflatten=1\nreverse=%d\n", random_below(2));
        break;
    case 4:
        random_append(text, "[activation]\nactivation=%s\n", random_activation());
        break;
    case 5:
        random_append(text, random_below(4) ? "[maxpool]\nsize=2\nstride=2\n" : "[avgpool]\n");
        break;
    case 6:
    case 7:
    case 8:
        random_route(text, features, layers);
        break;
    default:
        random_append(text, "[shortcut]\nactivation=%s\nalpha=%g\nbeta=%g\n",
                      random_below(2) ? "linear" : random_activation(), random_below(2) ? 1 : 0.75,
                      random_below(2) ? 1 : -0.5);
        random_sources(text, "from", 1, layers);
    }
}

static void random_native(char *text)
{
    static const char *const kinds[] = {"[lrn]\nsize=3\n", "[batchnorm]\n", "[l2norm]\n",
                                        "[convolutional]\nfilters=3\nsize=1\nsmooth=1\n"
                                        "activation=linear\n",
                                        "[softmax]\nnoloss=1\n"};
    random_append(text, "%s", kinds[random_below(5)]);
}

static void random_layer(char *text, unsigned features, int layers)
{
    int kind = random_below(20);
    if (kind < 8 && features & NET_SHAPES)
        random_shape_layer(text, features, layers);
    else if (kind == 8 && features & NET_DROPOUT)
        random_append(text, "[dropout]\nprobability=%g\n", random_below(2) ? 0.5 : 0.2);
    else if (kind == 9 && features & NET_NATIVE)
        random_native(text);
    else if (kind == 10 && features & NET_HEADS)
        random_append(text, "[conv]\nfilters=7\nsize=3\npad=1\nactivation=linear\n"
                            "[yolo]\nmask=0\nclasses=2\nnum=2\nanchors=2,3,4,5\n");
    else if (kind == 11 && features & NET_FLAT)
        random_connected(text, features);
    else if (kind == 12 && features & NET_FLAT && features & NET_SHAPES)
        random_append(text, "[reorg]\nstride=1\nextra=%d\n", random_from(1, 9));
    else
        random_convolution(text, features);
    if (features & NET_OVERRIDES && random_below(5) == 0)
        random_append(text, "mixed_precision=%d\n", random_below(2));
    if (features & NET_STOPBACKWARD && random_below(20) == 0)
        random_append(text, "stopbackward=1\n");
}

/* Layers of the text, or 0 where it is no valid net of moderate size. */
static int random_count_layers(const char *text)
{
    char err[1024];
    struct amp_cfg_file *cfg = amp_cfg_parse("random.cfg", text, strlen(text), err, sizeof err);
    struct amp_net_desc *net = cfg ? amp_net_describe(cfg, 0, 0, true, err, sizeof err) : NULL;
    int n = net ? net->n : 0;
    for (int i = 0; n && i < net->n; i++)
        if (net->layers[i].outputs > 3000) n = 0;
    amp_net_desc_free(net);
    amp_cfg_free(cfg);
    return n;
}

/* text: RANDOM_NET_SIZE bytes. keys: lines for [net]. About `layers` layers, then a cost layer. */
static void random_net(char *text, const char *keys, unsigned features, int layers)
{
    text[0] = 0;
    random_append(text, "[net]\nbatch=%d\nwidth=%d\nheight=%d\nchannels=%d\n%s\n%s",
                  random_from(2, features & NET_FLAT ? 8 : 3), random_from(5, 12),
                  random_from(5, 12), random_from(1, 5), keys,
                  features & NET_GROUPED ? "amp_dialect=fork\n" : "");
    for (int n = 0; n < layers;) {
        size_t before = strlen(text);
        random_layer(text, features, n);
        int now = random_count_layers(text);
        if (now > n)
            n = now;
        else
            text[before] = 0;
    }
    random_append(text, "[cost]\ntype=sse\n");
}

/* How many grouped routes hand a gradient on that is the first, or a later one, of their source. */
struct grouped_routes {
    int first, later;
};

static inline void random_count_grouped(const struct amp_net_desc *net, const struct amp_plan *plan,
                                        struct grouped_routes *n)
{
    for (int i = 0; i < net->n; i++) {
        const struct amp_layer_desc *l = &net->layers[i];
        const struct amp_plan_layer *p = &plan->layers[i];
        for (int k = 0; l->type == AMP_ROUTE && l->groups > 1 && k < l->n_sources; k++) {
            if (!p->backward || !p->source_wanted[k]) continue;
            n->first += p->source_first[k];
            n->later += !p->source_first[k];
        }
    }
}

/* Gives mish or swish, which no cfg of this Darknet can name, to half of the layers that may have
 * them. Returns to how many. */
static inline int random_mish(struct amp_net_desc *net)
{
    int count = 0;
    for (int i = 0; i < net->n; i++) {
        struct amp_layer_desc *l = &net->layers[i];
        bool may =
            amp_layer_is_matrix(l) && l->batch_normalize && !l->binary && !l->xnor && !l->smooth;
        if (!may || random_below(2)) continue;
        l->activation = random_below(2) ? AMPK_MISH : AMPK_SWISH;
        count++;
    }
    return count;
}

#endif
