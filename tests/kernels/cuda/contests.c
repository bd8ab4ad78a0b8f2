/* Of two ways to use plans the faster one is taken, if it is right: gradients beside each other,
 * batch-norm's sums in the epilogue. */
#include "stub_libraries.h"

/* ---- gradients beside each other ---- */

enum timed { TIMED, NOT_TIMED };

struct gradients {
    struct ampk_tc *tc;
    struct ampk_tc_plan *data, *weights;
};

/* Those of 3x3, planned with a new context. */
static struct gradients plan_gradients(void)
{
    char why[200];
    struct ampk_tc_problem data = problem(AMPK_TC_DATA, 3, AMPK_FP16);
    struct ampk_tc_problem weights = problem(AMPK_TC_WEIGHTS, 3, AMPK_FP16);
    struct gradients g = {.tc = open_tc()};
    g.data = ampk_tc_plan_create(g.tc, &data, NULL, why, sizeof why);
    g.weights = ampk_tc_plan_create(g.tc, &weights, NULL, why, sizeof why);
    REQUIRE(g.data && g.weights);
    return g;
}

static void check_answer(const struct gradients *g, bool expected, enum timed timed)
{
    runs = 0;
    CHECK_INT(ampk_tc_pays_beside(g->tc, g->data, g->weights, NULL, side), expected);
    CHECK((runs > 0) == (timed == TIMED));
}

/* With a new context, and asked again if it was timed. */
static void check_beside(bool expected, enum timed timed)
{
    int disturbed = stub.disturbed;
    stub.disturbed = 0; /* while plans are timed */
    struct gradients g = plan_gradients();
    stub.disturbed = disturbed;
    check_answer(&g, expected, timed);
    if (timed == TIMED && stub.beside > 0) check_answer(&g, expected, NOT_TIMED);
    ampk_tc_destroy(g.tc);
}

static void ask_about_gradients(void)
{
    check_beside(false, TIMED);
}

/* A stub where either gradient takes 2 ms, that of the weights so many times as long beside. */
static void begin_gradients(float beside)
{
    begin();
    stub.cudnn[1] = 3, stub.cudnn[5] = 2, stub.beside = beside;
}

/* How long the other way takes, and whether it pays: also where runs are disturbed, and as the file
 * knows it. */
struct contest_case {
    float ms;
    bool pays;
};

/* slow: an engine that takes part, and is slow to start. */
static void check_contest(const struct contest_case cases[6], int slow, void (*begin_with)(float),
                          void (*check)(bool expected, enum timed))
{
    static const int disturbed[] = {0, 5, 6}; /* the last run of either way too */
    for (int i = 0; i < 6; i++)
        for (int j = 0; j < 3; j++) {
            begin_with(cases[i].ms);
            stub.disturbed = disturbed[j];
            stub.start[slow] = 20; /* hidden */
            check(cases[i].pays, TIMED);
            check(cases[i].pays, NOT_TIMED); /* from the file */
            stub.untimed = true;
            check(cases[i].pays, NOT_TIMED);
            end();
        }
}

AMP_TEST(gradients_run_beside_each_other_where_it_is_faster)
{
    static const struct contest_case cases[] = {{1, true},      {.5f, true}, {1.9f, true},
                                                {1.96f, false}, {2, false},  {3, false}};
    check_contest(cases, 5, begin_gradients, check_beside);
}

/* What is wrong every other time too. */
AMP_TEST(gradients_that_are_wrong_beside_each_other_run_one_after_the_other)
{
    for (int i = 1; i <= 4; i++) {
        char said[4000];
        begin_gradients(.5f);
        stub.mixed_up = i;
        check_beside(i > 3, TIMED); /* three runs are compared */
        stub.mixed_up = 0;
        check_beside(i > 3, NOT_TIMED); /* from the file */
        end();
        begin_gradients(.5f);
        stub.mixed_up = i;
        CHECK_INT(hear(ask_about_gradients, said), 0);
        CHECK((strstr(said, "; beside weights to fp16: wrong results on this GPU") != NULL) ==
              (i <= 3));
        end();
    }
}

AMP_TEST(a_data_gradient_that_is_wrong_beside_the_other_is_found)
{
    begin_gradients(.5f);
    stub.disturbs = true;
    check_beside(false, TIMED);
    stub.disturbs = false;
    check_beside(false, NOT_TIMED); /* from the file */
    end();
}

AMP_TEST(without_timing_gradients_run_one_after_the_other)
{
    begin_gradients(1);
    stub.workspace = 2 << 20;
    stub.untimed = true;
    check_beside(false, NOT_TIMED); /* nor are the plans */
    stub.untimed = false, stub.no_memory = true;
    struct gradients guessed = plan_gradients();
    stub.no_memory = false;
    check_answer(&guessed, false, NOT_TIMED);
    ampk_tc_destroy(guessed.tc);
    check_choice(problem(AMPK_TC_DATA, 3, AMPK_FP16), 2, NULL);
    check_choice(problem(AMPK_TC_WEIGHTS, 3, AMPK_FP16), 2, NULL);
    stub.untimed = true;
    check_beside(false, NOT_TIMED); /* the plans are kept, by a program that knew no more */
    stub.untimed = false, stub.no_memory = true;
    check_beside(false, NOT_TIMED);
    stub.no_memory = false, stub.largest = 1 << 20; /* too short a workspace */
    check_beside(false, NOT_TIMED);
    stub.largest = 0, stub.beside = -1;
    check_beside(false, TIMED);
    check_beside(false, TIMED); /* what failed is not kept */
    stub.beside = 1;
    check_beside(true, TIMED);
    stub.workspace++; /* together more than a plan may have */
    check_beside(false, NOT_TIMED);
    end();
}

/* Gives the answer that the file keeps, by the end of its key, another value. */
static void keep_answer(const char *key_end, const char *value)
{
    char line[2048], *key = NULL;
    char warning[200], err[200];
    FILE *f = fopen(cache, "r");
    REQUIRE(f != NULL);
    while (!key && fgets(line, sizeof line, f))
        if (strstr(line, key_end)) key = strchr(line, '\t') + 1;
    fclose(f);
    REQUIRE(key != NULL);
    *strchr(key, '\t') = 0;
    struct ampk_plan_cache *kept = ampk_plan_cache_open(cache, warning, sizeof warning);
    CHECK_STR(warning, "");
    ampk_plan_cache_add(kept, key, value);
    CHECK(ampk_plan_cache_save(kept, err, sizeof err));
    ampk_plan_cache_close(kept);
}

static const char BESIDE[] = "; beside weights to fp16\t";

AMP_TEST(an_answer_is_kept_for_the_plans_that_it_was_timed_with)
{
    begin_gradients(1);
    check_beside(true, TIMED);
    keep_answer(BESIDE, "2 2: one stream 4, beside 3.9");
    check_beside(false, NOT_TIMED);
    static const char *const others[] = {"", "2 2", "2 2: maybe", "2 1: one stream 4, beside 3.9",
                                         "2 2.5: one stream 4, beside 3.9"};
    for (int i = 0; i < 5; i++) {
        keep_answer(BESIDE, others[i]);
        check_beside(true, TIMED);
        check_beside(true, NOT_TIMED);
    }
    stub.cudnn[5] = -1, stub.beside = 2; /* other plans now */
    check_beside(false, TIMED);
    check_beside(false, NOT_TIMED);
    end();
}

/* ---- batch-norm's sums in the epilogue ---- */

/* A forward pass, or the data gradient of a convolution with as many channels behind a leaky. */
static struct ampk_tc_problem summable(enum ampk_tc_pass pass, int window)
{
    struct ampk_conv_shape s = {4, CHANNELS,          9,     9,     FILTERS, window, window, 1, 0,
                                1, AMPK_COMPUTE_FP16, false, false, false};
    return pass == AMPK_TC_DATA ? ampk_conv_problem(&s, pass, AMPK_FP16, false)
                                : forward(window, AMPK_FP16);
}

static struct ampk_tc_problem with_sums_of(enum ampk_tc_pass pass, int window)
{
    struct ampk_tc_problem p = summable(pass, window);
    p.sums = true;
    if (pass == AMPK_TC_DATA) p.slope = .1f;
    return p;
}

static struct ampk_tc_problem with_sums(int window)
{
    return with_sums_of(AMPK_TC_FORWARD, window);
}

/* A stub where a pass takes 2 ms, its sums 1. */
static void begin_sums(float summed)
{
    begin();
    stub.cudnn[1] = 3, stub.cudnn[5] = 2, stub.kernel = 1;
    stub.summed[2] = summed, stub.summed[3] = summed + 1;
}

static bool ask_about_sums(struct ampk_context *ctx, const struct ampk_tc_plan *apart,
                           const struct ampk_tc_plan *summed)
{
    return summed->problem.pass == AMPK_TC_DATA
               ? ampk_tc_pays_gradient_sums(ctx, apart, summed, AMPK_LEAKY)
               : ampk_tc_pays_sums(ctx, apart, summed);
}

/* With a new context. */
static void check_sums_of(enum ampk_tc_pass pass, bool expected, enum timed timed)
{
    char why[200];
    int disturbed = stub.disturbed;
    float result_off = stub.result_off;
    stub.disturbed = 0, stub.result_off = 0; /* while plans are timed */
    struct ampk_context ctx = {.tensor_core = open_tc()};
    struct ampk_tc_problem p = summable(pass, 3), q = with_sums_of(pass, 3);
    struct ampk_tc_plan *apart = ampk_tc_plan_create(ctx.tensor_core, &p, NULL, why, sizeof why);
    struct ampk_tc_plan *summed = ampk_tc_plan_create(ctx.tensor_core, &q, NULL, why, sizeof why);
    REQUIRE(apart && summed);
    stub.disturbed = disturbed, stub.result_off = result_off;
    for (int i = 0; i < 2; i++) {
        runs = 0;
        CHECK_INT(ask_about_sums(&ctx, apart, summed), expected);
        CHECK((runs > 0) == (timed == TIMED && i == 0));
    }
    ampk_tc_destroy(ctx.tensor_core);
}

static void check_sums(bool expected, enum timed timed)
{
    check_sums_of(AMPK_TC_FORWARD, expected, timed);
}

static void check_gradient_sums(bool expected, enum timed timed)
{
    check_sums_of(AMPK_TC_DATA, expected, timed);
}

AMP_TEST(sums_are_in_the_epilogue_where_it_is_faster)
{
    static const struct contest_case cases[] = {{2, true},      {2.5f, true}, {2.9f, true},
                                                {2.92f, false}, {3, false},   {5, false}};
    check_contest(cases, 2, begin_sums, check_sums);
}

/* The rest of batch-norm's backward takes 1/8 ms after a kernel's sums, 3/16 after the epilogue's.
 */
AMP_TEST(sums_of_gradients_are_in_the_epilogue_where_it_is_faster)
{
    static const struct contest_case cases[] = {{2, true},      {2.5f, true}, {2.84f, true},
                                                {2.86f, false}, {3, false},   {5, false}};
    check_contest(cases, 2, begin_sums, check_gradient_sums);
}

/* What is off, by less than roundings of sums, and of the result, may do, and by more. */
struct wrong_case {
    float first_off, second_off, result_off;
    bool adds, right;
};

static void check_wrong(const struct wrong_case *cases, int count,
                        void (*check)(bool expected, enum timed))
{
    for (int i = 0; i < count; i++) {
        begin_sums(2);
        stub.first_off = cases[i].first_off, stub.second_off = cases[i].second_off;
        stub.result_off = cases[i].result_off, stub.adds = cases[i].adds;
        check(cases[i].right, TIMED);
        stub.first_off = stub.second_off = stub.result_off = 0, stub.adds = false;
        check(cases[i].right, NOT_TIMED); /* from the file, however it would be now */
        end();
    }
}

AMP_TEST(wrong_sums_are_not_used)
{
    static const struct wrong_case cases[] = {
        {0, .0022f, 0, false, true},   {0, .0023f, 0, false, false}, {.00055f, 0, 0, false, true},
        {.00057f, 0, 0, false, false}, {-.5f, 0, 0, false, false},   {0, 0, .001f, false, true},
        {0, 0, .00105f, false, false}, {0, NAN, 0, false, false},    {NAN, 0, 0, false, false},
        {0, 0, NAN, false, false},     {0, 0, 0, true, false},
    };
    check_wrong(cases, sizeof cases / sizeof *cases, check_sums);
}

AMP_TEST(sums_of_a_wrong_result_are_not_used)
{
    for (int wrong = 0; wrong < 2; wrong++) {
        begin_sums(2);
        stub.value_off = wrong ? .0020f : .0019f;
        check_sums(!wrong, TIMED);
        stub.value_off = 0;
        check_sums(!wrong, NOT_TIMED);
        end();
    }
}

/* A slope of 0 or 1 in place of .1 is a result that is off by 1/11 and more where half of it is
 * negative. */
AMP_TEST(wrong_sums_of_gradients_are_not_used)
{
    static const struct wrong_case cases[] = {
        {.00043f, 0, 0, false, true},    {.00046f, 0, 0, false, false},
        {0, .0030f, 0, false, true},     {0, .0031f, 0, false, false},
        {0, 0, .001f, false, true},      {0, 0, .0012f, false, false},
        {0, 0, -1 / 11.f, false, false}, {0, 0, 9 / 11.f, false, false},
        {-.5f, 0, 0, false, false},      {NAN, 0, 0, false, false},
        {0, NAN, 0, false, false},       {0, 0, NAN, false, false},
        {0, 0, INFINITY, false, false},  {0, 0, 0, true, false},
    };
    check_wrong(cases, sizeof cases / sizeof *cases, check_gradient_sums);
}

AMP_TEST(problems_with_sums_have_plans_of_their_own)
{
    begin();
    stub.cudnn[1] = 3, stub.gemm[0] = 1, stub.summed[4] = 2;
    check_choice(forward(1, AMPK_FP16), 1, NULL);
    CHECK(check_choice(with_sums(1), 2, NULL) > 0); /* not cuBLASLt's */
    CHECK_INT(check_choice(with_sums(1), 2, NULL), 0);
    check_choice(forward(1, AMPK_FP16), 1, NULL);
    struct ampk_tc_problem gradient = with_sums_of(AMPK_TC_DATA, 1);
    CHECK(check_choice(gradient, 2, NULL) > 0);
    gradient.slope = 0; /* another one's */
    CHECK(check_choice(gradient, 2, NULL) > 0);
    CHECK_INT(check_choice(gradient, 2, NULL), 0);
    end();
}

AMP_TEST(that_no_engine_has_sums_is_kept)
{
    begin();
    stub.cudnn[1] = 3;
    check_choice(with_sums(3), -1, NULL);
    stub.summed[2] = 1; /* of which nobody asks */
    check_choice(with_sums(3), -1, NULL);
    stub.untimed = true;
    check_choice(with_sums(3), -1, NULL);
    end();
    begin();
    stub.largest = 2 << 20; /* perhaps with more workspace */
    check_choice(with_sums(3), -1, NULL);
    stub.largest = 0, stub.summed[2] = 1;
    check_choice(with_sums(3), 1, NULL);
    end();
}

AMP_TEST(without_timing_a_kernel_takes_the_sums)
{
    begin_sums(2);
    stub.workspace = 3 << 20;
    stub.untimed = true;
    check_sums(false, NOT_TIMED); /* nor are the plans */
    stub.untimed = false;
    check_choice(forward(3, AMPK_FP16), 2, NULL);
    check_choice(with_sums(3), 2, NULL);
    stub.untimed = true;
    check_sums(false, NOT_TIMED); /* the plans are kept, by a program that knew no more */
    stub.untimed = false, stub.no_memory = true;
    check_sums(false, NOT_TIMED);
    stub.no_memory = false, stub.largest = 2 << 20; /* too short a workspace */
    check_sums(false, NOT_TIMED);
    stub.largest = 0;
    check_sums(true, TIMED);
    end();
    begin_sums(2);
    stub.for_sums = 3 << 20;
    check_choice(forward(3, AMPK_FP16), 2, NULL);
    check_choice(with_sums(3), 2, NULL);
    stub.largest = 2 << 20; /* enough for the usual way */
    check_sums(false, NOT_TIMED);
    end();
}

static void check_kept(const char *key, void (*check)(bool expected, enum timed))
{
    static const char *const others[] = {
        "", "2 2", "2 2: maybe", "2 2: wrong?", "2 1: wrong", "2 1: kernel 3, epilogue 3"};
    begin_sums(2);
    check(true, TIMED);
    keep_answer(key, "2 2: kernel 3, epilogue 2.95");
    check(false, NOT_TIMED);
    keep_answer(key, "2 2: wrong");
    check(false, NOT_TIMED);
    for (int i = 0; i < 6; i++) {
        keep_answer(key, others[i]);
        check(true, TIMED);
        check(true, NOT_TIMED);
    }
    end();
}

AMP_TEST(an_answer_about_sums_is_kept_for_the_plans_that_it_was_timed_with)
{
    check_kept("; sums in the epilogue\t", check_sums);
    check_kept("; sums of slope 0.1 in the epilogue\t", check_gradient_sums);
}

/* ---- faults in contests ---- */

static void ask_about_forward_sums(void)
{
    check_sums(false, TIMED);
}

/* It is not held again, with other plans neither. */
AMP_TEST(a_contest_that_makes_the_device_fault_is_lost)
{
    for (int i = 0; i < 2; i++) {
        begin_sums(2);
        stub.kernel_faults = true, stub.dead_refuses = i > 0;
        check_fault(ask_about_forward_sums, "the device failed while it was timed",
                    "; sums in the epilogue)");
        check_sums(false, NOT_TIMED);
        stub.cudnn[5] = -1;
        check_sums(false, NOT_TIMED);
        end();
        begin_gradients(1);
        stub.side_faults = true, stub.dead_refuses = i > 0;
        check_fault(ask_about_gradients, "the device failed while it was timed",
                    "; beside weights to fp16)");
        check_beside(false, NOT_TIMED);
        end();
    }
}

AMP_TEST_MAIN
