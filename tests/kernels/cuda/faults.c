/* What makes the device fault while plans are chosen is named, and left out from the next start on.
 */
#include "stub_libraries.h"

static void plan_3x3(void)
{
    check_choice(forward(3, AMPK_FP16), 0, NULL);
}

static void plan_1x1(void)
{
    check_choice(forward(1, AMPK_FP16), 0, NULL);
}

static void plan_guess(void)
{
    check_engine(forward(3, AMPK_FP16), 6);
}

static const char KEY_3X3[] = "forward fp16 to fp16; 4x8x9x9 by 16 of 3x3 stride 1 pad 0 groups 1";

AMP_TEST(an_engine_that_makes_the_device_fault_is_left_out_from_the_next_start_on)
{
    for (int i = 0; i < 2; i++) {
        char key[200];
        begin();
        stub.cudnn[1] = 2, stub.cudnn[5] = 1, stub.cudnn[6] = 3, stub.faults = 5;
        stub.dead_refuses = i > 0; /* the fault shows as a refusal of the next run */
        snprintf(key, sizeof key, "%s; cudnn 5=0)", KEY_3X3);
        check_fault(plan_3x3, "cuDNN's engine 5 failed while it was timed", key);
        CHECK(check_choice(forward(3, AMPK_FP16), 2, NULL) > 0);
        CHECK_INT(check_choice(forward(3, AMPK_FP16), 2, NULL), 0); /* from the file */
        end();
    }
}

AMP_TEST(an_algorithm_of_cublaslt_that_makes_the_device_fault_is_left_out)
{
    begin();
    stub.cudnn[1] = 2, stub.gemm[1] = 3, stub.gemm[2] = 1, stub.gemm_faults = 2;
    check_fault(plan_1x1, "cuBLASLt failed while it was timed", "; gemm 2)");
    CHECK(check_choice(forward(1, AMPK_FP16), 2, NULL) > 0);
    end();
}

AMP_TEST(settings_that_make_the_device_fault_are_left_out)
{
    begin_search();
    stub.faults = 2, stub.fault_setting = 2;
    check_fault(plan_3x3, "cuDNN's engine", "; searched; cudnn 2=2)");
    CHECK(check_choice(forward(3, AMPK_FP16), 2 * .875f, NULL) > 0);
    end();
    begin_search();
    int last = check_choice(forward(3, AMPK_FP16), 1.25f, NULL); /* compares results */
    end();
    begin_search();
    stub.fault_run = last - 1;
    check_fault(plan_3x3, "cuDNN's engine", "; searched; cudnn 2=3)");
    stub.fault_run = 0;
    CHECK(check_choice(forward(3, AMPK_FP16), 1.5f, NULL) > 0);
    end();
    begin_search();
    stub.fault_run = last; /* the other engine's */
    check_fault(plan_3x3, "cuDNN's engine", "; searched; cudnn 1=0)");
    stub.fault_run = 0;
    CHECK(check_choice(forward(3, AMPK_FP16), 1.25f, NULL) > 0);
    end();
}

/* A program that is ended while the device runs this engine for the first time, and never comes
 * back from it. */
static void hang(void)
{
    stub.hangs = true;
    plan_3x3();
}

AMP_TEST(an_engine_that_hangs_is_left_out_from_the_next_start_on)
{
    static const char words[] = "; cudnn 5=0: an earlier program ended while it tried this";
    for (int i = 0; i < 2; i++) {
        char said[4000];
        begin();
        stub.cudnn[1] = 2, stub.cudnn[5] = 1, stub.cudnn[6] = 3, stub.faults = 5;
        stub.untimed = i > 0; /* a guess */
        if (i) stub.cudnn[1] = 0;
        int status = hear(hang, said);
        CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        stub.faults = 0;
        CHECK_INT(hear(i ? plan_guess : plan_3x3, said), 0);
        const char *first = strstr(said, words);
        CHECK(first && !strstr(first + 1, words));
        check_engine(forward(3, AMPK_FP16), i ? 6 : 1);
        end();
    }
}

/* As two programs that ended by it leave them. */
static void keep_as_faulted(const int engines[2])
{
    char key[300], warning[200], err[200];
    struct ampk_plan_cache *kept = ampk_plan_cache_open(cache, warning, sizeof warning);
    for (int i = 0; i < 2; i++) {
        snprintf(key, sizeof key, "A GPU, 9.0, cuDNN 91900, cuBLASLt 130000; %s; cudnn %d=0",
                 KEY_3X3, engines[i]);
        ampk_plan_cache_add(kept, key, AMPK_TC_FAULTED);
    }
    CHECK(ampk_plan_cache_save(kept, err, sizeof err));
    ampk_plan_cache_close(kept);
}

AMP_TEST(what_faulted_is_no_guess_and_not_taken_as_kept)
{
    begin();
    stub.cudnn[4] = 1, stub.cudnn[5] = 2, stub.cudnn[6] = 3, stub.faults = 4;
    keep_as_faulted((const int[]){4, 5});
    stub.untimed = true;
    check_engine(forward(3, AMPK_FP16), 6);
    stub.no_memory = true;
    check_engine(forward(3, AMPK_FP16), 6);
    end();
    begin();
    stub.cudnn[4] = 1, stub.cudnn[5] = 2, stub.cudnn[6] = 3;
    check_choice(forward(3, AMPK_FP16), 1, NULL);
    stub.faults = 4;
    keep_as_faulted((const int[]){4, 5});
    CHECK(check_choice(forward(3, AMPK_FP16), 3, NULL) > 0);
    end();
}

AMP_TEST(where_everything_faulted_nothing_is_planned)
{
    char why[200];
    begin();
    stub.cudnn[4] = 1, stub.cudnn[5] = 2, stub.faults = 4;
    keep_as_faulted((const int[]){4, 5});
    CHECK_INT(engine_of(forward(3, AMPK_FP16), why), -1);
    CHECK(strstr(why, "made this GPU fault") != NULL);
    CHECK_INT(runs, 0);
    end();
}

static void plan_twice(void)
{
    plan_3x3();
    plan_3x3();
}

AMP_TEST(libraries_that_do_not_belong_together_are_named_once)
{
    static const char words[] = "cuDNN 91900 of CUDA ";
    char said[4000];
    begin();
    stub.cudnn[0] = 1;
    hear(plan_3x3, said);
    CHECK(!strstr(said, "LD_LIBRARY_PATH"));
    stub.older_cuda = true;
    hear(plan_twice, said);
    const char *first = strstr(said, words);
    CHECK(first && !strstr(first + 1, words));
    end();
}

AMP_TEST(what_is_left_out_is_said_once)
{
    static const char words[] = "made this GPU fault in an earlier run";
    char said[4000];
    begin();
    stub.cudnn[4] = 1, stub.cudnn[5] = 2, stub.cudnn[6] = 0.5f;
    keep_as_faulted((const int[]){4, 5});
    hear(plan_3x3, said);
    const char *first = strstr(said, words);
    CHECK(first && strstr(said, "; cudnn 4=0: made") && !strstr(first + 1, words));
    end();
}

AMP_TEST(where_no_fault_can_be_kept_the_way_without_timing_is_named)
{
    char said[4000];
    begin();
    stub.cudnn[5] = 1, stub.faults = 5;
    char file[sizeof cache];
    strcpy(file, cache);
    strcpy(cache, "/dev/null/plans");
    int status = hear(plan_3x3, said);
    strcpy(cache, file);
    CHECK(WIFSIGNALED(status));
    CHECK(strstr(said, "cuDNN's engine 5 failed while it was timed") != NULL);
    CHECK(strstr(said, "AMPK_CUDA_UNTIMED=1") && !strstr(said, "next start"));
    end();
}

static void plan_on_a_dead_device(void)
{
    faulted = true;
    plan_3x3();
}

AMP_TEST(a_device_that_faulted_before_is_no_fault_of_what_is_timed)
{
    char said[4000];
    begin();
    stub.cudnn[5] = 1, stub.dead_refuses = true;
    CHECK(WIFSIGNALED(hear(plan_on_a_dead_device, said)));
    CHECK(strstr(said, "the device failed while it was timed") && !strstr(said, "next start"));
    CHECK(check_choice(forward(3, AMPK_FP16), 1, NULL) > 0);
    end();
}

AMP_TEST(a_guess_that_makes_the_device_fault_is_left_out)
{
    for (int i = 0; i < 3; i++) {
        begin();
        stub.cudnn[4] = 1, stub.cudnn[5] = 2, stub.untimed = i < 2, stub.faults = 4;
        stub.fault_refuses = i > 0;       /* at once */
        if (i == 2) stub.largest = 10000; /* too little memory to time them */
        check_fault(plan_3x3, "cuDNN's engine 4 failed while it was tried", "; cudnn 4=0)");
        check_engine(forward(3, AMPK_FP16), 5);
        stub.untimed = false;
        check_engine(forward(3, AMPK_FP16), 5);
        end();
    }
}

AMP_TEST_MAIN
