/* A run that blows up, through Darknet: it is stopped, it says since when, and what it would save
 * meanwhile replaces no good weights. */
#include "tests/rig/harness.h"
#include "tests/rig/attached.h"

#include <sys/wait.h>

static const char *const dtypes[] = {MIXED "amp_dtype=fp32\n", MIXED};

static struct amp_step *step_of(network *net)
{
    return &amp_session_of(net->layers)->step;
}

static int steps_learnt = 30;

/* A network that has learnt a little, and its weights. At ten times this rate whether the first
 * steps go well depends on the last bits, which are the processor's. */
static network *learn(const char *keys, const char *layers)
{
    char all[1000];
    snprintf(all, sizeof all, "%samp_backup_every=0\n", keys);
    network *net = parse(all, layers);
    listen_to(net);
    step_of(net)->stop = stop;
    net->learning_rate = .001f;
    steps(net, steps_learnt);
    CHECK(!amp_divergence_suspect(&step_of(net)->divergence));
    save_weights(net, (char *)scratch("a.backup"));
    *why = 0;
    return net;
}

static void end(network *net)
{
    stop_listening(net);
    free_network(net);
    scratch_empty();
}

struct text {
    char at[1 << 18];
    long n;
};

static struct text *read_all(const char *name)
{
    struct text *t = malloc(sizeof *t);
    REQUIRE(t);
    t->n = scratch_read(name, t->at, sizeof t->at);
    REQUIRE(t->n > 0 && t->n < (long)sizeof t->at - 1);
    return t;
}

static bool is_file(const char *name, const struct text *expected)
{
    struct text *now = read_all(name);
    bool same = now->n == expected->n && !memcmp(now->at, expected->at, (size_t)now->n);
    free(now);
    return same;
}

/* Steps at that rate until the run is stopped; a save after each while it is suspect. Returns how
 * many of those there were; -1: it was not stopped. */
static int blow_up(network *net, float rate, const char *name)
{
    struct text *weights = read_all(name), *sidecar = read_all("a.backup.amp");
    volatile int saves = 0, ended = 0;
    net->learning_rate = rate;
    if (setjmp(stopped)) {
        ended = 1;
    } else {
        for (int i = 0; i < 300; i++) {
            steps(net, 1);
            if (!amp_divergence_suspect(&step_of(net)->divergence)) continue;
            save_weights(net, (char *)scratch(name));
            saves++;
            CHECK(is_file(name, weights));
            CHECK(is_file("a.backup.amp", sidecar));
        }
    }
    CHECK(is_file(name, weights));
    free(weights);
    free(sidecar);
    return ended ? saves : -1;
}

/* Which loss was lost when; with the layer where arithmetic came to an end first. */
static void check_said_when(const struct amp_divergence *d)
{
    char since[200], losses[200];
    amp_divergence_describe(d, losses, sizeof losses);
    snprintf(since, sizeof since, "since iteration %zu the loss is not finite or above", d->since);
    CHECK(strstr(why, since) && strstr(why, losses));
    CHECK(d->since >= 31 && d->since <= 60 && d->last < 1e5);
}

AMP_TEST(a_run_that_blows_up_is_stopped_and_its_backup_kept)
{
    static const float rates[] = {1, 30, 1000};
    const char *layers;
    ON_BOTH_NETS(layers)
    {
        for (int d = 0; d < 2; d++)
            for (int k = 0; k < 3; k++) {
                network *net = learn(dtypes[d], layers);
                CHECK(blow_up(net, rates[k], "a.backup") > 0);
                check_said_when(&step_of(net)->divergence);
                if (test_failures)
                    TEST_FAIL("net %d, %s, rate %g: %s", nth, dtypes[d], (double)rates[k], why);
                end(net);
            }
    }
}

/* One step at a rate that is too high. */
static void spoil(network *net)
{
    net->learning_rate = 30;
    for (int i = 0; i < 2; i++)
        steps(net, 1);
    CHECK(amp_divergence_suspect(&step_of(net)->divergence));
}

AMP_TEST(numbered_weights_are_written_where_they_replace_nothing)
{
    network *net = learn(dtypes[0], DETECTOR);
    save_weights(net, (char *)scratch("a_31.weights"));
    struct text *earlier = read_all("a_31.weights");
    spoil(net);
    save_weights(net, (char *)scratch("a_31.weights"));
    CHECK(is_file("a_31.weights", earlier));
    free(earlier);
    save_weights(net, (char *)scratch("a_32.weights"));
    save_weights(net, (char *)scratch("b.backup"));
    CHECK(exists("a_32.weights") && !exists("b.backup") && !exists("b.backup.amp"));
    end(net);
}

/* It may be a sign, so the backup waits for the next save; final weights cannot. */
AMP_TEST(a_layer_that_leaves_fp16_at_the_end_does_not_cost_the_final_weights)
{
    network *net = learn(MIXED, DETECTOR);
    for (int i = 0; i < net->layers[0].nweights; i++)
        net->layers[0].weights[i] *= 1e6f;
    steps(net, 1);
    CHECK(step_of(net)->fault.class == AMP_FAULT_FORWARD);
    save_weights(net, (char *)scratch("b.backup"));
    save_weights(net, (char *)scratch("a_final.weights"));
    CHECK(!exists("b.backup") && exists("a_final.weights") && exists("a_final.weights.amp"));
    end(net);
}

/* As the losses: a step back to weights from before, and the run is not suspect any more. */
AMP_TEST(a_loss_that_comes_back_lets_saves_through_again)
{
    network *net = learn(dtypes[0], DETECTOR);
    spoil(net);
    load_weights(net, (char *)scratch("a.backup"));
    net->learning_rate = .01f;
    steps(net, 1);
    CHECK(!amp_divergence_suspect(&step_of(net)->divergence));
    save_weights(net, (char *)scratch("b.backup"));
    CHECK(exists("b.backup") && exists("b.backup.amp"));
    end(net);
}

AMP_TEST(a_run_that_shall_carry_on_is_warned_once_and_saved_as_ever)
{
    network *net = learn(MIXED "amp_on_divergence=continue\n", DETECTOR);
    net->learning_rate = 30;
    if (setjmp(stopped)) {
        TEST_FAIL("stopped: %s", why);
    } else {
        steps(net, 60);
        CHECK(amp_divergence_suspect(&step_of(net)->divergence));
        struct text *before = read_all("a.backup");
        save_weights(net, (char *)scratch("a.backup"));
        CHECK(!is_file("a.backup", before) && exists("a.backup.amp"));
        free(before);
    }
    const char *told = strstr(said(net), "going on, as amp_on_divergence=continue says");
    CHECK(told && !strstr(told + 1, "going on, as"));
    end(net);
}

/* ---- stored state that is spoilt between two steps ---- */

/* A save ends the program; what it prints is not shown. */
static bool save_is_refused(network *net)
{
    int status;
    fflush(NULL);
    pid_t child = fork(); /* which starts no threads */
    REQUIRE(child >= 0);
    if (!child) {
        if (!freopen("/dev/null", "w", stderr)) _exit(2);
        save_weights(net, (char *)scratch("a.backup"));
        _exit(0);
    }
    return waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 1;
}

/* Stopped within two steps, or else at the next save; the files stay either way. */
static bool is_stopped(network *net)
{
    *why = 0;
    if (!setjmp(stopped)) steps(net, 2);
    CHECK(!*why || strstr(why, "training diverged: ") == why);
    return *why;
}

/* What no weight is computed from, or leaves it as it is: Darknet's momentum with Adam, an infinite
 * second moment. */
static bool shows_in_files_only(const struct kept *k, const char *keys, float value)
{
    bool adam = strstr(keys, "adam"), second = !strcmp(k->what, "Adam's v");
    return adam && (!strcmp(k->what, "momentum") || (second && !isnan(value)));
}

static bool spoil_array(const char *keys, const char *layers, int i, float value)
{
    struct kept kept[256];
    network *net = learn(keys, layers);
    struct text *weights = read_all("a.backup"), *sidecar = read_all("a.backup.amp");
    list_kept(net, kept);
    kept[i].x[kept[i].n / 2] = value;
    bool ended = is_stopped(net);
    if (ended == shows_in_files_only(&kept[i], keys, value) || (!ended && !save_is_refused(net)))
        TEST_FAIL("%g in %s of layer %d: %s", (double)value, kept[i].what, kept[i].layer,
                  ended ? why : "goes unnoticed");
    CHECK(is_file("a.backup", weights) && is_file("a.backup.amp", sidecar));
    free(weights);
    free(sidecar);
    end(net);
    return ended;
}

AMP_TEST(stored_state_that_is_spoilt_ends_the_run_and_reaches_no_file)
{
    const char *layers;
    int arrays = 0, ended = 0;
    steps_learnt = 3;
    ON_BOTH_NETS(layers)
    {
        for (int adam = 0; adam < 2; adam++) {
            struct kept kept[256];
            const char *keys = adam ? MIXED "adam=1\n" : MIXED;
            network *net = parse(keys, layers);
            int n = list_kept(net, kept);
            free_network(net);
            for (int i = 0; i < n; i++)
                ended += spoil_array(keys, layers, i, test_random() & 1 ? NAN : INFINITY);
            arrays += n;
        }
    }
    steps_learnt = 30;
    printf("%d arrays spoilt: %d ended the run within two steps, the others at the next save\n",
           arrays, ended);
}

/* Some turn NaN into a number. */
AMP_TEST(no_activation_hides_a_spoilt_bias_from_the_files)
{
    static const char *const activations[] = {"logistic", "loggy", "relu",    "elu",   "selu",
                                              "relie",    "plse",  "hardtan", "lhtan", "linear",
                                              "ramp",     "leaky", "tanh",    "stair"};
    steps_learnt = 3;
    for (size_t k = 0; k < sizeof activations / sizeof *activations; k++)
        for (int n = 0; n < 4; n++) {
            char layers[300];
            snprintf(layers, sizeof layers,
                     "[convolutional]\nsize=3\npad=1\nfilters=4\n%sactivation=%s\n"
                     "[connected]\noutput=4\nactivation=linear\n[cost]\n",
                     n & 1 ? NORMALIZED : "", activations[k]);
            network *net = learn(MIXED, layers);
            net->layers[0].biases[1] = n & 2 ? NAN : INFINITY;
            if (!is_stopped(net) && !save_is_refused(net)) TEST_FAIL("%s", layers);
            end(net);
        }
    steps_learnt = 30;
}

static void check_not_suspect(const char *keys, const char *layers)
{
    network *net = learn(keys, layers);
    if (setjmp(stopped)) {
        TEST_FAIL("%s", why);
        return;
    }
    for (int i = 0; i < 300; i++) {
        steps(net, 1);
        CHECK(!amp_divergence_suspect(&step_of(net)->divergence));
    }
    end(net);
}

/* At the other tests' learning rate stock Darknet's FP32 diverges from three of eight initial
 * weights. */
AMP_TEST(runs_that_learn_are_not_suspect)
{
    const char *layers;
    ON_BOTH_NETS(layers)
    {
        check_not_suspect("learning_rate=.003\n" MIXED, layers);
        check_not_suspect("learning_rate=.003\n" MIXED "amp_dtype=fp32\n", layers);
    }
}

/* Losses of the burn-in say little: how long it is comes from the cfg. */
AMP_TEST(the_burn_in_is_the_cfgs)
{
    network *net = parse(MIXED "burn_in=7\n", DETECTOR);
    CHECK_INT(step_of(net)->divergence.burn_in, 7);
    free_network(net);
}

AMP_TEST_MAIN
