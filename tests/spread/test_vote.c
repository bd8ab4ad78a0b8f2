/* One process that cannot use its passes, in every position, makes one state of all: the state that
 * one process has that runs all passes. */
#include "plugin/spread/vote.h"

#include "tests/rig/harness.h"

enum { MOST = 5, PASSES = 2 };

struct rank {
    struct amp_step step;
    struct amp_log log;
    int demoted; /* layer; -1: none */
};

static struct rank ranks[MOST];
static struct amp_scaler begun;
static struct amp_net_desc net;
static struct amp_layer_desc layers[4];
static char said[4096];

static void demote(void *user, const struct amp_fault *f)
{
    struct rank *rank = user;
    rank->demoted = f->layer;
}

/* After PASSES clean passes of each process, at loss r + 1 a pass. */
static void start(int n)
{
    net = (struct amp_net_desc){.n = 4, .layers = layers};
    begun = (struct amp_scaler){.dynamic = true,
                                .reduced = true,
                                .scale = 1024,
                                .min = 1,
                                .max = 16777216,
                                .growth = 2,
                                .window = 100,
                                .tracker = 7,
                                .redone = 5,
                                .backed_off = 6,
                                .applied = 50,
                                .skipped = 3,
                                .backoff = .5};
    for (int r = 0; r < n; r++) {
        ranks[r] = (struct rank){.demoted = -1};
        amp_log_start(&ranks[r].log, &net);
        ranks[r].step = (struct amp_step){.scaler = begun,
                                          .log = &ranks[r].log,
                                          .passes = PASSES,
                                          .loss_sum = PASSES * (r + 1.),
                                          .demote = demote,
                                          .told_sum = PASSES * (r + 2.),
                                          .user = &ranks[r]};
    }
}

/* Every process gets all votes. Returns what the processes' logs said. */
static const char *agree(int n, int signal_at)
{
    struct amp_vote votes[MOST];
    *said = 0; /* fmemopen leaves it alone where nothing is printed */
    FILE *log = fmemopen(said, sizeof said, "w");
    for (int r = 0; r < n; r++) {
        amp_vote_cast(&ranks[r].step, &begun, &votes[r]);
        votes[r].signal = r == signal_at ? 15 : 0;
    }
    for (int r = 0; r < n; r++) {
        ranks[r].log.out = log;
        amp_votes_apply(votes, n, r, &begun, &ranks[r].step);
    }
    fclose(log);
    CHECK_INT(amp_votes_signal(votes, n), signal_at < n && signal_at >= 0 ? 15 : 0);
    return said;
}

static void check_alike(int n)
{
    double told = PASSES * n * (n + 3) / 2.;
    CHECK(ranks[0].step.told_sum == told);
    for (int r = 1; r < n; r++) {
        const struct amp_step *a = &ranks[0].step, *b = &ranks[r].step;
        CHECK_INT(b->poisoned, a->poisoned);
        CHECK_INT(b->fault.class, a->fault.class);
        CHECK_INT(b->fault.layer, a->fault.layer);
        CHECK_INT(b->cause_is_scale, a->cause_is_scale);
        CHECK_INT(b->passes, n * PASSES);
        CHECK(b->scaler.scale == a->scaler.scale);
        CHECK(b->loss_sum == a->loss_sum || (isnan(b->loss_sum) && isnan(a->loss_sum)));
        CHECK(b->told_sum == a->told_sum);
        CHECK_INT(b->scaler.tracker, a->scaler.tracker);
        CHECK_INT(b->scaler.redone, a->scaler.redone);
        CHECK_INT(b->scaler.backed_off, a->scaler.backed_off);
        CHECK_INT(b->scaler.searching, a->scaler.searching);
        CHECK_INT(b->scaler.tight, a->scaler.tight);
        CHECK_INT(b->scaler.at_floor, a->scaler.at_floor);
        CHECK_INT(b->demotions.n, a->demotions.n);
    }
}

/* Runs the body for each number of processes, and each of them as the bad one. */
#define FOR_EACH_POSITION(n, bad)                                                                  \
    for (int n = 2; n <= MOST; n++)                                                                \
        for (int bad = 0; bad < n; bad++)

static void poison(int r, enum amp_fault_class class, int layer)
{
    struct amp_step *s = &ranks[r].step;
    s->poisoned = true;
    s->cause_is_scale = class == AMP_FAULT_BACKWARD;
    s->fault = (struct amp_fault){class, layer, AMP_WATCH_OUT, 1e9};
    s->bad_pass = r * PASSES;
    s->loss_sum = class == AMP_FAULT_BACKWARD ? s->loss_sum : NAN;
}

AMP_TEST(clean_votes_add_up)
{
    for (int n = 1; n <= MOST; n++) {
        start(n);
        const char *log = agree(n, -1);
        check_alike(n);
        CHECK(!ranks[0].step.poisoned);
        CHECK(ranks[0].step.loss_sum == PASSES * n * (n + 1) / 2.);
        CHECK_INT(ranks[0].step.scaler.tracker, 7);
        CHECK_INT(ranks[0].step.scaler.redone, 5);
        CHECK(!*log);
    }
}

AMP_TEST(the_slowest_is_who_worked_longest)
{
    FOR_EACH_POSITION(n, bad)
    {
        struct amp_vote votes[MOST] = {{0}};
        for (int r = 0; r < n; r++)
            votes[r].worked = r == bad ? 2 : test_uniform(0, 1);
        CHECK_INT(amp_votes_slowest(votes, n), bad);
    }
}

/* One process redid a pass at a lower scale and goes on: so do all, at that scale. */
AMP_TEST(the_smallest_scale_counts)
{
    FOR_EACH_POSITION(n, bad)
    {
        start(n);
        struct amp_scaler *s = &ranks[bad].step.scaler;
        s->retry = true;
        CHECK_INT(amp_scaler_overflow(s, 0), AMP_VERDICT_RETRY);
        amp_scaler_pass(s, 0);
        const char *log = agree(n, -1);
        check_alike(n);
        CHECK(!ranks[0].step.poisoned);
        CHECK(ranks[0].step.scaler.scale == 512);
        CHECK_INT(ranks[0].step.scaler.redone, 6);
        CHECK_INT(ranks[0].step.scaler.backed_off, 7);
        CHECK_INT(ranks[0].step.scaler.tracker, 0);
        CHECK(ranks[0].step.scaler.tight);
        CHECK_INT(strstr(log, "overflow in another process") != NULL, bad > 0);
    }
}

/* Gradients that would not fit at the next scale in one process keep all from growing. */
AMP_TEST(the_least_room_counts)
{
    FOR_EACH_POSITION(n, bad)
    {
        start(n);
        for (int r = 0; r < n; r++)
            amp_scaler_pass(&ranks[r].step.scaler, r == bad ? 40000 : 30000);
        agree(n, -1);
        check_alike(n);
        CHECK(ranks[0].step.scaler.tight && ranks[0].step.scaler.scale == 1024);
        CHECK_INT(ranks[0].step.scaler.tracker, 0);
    }
}

AMP_TEST(one_overflow_skips_the_step_for_all)
{
    FOR_EACH_POSITION(n, bad)
    {
        start(n);
        CHECK_INT(amp_scaler_overflow(&ranks[bad].step.scaler, 0), AMP_VERDICT_SKIP);
        poison(bad, AMP_FAULT_BACKWARD, 2);
        const char *log = agree(n, -1);
        check_alike(n);
        CHECK(ranks[0].step.poisoned && ranks[0].step.cause_is_scale);
        CHECK_INT(ranks[0].step.fault.class, AMP_FAULT_BACKWARD);
        CHECK(isfinite(ranks[0].step.loss_sum)); /* forward was good */
        char who[20];
        snprintf(who, sizeof who, "rank %d: ", bad);
        CHECK_INT(strstr(log, who) != NULL, bad > 0);
    }
}

AMP_TEST(a_layer_leaves_fp16_in_all)
{
    FOR_EACH_POSITION(n, bad)
    {
        start(n);
        struct amp_fault f = {AMP_FAULT_FORWARD, 1, AMP_WATCH_OUT, 1e6};
        poison(bad, AMP_FAULT_FORWARD, 1);
        amp_step_demote(&ranks[bad].step, &f);
        agree(n, -1);
        check_alike(n);
        CHECK(ranks[0].step.poisoned && !ranks[0].step.cause_is_scale);
        for (int r = 0; r < n; r++)
            CHECK_INT(ranks[r].demoted, 1);
        CHECK(isnan(ranks[0].step.loss_sum));
    }
}

/* The demotion counts although the image that follows is the reason that is told. */
AMP_TEST(a_bad_image_is_named_and_hides_no_demotion)
{
    FOR_EACH_POSITION(n, bad)
    {
        start(n);
        struct amp_fault f = {AMP_FAULT_FORWARD, 3, AMP_WATCH_OUT, 1e6};
        amp_step_demote(&ranks[bad].step, &f);
        poison(bad, AMP_FAULT_INPUT, 0);
        strcpy(ranks[bad].step.bad_image, "there/bad.png");
        const char *log = agree(n, -1);
        check_alike(n);
        CHECK_INT(ranks[0].step.fault.class, AMP_FAULT_INPUT);
        for (int r = 0; r < n; r++)
            CHECK_INT(ranks[r].demoted, 3);
        CHECK_INT(strstr(log, "there/bad.png") != NULL, bad > 0);
        CHECK(ranks[0].step.scaler.scale == 1024);
    }
}

/* Two different ones: that of the earlier pass, as in one process; both are logged. */
AMP_TEST(of_two_faults_the_first_counts)
{
    start(4);
    poison(3, AMP_FAULT_DIVERGED, 2);
    poison(1, AMP_FAULT_BACKWARD, 3);
    const char *log = agree(4, -1);
    check_alike(4);
    CHECK_INT(ranks[0].step.fault.class, AMP_FAULT_BACKWARD);
    CHECK(strstr(log, "rank 1: ") && strstr(log, "rank 3: "));
}

/* The search for the first scale ends for all. */
AMP_TEST(the_search_ends_in_all)
{
    start(3);
    begun.searching = true;
    begun.scale = 16777216;
    for (int r = 0; r < 3; r++) {
        ranks[r].step.scaler = begun;
        ranks[r].step.scaler.retry = true;
        for (int k = 0; k < 10 + r; k++)
            amp_scaler_overflow(&ranks[r].step.scaler, 0);
        amp_scaler_pass(&ranks[r].step.scaler, 0);
    }
    agree(3, -1);
    check_alike(3);
    CHECK(ranks[0].step.scaler.scale == ldexp(1, 24 - 12));
    CHECK(!ranks[0].step.scaler.searching);
}

/* Passes that are judged together: the first fault in the order of computation, of the lowest rank
 * that has it, and the largest gradient of all. */
AMP_TEST(of_findings_the_first_in_the_pass_counts)
{
    FOR_EACH_POSITION(n, bad)
    {
        struct amp_finding all[MOST] = {0}, found;
        found = amp_findings_first(all, n);
        CHECK_INT(found.fault.class, AMP_FAULT_NONE);
        for (int r = 0; r < n; r++)
            all[r] =
                (struct amp_finding){{AMP_FAULT_DIVERGED, 2, AMP_WATCH_ROLLING, NAN}, .rank = -1};
        CHECK_INT(amp_findings_first(all, n).rank, 0);
        all[bad].fault = (struct amp_fault){AMP_FAULT_FORWARD, 2, AMP_WATCH_Y, 1e6};
        all[bad].largest = 5;
        all[n - 1 - bad].largest += 3;
        found = amp_findings_first(all, n);
        CHECK_INT(found.rank, bad);
        CHECK_INT(found.fault.class, AMP_FAULT_FORWARD);
        CHECK(found.largest == (bad == n - 1 - bad ? 8 : 5));
    }
}

/* What all would say is counted and logged once. */
AMP_TEST(of_passes_judged_together_one_speaks)
{
    struct amp_vote votes[MOST];
    struct amp_fault f = {AMP_FAULT_FORWARD, 3, AMP_WATCH_OUT, 1e6};
    FOR_EACH_POSITION(n, at)
    {
        if (at) continue;
        start(n);
        for (int r = 0; r < n; r++) {
            poison(r, AMP_FAULT_FORWARD, 0);
            amp_step_demote(&ranks[r].step, &f);
            ranks[r].demoted = -1;
            ranks[r].step.scaler.redone += 2;
            amp_vote_cast(&ranks[r].step, &begun, &votes[r]);
            amp_vote_say_once(&votes[r], r);
        }
        for (int r = 0; r < n; r++) {
            ranks[r].log.out = fopen("/dev/null", "w");
            REQUIRE(ranks[r].log.out);
            amp_votes_apply(votes, n, r, &begun, &ranks[r].step);
            fclose(ranks[r].log.out);
            CHECK(ranks[r].step.poisoned);
            CHECK_INT(ranks[r].step.fault.class, AMP_FAULT_FORWARD);
            CHECK_INT(ranks[r].step.scaler.redone, begun.redone + 2);
            CHECK_INT(ranks[r].demoted, -1);
            CHECK_INT(ranks[r].step.passes, n * PASSES);
        }
    }
}

AMP_TEST(a_signal_anywhere_is_for_all)
{
    FOR_EACH_POSITION(n, at)
    {
        start(n);
        agree(n, at);
        CHECK(!ranks[0].step.poisoned);
    }
}

AMP_TEST(what_one_has_to_send_again_all_send_again)
{
    FOR_EACH_POSITION(n, bad)
    {
        struct amp_vote votes[MOST];
        start(n);
        for (int r = 0; r < n; r++) {
            ranks[r].step.sent = true;
            amp_vote_cast(&ranks[r].step, &begun, &votes[r]);
        }
        CHECK(amp_votes_sent(votes, n));
        ranks[bad].step.sent = false;
        amp_vote_cast(&ranks[bad].step, &begun, &votes[bad]);
        CHECK(!amp_votes_sent(votes, n));
    }
}

AMP_TEST_MAIN
