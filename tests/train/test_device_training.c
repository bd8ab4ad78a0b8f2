/* The plugin in a GPU build of Darknet, on a device that is emulated: our kernels by
 * tests/emulation, Darknet's calls of the CUDA runtime by darknet_device.c. Everything that Darknet
 * has goes to the device and back as on a GPU: hooks of the _gpu functions, device arrays that get
 * memory late, saving, resuming. */
#include "tests/rig/harness.h"
#include "tests/rig/attached.h"

#include "amp.h"
#include "plugin/app/profile.h"
#include "tests/emulation/darknet_device.h"
#include "tests/emulation/emulation.h"

#include <math.h>
#include <sys/wait.h>
#include <unistd.h>

#define FIXED MIXED "loss_scale=64\n"

/* Networks made from now on compute there; Darknet also looks at it when one changes its size. */
static network *parse_on(int device, const char *keys, const char *layers)
{
    gpu_index = device;
    network *net = parse(keys, layers);
    struct amp_session *s = amp_session_of(net->layers);
    if (s) CHECK_INT(s->device, device >= 0);
    return net;
}

static network *train_on(int device, const char *keys, const char *layers, int n)
{
    network *net = parse_on(device, keys, layers);
    steps(net, n);
    CHECK_INT(amp_session_of(net->layers)->step.scaler.applied, n);
    return net;
}

/* The device computes batch-norm by cuDNN's rule, the CPU by Darknet's: their variances differ by
 * 1/64 on the smallest grid here. (In CLASSIFIER, whose connected layer has 4 values a channel, by
 * a quarter.) */
static void check_like_cpu(const char *layers)
{
    network *start = parse_on(-1, "", layers);
    network *device = train_on(0, FIXED "amp_dtype=fp32\n", layers, 1);
    network *cpu = train_on(-1, FIXED "amp_dtype=fp32\n", layers, 1);
    struct kept a[256], b[256], from[256];
    int n = list_kept(device, a);
    REQUIRE(list_kept(cpu, b) == n && list_kept(start, from) == n);
    for (int i = 0; i < n; i++) {
        double most = 0, apart = 0;
        for (size_t k = 0; k < a[i].n; k++) {
            most = fmax(most, fabs((double)b[i].x[k] - from[i].x[k]));
            apart = fmax(apart, fabs((double)a[i].x[k] - b[i].x[k]));
        }
        if (apart > 0x1p-3 * most)
            TEST_FAIL("%s of layer %d: %.3g apart, moved by %.3g", a[i].what, a[i].layer, apart,
                      most);
    }
    CHECK_NEAR(*device->cost, *cpu->cost, 0.05 * *cpu->cost);
    free_network(start);
    free_network(device);
    free_network(cpu);
}

AMP_TEST(it_trains_as_on_the_cpu)
{
    check_like_cpu(DETECTOR);
}

AMP_TEST(no_kernel_of_darknet_runs_and_nothing_large_comes_back)
{
    network *net = parse_on(0, FIXED, DETECTOR);
    long launches = darknet_device_launches(), bytes = darknet_device_bytes_out();
    steps(net, 2);
    CHECK_INT(darknet_device_launches(), launches);
    CHECK_INT(darknet_device_bytes_out(), bytes);
    predict(net);
    CHECK(darknet_device_bytes_out() > bytes);
    free_network(net);
}

AMP_TEST(activations_of_ours_get_no_memory_from_darknet)
{
    network *net = parse_on(0, FIXED, DETECTOR);
    CHECK(emulation_bytes_without_memory() == 0); /* all arrays are small */
    resize_network(net, 256, 256);                /* a batch of these is large, too */
    steps(net, 1);
    CHECK(emulation_bytes_without_memory() >=
          (size_t)4 * net->batch * net->layers[0].outputs * sizeof(float));
    resize_network(net, 16, 16);
    CHECK(emulation_bytes_without_memory() == 0);
    steps(net, 1);
    predict(net);
    free_network(net);
}

AMP_TEST(after_inference_every_head_is_on_the_host)
{
    network *net = parse_on(0, FIXED, DETECTOR);
    int heads = 0;
    predict(net);
    for (int i = 0; i < net->n; i++) {
        const layer *l = &net->layers[i];
        size_t bytes = (size_t)l->batch * (size_t)l->outputs * sizeof(float);
        if (l->type != YOLO) continue;
        CHECK(!memcmp(l->output, l->output_gpu, bytes));
        heads++;
    }
    CHECK_INT(heads, 2);
    free_network(net);
}

AMP_TEST(the_images_go_to_the_device_page_locked)
{
    network *net = parse_on(0, FIXED, DETECTOR);
    CHECK_INT(darknet_device_registered(), 1);
    long before = darknet_device_asynchronous();
    steps(net, 1);
    CHECK_INT(darknet_device_asynchronous(), before + net->subdivisions);
    resize_network(net, 32, 32);
    CHECK_INT(darknet_device_registered(), 1);
    steps(net, 1);
    CHECK_INT(darknet_device_asynchronous(), before + 2 * net->subdivisions);
    amp_detach(net);
    CHECK_INT(darknet_device_registered(), 0);
    free_network(net);
}

AMP_TEST(without_the_plugin_every_array_has_memory)
{
    network *net = parse_on(0, FIXED, DETECTOR);
    resize_network(net, 128, 128);
    steps(net, 1);
    amp_detach(net);
    CHECK(emulation_bytes_without_memory() == 0);
    net->layers[0].x_gpu[0] = 1;
    net->layers[0].delta_gpu[0] = 1;
    free_network(net);
}

AMP_TEST(a_skipped_step_leaves_no_trace)
{
    network *net = train_on(0, FIXED, DETECTOR, 1), *without = train_on(0, FIXED, DETECTOR, 1);
    bad_step(net);
    CHECK_INT(amp_session_of(net->layers)->step.scaler.skipped, 1);
    CHECK_SAME(net, without);
    free_network(net);
    free_network(without);
}

#define CONNECTED(more) "[connected]\noutput=5\nactivation=linear\n" more "[cost]\nscale=50\n"
enum { OUTPUTS = 5 };

/* How far the biases move at most in a step, in units of the learning rate; they begin as 0. */
static double moved(int device, const char *keys, const char *layers)
{
    network *net = train_on(device, keys, layers, 1);
    const layer *l = &net->layers[0];
    double most = 0;
    for (int k = 0; k < OUTPUTS; k++)
        most = fmax(most, fabs((double)(device < 0 ? l->biases : l->biases_gpu)[k]));
    free_network(net);
    return most / .01;
}

/* Stock keeps them within 1 there, and not on the CPU. The sum over a batch, divided by its size,
 * then is within 1, too. */
AMP_TEST(deltas_of_connected_layers_are_clipped_as_on_a_gpu)
{
    static const char *const keys[] = {FIXED "momentum=0\n", FIXED "momentum=0\namp_dtype=fp32\n",
                                       FIXED "momentum=0\nsubdivisions=1\n"};
    static const char *const layers[] = {CONNECTED(""), CONNECTED(NORMALIZED)};
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < 2; k++) {
            double on_device = moved(0, keys[i], layers[k]);
            CHECK(on_device > .25 && on_device <= 1 + 0x1p-10);
            CHECK(moved(-1, keys[i], layers[k]) > 2);
        }
}

void push_connected_layer(layer l);

AMP_TEST(what_leaves_fp16_before_it_is_clipped_is_seen)
{
    network *net = parse_on(0, FIXED, "[connected]\noutput=5\nactivation=linear\n" CONNECTED(""));
    net->layers[1].weights[0] = 5000;
    push_connected_layer(net->layers[1]);
    steps(net, 1);
    CHECK_INT(amp_session_of(net->layers)->step.scaler.skipped, 1);
    free_network(net);
}

void constrain_gpu(int n, float limit, float *x, int step);

/* What Darknet's code for a layer adds to deltas or keeps them within, as its backward gets it. */
static struct {
    float limit, smooth, kept;
} seen_by_darknet;

static void look(layer l, network net)
{
    (void)net;
    if (l.smooth != 0) seen_by_darknet.smooth = l.smooth;
    if (l.type == L2NORM) seen_by_darknet.kept = l.scales_gpu[0];
    constrain_gpu(1, 1, l.delta_gpu, 1);
    seen_by_darknet.limit = darknet_device_argument();
}

static void leave(layer l, network net)
{
    (void)l, (void)net;
}

/* Weights are not times the loss scale, and an l2norm's gradient is not between passes. */
AMP_TEST(darknets_own_code_follows_the_loss_scale)
{
    network *net = parse_on(0, FIXED, CONV(2, "smooth=.5\n") "[l2norm]\n[cost]\n");
    struct amp_session *s = amp_session_of(net->layers);
    for (int i = 0; i < 2; i++) {
        s->saved[i].forward = leave;
        s->saved[i].backward = look;
    }
    net->layers[1].scales_gpu[0] = 3;
    steps(net, 1);
    CHECK(seen_by_darknet.limit == 64);
    CHECK(seen_by_darknet.smooth == 32);
    CHECK(seen_by_darknet.kept == 3 * 64);
    CHECK(net->layers[1].scales_gpu[0] == 3);
    constrain_gpu(1, 3, net->layers[0].weights_gpu, 1);
    CHECK(darknet_device_argument() == 3);
    free_network(net);
}

/* The exit status of a run with a Darknet whose calls do not arrive. */
static int train_unseen(const char *keys)
{
    int status;
    pid_t child = fork();
    if (child == 0) {
        network *net = parse_on(0, keys, "[rnn]\noutput=4\nhidden=4\n[cost]\n");
        struct amp_saved *rnn = amp_session_of(net->layers)->saved;
        rnn->forward = rnn->backward = leave;
        steps(net, 1);
        _exit(0);
    }
    REQUIRE(child > 0 && waitpid(child, &status, 0) == child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

AMP_TEST(deltas_that_would_be_cut_off_end_the_run)
{
    CHECK_INT(train_unseen(FIXED), 1);
    CHECK_INT(train_unseen(MIXED "loss_scale=1\n"), 0);
}

void pull_convolutional_layer(layer l);
void push_convolutional_layer(layer l);

/* Halves a layer's weights as Darknet brings weights to a device. */
static void push_halves(network *net, int at)
{
    layer l = net->layers[at];
    pull_convolutional_layer(l);
    for (int i = 0; i < l.nweights; i++)
        l.weights[i] *= .5f;
    push_convolutional_layer(l);
}

/* Convolutions hold the weights of the last update; what Darknet writes in between is seen. */
AMP_TEST(weights_that_darknet_pushes_are_taken)
{
    static struct ampk_backend step_by_step;
    network *net = parse_on(0, FIXED, DETECTOR), *other = parse_on(0, FIXED, DETECTOR);
    struct amp_session *s = amp_session_of(net->layers);
    step_by_step = *s->backend;
    step_by_step.conv_update = NULL;
    amp_session_of(other->layers)->backend = &step_by_step;
    for (int i = 0; i < 3; i++) {
        steps(net, 2);
        steps(other, 2);
        CHECK(!s->graph->weights_stale && !s->written);
        CHECK(amp_session_of(other->layers)->graph->weights_stale);
        push_halves(net, 2);
        push_halves(other, 2);
        CHECK(s->written);
    }
    steps(net, 1);
    steps(other, 1);
    CHECK_SAME(net, other);
    free_network(net);
    free_network(other);
}

static void check_resumed(const char *keys, const char *layers)
{
    network *straight = train_on(0, keys, layers, 4), *stopped = train_on(0, keys, layers, 2);
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s", scratch("a.backup"));
    save_weights(stopped, path);
    free_network(stopped);
    network *resumed = parse_on(0, keys, layers);
    load_weights(resumed, path);
    steps(resumed, 2);
    CHECK_SAME(resumed, straight);
    free_network(resumed);
    free_network(straight);
}

AMP_TEST(a_run_goes_on_from_its_files)
{
    check_resumed(FIXED, DETECTOR);
    check_resumed(FIXED "adam=1\n", DETECTOR);
}

/* ---- dropout ---- */

#define SEED   7
#define SEEDED FIXED "seed=7\n"
/* Masks of one size. */
#define DROPPED                                                                                    \
    CONV(8, NORMALIZED)                                                                            \
    "[dropout]\nprobability=.3\n" CONV(8, "") "[dropout]\nprobability=.6\n" YOLO("0,1")
static const int dropped[] = {1, 3};

static size_t mask_size(const network *net)
{
    return (size_t)(net->batch * net->layers[dropped[0]].outputs);
}

/* Of n elements six standard deviations. */
static void check_share_of_kept(const network *net, int i)
{
    uint8_t *keep = mask_of(net, i);
    double n = (double)mask_size(net), kept = 0, p = 1 - (double)net->layers[i].probability;
    for (size_t k = 0; k < mask_size(net); k++)
        kept += keep[k];
    CHECK_NEAR(kept, p * n, 6 * sqrt(p * (1 - p) * n));
    free(keep);
}

static bool same_mask(const network *one, int i, const network *two, int k)
{
    uint8_t *a = mask_of(one, i), *b = mask_of(two, k);
    bool same = !memcmp(a, b, mask_size(one));
    free(a);
    free(b);
    return same;
}

static struct ampk_backend counting;
static int writes, reads;

static void count_write(struct ampk_context *context, void *dst, const void *host, size_t bytes)
{
    writes++;
    ampk_cuda.write(context, dst, host, bytes);
}

static void count_read(struct ampk_context *context, void *host, const void *src, size_t bytes)
{
    reads++;
    ampk_cuda.read(context, host, src, bytes);
}

/* The whole pass is one segment; from host to device goes what Darknet copies, and back the words
 * at its end. */
AMP_TEST(dropout_draws_on_the_device_without_the_host)
{
    network *net = parse_on(0, SEEDED, DROPPED);
    struct amp_session *s = amp_session_of(net->layers);
    counting = *s->backend;
    counting.write = count_write;
    counting.read = count_read;
    s->backend = &counting;
    steps(net, 1);
    const struct amp_graph *g = s->graph;
    CHECK_INT(g->n_segments, 1);
    CHECK(!g->nodes[dropped[0]].drawn && !g->nodes[dropped[1]].drawn);
    writes = reads = 0;
    long copies = darknet_device_asynchronous(), waits = darknet_device_waits();
    long launches = darknet_device_launches();
    size_t replays = emulation_replays();
    steps(net, 3);
    int passes = 3 * net->subdivisions;
    CHECK_INT(writes, 0);
    CHECK_INT(reads, passes);
    CHECK_INT(darknet_device_asynchronous() - copies, passes); /* of images */
    CHECK_INT(darknet_device_waits(), waits);
    CHECK_INT(darknet_device_launches(), launches);
    CHECK_INT(emulation_replays() - replays, 2 * passes);
    free_network(net);
}

AMP_TEST(every_pass_and_every_layer_has_masks_of_its_own)
{
    network *net = parse_on(0, SEEDED, DROPPED), *other = parse_on(0, SEEDED, DROPPED);
    uint8_t *last = NULL;
    pass(other);
    for (int k = 0; k < 4; k++) {
        pass(net);
        for (int i = 0; i < 2; i++) {
            check_mask(net, dropped[i], SEED);
            check_share_of_kept(net, dropped[i]);
            CHECK_INT(same_mask(net, dropped[i], other, dropped[i]), k == 0);
        }
        CHECK(!same_mask(net, dropped[0], net, dropped[1]));
        uint8_t *keep = mask_of(net, dropped[0]);
        CHECK(!last || memcmp(last, keep, mask_size(net)));
        free(last);
        last = keep;
    }
    free(last);
    free_network(net);
    free_network(other);
}

/* The recording of a layer that leaves FP16 is thrown away; its mask stays. */
AMP_TEST(a_layer_that_leaves_fp16_keeps_its_masks)
{
    network *net = train_on(0, SEEDED, DROPPED, 2);
    struct amp_session *s = amp_session_of(net->layers);
    s->demoted[0] = s->demoted[dropped[0]] = AMP_FORMAT_FP32;
    s->replan = true;
    for (int k = 0; k < 4; k++) {
        pass(net);
        check_mask(net, dropped[0], SEED);
        check_mask(net, dropped[1], SEED);
    }
    CHECK_INT(s->plan->layers[dropped[0]].out, AMP_FORMAT_FP32);
    free_network(net);
}

/* Another scale, a step that is skipped, inference between the steps. */
static network *train_with_changes(void)
{
    network *net = parse_on(0, MIXED "seed=7\nloss_scale_init=16777216\n", DROPPED);
    steps(net, 3);
    bad_step(net);
    predict(net);
    steps(net, 2);
    return net;
}

AMP_TEST(dropout_in_a_recording_is_that_of_layer_by_layer)
{
    network *recorded = train_with_changes();
    emulation_allow_recordings(false);
    network *plain = train_with_changes();
    emulation_allow_recordings(true);
    CHECK_SAME(recorded, plain);
    free_network(recorded);
    free_network(plain);
}

AMP_TEST(a_run_with_dropout_goes_on_with_the_masks_of_the_unbroken_one)
{
    check_resumed(SEEDED, DROPPED);
    check_resumed(SEEDED "adam=1\n", DROPPED);
}

AMP_TEST(without_a_seed_every_run_has_masks_of_its_own)
{
    network *net = train_on(0, FIXED, DROPPED, 1), *other = train_on(0, FIXED, DROPPED, 1);
    uint64_t seed = amp_session_of(net->layers)->mask_seed;
    check_mask(net, dropped[0], seed);
    CHECK(!same_mask(net, dropped[0], other, dropped[0]));
    CHECK(!is_same(net, other));
    pass(net); /* the key is drawn once */
    check_mask(net, dropped[1], seed);
    free_network(net);
    free_network(other);
}

void cuda_random(float *x_gpu, size_t n); /* in Darknet's cuda.h, as CUDA has one too */

/* cuRAND knows no seed: what Darknet has drawn on the device comes from the seed's stream, and all
 * of it. */
AMP_TEST(with_a_seed_what_darknet_draws_on_the_device_is_drawn_from_it)
{
    enum { N = 1001 };
    struct amp_stream stream, same;
    gpu_index = 0;
    float *x = cuda_make_array(NULL, N + 1);
    x[N] = -1;
    amp_stream_open(&stream, test_random(), AMP_STREAM_PASS, 1, 0);
    same = stream;
    amp_seed_use(&stream);
    cuda_random(x, N);
    amp_seed_use(NULL);
    for (int i = 0; i < N; i++)
        CHECK_NEAR(x[i], (amp_stream_bits(&same) >> 1) * 0x1p-31, 1e-7);
    CHECK(x[N] == -1);
    cuda_free(x);
}

/* With -nogpu a GPU build is a Darknet on the CPU. */
AMP_TEST(dropout_on_the_cpu_draws_as_darknet)
{
    network *net = train_on(-1, FIXED, DROPPED, 1), *same = train_on(-1, FIXED, DROPPED, 1);
    CHECK(amp_session_of(net->layers)->graph->nodes[dropped[0]].drawn);
    CHECK_SAME(net, same); /* by srand */
    free_network(net);
    free_network(same);
}

/* No convolution: without a GPU Darknet's own stop at cuDNN. */
#define POOLS "[maxpool]\nsize=2\nstride=2\n[upsample]\nstride=2\n[cost]\n"

static void check_timed(const struct amp_profile *p)
{
    CHECK_INT(p->rounds, 15);
    for (int way = 0; way < AMP_PROFILE_WAYS; way++) {
        for (int i = 0; i < p->net->n; i++)
            CHECK(p->layers[i].seconds[way][AMP_PROFILE_FORWARD] > 0);
        CHECK(p->update[way] > 0 && p->step[way] > p->update[way]);
    }
}

/* Of both ways `amp profile` times what runs on the device, and waits for it around every layer. */
AMP_TEST(layers_are_timed_where_they_run)
{
    network *nets[] = {parse_on(0, "subdivisions=1\n", POOLS),
                       parse_on(0, FIXED "subdivisions=1\n", POOLS)};
    struct amp_profile_layer layers[3] = {0};
    struct amp_profile p = {.net = amp_session_of(nets[1]->layers)->desc, .layers = layers};
    char err[256] = "";
    void *forward = (void *)nets[0]->layers[1].forward_gpu;
    for (int i = 0; i < 2; i++)
        load_images(nets[i], 1);
    long launches = darknet_device_launches(), waits = darknet_device_waits();
    CHECK_INT(amp_profile_time(&p, nets, stderr, err, sizeof err), 0);
    CHECK(!err[0]);
    check_timed(&p);
    CHECK(darknet_device_launches() > launches); /* Darknet's own way */
    /* Its layers twice in either pass, and each step's three parts. */
    CHECK(darknet_device_waits() - waits >= (15 + 1) * (3 * 2 * 2 + 4));
    CHECK((void *)nets[0]->layers[1].forward_gpu == forward);
    free_network(nets[0]);
    free_network(nets[1]);
}

AMP_TEST_MAIN
