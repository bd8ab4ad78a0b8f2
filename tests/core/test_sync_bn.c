/* Batch-norm over the passes of several processes, for which threads stand in here: statistics and
 * sums are those of one larger pass within the bounds of sync_bn.h, gradients of whole nets by
 * rounding, on every backend. What is wrong with one pass makes all do the same. */
#include "tests/rig/harness.h"
#include "tests/rig/random_net.h"
#include "tests/rig/rig.h"

#include "plugin/core/engine/step.h"
#include "plugin/core/engine/sync_bn.h"
#include "plugin/spread/vote.h"

#include <pthread.h>

enum { MOST = 3 };

/* ---- processes ---- */

struct process {
    int rank;
    struct rig *rig;
    struct amp_step step;
    struct amp_log log;
    float scale;
    int exchanges, demoted;
};

static struct process processes[MOST];
static int count;
static bool deaf; /* the others are not heard: what they bring is as one's own */
static pthread_barrier_t barrier;
static const void *brought[MOST];

/* Returns when all have brought something; what they brought stays until all have left. */
static void meet(struct process *p, const void *x)
{
    brought[p->rank] = x;
    p->exchanges++;
    pthread_barrier_wait(&barrier);
}

static void leave(void)
{
    pthread_barrier_wait(&barrier);
}

static void add(void *user, double *x, size_t n)
{
    struct process *p = user;
    double *sums = calloc(n, sizeof *sums);
    if (!sums) abort();
    meet(p, x);
    for (int r = 0; r < count; r++)
        for (size_t i = 0; i < n; i++)
            sums[i] += deaf ? x[i] : ((const double *)brought[r])[i];
    leave();
    memcpy(x, sums, n * sizeof *x);
    free(sums);
}

/* The text's batch times n; it is the first key. */
static void with_batch(char *to, const char *text, int n)
{
    const char *from = strstr(text, "batch=");
    REQUIRE(from);
    int length = 0, batch = 0;
    REQUIRE(sscanf(from, "batch=%d%n", &batch, &length) == 1);
    snprintf(to, RANDOM_NET_SIZE, "%.*sbatch=%d%s", (int)(from - text), text, batch * n,
             from + length);
}

static void copy(float *to, const float *from, size_t n)
{
    memcpy(to, from, n * sizeof *to);
}

/* Weights and statistics of one, and the rank's part of its images and truths. */
static void take_part(struct rig *r, const struct rig *one, int rank)
{
    size_t images = (size_t)r->net->batch, input = images * (size_t)r->net->inputs, at = 0;
    for (int i = 0; i < r->n_params; i++)
        copy(r->params[i].value, one->params[i].value, r->params[i].n);
    for (int i = 0; i < r->n_rolling; at += r->rolling[i++].n)
        copy(r->rolling[i].value, one->rolling[i].value, r->rolling[i].n);
    copy(r->rolling_start, one->rolling_start, at);
    copy(r->input, one->input + (size_t)rank * input, input);
    for (int i = 0; i < r->net->n; i++) {
        size_t truths = images * (size_t)r->net->layers[i].outputs;
        if (r->truth[i]) copy(r->truth[i], one->truth[i] + (size_t)rank * truths, truths);
    }
}

/* Makes n processes, and returns the one that has all their images. */
static struct rig *start(const char *text, const struct ampk_backend *backend, int n)
{
    static char larger[RANDOM_NET_SIZE];
    char err[300];
    count = n;
    with_batch(larger, text, n);
    struct rig *one = rig_create(larger, backend, test_random);
    REQUIRE(one);
    for (int r = 0; r < n; r++) {
        struct process *p = &processes[r];
        *p = (struct process){.rank = r, .rig = rig_create(text, backend, test_random), .scale = 1};
        REQUIRE(p->rig);
        take_part(p->rig, one, r);
        const struct amp_bn_peers peers = {add, p, n};
        REQUIRE(!amp_graph_sync_batchnorm(p->rig->graph, &peers, err, sizeof err));
    }
    return one;
}

static void run(void *(*body)(void *))
{
    pthread_t threads[MOST];
    REQUIRE(!pthread_barrier_init(&barrier, NULL, (unsigned)count));
    for (int r = 0; r < count; r++)
        REQUIRE(!pthread_create(&threads[r], NULL, body, &processes[r]));
    for (int r = 0; r < count; r++)
        pthread_join(threads[r], NULL);
    pthread_barrier_destroy(&barrier);
}

static void end(struct rig *one)
{
    for (int r = 0; r < count; r++)
        rig_free(processes[r].rig);
    rig_free(one);
}

static void *run_pass(void *user)
{
    struct process *p = user;
    rig_forward(p->rig);
    rig_backward(p->rig, p->scale);
    return NULL;
}

/* ---- the bounds ---- */

static const char single[] =
    "[net]\nbatch=2\nmixed_precision=1\namp_dtype=fp32\nchannels=3\nwidth=7\nheight=5\n"
    "[convolutional]\nbatch_normalize=1\nfilters=9\nsize=3\npad=1\nactivation=leaky\n%s[cost]\n";

/* In double, of one channel: each process's and of all. */
struct exact {
    double own_mean[MOST], own_sum[MOST], own_product[MOST];
    double mean, variance, largest;
    size_t values;
};

static struct exact statistics_of(int channel)
{
    struct exact e = {0};
    double squares = 0;
    for (int r = 0; r < count; r++) {
        const struct amp_node *node = &processes[r].rig->graph->nodes[0];
        size_t area = (size_t)node->y.h * (size_t)node->y.w, n = rig_count(&node->y) / 9, k = 0;
        double *y = rig_load(&node->y), sum = 0;
        for (size_t i = 0; i < rig_count(&node->y); i++)
            if ((int)(i / area % 9) == channel) sum += y[i], k++;
        REQUIRE(k == n);
        e.own_mean[r] = sum / (double)n;
        e.mean += e.own_mean[r] / count;
        e.values += n;
        if (fabs(e.own_mean[r]) > e.largest) e.largest = fabs(e.own_mean[r]);
        free(y);
    }
    for (int r = 0; r < count; r++) {
        const struct amp_node *node = &processes[r].rig->graph->nodes[0];
        size_t area = (size_t)node->y.h * (size_t)node->y.w;
        double *y = rig_load(&node->y);
        for (size_t i = 0; i < rig_count(&node->y); i++)
            if ((int)(i / area % 9) == channel) squares += (y[i] - e.mean) * (y[i] - e.mean);
        free(y);
    }
    e.variance = squares / (double)(e.values - 1);
    return e;
}

/* Of g: the loss's delta is truth - output. */
static void sum_gradients(int channel, struct exact *e)
{
    for (int r = 0; r < count; r++) {
        const struct rig *rig = processes[r].rig;
        const struct amp_node *node = &rig->graph->nodes[0];
        size_t area = (size_t)node->y.h * (size_t)node->y.w;
        double *y = rig_load(&node->y);
        for (size_t i = 0; i < rig_count(&node->y); i++) {
            if ((int)(i / area % 9) != channel) continue;
            double out = rig->bindings[0].output[i], d = (float)((double)rig->truth[1][i] - out);
            double g = d * (out > 0 ? 1 : .1);
            e->own_sum[r] += g;
            e->own_product[r] += g * (y[i] - (double)node->mean[channel]);
        }
        free(y);
    }
}

static void check_channel(int channel)
{
    struct exact e = statistics_of(channel);
    const struct rig *first = processes[0].rig;
    const struct amp_node *node = &first->graph->nodes[0];
    double ulp = 0x1p-23, deviation = sqrt(e.variance), sum = 0, product = 0, sums = 0,
           products = 0, dbias = 0, dscale = 0;
    CHECK_NEAR(node->mean[channel], e.mean, ulp * e.largest);
    CHECK_NEAR(node->variance[channel], e.variance,
               ulp * (e.variance + e.largest * deviation * 1.5));
    /* Once, from where they were. */
    float rolling = first->rolling_start[channel];
    CHECK_NEAR(node->bind.rolling_mean[channel],
               (double)(.99f * rolling + .01f * node->mean[channel]), 0);
    sum_gradients(channel, &e);
    for (int r = 0; r < count; r++) {
        const struct amp_node *own = &processes[r].rig->graph->nodes[0];
        sum += e.own_sum[r];
        product += e.own_product[r];
        sums += fabs(e.own_sum[r]);
        products += fabs(e.own_product[r]);
        dbias += (double)own->biases->grad[channel];
        dscale += (double)own->scales->grad[channel];
        CHECK(own->mean[channel] == node->mean[channel]);
        CHECK(own->variance[channel] == node->variance[channel]);
        CHECK(own->bind.rolling_variance[channel] == node->bind.rolling_variance[channel]);
    }
    double factor = 1 / (sqrt((double)node->variance[channel]) + 1e-6);
    CHECK_NEAR(dbias, sum, ulp * sums);
    CHECK_NEAR(dscale, product * factor, 1.5 * ulp * products * factor);
}

/* The word of the running statistics has the largest of both kinds, of all processes. */
static void check_watched(const struct amp_node *node)
{
    float most = 0, watched;
    for (int c = 0; c < 9; c++)
        most =
            fmaxf(most, fmaxf(fabsf(node->bind.rolling_mean[c]), node->bind.rolling_variance[c]));
    memcpy(&watched, &node->watch[AMP_WATCH_ROLLING], sizeof watched);
    CHECK_NEAR(watched, most, 0);
}

/* Values far from 0, whose means are rounded most; with 2^-23, which one bit more would miss. */
static void check_bounds(float offset)
{
    char text[RANDOM_NET_SIZE];
    snprintf(text, sizeof text, single, "");
    for (int n = 2; n <= MOST; n++) {
        struct rig *one = start(text, &ampk_reference, n);
        for (int r = 0; r < n; r++)
            for (int i = 0; i < processes[r].rig->net->batch * processes[r].rig->net->inputs; i++)
                processes[r].rig->input[i] += offset * (float)(r + 1);
        run(run_pass);
        for (int c = 0; c < 9; c++)
            check_channel(c);
        for (int r = 0; r < n; r++)
            check_watched(&processes[r].rig->graph->nodes[0]);
        CHECK_INT(processes[0].exchanges, 2);
        end(one);
    }
}

AMP_TEST(sums_and_statistics_are_within_their_bounds)
{
    for (int round = 0; round < 20; round++)
        check_bounds(round % 2 ? 4 : 0);
}

/* ---- whole nets ---- */

#define CONV(filters, size, stride)                                                                \
    "[convolutional]\nbatch_normalize=1\npad=1\nactivation=leaky\nfilters=" #filters               \
    "\nsize=" #size "\nstride=" #stride "\n"
// clang-format off
/* Residual blocks and pools, which the convolution before them computes, and slices of routes. */
static const char yolov3_like[] =
    "[net]\n%s\nbatch=3\nchannels=4\nwidth=16\nheight=16\n" CONV(6, 3, 1)
    "[maxpool]\nsize=2\nstride=2\n" CONV(4, 1, 1) CONV(6, 3, 1) "[shortcut]\nfrom=-3\n"
    CONV(4, 1, 1) CONV(6, 3, 1) "checkpoint=1\n[shortcut]\nfrom=-3\n" CONV(8, 3, 2)
    CONV(8, 3, 1) "checkpoint=1\n" CONV(8, 1, 1) "[upsample]\nstride=2\n[route]\nlayers=-1,7\n"
    CONV(6, 1, 1) "[convolutional]\nsize=1\nfilters=7\nactivation=linear\n"
    "[yolo]\nmask=0\nclasses=2\nnum=2\n";
// clang-format on

struct distances {
    double synced, deaf, size;
    int layers;
};

/* Squares of the differences of all gradients' totals from those of the larger pass. */
static double distance_from(struct rig *one, double *size)
{
    double far = 0;
    for (int i = 0; i < one->n_params; i++) {
        if (!one->plan->layers[one->params[i].layer].backward) continue;
        float *whole = rig_gradient(one, i), *parts[MOST];
        for (int r = 0; r < count; r++)
            parts[r] = rig_gradient(processes[r].rig, i);
        for (size_t k = 0; k < one->params[i].n; k++) {
            double total = 0;
            for (int r = 0; r < count; r++)
                total += (double)parts[r][k];
            far += pow(total - (double)whole[k], 2);
            *size += pow(whole[k], 2);
        }
        for (int r = 0; r < count; r++)
            free(parts[r]);
        free(whole);
    }
    return far;
}

static void check_same_statistics(const struct rig *one)
{
    for (int i = 0; i < one->n_rolling; i++)
        for (int r = 1; r < count; r++)
            if (memcmp(processes[r].rig->rolling[i].value, processes[0].rig->rolling[i].value,
                       one->rolling[i].n * sizeof(float)))
                TEST_FAIL("running statistics of layer %d differ", one->rolling[i].layer);
}

static void measure(const char *text, const struct ampk_backend *backend, int n,
                    struct distances *d)
{
    struct rig *one = start(text, backend, n);
    double ignored = 0;
    const struct amp_plan *plan = processes[0].rig->plan;
    for (int r = 0; r < n; r++)
        processes[r].scale = 16;
    rig_forward(one);
    rig_backward(one, 16);
    run(run_pass);
    d->synced += distance_from(one, &d->size);
    check_same_statistics(one);
    /* As often as `amp plan` says, also where a layer runs forward again. */
    for (int r = 0; r < n; r++)
        CHECK_INT(processes[r].exchanges, plan->synced_forward + plan->synced_backward);
    d->layers += plan->synced_forward;
    deaf = true;
    run(run_pass);
    deaf = false;
    d->deaf += distance_from(one, &ignored);
    end(one);
}

/* Gradients of kinks (leaky, maxpool) may jump where two values are nearly equal: rounding is told
 * from a missing exchange by the sum over nets. */
static void check_nets(const struct ampk_backend *backend, int rounds)
{
    static const struct {
        const char *keys;
        double most;
    } dtypes[] = {{"amp_dtype=fp32", .002}, {"amp_dtype=fp16", .05}, {"amp_dtype=bf16", .1}};
    static char text[RANDOM_NET_SIZE], keys[100];
    for (int k = 0; k < 3; k++) {
        struct distances d = {0};
        snprintf(keys, sizeof keys, "mixed_precision=1\namp_sync_bn=1\n%s", dtypes[k].keys);
        for (int round = 0; round < rounds; round++) {
            if (round % 3)
                random_net(text, keys, NET_BATCHNORM | NET_SHAPES | NET_FLAT | NET_FREEZE,
                           random_from(3, 12));
            else
                snprintf(text, sizeof text, yolov3_like, keys);
            measure(text, backend, random_from(2, MOST), &d);
            if (test_failures) fprintf(stderr, "round %d:\n%s\n", round, text);
            REQUIRE(!test_failures);
        }
        double synced = sqrt(d.synced / d.size), alone = sqrt(d.deaf / d.size);
        printf("%s: %d layers, off by %.2g of the gradients; without the exchange by %.2g\n",
               dtypes[k].keys, d.layers, synced, alone);
        CHECK(d.layers > rounds);
        CHECK(synced < dtypes[k].most);
        CHECK(alone > dtypes[k].most); /* else a missing exchange would pass */
    }
}

AMP_TEST(nets_on_the_reference)
{
    check_nets(&ampk_reference, 6);
}

AMP_TEST(nets_on_the_cpu)
{
    check_nets(&ampk_cpu, 15);
}

AMP_TEST(nets_on_the_emulated_device)
{
    check_nets(&ampk_cuda, 6);
}

/* ---- one process's fault is all's ---- */

static void judge(void *user, struct amp_step *s, struct amp_finding *f)
{
    struct process *p = user;
    struct amp_finding all[MOST];
    (void)s;
    meet(p, f);
    for (int r = 0; r < count; r++)
        all[r] = *(const struct amp_finding *)brought[r];
    leave();
    *f = amp_findings_first(all, count);
    if (f->rank == p->rank) f->rank = -1;
}

static void begun(void *user, struct amp_step *s, bool first)
{
    (void)user, (void)s, (void)first;
}

static void ran(void *user, struct amp_step *s, int layer)
{
    (void)user, (void)s, (void)layer;
}

static void nothing(void *user, struct amp_step *s)
{
    (void)user, (void)s;
}

static void demote(void *user, const struct amp_fault *f)
{
    struct process *p = user;
    (void)f;
    p->demoted++;
}

static const char *image_name(void *user, int subdivision, int image)
{
    static _Thread_local char name[40];
    (void)user;
    snprintf(name, sizeof name, "image-%d-%d.png", subdivision, image);
    return name;
}

static float *labels[MOST]; /* of a process; NULL: none */

static void *run_step(void *user)
{
    struct process *p = user;
    struct rig *r = p->rig;
    struct amp_batch batch = {.input = r->input, .host_input = r->input};
    if (labels[p->rank]) batch.truth = batch.host_truth = labels[p->rank];
    batch.truths = 1;
    amp_step_begin(&p->step, &batch, p->rank);
    for (int i = 0; i < r->net->n; i++)
        amp_graph_forward(r->graph, i);
    for (int i = r->net->n - 1; i >= r->plan->first_backward; i--)
        amp_step_backward(&p->step, i, r->loss);
    return NULL;
}

static const char step_net[] =
    "[net]\nbatch=2\nmixed_precision=1\namp_dtype=fp16\nchannels=3\nwidth=6\nheight=6\n" CONV(
        4, 3, 1) CONV(5, 3, 2) CONV(3, 1, 1) "[cost]\n";

/* The process whose images and truths `spoil` changes does not run alone into what follows. */
static struct rig *take_step(int n, int spoilt, void (*spoil)(struct rig *))
{
    static const struct amp_step_peers peers = {begun, ran, nothing, nothing, judge, NULL};
    static struct amp_step_peers own[MOST];
    struct rig *one = start(step_net, &ampk_cpu, n);
    for (int r = 0; r < n; r++) {
        struct process *p = &processes[r];
        own[r] = peers;
        own[r].user = p;
        amp_scaler_init(&p->step.scaler, &p->rig->options, 1000);
        amp_log_start(&p->log, p->rig->net);
        p->log.out = fopen("/dev/null", "w");
        REQUIRE(p->log.out);
        p->step.graph = p->rig->graph;
        p->step.log = &p->log;
        p->step.subdivisions = n;
        p->step.first_pass = p->step.last_pass = r;
        p->step.peers = &own[r];
        p->step.demote = demote;
        p->step.image_name = image_name;
        p->step.user = p;
        labels[r] = NULL;
    }
    spoil(processes[spoilt].rig);
    run(run_step);
    for (int r = 0; r < n; r++)
        fclose(processes[r].log.out);
    return one;
}

static void check_all_have(int n, bool poisoned, enum amp_fault_class class)
{
    for (int r = 0; r < n; r++) {
        const struct amp_step *s = &processes[r].step, *first = &processes[0].step;
        CHECK_INT(s->poisoned, poisoned);
        if (poisoned) CHECK_INT(s->fault.class, class);
        if (poisoned) CHECK_INT(s->fault.layer, first->fault.layer);
        CHECK(s->scaler.scale == first->scaler.scale);
        CHECK_INT(s->scaler.redone, first->scaler.redone);
        CHECK_INT(s->scaler.backed_off, first->scaler.backed_off);
        CHECK_INT(processes[r].exchanges, processes[0].exchanges);
        CHECK_INT(processes[r].demoted, processes[0].demoted);
    }
}

static void nothing_is_spoilt(struct rig *r)
{
    (void)r;
}

static void spoil_gradients(struct rig *r)
{
    for (int i = 0; i < r->net->batch * r->net->layers[3].outputs; i++)
        r->truth[3][i] *= 500;
}

/* Overflows of one process alone: all lower the scale by as much and run backward again, so that
 * all sums hold one scale. */
AMP_TEST(an_overflow_in_one_is_repeated_by_all)
{
    for (int n = 2; n <= MOST; n++) {
        struct rig *one = take_step(n, n - 1, nothing_is_spoilt);
        double usual = processes[0].step.scaler.scale;
        check_all_have(n, false, AMP_FAULT_NONE);
        end(one);
        one = take_step(n, n - 1, spoil_gradients);
        check_all_have(n, false, AMP_FAULT_NONE);
        const struct amp_scaler *s = &processes[0].step.scaler;
        CHECK(s->redone > 0 && s->scale < usual / 8);
        /* Three layers in forward, and in each backward; judged before the first and after each. */
        CHECK_INT(processes[0].exchanges, 3 + 1 + 4 * (1 + s->redone));
        for (size_t at = (size_t)(n - 1), k = 0; k < 1; k++) {
            size_t truths = (size_t)processes[0].rig->net->batch *
                            (size_t)processes[0].rig->net->layers[3].outputs;
            copy(one->truth[3] + at * truths, processes[at].rig->truth[3], truths);
        }
        rig_forward(one);
        rig_backward(one, (float)s->scale);
        double size = 0, far = distance_from(one, &size);
        CHECK(sqrt(far / size) < .02);
        end(one);
    }
}

static void spoil_image(struct rig *r)
{
    r->input[r->net->inputs + 3] = NAN;
}

static void spoil_forward(struct rig *r)
{
    for (int i = 0; i < r->net->inputs; i++)
        r->input[i] = copysignf(60000, r->params[0].value[i % 27]);
}

static void spoil_label(struct rig *r)
{
    static float label[2] = {0, NAN};
    for (int k = 0; k < count; k++)
        if (processes[k].rig == r) labels[k] = label;
}

AMP_TEST(a_bad_image_in_one_skips_the_step_of_all)
{
    static void (*const spoils[])(struct rig *) = {spoil_image, spoil_label};
    for (int n = 2; n <= MOST; n++)
        for (int k = 0; k < 2; k++) {
            char name[40];
            struct rig *one = take_step(n, n - 1, spoils[k]);
            snprintf(name, sizeof name, "image-%d-1.png", n - 1);
            check_all_have(n, true, AMP_FAULT_INPUT);
            CHECK_INT(processes[0].exchanges, 3 + 1); /* no backward */
            for (int r = 0; r < n; r++)
                CHECK(!strcmp(processes[r].step.bad_image, name));
            end(one);
        }
}

AMP_TEST(a_layer_that_leaves_fp16_in_one_leaves_it_in_all)
{
    for (int n = 2; n <= MOST; n++) {
        struct rig *one = take_step(n, n - 1, spoil_forward);
        check_all_have(n, true, AMP_FAULT_FORWARD);
        CHECK_INT(processes[0].step.fault.layer, 0);
        CHECK_INT(processes[0].demoted, 1);
        end(one);
    }
}

AMP_TEST_MAIN
