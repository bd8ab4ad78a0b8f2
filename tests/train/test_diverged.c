// A run that blows up, through Darknet: it is stopped, it says since when, and what it would save
// meanwhile replaces no good weights.
#include "tests/harness.h"
#include "tests/train/attached.h"

static const char *const dtypes[] = {MIXED "amp_dtype=fp32\n", MIXED};

static struct amp_step *step_of(network *net)
{
    return &amp_session_of(net->layers)->step;
}

static jmp_buf stopped;
static char why[1024];

static void stop(const char *message)
{
    snprintf(why, sizeof why, "%s", message);
    longjmp(stopped, 1);
}

// A network that has learnt a little, and its weights.
static network *learn(const char *keys, const char *layers)
{
    network *net = parse(keys, layers);
    listen_to(net);
    step_of(net)->stop = stop;
    steps(net, 30);
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
    char at[65536];
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

// Steps at that rate until the run is stopped; a save after each while it is suspect. Returns how
// many of those there were; -1: it was not stopped.
static int blow_up(network *net, float rate, const char *name)
{
    struct text *weights = read_all(name), *sidecar = read_all("a.backup.amp");
    volatile int saves = 0, ended = 0;
    net->learning_rate = rate;
    if (setjmp(stopped)) {
        ended = 1;
    } else {
        for (int i = 0; i < 300; ++i) {
            steps(net, 1);
            if (!amp_divergence_suspect(&step_of(net)->divergence)) continue;
            save_weights(net, (char *)scratch(name));
            ++saves;
            CHECK(is_file(name, weights));
            CHECK(is_file("a.backup.amp", sidecar));
        }
    }
    CHECK(is_file(name, weights));
    free(weights);
    free(sidecar);
    return ended ? saves : -1;
}

// Which loss was lost when; with the layer where arithmetic came to an end first.
static void check_said_when(const struct amp_divergence *d)
{
    char since[200], losses[200];
    amp_divergence_describe(d, losses, sizeof losses);
    snprintf(since, sizeof since, "since iteration %zu the loss is not finite or above", d->since);
    CHECK(strstr(why, since) && strstr(why, losses));
    CHECK(strstr(why, "The weights on disk are the last good ones") != NULL);
    CHECK(d->since >= 31 && d->since <= 60 && d->last < 1e5);
}

AMP_TEST(a_run_that_blows_up_is_stopped_and_its_backup_kept)
{
    static const float rates[] = {1, 30, 1000};
    const char *layers;
    ON_BOTH_NETS(layers)
    {
        for (int d = 0; d < 2; ++d)
            for (int k = 0; k < 3; ++k) {
                network *net = learn(dtypes[d], layers);
                CHECK(blow_up(net, rates[k], "a.backup") > 0);
                check_said_when(&step_of(net)->divergence);
                if (test_failures)
                    TEST_FAIL("net %d, %s, rate %g: %s", nth, dtypes[d], (double)rates[k], why);
                end(net);
            }
    }
}

// One step at a rate that is too high.
static void spoil(network *net)
{
    net->learning_rate = 30;
    for (int i = 0; i < 2; ++i)
        steps(net, 1);
    CHECK(amp_divergence_suspect(&step_of(net)->divergence));
}

static bool exists(const char *name)
{
    return !access(scratch(name), F_OK);
}

AMP_TEST(numbered_weights_replace_nothing_and_are_written)
{
    network *net = learn(dtypes[0], DETECTOR);
    spoil(net);
    save_weights(net, (char *)scratch("a_32.weights"));
    save_weights(net, (char *)scratch("b.backup"));
    CHECK(exists("a_32.weights") && !exists("b.backup") && !exists("b.backup.amp"));
    end(net);
}

// As the losses: a step back to weights from before, and the run is not suspect any more.
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

AMP_TEST(runs_that_learn_are_not_suspect)
{
    const char *layers;
    ON_BOTH_NETS(layers)
    {
        for (int d = 0; d < 2; ++d) {
            network *net = learn(dtypes[d], layers);
            for (int i = 0; i < 300; ++i) {
                steps(net, 1);
                CHECK(!amp_divergence_suspect(&step_of(net)->divergence));
            }
            end(net);
        }
    }
}

AMP_TEST_MAIN
