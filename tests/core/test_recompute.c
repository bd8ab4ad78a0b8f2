/* Layers that backward computes again, on every backend: gradients, running statistics and redone
 * passes have the bits that they have where everything is kept. */
#include "tests/rig/harness.h"
#include "tests/rig/random_net.h"
#include "tests/rig/rig.h"

/* What a pass and a redone backward leave. */
struct left {
    float **gradients[2]; /* per param */
    float *rolling;
};

static float *copy_rolling(const struct rig *r)
{
    size_t n = 1, at = 0;
    for (int i = 0; i < r->n_rolling; i++)
        n += r->rolling[i].n;
    float *all = malloc(n * sizeof *all);
    REQUIRE(all);
    for (int i = 0; i < r->n_rolling; at += r->rolling[i++].n)
        memcpy(all + at, r->rolling[i].value, r->rolling[i].n * sizeof *all);
    return all;
}

static struct left run(struct rig *r)
{
    struct left left;
    rig_forward(r);
    for (int pass = 0; pass < 2; pass++) {
        left.gradients[pass] = malloc(((size_t)r->n_params + 1) * sizeof(float *));
        REQUIRE(left.gradients[pass]);
        if (pass && !r->plan->replays) rig_forward(r);
        rig_backward(r, pass ? 4 : 16);
        for (int i = 0; i < r->n_params; i++)
            left.gradients[pass][i] = rig_gradient(r, i);
    }
    left.rolling = copy_rolling(r);
    return left;
}

static void forget(const struct rig *r, struct left *left)
{
    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; i < r->n_params; i++)
            free(left->gradients[pass][i]);
        free(left->gradients[pass]);
    }
    free(left->rolling);
}

static void check_same(const struct rig *r, const struct left *a, const struct left *b)
{
    size_t at = 0;
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < r->n_params; i++) {
            const struct amp_param *p = &r->params[i];
            if (r->plan->layers[p->layer].backward &&
                memcmp(a->gradients[pass][i], b->gradients[pass][i], p->n * sizeof(float)))
                TEST_FAIL("backward %d: gradient %d of layer %d differs", pass, i, p->layer);
        }
    for (int i = 0; i < r->n_rolling; at += r->rolling[i++].n)
        if (memcmp(a->rolling + at, b->rolling + at, r->rolling[i].n * sizeof(float)))
            TEST_FAIL("running statistics of layer %d differ", r->rolling[i].layer);
}

/* Plans and graph made anew, with some layers computed again. Returns how many. */
static int recompute_some(struct rig *r)
{
    for (int i = 0; i < r->net->n; i++)
        r->net->layers[i].recompute =
            random_below(5) > 1 && r->plan->layers[i].ours && !r->plan->layers[i].loss;
    REQUIRE(rig_plan_again(r) == 0);
    return r->plan->n_recomputed;
}

/* Residual blocks and pools, which the convolution before them computes, and slices of routes. */
#define CONV(filters, size, stride)                                                                \
    "[convolutional]\nbatch_normalize=1\npad=1\nactivation=leaky\nfilters=" #filters               \
    "\nsize=" #size "\nstride=" #stride "\n"
// clang-format off
static const char yolov3_like[] =
    "[net]\n%s\nbatch=3\nchannels=4\nwidth=16\nheight=16\n" CONV(6, 3, 1)
    "[maxpool]\nsize=2\nstride=2\n" CONV(4, 1, 1) CONV(6, 3, 1) "[shortcut]\nfrom=-3\n"
    CONV(4, 1, 1) CONV(6, 3, 1) "[shortcut]\nfrom=-3\n" CONV(8, 3, 2) CONV(8, 3, 1) "[dropout]\n"
    CONV(8, 1, 1) "[upsample]\nstride=2\n[route]\nlayers=-1,7\n" CONV(6, 1, 1)
    "[convolutional]\nsize=1\nfilters=7\nactivation=linear\n"
    "[yolo]\nmask=0\nclasses=2\nnum=2\n";
// clang-format on

/* Every third net is that one, another third has grouped routes. */
static void draw_net(char *text, const char *keys, int round)
{
    unsigned grouped = round % 3 == 2 ? NET_GROUPED : 0;
    if (round % 3)
        random_net(text, keys, NET_EVERYTHING | NET_FREEZE | grouped, random_from(3, 20));
    else
        snprintf(text, RANDOM_NET_SIZE, yolov3_like, keys);
}

static void check_nets(const struct ampk_backend *backend, int rounds)
{
    static const char *const keys[] = {"mixed_precision=1\namp_dtype=fp16",
                                       "mixed_precision=1\namp_dtype=fp32",
                                       "mixed_precision=1\namp_dtype=bf16"};
    static char text[RANDOM_NET_SIZE];
    int again = 0;
    for (int round = 0; round < rounds; round++) {
        draw_net(text, keys[random_below(3)], round);
        struct rig *r = rig_create(text, backend, test_random);
        REQUIRE(r);
        if (random_below(2) && random_mish(r->net)) REQUIRE(rig_plan_again(r) == 0);
        struct left kept = run(r);
        for (int i = 0; i < 3; i++) {
            again += recompute_some(r);
            struct left left = run(r);
            check_same(r, &kept, &left);
            forget(r, &left);
        }
        forget(r, &kept);
        rig_free(r);
        if (test_failures) fprintf(stderr, "round %d:\n%s\n", round, text);
        REQUIRE(!test_failures);
    }
    printf("%d layers computed again\n", again);
    CHECK(again > 5 * rounds);
}

AMP_TEST(on_the_cpu)
{
    check_nets(&ampk_cpu, 30);
}

AMP_TEST(on_the_emulated_device)
{
    check_nets(&ampk_cuda, 8);
}

AMP_TEST_MAIN
