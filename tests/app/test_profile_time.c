/* What `amp profile` takes for whose time, by a clock that goes on by a tick whenever it is read:
 * the work of a layer is one tick, whatever it does. */
#include "tests/rig/harness.h"
#include "tests/rig/attached.h"

#include "plugin/app/profile.h"

static double clock_seconds, tick = 1;
static int reads, slow_from; /* the read from which a tick is three times as long; 0: none */
static int slow_each;        /* of so many reads one is as slow; 0: none */

double __wrap_amp_clock_seconds(void);
double __wrap_amp_clock_seconds(void)
{
    bool slow = (slow_from && reads >= slow_from) || (slow_each && reads % slow_each == 0);
    ++reads;
    return clock_seconds += slow ? 3 * tick : tick;
}

struct timing {
    network *nets[AMP_PROFILE_WAYS];
    struct amp_profile_layer layers[32];
    struct amp_profile p;
    char *told;
    size_t told_size;
};

static void time_detector(struct timing *t, bool no_fp32)
{
    char err[256] = "";
    *t = (struct timing){.p.layers = t->layers};
    t->nets[AMP_PROFILE_MIXED] = parse(MIXED "subdivisions=1\n", DETECTOR);
    if (!no_fp32) t->nets[AMP_PROFILE_FP32] = parse("subdivisions=1\n", DETECTOR);
    for (int way = 0; way < AMP_PROFILE_WAYS; way++)
        if (t->nets[way]) load_images(t->nets[way], 1);
    t->p.net = amp_session_of(t->nets[AMP_PROFILE_MIXED]->layers)->desc;
    REQUIRE(t->p.net->n <= 32);
    FILE *out = open_memstream(&t->told, &t->told_size);
    REQUIRE(out);
    CHECK_INT(amp_profile_time(&t->p, t->nets, out, err, sizeof err), 0);
    CHECK(!err[0]);
    fclose(out);
}

static void end_timing(struct timing *t)
{
    for (int way = 0; way < AMP_PROFILE_WAYS; way++)
        if (t->nets[way]) free_network(t->nets[way]);
    free(t->told);
}

AMP_TEST(layers_and_what_is_beside_them_make_up_the_step)
{
    struct timing t;
    tick = 1;
    time_detector(&t, false);
    CHECK_INT(t.p.rounds, 3); /* so many ticks are more than enough seconds */
    CHECK(t.p.plan == amp_session_of(t.nets[AMP_PROFILE_MIXED]->layers)->plan);
    struct amp_profile_layer total = amp_profile_total(&t.p);
    for (int way = 0; way < AMP_PROFILE_WAYS; way++) {
        for (int i = 0; i < t.p.net->n; i++)
            for (int pass = 0; pass < AMP_PROFILE_PASSES; pass++)
                CHECK_NEAR(t.layers[i].seconds[way][pass], 1, 0);
        CHECK(t.p.other.seconds[way][AMP_PROFILE_FORWARD] > 0);
        CHECK_NEAR(amp_profile_both(total.seconds[way]) + t.p.update[way], t.p.step[way], 0);
    }
    end_timing(&t);
}

AMP_TEST(pointers_of_darknet_are_put_back)
{
    struct timing t;
    network *plain = parse("subdivisions=1\n", DETECTOR);
    time_detector(&t, false);
    for (int i = 0; i < plain->n; i++) {
        CHECK(t.nets[AMP_PROFILE_FP32]->layers[i].forward == plain->layers[i].forward);
        CHECK(t.nets[AMP_PROFILE_FP32]->layers[i].backward == plain->layers[i].backward);
    }
    free_network(plain);
    end_timing(&t);
}

AMP_TEST(mixed_precision_alone)
{
    struct timing t;
    time_detector(&t, true);
    CHECK(isnan(t.p.step[AMP_PROFILE_FP32]) && isnan(t.p.update[AMP_PROFILE_FP32]));
    CHECK(isnan(t.layers[0].seconds[AMP_PROFILE_FP32][0]));
    CHECK_NEAR(t.layers[0].seconds[AMP_PROFILE_MIXED][0], 1, 0);
    CHECK(strstr(t.told, "mixed precision alone"));
    end_timing(&t);
}

/* Every round takes longer than five of the clock's seconds. */
AMP_TEST(a_slow_profile_tells_its_rounds)
{
    struct timing t;
    tick = 1;
    time_detector(&t, false);
    CHECK(
        strstr(t.told, ", 8 images a pass: Darknet's FP32 and mixed precision in turns, 3 to 15"));
    CHECK(strstr(t.told, "amp profile: round 2 of at most 15, "));
    CHECK(strstr(t.told, "amp profile: round 3 of at most 15, ") && !strstr(t.told, "round 4"));
    end_timing(&t);
}

/* How often the clock is read in a profile of so many rounds. */
static int count_reads(double seconds_of_a_tick, int rounds)
{
    struct timing t;
    reads = 0;
    tick = seconds_of_a_tick;
    time_detector(&t, false);
    CHECK_INT(t.p.rounds, rounds);
    end_timing(&t);
    return reads;
}

/* Two rounds of a tick a layer and two of three ticks: 5 times three seconds are not enough, 8
 * times are. */
AMP_TEST(the_fastest_round_counts)
{
    struct timing t;
    int of_three = count_reads(1, 3), a_round = (count_reads(1e-6, 15) - of_three) / 12;
    reads = 0;
    slow_from = of_three - a_round;
    tick = 3. / a_round;
    time_detector(&t, false);
    slow_from = 0;
    CHECK_INT(t.p.rounds, 4);
    for (int way = 0; way < AMP_PROFILE_WAYS; way++)
        CHECK_NEAR(t.layers[1].seconds[way][AMP_PROFILE_FORWARD], tick, 1e-9);
    end_timing(&t);
}

/* One read in seven is slow. A round's reads are no multiple of seven, so that other layers are
 * disturbed in each, and the fastest pass takes longer than the sum of the fastest of its parts. */
AMP_TEST(what_disturbs_layers_is_not_taken_for_the_rest)
{
    struct timing t;
    tick = 1e-6;
    slow_each = 7;
    time_detector(&t, false);
    slow_each = 0;
    struct amp_profile_layer total = amp_profile_total(&t.p);
    for (int way = 0; way < AMP_PROFILE_WAYS; way++)
        CHECK(amp_profile_both(total.seconds[way]) + t.p.update[way] < t.p.step[way] - 3 * tick);
    end_timing(&t);
}

AMP_TEST(a_fast_profile_tells_no_progress)
{
    struct timing t;
    tick = 1e-6;
    time_detector(&t, false);
    CHECK_INT(t.p.rounds, 15);
    CHECK(strchr(t.told, '\n') == t.told + t.told_size - 1);
    end_timing(&t);
}

/* ---- the report ---- */

static bool with_loading;

/* Sums and quotients are exact. */
static char *report_of(const char *device, bool json)
{
    static struct amp_layer_desc layers[2] = {
        {.type = AMP_CONVOLUTIONAL, .out_w = 4, .out_h = 5, .out_c = 6, .outputs = 120},
        {.type = AMP_CONNECTED, .outputs = 7}};
    static struct amp_plan_layer planned[2] = {{.out = AMP_FORMAT_FP16},
                                               {.out = AMP_FORMAT_BORDER}};
    const struct amp_net_desc net = {.n = 2, .layers = layers, .batch = 4, .cfg_path = "a.cfg"};
    const struct amp_plan plan = {.n = 2, .layers = planned};
    struct amp_profile_layer times[2] = {
        {.seconds = {{.001, .002}, {.00025, .00025}}, .flop = {1e9, 2e9}},
        {.seconds = {{.004, .008}, {.002, .00125}}}};
    struct amp_profile p = {.net = &net,
                            .plan = &plan,
                            .machine = {.backend = "cpu",
                                        .threads = 3,
                                        .versions = {{"oneDNN", "3.1"}},
                                        .n_versions = 1},
                            .rounds = 5,
                            .layers = times,
                            .other = {.seconds = {{.0005, .0005}, {.000125, .000125}}},
                            .update = {.01, .002},
                            .step = {.06, .02}};
    const struct amp_loading loading = {.data = "a.data",
                                        .machine = &p.machine,
                                        .precision = "fp16",
                                        .darknet = .02,
                                        .stages = {.005},
                                        .images = 3,
                                        .listed = 3,
                                        .cores = 2,
                                        .threads = 2,
                                        .step = 1,
                                        .step_images = 4,
                                        .passes = 3};
    p.loading = with_loading ? &loading : NULL;
    char *text = NULL;
    size_t size;
    strcpy(p.machine.device, device);
    FILE *f = open_memstream(&text, &size);
    REQUIRE(f);
    (json ? amp_profile_print_json : amp_profile_print)(&p, f);
    fclose(f);
    return text;
}

AMP_TEST(every_number_of_a_table)
{
    static const char *const said[] = {
        "\namp profile: a.cfg, 4 images a pass, CPU, 3 threads\n"
        "fastest of 5 rounds, random weights and images, oneDNN 3.1\n\n",
        "  0 convolutional 4x5x6          1.000    2.000    3.000   18.8%    0.250    0.250    "
        "0.500   12.5%    6.0x    3.000    6000.0\n"
        "  1 connected 7                  4.000    8.000   12.000   75.0%    2.000    1.250    "
        "3.250   81.2%    3.7x        -         -\n"
        "other                            0.500    0.500    1.000    6.2%    0.125    0.125    "
        "0.250    6.2%    4.0x        -         -\n"
        "all                              5.500   10.500   16.000  100.0%    2.375    1.625    "
        "4.000  100.0%    4.0x    3.000     750.0\n",
        "\nupdate: FP32 10.000 ms, mixed precision 2.000 ms (5.0x); whole step: FP32 60.000 ms, "
        "mixed precision 20.000 ms (3.0x)\nGFLOP: "};
    char *text = report_of("", false), *on_gpu = report_of("a GPU", false);
    for (size_t i = 0; i < sizeof said / sizeof *said; i++)
        CHECK_SAYS(text, said[i]);
    CHECK(!strstr(text, "was waited for") && !strstr(text, "loading: "));
    CHECK_SAYS(on_gpu, "4 images a pass, a GPU\n");
    CHECK_SAYS(on_gpu, "\nEvery layer was waited for; training does not wait, and its step");
    free(text);
    free(on_gpu);
}

AMP_TEST(every_number_of_the_json)
{
    static const char *const said[] = {
        "{\"cfg\": \"a.cfg\", \"backend\": \"cpu\", \"device\": null, \"threads\": 3, "
        "\"versions\": {\"oneDNN\": \"3.1\"},\n \"batch\": 4, \"rounds\": 5, \"no_fp32\": "
        "null,\n \"update_seconds\": {\"fp32\": 0.01, \"mixed\": 0.002}, \"step_seconds\": "
        "{\"fp32\": 0.06, \"mixed\": 0.02},\n \"layers\": [",
        "{\"layer\": 0, \"type\": \"convolutional\", \"outputs\": 120, \"forward_flop\": "
        "1000000000, \"backward_flop\": 2000000000, \"gain\": 6,\n   \"fp32\": {\"format\": "
        "\"FP32 NCHW\", \"forward_seconds\": 0.001, \"backward_seconds\": 0.002, \"share\": "
        "0.1875},\n   \"mixed\": {\"format\": \"FP16\", \"forward_seconds\": 0.00025, "
        "\"backward_seconds\": 0.00025, \"share\": 0.125}}",
        "\"other\": {\"forward_flop\": 0, \"backward_flop\": 0, \"gain\": 4,\n   \"fp32\": "
        "{\"forward_seconds\": 0.0005, \"backward_seconds\": 0.0005, \"share\": 0.0625},",
        "\"total\": {\"forward_flop\": 1000000000, \"backward_flop\": 2000000000, \"gain\": 4,\n"
        "   \"fp32\": {\"forward_seconds\": 0.0055, \"backward_seconds\": 0.0105, \"share\": 1},",
        ",\n \"loading\": null}\n"};
    char *text = report_of("", true), *on_gpu = report_of("a GPU", true);
    for (size_t i = 0; i < sizeof said / sizeof *said; i++)
        CHECK_SAYS(text, said[i]);
    CHECK_SAYS(on_gpu, "\"device\": \"a GPU\"");
    free(text);
    free(on_gpu);
}

/* What it says of that: test_loading_report.c. */
AMP_TEST(loading_follows)
{
    with_loading = true;
    char *text = report_of("", false), *json = report_of("", true);
    with_loading = false;
    CHECK_SAYS(text, "judging the pass.\n\nloading: a.data: 3 of 3 images, ");
    CHECK_SAYS(text, "\nLoading keeps up: ");
    CHECK_SAYS(json, "},\n \"loading\": {\"data\": \"a.data\", ");
    CHECK_SAYS(json, "\"keeps_up\": true}}\n");
    free(text);
    free(json);
}

AMP_TEST_MAIN
