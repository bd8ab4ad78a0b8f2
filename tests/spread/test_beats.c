/* Whole runs of several processes against a clock of the test's own: who is called lost, who saves,
 * who ends, and when. Beats may take a while, and arrive at different times. */
#include "plugin/spread/beats.h"

#include "tests/rig/harness.h"

enum { MOST = 6, NEVER = -1 };
#define TIMEOUT 10.
#define TICK    .1

static struct process {
    struct amp_beats beats;
    double due;
    bool here;    /* neither stopped nor ended */
    double left;  /* when it ended; NEVER */
    int savings;  /* how often it was told to save */
    int told;     /* news that it has sent */
    double saved; /* when it will have */
} processes[MOST];
static int n;
static double now, delay; /* of a beat, at most: in ticks a random number of them */
static double saving;     /* seconds that a save takes */
static bool cut[MOST][MOST];

static struct flight {
    double arrives;
    int from, to;
    struct amp_beat beat;
} flights[4096];
static int flying;

static const char *host(int rank)
{
    static const char *const names[] = {"h0", "h1", "h2", "h3", "h4", "h5"};
    return names[rank];
}

static void start(int count, double most_delay)
{
    n = count;
    now = flying = 0;
    delay = most_delay;
    saving = 1;
    memset(cut, 0, sizeof cut);
    for (int r = 0; r < n; r++) {
        processes[r] = (struct process){.here = true, .left = NEVER, .due = test_uniform(0, 1)};
        REQUIRE(!amp_beats_start(&processes[r].beats, r, n, TIMEOUT));
        processes[r].beats.own.iteration = 5;
    }
}

static void end(void)
{
    for (int r = 0; r < n; r++) {
        free(processes[r].beats.last);
        free(processes[r].beats.silent);
    }
}

static void beat(int r)
{
    for (int to = 0; to < n; to++)
        if (amp_beats_goes_to(&processes[r].beats, to) && !cut[r][to] && flying < 4096)
            flights[flying++] =
                (struct flight){now + test_uniform(0, delay + 1e-9), r, to, processes[r].beats.own};
}

/* Those of one process to another in their order. */
static void arrive(void)
{
    bool waits[MOST][MOST] = {{false}};
    int kept = 0;
    for (int i = 0; i < flying; i++) {
        struct flight f = flights[i];
        if (f.arrives > now || waits[f.from][f.to]) {
            waits[f.from][f.to] = true;
            flights[kept++] = f;
        } else if (processes[f.to].here) {
            amp_beats_hear(&processes[f.to].beats, f.from, &f.beat);
        }
    }
    flying = kept;
}

/* As heartbeat.c does it. */
static void live(int r)
{
    struct process *p = &processes[r];
    amp_beats_pass(&p->beats, TICK, host);
    enum amp_beats_verdict verdict = amp_beats_judge(&p->beats);
    if (verdict == AMP_BEATS_SAVE) {
        p->savings += !p->beats.saving;
        if (!p->beats.saving) p->saved = now + saving;
        p->beats.saving = true;
    }
    if (p->beats.saving && now >= p->saved) p->beats.own.saved = true;
    if (verdict == AMP_BEATS_LEAVE) {
        p->left = now;
        p->here = false;
    }
    int news = amp_beats_news(&p->beats);
    if (now < p->due && news == p->told) return;
    beat(r);
    p->due = now + 1;
    p->told = news;
}

static void run(double seconds)
{
    for (double until = now + seconds; now < until; now += TICK) {
        arrive();
        for (int r = 0; r < n; r++)
            if (processes[r].here) live(r);
    }
}

static void check_all_go_on(void)
{
    for (int r = 0; r < n; r++)
        CHECK_INT(amp_beats_judge(&processes[r].beats), AMP_BEATS_GO_ON);
}

/* All but those that are gone have ended by `latest`, for the reason why; only `saver` has saved.
 */
static void check_ended(double latest, int saver, const char *why)
{
    for (int r = 0; r < n; r++) {
        const struct process *p = &processes[r];
        CHECK_INT(p->savings, r == saver);
        if (p->here || p->left >= 0) CHECK(p->left >= 0 && p->left <= latest);
        if (p->left >= 0) CHECK(strstr(p->beats.own.why, why) != NULL);
    }
}

AMP_TEST(nobody_is_lost_while_all_beat)
{
    start(5, 3);
    run(100);
    check_all_go_on();
    end();
}

AMP_TEST(a_silent_process_is_named_and_process_0_saves)
{
    for (int count = 2; count <= MOST; count++)
        for (int gone = 1; gone < count; gone++) {
            start(count, .5);
            run(test_uniform(2, 20));
            processes[gone].here = false;
            double since = now;
            run(60);
            char why[80];
            snprintf(why, sizeof why, "rank %d on h%d has not been heard of for 10 s", gone, gone);
            check_ended(since + TIMEOUT + 1 + .5 + 2 + 2, 0, why);
            CHECK(strstr(processes[0].beats.own.why, "iteration 5") != NULL);
            end();
        }
}

AMP_TEST(without_process_0_the_lowest_that_lives_saves)
{
    for (int gone = 1; gone < MOST; gone++) {
        start(MOST, .3);
        run(test_uniform(2, 20));
        for (int r = 0; r < gone; r++)
            processes[r].here = false;
        double since = now;
        run(60);
        check_ended(since + TIMEOUT + 1 + 1 + 1 + 2, gone, "rank 0 on h0 has not been heard of");
        end();
    }
}

/* Each half ends by itself. */
AMP_TEST(both_sides_of_a_cut_link_end)
{
    start(4, .2);
    run(5);
    for (int a = 0; a < 2; a++)
        for (int b = 2; b < 4; b++)
            cut[a][b] = cut[b][a] = true;
    run(60);
    for (int r = 0; r < 4; r++) {
        CHECK(processes[r].left >= 0);
        CHECK_INT(processes[r].savings, r % 2 == 0);
        const char *why = processes[r].beats.own.why;
        CHECK(r < 2 ? !strncmp(why, "rank 2", 6) || !strncmp(why, "rank 3", 6)
                    : !strncmp(why, "rank 0", 6));
    }
    end();
}

AMP_TEST(one_that_cannot_go_on_says_why_and_another_saves)
{
    for (int failed = 0; failed < 4; failed++) {
        start(4, .3);
        run(test_uniform(2, 5));
        amp_beats_end(&processes[failed].beats, false, "no memory", host);
        double since = now;
        run(60);
        char why[80];
        snprintf(why, sizeof why, "rank %d on h%d cannot go on, in iteration 5: no memory", failed,
                 failed);
        check_ended(since + 2 + 1 + 2, failed ? 0 : 1, why);
        end();
    }
}

AMP_TEST(the_first_reason_stays)
{
    start(2, .2);
    struct amp_beats *b = &processes[0].beats;
    amp_beats_end(b, false, "no memory", host);
    amp_beats_end(b, false, "disk full", host);
    CHECK(!strcmp(b->own.why, "rank 0 on h0 cannot go on, in iteration 5: no memory"));
    end();
    start(2, .2);
    for (int i = 0; i < 12; i++)
        amp_beats_pass(b, 1, host);
    amp_beats_end(b, true, "no memory", host);
    CHECK_INT(b->own.lost, 1);
    CHECK(strstr(b->own.why, "rank 1 on h1 has not been heard of for 10 s") != NULL);
    end();
}

/* All fail at once, as over a mistake in the cfg: nobody saves, and nobody waits for a saver. */
AMP_TEST(if_all_fail_nobody_saves)
{
    start(4, .2);
    run(3);
    for (int r = 0; r < 4; r++)
        amp_beats_end(&processes[r].beats, false, "bad cfg", host);
    double since = now;
    run(30);
    check_ended(since + 3, NEVER, "cannot go on");
    end();
}

/* Process 0 itself meets the end of memory in its training thread, and saves. */
AMP_TEST(one_that_saves_itself_saves_for_all)
{
    start(3, .2);
    run(3);
    amp_beats_end(&processes[0].beats, true, "no memory", host);
    processes[0].saved = now + 1;
    run(30);
    check_ended(60, NEVER, "rank 0 on h0 cannot go on");
    end();
}

/* A disk that is full there need not be full here. */
AMP_TEST(if_a_save_fails_the_next_one_saves)
{
    start(3, .2);
    run(3);
    amp_beats_end(&processes[2].beats, false, "no memory", host);
    run(.5);
    CHECK_INT(processes[0].savings, 1);
    amp_beats_end(&processes[0].beats, false, "disk full", host);
    run(30);
    CHECK_INT(processes[1].savings, 1);
    for (int r = 0; r < 3; r++)
        CHECK(processes[r].left >= 0);
    end();
}

/* A machine that was suspended wakes up: an hour has passed at once for everybody. */
AMP_TEST(a_gap_in_time_is_nobodys_silence)
{
    start(3, .2);
    run(5);
    for (int i = 0; i < 5; i++) {
        for (int r = 0; r < 3; r++)
            amp_beats_pass(&processes[r].beats, 3600, host);
        run(3);
    }
    check_all_go_on();
    end();
}

/* Who is to save and hangs: after the timeout all end without. */
AMP_TEST(a_saver_that_hangs_keeps_nobody)
{
    start(3, .2);
    amp_beats_end(&processes[2].beats, false, "no memory", host);
    amp_beats_hear(&processes[0].beats, 2, &processes[2].beats.own);
    CHECK_INT(amp_beats_judge(&processes[0].beats), AMP_BEATS_SAVE);
    for (int i = 0; i < 11; i++)
        amp_beats_pass(&processes[0].beats, 1, host);
    CHECK_INT(amp_beats_judge(&processes[0].beats), AMP_BEATS_LEAVE);
    end();
}

/* A large network on a slow disk: all wait as long as the saver beats. */
AMP_TEST(a_save_may_take_longer_than_the_timeout)
{
    start(3, .2);
    saving = 2.5 * TIMEOUT;
    run(3);
    amp_beats_end(&processes[2].beats, false, "no memory", host);
    double since = now;
    run(60);
    CHECK_INT(processes[0].savings, 1);
    CHECK(processes[0].beats.own.saved);
    for (int r = 0; r < 3; r++)
        CHECK(processes[r].left >= since + saving);
    end();
}

AMP_TEST(a_saver_that_dies_keeps_nobody)
{
    start(3, .2);
    run(3);
    amp_beats_end(&processes[2].beats, false, "no memory", host);
    run(.5);
    CHECK_INT(processes[0].savings, 1);
    processes[0].here = false;
    run(TIMEOUT + 2);
    CHECK(processes[1].left >= 0 && processes[2].left >= 0);
    end();
}

AMP_TEST(late_ones_are_told_with_what_they_do)
{
    char text[200];
    start(3, .2);
    processes[1].beats.own =
        (struct amp_beat){.iteration = 7, .in_step = true, .able = true, .lost = -1};
    processes[2].beats.own.waits = true;
    for (int r = 1; r < 3; r++)
        amp_beats_hear(&processes[0].beats, r, &processes[r].beats.own);
    CHECK(amp_beats_late(&processes[0].beats, 1, host, text, sizeof text));
    CHECK(!strcmp(text, "rank 1 on h1 is alive, and computes in iteration 7"));
    CHECK(!amp_beats_late(&processes[0].beats, 2, host, text, sizeof text));
    CHECK(!amp_beats_late(&processes[0].beats, 0, host, text, sizeof text));
    end();
}

AMP_TEST_MAIN
