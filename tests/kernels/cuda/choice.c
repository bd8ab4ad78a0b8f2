/* Which plan is chosen: by time, or by what the libraries guess. */
#include "stub_libraries.h"

AMP_TEST(the_fastest_is_chosen_once)
{
    begin();
    stub.cudnn[1] = 3, stub.cudnn[2] = -1, stub.cudnn[5] = 2, stub.cudnn[6] = 9;
    stub.gemm[0] = 1, stub.gemm[1] = 2.1f; /* not for 3x3 */
    CHECK(check_choice(forward(3, AMPK_FP16), 2, NULL) > 0);
    CHECK_INT(check_choice(forward(3, AMPK_FP16), 2, NULL), 0); /* from the file */
    CHECK(check_choice(forward(1, AMPK_FP16), 1, NULL) > 0);
    CHECK_INT(check_choice(forward(1, AMPK_FP16), 1, NULL), 0);
    end();
}

AMP_TEST(a_bad_guess_of_the_library_costs_nothing)
{
    begin();
    for (int i = 0; i < ENGINES; i++)
        stub.cudnn[i] = 3 + .1f * (float)i;
    stub.cudnn[ENGINES - 1] = 2;
    CHECK(check_choice(forward(3, AMPK_FP16), 2, NULL) > 0);
    end();
}

AMP_TEST(plain_loops_are_timed_only_where_there_is_nothing_else)
{
    begin();
    stub.cudnn[0] = 1, stub.last_resort = true;
    CHECK(check_choice(forward(3, AMPK_FP16), 1, NULL) > 0);
    end();
    begin();
    stub.cudnn[0] = 1, stub.cudnn[1] = 2, stub.last_resort = true;
    CHECK(check_choice(forward(3, AMPK_FP16), 2, NULL) > 0);
    end();
}

AMP_TEST(what_no_library_computes_takes_no_memory_to_time)
{
    begin();
    stub.cudnn[0] = 1;
    struct ampk_tc *tc = open_tc();
    struct ampk_tc_problem p = problem(AMPK_TC_WEIGHTS, 3, AMPK_FP32);
    char why[200];
    int had = live;
    CHECK(ampk_tc_plan_create(tc, &p, NULL, why, sizeof why) == NULL);
    CHECK_INT(allocated, 0);
    CHECK_INT(live, had);
    ampk_tc_destroy(tc);
    end();
}

/* Where nothing is compiled for it at run time, FP32 has few engines, which want much workspace. */
AMP_TEST(fp32_may_have_more_workspace)
{
    begin();
    stub.cudnn[1] = 1, stub.workspace = 500 << 20, stub.limit = (size_t)2 << 30;
    check_choice(forward(3, AMPK_FP16), -1, NULL);
    struct ampk_tc_problem p = forward(3, AMPK_FP32);
    p.compute = AMPK_COMPUTE_FP32;
    check_choice(p, 1, NULL);
    end();
}

AMP_TEST(a_search_goes_on_while_settings_are_faster)
{
    begin_search();
    CHECK(check_choice(forward(3, AMPK_FP16), 1.25f, NULL) > 0);
    CHECK_INT(check_choice(forward(3, AMPK_FP16), 1.25f, NULL), 0); /* from the file */
    stub.search = false;                                            /* has plans of its own */
    CHECK(check_choice(forward(3, AMPK_FP16), 2, NULL) > 0);
    CHECK_INT(check_choice(forward(3, AMPK_FP16), 2, NULL), 0);
    end();
}

AMP_TEST(a_search_goes_from_the_fastest_whichever_is_named_first)
{
    begin_search();
    stub.cudnn[1] = 2, stub.cudnn[2] = 2.5f;
    CHECK(check_choice(forward(3, AMPK_FP16), 1.25f, NULL) > 0);
    end();
}

AMP_TEST(a_search_does_not_begin_where_cublaslt_is_much_faster)
{
    begin_search();
    stub.gemm[0] = 1.5f;
    CHECK(check_choice(forward(1, AMPK_FP16), 1.5f, NULL) > 0);
    end();
    begin_search();
    stub.gemm[0] = 1.6f;
    CHECK(check_choice(forward(1, AMPK_FP16), 1.25f, NULL) > 0);
    end();
}

AMP_TEST(settings_that_give_other_results_are_not_used)
{
    begin_search();
    stub.wrong_from = 3;
    CHECK(check_choice(forward(3, AMPK_FP16), 1.5f, NULL) > 0); /* the fastest right one's */
    stub.wrong_from = 0;
    CHECK_INT(check_choice(forward(3, AMPK_FP16), 1.5f, NULL), 0); /* from the file */
    end();
}

/* A setting that is found must be 1 % faster than what is named. */
AMP_TEST(a_setting_that_hardly_pays_is_not_used)
{
    begin_search();
    stub.settings[1] = .995f, stub.settings[2] = 0;
    CHECK(check_choice(forward(3, AMPK_FP16), 2, NULL) > 0);
    end();
}

/* ---- results ---- */

/* Whether the file has the key's end with the value. */
static bool is_kept(const char *key_end, const char *value)
{
    char line[2048], wanted[300];
    bool found = false;
    FILE *f = fopen(cache, "r");
    REQUIRE(f != NULL);
    snprintf(wanted, sizeof wanted, "%s\t%s\n", key_end, value);
    while (fgets(line, sizeof line, f))
        found |= strstr(line, wanted) != NULL;
    fclose(f);
    return found;
}

/* Four engines, the first three with a rival behind them. */
static void begin_engines(void)
{
    begin();
    stub.cudnn[1] = 1, stub.cudnn[2] = 2, stub.cudnn[3] = 3, stub.cudnn[4] = 4;
}

AMP_TEST(the_fastest_is_compared_with_another_engine_in_few_runs)
{
    begin();
    stub.cudnn[1] = 1;
    int alone = check_choice(forward(3, AMPK_FP16), 1, NULL);
    CHECK_INT(alone, 6 + 2 + 2); /* once to load, timed, by infinities, twice for the same bits */
    end();
    begin();
    stub.cudnn[1] = 1, stub.cudnn[2] = 1;
    CHECK_INT(check_choice(forward(3, AMPK_FP16), 1, NULL), 2 * 6 + 2 + 3);
    end();
}

static void plan_3x3(void)
{
    check_choice(forward(3, AMPK_FP16), 2, NULL);
}

/* Two of three decide; the others are not asked. */
AMP_TEST(a_fast_engine_that_is_wrong_is_named_and_left_out)
{
    static const char words[] = "cudnn 1=0: wrong results on this GPU: disabled";
    char said[4000];
    begin_engines();
    stub.wrong = 1 << 1;
    CHECK_INT(hear(plan_3x3, said), 0);
    CHECK(strstr(said, words) != NULL);
    CHECK(is_kept("groups 1; cudnn 1=0", "wrong"));
    CHECK(is_kept("groups 1", "2 cudnn 2=0"));
    CHECK_INT(hear(plan_3x3, said), 0); /* from the file */
    CHECK_STR(said, "");
    stub.cudnn[2] = -1; /* so that it is timed again: it stays left out */
    CHECK_INT(check_choice(forward(3, AMPK_FP16), 3, NULL), 6 + 3 + 2 + 3); /* 4 is hopeless */
    end();
}

/* Results may be apart by one rounding to 16 bits each, and by those of so many products' sums. */
AMP_TEST(engines_may_be_as_far_apart_as_roundings_bring_them)
{
    static const struct {
        enum ampk_compute compute;
        enum ampk_dtype result;
        double rounding;
    } types[] = {{AMPK_COMPUTE_FP16, AMPK_FP16, 0x1p-10},
                 {AMPK_COMPUTE_BF16, AMPK_BF16, 0x1p-7},
                 {AMPK_COMPUTE_TF32, AMPK_FP32, 0x1p-10},
                 {AMPK_COMPUTE_FP32, AMPK_FP32, 0}};
    static const double products[] = {[AMPK_TC_FORWARD] = 9 * 8, /* by groups */
                                      [AMPK_TC_DATA] = 9 * 16,
                                      [AMPK_TC_WEIGHTS] = 4 * 7 * 7};
    for (int pass = AMPK_TC_FORWARD; pass <= AMPK_TC_WEIGHTS; pass++)
        for (size_t t = 0; t < sizeof types / sizeof *types; t++)
            for (int further = 0; further < 2; further++) {
                struct ampk_tc_problem p = problem((enum ampk_tc_pass)pass, 3, types[t].result);
                p.compute = types[t].compute;
                p.groups = test_random() % 2 ? 2 : 1;
                double n = products[pass] / (pass == AMPK_TC_WEIGHTS ? 1 : p.groups);
                double slack = 2 * types[t].rounding + 0x1p-20 * sqrt(n) + 0x1p-27 * n;
                begin_engines();
                stub.wrong = 1 << 1, stub.off = (float)((further ? 1.03 : .97) * slack);
                CHECK(check_choice(p, further ? 2 : 1, NULL) > 0);
                end();
            }
}

/* Every run that is compared begins with the same numbers. */
AMP_TEST(engines_that_add_are_compared_by_what_they_add)
{
    struct ampk_tc_problem p = problem(AMPK_TC_DATA, 3, AMPK_FP16);
    p.accumulate = true;
    begin_engines();
    stub.accumulates = true;
    CHECK(check_choice(p, 1, NULL) > 0);
    CHECK(!is_kept("groups 1; cudnn 1=0", "wrong"));
    end();
    begin_engines();
    stub.accumulates = true, stub.wrong = 1 << 1;
    CHECK(check_choice(p, 2, NULL) > 0);
    end();
}

AMP_TEST(whole_results_are_compared)
{
    static const size_t elements[] = {[AMPK_TC_FORWARD] = 4 * 7 * 7 * 16,
                                      [AMPK_TC_DATA] = 4 * 9 * 9 * 8,
                                      [AMPK_TC_WEIGHTS] = 16 * 3 * 3 * 8};
    for (int pass = AMPK_TC_FORWARD; pass <= AMPK_TC_WEIGHTS; pass++) {
        begin_engines();
        compared = 0;
        CHECK(check_choice(problem((enum ampk_tc_pass)pass, 3, AMPK_FP16), 1, NULL) > 0);
        CHECK_INT(compared, 2 * elements[pass]);
        end();
    }
}

AMP_TEST(a_slower_engine_that_is_wrong_costs_the_fastest_nothing)
{
    begin_engines();
    stub.wrong = 1 << 2;
    CHECK(check_choice(forward(3, AMPK_FP16), 1, NULL) > 0);
    CHECK(is_kept("groups 1; cudnn 2=0", "wrong") && is_kept("groups 1", "1 cudnn 1=0"));
    end();
}

AMP_TEST(of_two_engines_that_disagree_the_slower_one_is_taken)
{
    begin();
    stub.cudnn[1] = 1, stub.cudnn[2] = 2, stub.wrong = 1 << 1;
    CHECK(check_choice(forward(3, AMPK_FP16), 2, NULL) > 0);
    end();
}

AMP_TEST(an_engine_that_gives_other_bits_each_time_is_left_out)
{
    begin_engines();
    stub.restless = 1 << 1 | 1 << 2;
    CHECK(check_choice(forward(3, AMPK_FP16), 3, NULL) > 0);
    CHECK(is_kept("groups 1; cudnn 1=0", "wrong") && is_kept("groups 1; cudnn 2=0", "wrong"));
    end();
    begin();
    stub.cudnn[1] = 1, stub.restless = 1 << 1; /* there is no other */
    check_choice(forward(3, AMPK_FP16), -1, NULL);
    end();
}

/* What a search gains is told beside what would have been taken without it. */
AMP_TEST(the_time_before_a_search_is_of_an_engine_that_is_right)
{
    for (unsigned wrong = 0; wrong < 2; wrong++) {
        begin_search();
        stub.gemm[0] = 1.625f, stub.wrong_gemms = wrong;
        CHECK(check_choice(forward(1, AMPK_FP16), 1.25f, NULL) > 0);
        CHECK(is_kept("before the search", wrong ? "2" : "1.625"));
        end();
    }
}

/* FP32 results are cuBLASLt's alone: its algorithms check each other. */
AMP_TEST(algorithms_of_cublaslt_are_compared_too)
{
    begin();
    stub.gemm[1] = 1, stub.gemm[2] = 2, stub.gemm[3] = 3, stub.wrong_gemms = 1 << 1;
    CHECK(check_choice(forward(1, AMPK_FP32), 2, NULL) > 0);
    CHECK(is_kept("groups 1; gemm 1", "wrong"));
    stub.cudnn[4] = .5f; /* and are compared with cuDNN's engines */
    CHECK(check_choice(forward(1, AMPK_FP16), .5f, NULL) > 0);
    CHECK(is_kept("groups 1; gemm 1", "wrong"));
    end();
}

/* An overflow would be lost with them: by the clock or by a guess, in every pass and type. */
AMP_TEST(engines_that_lose_infinities_are_not_used)
{
    static const enum ampk_compute types[] = {AMPK_COMPUTE_FP16, AMPK_COMPUTE_BF16,
                                              AMPK_COMPUTE_FP32};
    for (int i = 0; i < 18; i++) {
        struct ampk_tc_problem p = problem((enum ampk_tc_pass)(i % 3), 3, AMPK_FP16);
        p.compute = types[i / 3 % 3], p.result = ampk_tc_operand(p.compute);
        begin_engines();
        stub.swallows = 1 << 1, stub.untimed = i >= 9;
        check_choice(p, stub.untimed ? 0 : 2, NULL);
        if (!stub.untimed) CHECK(is_kept("groups 1; cudnn 1=0", "wrong"));
        char why[200];
        if (stub.untimed) CHECK_INT(engine_of(p, why), 2);
        end();
    }
    begin();
    stub.cudnn[1] = 1, stub.swallows = 1 << 1, stub.untimed = true;
    char why[200];
    CHECK_INT(engine_of(forward(3, AMPK_FP16), why), -1);
    CHECK_STR(why, "its results lose infinities");
    end();
}

/* Made-up operands may do so where there are many of them. */
AMP_TEST(what_overflows_anyway_is_no_fault)
{
    for (int i = 0; i < 3; i++) {
        begin_engines();
        stub.overflows = true, stub.swallows = i < 2 ? 0 : 1 << 1, stub.untimed = i == 1;
        char why[200];
        CHECK_INT(engine_of(forward(3, AMPK_FP16), why), i < 2 ? 1 : 2);
        end();
    }
}

AMP_TEST(images_of_one_pixel_are_asked_too)
{
    struct ampk_tc_problem p = forward(3, AMPK_FP16);
    p.h = p.w = 1, p.pad = 1;
    begin_engines();
    stub.swallows = 1 << 1;
    CHECK(check_choice(p, 2, NULL) > 0);
    end();
}

/* Where padding is all that a first window reads, the engine is taken. */
AMP_TEST(where_no_infinity_can_be_put_none_is_missed)
{
    struct ampk_tc_problem p = forward(3, AMPK_FP16);
    p.pad = 3;
    begin();
    stub.cudnn[1] = 1, stub.swallows = 1 << 1;
    CHECK(check_choice(p, 1, NULL) > 0);
    end();
}

/* Three seconds for a problem; what the library names first is timed in any case. */
AMP_TEST(timing_ends_in_time)
{
    begin();
    for (int i = 0; i < ENGINES; i++)
        stub.cudnn[i] = 300 + (float)i;
    stub.cudnn[ENGINES - 1] = 1;
    CHECK(check_choice(forward(3, AMPK_FP16), 300, NULL) > 0);
    end();
    begin();
    stub.cudnn[3] = 9000, stub.cudnn[4] = 1;
    CHECK(check_choice(forward(3, AMPK_FP16), 9000, NULL) > 0);
    end();
}

static void plan_and_say(void)
{
    char why[200];
    struct ampk_tc *tc = open_tc();
    struct ampk_tc_problem p = forward(3, AMPK_FP16);
    ampk_tc_plan_create(tc, &p, NULL, why, sizeof why);
    ampk_tc_say_timed(tc);
    ampk_tc_say_timed(tc); /* nothing since */
    ampk_tc_destroy(tc);
}

AMP_TEST(how_long_timing_took_is_said_once)
{
    char said[4000];
    begin_engines();
    stub.cudnn[1] = 700;
    CHECK_INT(hear(plan_and_say, said), 0);
    const char *first = strstr(said, "timed 1 engines for 1 problems in ");
    CHECK(first && strstr(first, "; 1 problems were cut short\n") && !strstr(first + 1, "timed"));
    CHECK_INT(hear(plan_and_say, said), 0);
    CHECK_STR(said, ""); /* from the file */
    end();
}

/* In one context. */
static void plan_two(void)
{
    struct ampk_tc *tc = open_tc();
    struct ampk_tc_problem p = forward(3, AMPK_FP16);
    char why[200];
    for (; p.c <= 9; p.c++)
        CHECK(ampk_tc_plan_create(tc, &p, NULL, why, sizeof why) != NULL);
    ampk_tc_destroy(tc);
}

AMP_TEST(what_cannot_be_compared_for_want_of_memory_is_taken_but_not_kept)
{
    char said[4000];
    begin_engines();
    struct ampk_tc_problem p = forward(3, AMPK_FP16);
    stub.limit = 256, stub.workspace = 0, stub.largest = (size_t)p.n * 7 * 7 * p.k * 2;
    stub.cudnn[1] = 2, stub.cudnn[2] = 3;
    CHECK_INT(hear(plan_two, said), 0);
    const char *once = strstr(said, "is taken unchecked");
    CHECK(once && !strstr(once + 1, "is taken unchecked"));
    stub.largest = 0;
    CHECK(check_choice(p, 2, NULL) > 0);
    CHECK_INT(check_choice(p, 2, NULL), 0);
    end();
}

AMP_TEST(what_the_host_takes_to_start_a_run_does_not_count)
{
    begin();
    stub.cudnn[1] = 2, stub.cudnn[2] = 1, stub.start[2] = 5;
    CHECK(check_choice(forward(3, AMPK_FP16), 1, NULL) > 0);
    end();
}

AMP_TEST(without_timing_the_library_is_believed)
{
    begin();
    stub.cudnn[4] = 3, stub.cudnn[5] = 2, stub.untimed = true;
    timings = 0;
    CHECK_INT(check_choice(forward(3, AMPK_FP16), 0, NULL),
              3); /* to see that it can, and infinities */
    CHECK_INT(timings, 0);
    stub.untimed = false;
    CHECK(check_choice(forward(3, AMPK_FP16), 2, NULL) > 0);
    stub.untimed = true; /* what the file has is taken */
    CHECK_INT(check_choice(forward(3, AMPK_FP16), 2, NULL), 0);
    end();
}

AMP_TEST(a_kept_plan_that_no_longer_works_is_timed_again)
{
    begin();
    stub.cudnn[1] = 3, stub.cudnn[5] = 2;
    check_choice(forward(3, AMPK_FP16), 2, NULL);
    stub.cudnn[5] = -1;
    CHECK(check_choice(forward(3, AMPK_FP16), 3, NULL) > 0);
    CHECK_INT(check_choice(forward(3, AMPK_FP16), 3, NULL), 0);
    end();
}

AMP_TEST(without_memory_the_library_is_believed)
{
    begin();
    stub.cudnn[4] = 3, stub.cudnn[5] = 2, stub.no_memory = true;
    CHECK_INT(check_choice(forward(3, AMPK_FP16), 0, NULL), 0);
    stub.no_memory = false; /* what was not timed is not kept in the file */
    CHECK(check_choice(forward(3, AMPK_FP16), 2, NULL) > 0);
    end();
}

AMP_TEST(fp32_results_are_inner_products_only)
{
    begin();
    stub.cudnn[0] = 1, stub.gemm[3] = 2;
    check_choice(forward(1, AMPK_FP32), 2, NULL);
    check_choice(forward(3, AMPK_FP32), -1, NULL);
    end();
}

AMP_TEST(nothing_that_works_is_said)
{
    begin();
    stub.cudnn[0] = -1;
    check_choice(forward(3, AMPK_FP16), -1, NULL);
    stub.cudnn[0] = 1, stub.workspace = 8 << 20;
    check_choice(forward(3, AMPK_FP16), -1, NULL);
    end();
}

AMP_TEST(why_there_are_no_tensor_cores)
{
    begin();
    stub.cudnn[0] = 1, stub.tensor_cores = false;
    check_choice(forward(3, AMPK_FP16), 1, "cuDNN names no engine with them, or they are slower");
    struct ampk_tc_problem p = forward(3, AMPK_FP32);
    p.compute = AMPK_COMPUTE_FP32;
    check_choice(p, 1, "FP32 products are not for Tensor Cores");
    end();
}

/* ---- guesses ---- */

AMP_TEST(a_guess_that_refuses_to_run_gives_way_to_the_next)
{
    for (size_t more = 0; more < 2000; more += 1000) {
        begin();
        stub.cudnn[3] = 1, stub.cudnn[4] = 3, stub.cudnn[5] = 2, stub.untimed = true;
        stub.stuck = 1 << 3 | 1 << 4;
        stub.more = more;
        char why[200];
        CHECK_INT(engine_of(forward(3, AMPK_FP16), why), 5);
        CHECK_INT(runs, 5); /* two by infinities */
        CHECK_INT(timings, 0);
        end();
    }
}

/* A connected layer's, or an FP32 result: cuBLASLt's first. */
AMP_TEST(a_guess_of_cublaslt_that_refuses_to_run_gives_way)
{
    struct ampk_conv_shape s = {4,     8,     1,    1, 16, 1, 1, 1, 0, 1, AMPK_COMPUTE_FP16,
                                false, false, false};
    struct ampk_tc_problem connected = ampk_conv_problem(&s, AMPK_TC_FORWARD, AMPK_FP16, false);
    begin();
    stub.cudnn[4] = 3, stub.gemm[1] = 1, stub.gemm[2] = 1, stub.untimed = true;
    stub.stuck_gemms = 1 << 1;
    check_engine(connected, ENGINES);
    check_engine(forward(1, AMPK_FP32), ENGINES);
    CHECK_INT(runs, 4);
    stub.stuck_gemms |= 1 << 2;
    check_engine(connected, 4);
    CHECK_INT(runs, 5);
    check_engine(forward(1, AMPK_FP32), -1);
    end();
}

AMP_TEST(where_every_guess_refuses_to_run_the_reason_is_given)
{
    char why[200];
    begin();
    stub.cudnn[3] = 1, stub.cudnn[4] = 3, stub.gemm[1] = 1;
    stub.stuck = 1 << 3 | 1 << 4, stub.stuck_gemms = 1 << 1;
    for (int i = 0; i < 2; i++) {
        stub.untimed = i > 0;
        CHECK_INT(engine_of(forward(3, AMPK_FP16), why), -1);
        CHECK_STR(why, "a run of engine 4 is refused");
        CHECK_INT(engine_of(forward(1, AMPK_FP32), why), -1);
        CHECK_STR(why, "a run of algorithm 1 is refused");
    }
    end();
}

AMP_TEST(a_guess_is_not_run_where_there_is_no_memory_for_it)
{
    begin();
    stub.cudnn[4] = 3, stub.cudnn[5] = 2, stub.untimed = true, stub.stuck = 1 << 4;
    stub.no_memory = true;
    check_engine(forward(3, AMPK_FP16), 4);
    CHECK_INT(runs, 0);
    stub.no_memory = false, stub.workspace = 2 << 20, stub.largest = 1 << 20;
    check_engine(forward(3, AMPK_FP16), 4);
    CHECK_INT(runs, 0);
    stub.largest = 2 << 20;
    check_engine(forward(3, AMPK_FP16), 5);
    end();
}

AMP_TEST_MAIN
