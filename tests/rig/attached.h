/* Networks of Darknet inside a test: cfgs from text, made-up images that are given by `seen`, all
 * that outlives a step, to be copied and compared, what the plugin says, and the files it saves.
 * Include after tests/rig/harness.h. */
#ifndef AMP_TEST_ATTACHED_H
#define AMP_TEST_ATTACHED_H

#include <darknet.h>

#include "kernels/philox.h"
#include "plugin/attach/feed/seed.h"
#include "plugin/attach/session.h"
#include "plugin/core/engine/tensors.h"
#include "files.h"

#define MIXED "mixed_precision=1\n"

/* Between them, every executor. No 1x1 convolution and no second reader of a reorg or activation:
 * with those Darknet's own gradients are wrong. Both can be resized. */
#define CONV(filters, more)                                                                        \
    "[convolutional]\nsize=3\npad=1\nactivation=leaky\nfilters=" #filters "\n" more
#define NORMALIZED "batch_normalize=1\n"
#define DECONV(filters, more)                                                                      \
    "[deconvolutional]\nsize=3\nactivation=leaky\nfilters=" #filters "\n" more
#define LOCAL_LAYER(filters, more)                                                                 \
    "[local]\nsize=3\npad=1\nactivation=leaky\nfilters=" #filters "\n" more
#define YOLO(mask)                                                                                 \
    "[convolutional]\nsize=3\npad=1\nactivation=linear\nfilters=14\n"                              \
    "[yolo]\nmask=" mask "\nanchors=3,3, 5,4, 7,8, 10,9\nclasses=2\nnum=4\n"
/* clang-format off */
#define DETECTOR                                                                                   \
    CONV(8, NORMALIZED)                                                                            \
    "[maxpool]\nsize=2\nstride=2\n"                                                                \
    CONV(8, NORMALIZED "groups=2\n")                                                               \
    CONV(8, "")                                                                                    \
    "[shortcut]\nfrom=-3\nactivation=leaky\n"                                                      \
    CONV(4, NORMALIZED)                                                                            \
    "[reorg]\nstride=2\n"                                                                          \
    CONV(8, NORMALIZED)                                                                            \
    "[upsample]\nstride=2\n"                                                                       \
    "[route]\nlayers=-1,4\n"                                                                       \
    YOLO("0,1")                                                                                    \
    "[route]\nlayers=7\n"                                                                          \
    YOLO("2,3")
#define CLASSIFIER                                                                                 \
    CONV(6, NORMALIZED "stride=2\n")                                                               \
    CONV(6, "")                                                                                    \
    "[avgpool]\n"                                                                                  \
    "[dropout]\nprobability=.3\n"                                                                  \
    "[activation]\nactivation=tanh\n"                                                              \
    DECONV(6, "stride=2\n" NORMALIZED)                                                             \
    DECONV(4, "stride=2\npadding=1\n")                                                             \
    "[connected]\noutput=8\nbatch_normalize=1\nactivation=leaky\n"                                 \
    "[connected]\noutput=5\nactivation=linear\n"                                                   \
    "[cost]\n"
/* clang-format on */

static const char *const both_nets[] = {DETECTOR, CLASSIFIER};

#define ON_BOTH_NETS(layers) for (int nth = 0; nth < 2 && (layers = both_nets[nth]); nth++)

/* Unless the keys say otherwise fp16, which has the most to go wrong, on every CPU. */
static inline const char *write_cfg(const char *keys, const char *layers)
{
    char text[8192];
    bool fp16 = strstr(keys, MIXED) && !strstr(keys, "amp_dtype");
    int n = snprintf(text, sizeof text,
                     "[net]\n%s%sbatch=8\nsubdivisions=2\nwidth=16\nheight=16\nchannels=3\n"
                     "learning_rate=0.01\nmomentum=0.9\ndecay=0.0005\npolicy=constant\n"
                     "max_batches=1000\n%s",
                     keys, fp16 ? "amp_dtype=fp16\n" : "",
                     layers); /* of a key that is there twice, the first counts */
    REQUIRE(n < (int)sizeof text);
    scratch_write("a.cfg", text, (size_t)n);
    return scratch("a.cfg");
}

/* The same initial weights every time. */
static inline network *parse(const char *keys, const char *layers)
{
    srand(5);
    return parse_network_cfg((char *)write_cfg(keys, layers));
}

/* The same layers with a key in all sections. */
static inline const char *everywhere(const char *layers, const char *key)
{
    static char text[8192];
    size_t n = 0;
    for (const char *p = layers; *p; p++) {
        text[n++] = *p;
        if (*p != ']') continue;
        n += (size_t)snprintf(text + n, sizeof text - n, "\n%s", key);
        REQUIRE(n < sizeof text - 100);
    }
    text[n] = 0;
    return text;
}

/* The same layers with checkpoint=1 in all sections that may have it. */
static inline const char *with_checkpoints(const char *layers)
{
    static char text[8192];
    size_t used = 0;
    for (const char *at = layers; *at; at++) {
        bool may = strncmp(at, "[yolo]", 6) && strncmp(at, "[cost]", 6);
        size_t name = *at == '[' && may ? (size_t)(strchr(at, '\n') + 1 - at) : 0;
        int n = snprintf(text + used, sizeof text - used, "%.*s%s", name ? (int)name : 1, at,
                         name ? "checkpoint=1\n" : "");
        used += (size_t)n;
        REQUIRE(used < sizeof text);
        if (name) at += name - 1;
    }
    return text;
}

/* ---- training ---- */

static inline float next_noise(unsigned *noise)
{
    *noise = *noise * 1664525u + 1013904223u;
    return (float)(*noise >> 8) / (1 << 24);
}

static inline void fill(float *x, size_t n, unsigned noise)
{
    for (size_t i = 0; i < n; i++)
        x[i] = next_noise(&noise);
}

/* Two boxes an image where the truth is boxes, as many numbers as there are outputs elsewhere. */
static inline void fill_truth(network *net, unsigned noise)
{
    bool boxes = net->layers[net->n - 1].type == YOLO;
    for (int i = 0; i < net->batch * net->truths; i++) {
        int k = i % net->truths;
        float x = next_noise(&noise);
        net->truth[i] = !boxes ? x : k >= 10 ? 0 : k % 5 == 4 ? (float)(k / 5) : .2f + .5f * x;
    }
}

static inline void load_images(network *net, unsigned which)
{
    fill(net->input, (size_t)(net->inputs * net->batch), 2 * which + 1);
    fill_truth(net, 2 * which + 2);
    srand(which); /* dropout */
}

/* One subdivision. */
static inline void pass(network *net)
{
    load_images(net, (unsigned)*net->seen);
    train_network_datum(net);
}

static inline void steps(network *net, int n)
{
    for (int i = 0; i < n * net->subdivisions; i++)
        pass(net);
}

/* A step on images of which the last is not finite: it is skipped. */
static inline void bad_step(network *net)
{
    for (int i = 0; i < net->subdivisions; i++) {
        load_images(net, (unsigned)*net->seen);
        net->input[0] = i ? NAN : net->input[0];
        train_network_datum(net);
    }
}

/* As Darknet's programs do it: one image at batch 1, then training goes on at its own batch. */
static inline const float *predict(network *net)
{
    static float image[64 * 64 * 3];
    int batch = net->batch;
    REQUIRE(net->inputs <= 64 * 64 * 3);
    fill(image, (size_t)net->inputs, 77);
    set_batch_network(net, 1);
    float *output = network_predict(net, image);
    set_batch_network(net, batch);
    return output;
}

/* ---- what outlives a step ---- */

struct kept {
    const char *what;
    int layer;
    float *x;
    size_t n;
};

/* Weights, momentum, moments, running statistics and moving averages of any network; returns how
 * many arrays. */
static inline int list_kept(const network *net, struct kept list[256])
{
    const struct amp_session *s = amp_session_of(net->layers);
    bool device = s && s->device;
    int n = 0;
    struct amp_owned own = amp_native_list(net, NULL, device);
    if (s) amp_kept_enter(s->kept, &own);
    REQUIRE(own.n_params <= 38 && own.n_rolling <= 33);
    for (const struct amp_param *p = own.params; p < own.params + own.n_params; p++) {
        list[n++] = (struct kept){"weights", p->layer, p->value, p->n};
        list[n++] = (struct kept){"momentum", p->layer, p->update, p->n};
        if (p->m) list[n++] = (struct kept){"Adam's m", p->layer, p->m, p->n};
        if (p->m) list[n++] = (struct kept){"Adam's v", p->layer, p->v, p->n};
        if (p->average) list[n++] = (struct kept){"average", p->layer, p->average, p->n};
    }
    for (const struct amp_rolling *r = own.rolling; r < own.rolling + own.n_rolling; r++) {
        list[n++] = (struct kept){"running statistics", r->layer, r->value, r->n};
        if (r->average) list[n++] = (struct kept){"average of them", r->layer, r->average, r->n};
    }
    amp_native_free_list(&own);
    return n;
}

static inline void copy_kept(const network *from, network *to)
{
    struct kept a[256], b[256];
    int n = list_kept(from, a);
    REQUIRE(list_kept(to, b) == n);
    for (int i = 0; i < n; i++)
        memcpy(b[i].x, a[i].x, a[i].n * sizeof(float));
    *to->seen = *from->seen;
    *to->t = *from->t;
}

/* A snapshot: a network of plain Darknet in the same state. */
static inline network *plain_copy(const network *net, const char *keys, const char *layers)
{
    network *plain = parse(keys, layers);
    REQUIRE(!amp_session_of(plain->layers));
    if (plain->w != net->w || plain->h != net->h) resize_network(plain, net->w, net->h);
    copy_kept(net, plain);
    return plain;
}

static inline bool is_same(const network *one, const network *two)
{
    struct kept a[256], b[256];
    int n = list_kept(one, a), same = list_kept(two, b) == n && *one->t == *two->t;
    for (int i = 0; i < n && same; i++)
        same = !memcmp(a[i].x, b[i].x, a[i].n * sizeof(float));
    return same;
}

static inline void check_same_at(int line, const network *one, const network *two)
{
    struct kept a[256], b[256];
    int n = list_kept(one, a);
    REQUIRE(list_kept(two, b) == n);
    if (*one->t != *two->t) TEST_FAIL("line %d: t is %d, expected %d", line, *one->t, *two->t);
    for (int i = 0; i < n; i++)
        for (size_t k = 0; k < a[i].n; k++) {
            if (!memcmp(&a[i].x[k], &b[i].x[k], sizeof(float))) continue;
            TEST_FAIL("line %d: %s of layer %d [%zu] is %.9g, expected %.9g", line, a[i].what,
                      a[i].layer, k, (double)a[i].x[k], (double)b[i].x[k]);
            return;
        }
}

#define CHECK_SAME(one, two) check_same_at(__LINE__, one, two)

/* The largest difference in an array of that kind, as a share of the array's largest value. */
static inline double distance(const network *one, const network *two, const char *what)
{
    struct kept a[256], b[256];
    int n = list_kept(one, a);
    double most = 0;
    REQUIRE(list_kept(two, b) == n);
    for (int i = 0; i < n; i++) {
        double size = 0, miss = 0;
        if (strcmp(a[i].what, what)) continue;
        for (size_t k = 0; k < a[i].n; k++) {
            double x = (double)a[i].x[k], y = (double)b[i].x[k];
            if (!isfinite(x) || !isfinite(y)) return INFINITY;
            size = fmax(size, fabs(y));
            miss = fmax(miss, fabs(x - y));
        }
        most = fmax(most, size > 0 ? miss / size : miss);
    }
    return most;
}

/* Plain Darknet against ours in FP32. One step: sums of up to 1000 terms in another order, 2^-24
 * each time, and batch-norm on top. Several: such a difference may decide a maximum or the side of
 * a leaky slope otherwise, which moves one element's gradient to where the other had none. */
#define ONE_STEP_TOLERANCE 2e-5
#define STEPS_TOLERANCE    5e-3

static inline void check_distance(const network *one, const network *two, const char *what,
                                  double most)
{
    double miss = distance(one, two, what);
    if (!(miss <= most)) TEST_FAIL("%s: %g apart, allowed %g", what, miss, most);
}

static inline void check_near_plain(const network *net, const network *plain, double most)
{
    CHECK(amp_session_of(net->layers) && !amp_session_of(plain->layers));
    check_distance(net, plain, "weights", most);
    check_distance(net, plain, "momentum", most);
    check_distance(net, plain, "running statistics", most);
    CHECK_INT(*net->t, *plain->t);
}

static inline void check_same_output(network *one, network *two)
{
    size_t n = (size_t)one->outputs;
    float *first = malloc(n * sizeof *first);
    REQUIRE(first && two->outputs == one->outputs);
    memcpy(first, predict(one), n * sizeof *first);
    CHECK(!memcmp(first, predict(two), n * sizeof *first));
    free(first);
}

/* Running variances as after some training; the zeros of the start let inference overflow. */
static inline network *parse_settled(const char *keys, const char *layers)
{
    network *net = parse(keys, layers);
    for (int i = 0; i < net->n; i++)
        for (int k = 0; net->layers[i].batch_normalize && k < net->layers[i].out_c; k++)
            net->layers[i].rolling_variance[k] = 1;
    return net;
}

/* ---- what the plugin says ---- */

static char *told;
static size_t told_size;

static inline void listen_to(network *net)
{
    free(told);
    told = NULL;
    struct amp_session *s = amp_session_of(net->layers);
    REQUIRE(s);
    s->log.out = open_memstream(&told, &told_size);
    REQUIRE(s->log.out);
}

static inline const char *said(network *net)
{
    fflush(amp_session_of(net->layers)->log.out);
    return told;
}

/* Ends a network that was listened to. */
static inline void stop_listening(network *net)
{
    struct amp_session *s = amp_session_of(net->layers);
    fclose(s->log.out);
    s->log.out = stderr;
}

/* How often that stands in the text. */
static inline int count(const char *text, const char *what)
{
    int n = 0;
    for (; (text = strstr(text, what)); text += strlen(what))
        n++;
    return n;
}

/* For amp_step.stop, where training would end the program: back to setjmp(stopped). */
static jmp_buf stopped;
static char why[1024];

static inline void stop(void *user, const char *message)
{
    (void)user;
    snprintf(why, sizeof why, "%s", message);
    longjmp(stopped, 1);
}

/* ---- weights files and sidecars in the scratch folder ---- */

static inline void save(network *net, const char *name)
{
    save_weights(net, (char *)scratch(name));
}

static inline void load(network *net, const char *name)
{
    load_weights(net, (char *)scratch(name));
}

static inline bool exists(const char *name)
{
    return !access(scratch(name), F_OK);
}

static inline bool same_file(const char *a, const char *b)
{
    char x[1 << 14], y[1 << 14];
    long n = scratch_read(a, x, sizeof x);
    return n > 0 && n < (1 << 14) - 1 && n == scratch_read(b, y, sizeof y) &&
           !memcmp(x, y, (size_t)n);
}

static inline void check_same_pair(const char *a, const char *b)
{
    char x[60], y[60];
    snprintf(x, sizeof x, "%s.amp", a);
    snprintf(y, sizeof y, "%s.amp", b);
    CHECK(same_file(a, b));
    CHECK(same_file(x, y));
}

/* ---- dropout's masks on a device ---- */

/* The last pass's mask of layer i, one byte per element; the caller frees. */
static inline uint8_t *mask_of(const network *net, int i)
{
    const struct amp_session *s = amp_session_of(net->layers);
    size_t n = (size_t)(net->batch * net->layers[i].outputs);
    uint8_t *keep = malloc(n);
    REQUIRE(keep);
    s->backend->read(s->context, keep, s->graph->nodes[i].index, n);
    return keep;
}

/* It is the one of that seed and of the images seen. */
static inline void check_mask(const network *net, int i, uint64_t seed)
{
    int n = net->batch * net->layers[i].outputs;
    struct ampk_draw draw = amp_seed_masks(seed, *net->seen);
    uint8_t *keep = mask_of(net, i);
    draw.counter[1] += (uint32_t)i;
    for (int k = 0; k < n; k++) {
        uint32_t numbers[4];
        ampk_draw_four(&draw, (uint32_t)k / 4, numbers);
        CHECK_INT(keep[k], numbers[k % 4] * 0x1p-32 >= (double)net->layers[i].probability);
    }
    free(keep);
}

#endif
