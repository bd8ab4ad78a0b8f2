/* From watch words to the class, layer and tensor of a fault. */
#include "plugin/core/engine/guard.h"
#include "plugin/core/net/net.h"

#include "tests/rig/harness.h"

#define LAYERS 5

static uint32_t watch[LAYERS][AMP_WATCHES];
static uint16_t fp16[LAYERS];

static uint32_t bits_of(float v)
{
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    return bits;
}

static void reset(void)
{
    memset(watch, 0, sizeof watch);
    memset(fp16, 0, sizeof fp16);
}

static void set(int layer, enum amp_watch w, float v)
{
    watch[layer][w] = bits_of(v);
}

static void store_as_fp16(int layer, enum amp_watch w)
{
    fp16[layer] = (uint16_t)(fp16[layer] | 1u << w);
}

static struct amp_fault find(bool backward)
{
    return amp_fault_find((const uint32_t(*)[AMP_WATCHES])watch, fp16, LAYERS, backward);
}

static void check(bool backward, enum amp_fault_class class, int layer, enum amp_watch w)
{
    struct amp_fault f = find(backward);
    CHECK_INT(f.class, class);
    if (class == AMP_FAULT_NONE || f.class == AMP_FAULT_NONE) return;
    CHECK_INT(f.layer, layer);
    CHECK_STR(amp_watch_name(f.tensor), amp_watch_name(w));
}

AMP_TEST(ordinary_magnitudes_are_no_fault)
{
    reset();
    for (int i = 0; i < LAYERS; i++)
        for (int w = 0; w < AMP_WATCHES; w++) {
            set(i, (enum amp_watch)w, 65504);
            store_as_fp16(i, (enum amp_watch)w);
        }
    check(true, AMP_FAULT_NONE, 0, 0);
}

AMP_TEST(large_values_in_fp32_are_no_fault)
{
    reset();
    for (int i = 0; i < LAYERS; i++)
        for (int w = 0; w < AMP_WATCHES; w++)
            set(i, (enum amp_watch)w, 3.4e38f);
    check(true, AMP_FAULT_NONE, 0, 0);
}

/* 65504 is the largest FP16; up to (not including) 65520 a float rounds to it. */
AMP_TEST(the_limit_is_where_fp16_rounds_to_inf)
{
    reset();
    store_as_fp16(2, AMP_WATCH_OUT);
    set(2, AMP_WATCH_OUT, nextafterf(65520, 0));
    check(true, AMP_FAULT_NONE, 0, 0);
    set(2, AMP_WATCH_OUT, 65520);
    check(true, AMP_FAULT_FORWARD, 2, AMP_WATCH_OUT);
}

AMP_TEST(a_refused_store_in_forward_is_the_layers_fault)
{
    static const enum amp_watch words[] = {AMP_WATCH_WEIGHTS, AMP_WATCH_Y, AMP_WATCH_OUT,
                                           AMP_WATCH_COPY};
    for (int k = 0; k < 4; k++) {
        reset();
        store_as_fp16(3, words[k]);
        set(3, words[k], 1e6f);
        check(true, AMP_FAULT_FORWARD, 3, words[k]);
        check(false, AMP_FAULT_FORWARD, 3, words[k]);
        CHECK_NEAR(find(true).magnitude, 1e6, 0);
    }
}

AMP_TEST(inf_or_nan_from_fp32_arithmetic_is_divergence)
{
    static const float values[] = {INFINITY, NAN};
    for (int w = AMP_WATCH_WEIGHTS; w <= AMP_WATCH_LOSS; w++)
        for (int v = 0; v < 2; v++)
            for (int half = 0; half < 2; half++) {
                reset();
                set(1, (enum amp_watch)w, values[v]);
                if (half) store_as_fp16(1, (enum amp_watch)w);
                check(true, AMP_FAULT_DIVERGED, 1, (enum amp_watch)w);
                CHECK(!isfinite(find(true).magnitude));
            }
}

AMP_TEST(bad_input_and_labels_come_first)
{
    reset();
    set(0, AMP_WATCH_TRUTH, NAN);
    set(0, AMP_WATCH_WEIGHTS, INFINITY);
    set(4, AMP_WATCH_LOSS, NAN);
    check(true, AMP_FAULT_INPUT, 0, AMP_WATCH_TRUTH);
    set(0, AMP_WATCH_INPUT, INFINITY);
    check(false, AMP_FAULT_INPUT, 0, AMP_WATCH_INPUT);
}

/* An image value that is finite but does not fit the FP16 copy of the input. */
AMP_TEST(an_input_too_large_for_fp16_is_a_forward_fault)
{
    reset();
    store_as_fp16(0, AMP_WATCH_INPUT);
    set(0, AMP_WATCH_INPUT, 1e5f);
    check(true, AMP_FAULT_FORWARD, 0, AMP_WATCH_INPUT);
}

AMP_TEST(the_first_in_order_of_computation_is_reported)
{
    reset();
    store_as_fp16(1, AMP_WATCH_Y);
    set(1, AMP_WATCH_Y, 7e4f);
    set(1, AMP_WATCH_OUT, INFINITY);
    set(2, AMP_WATCH_OUT, NAN);
    set(4, AMP_WATCH_LOSS, NAN);
    set(0, AMP_WATCH_DW, NAN);
    check(true, AMP_FAULT_FORWARD, 1, AMP_WATCH_Y);
    watch[1][AMP_WATCH_Y] = 0;
    check(true, AMP_FAULT_DIVERGED, 1, AMP_WATCH_OUT);
}

AMP_TEST(backward_words_in_order_of_backward)
{
    reset();
    store_as_fp16(3, AMP_WATCH_DELTA);
    set(3, AMP_WATCH_DELTA, 7e4f);
    set(2, AMP_WATCH_DY, INFINITY);
    set(2, AMP_WATCH_DW, NAN);
    set(0, AMP_WATCH_DBIAS, NAN);
    check(true, AMP_FAULT_BACKWARD, 3, AMP_WATCH_DELTA);
    check(false, AMP_FAULT_NONE, 0, 0); /* not asked for */
    watch[3][AMP_WATCH_DELTA] = 0;
    check(true, AMP_FAULT_BACKWARD, 2, AMP_WATCH_DY);
    watch[2][AMP_WATCH_DY] = 0;
    check(true, AMP_FAULT_BACKWARD, 2, AMP_WATCH_DW);
    watch[2][AMP_WATCH_DW] = 0;
    check(true, AMP_FAULT_BACKWARD, 0, AMP_WATCH_DBIAS);
}

AMP_TEST(every_backward_word_counts)
{
    for (int w = AMP_WATCH_DELTA; w <= AMP_WATCH_DBIAS; w++)
        for (int layer = 0; layer < LAYERS; layer++) {
            reset();
            set(layer, (enum amp_watch)w, NAN);
            check(true, AMP_FAULT_BACKWARD, layer, (enum amp_watch)w);
            reset();
            store_as_fp16(layer, (enum amp_watch)w);
            set(layer, (enum amp_watch)w, 65520);
            check(true, AMP_FAULT_BACKWARD, layer, (enum amp_watch)w);
            reset();
            set(layer, (enum amp_watch)w, 65520);
            check(true, AMP_FAULT_NONE, 0, 0);
        }
}

AMP_TEST(a_forward_fault_hides_the_backward_ones_it_causes)
{
    reset();
    store_as_fp16(4, AMP_WATCH_OUT);
    set(4, AMP_WATCH_OUT, 1e5f);
    set(4, AMP_WATCH_DELTA, INFINITY);
    check(true, AMP_FAULT_FORWARD, 4, AMP_WATCH_OUT);
}

/* Of two processes: each of these comes before all that follow it. */
AMP_TEST(faults_are_ordered_as_they_are_computed)
{
    static const struct amp_fault order[] = {{AMP_FAULT_INPUT, 0, AMP_WATCH_TRUTH, NAN},
                                             {AMP_FAULT_DIVERGED, 0, AMP_WATCH_WEIGHTS, NAN},
                                             {AMP_FAULT_FORWARD, 2, AMP_WATCH_Y, 7e4},
                                             {AMP_FAULT_DIVERGED, 2, AMP_WATCH_ROLLING, NAN},
                                             {AMP_FAULT_DIVERGED, 5, AMP_WATCH_Y, NAN},
                                             {AMP_FAULT_BACKWARD, 5, AMP_WATCH_DELTA, 7e4},
                                             {AMP_FAULT_BACKWARD, 2, AMP_WATCH_DELTA, 7e4},
                                             {AMP_FAULT_BACKWARD, 2, AMP_WATCH_DW, 7e4},
                                             {AMP_FAULT_NONE, 0, AMP_WATCH_INPUT, 0}};
    int n = (int)(sizeof order / sizeof order[0]);
    for (int a = 0; a < n; a++)
        for (int b = 0; b < n; b++)
            CHECK_INT(amp_fault_before(&order[a], &order[b]), a < b);
}

AMP_TEST(every_word_has_a_name_of_its_own)
{
    for (int a = 0; a < AMP_WATCHES; a++)
        for (int b = 0; b < a; b++)
            CHECK(strcmp(amp_watch_name((enum amp_watch)a), amp_watch_name((enum amp_watch)b)));
    CHECK_STR(amp_watch_name(AMP_WATCHES), "none");
}

AMP_TEST(what_a_recurrent_layer_reads_is_no_input_of_batch_norm)
{
    struct amp_layer_desc layers[] = {{.type = AMP_LSTM}, {.type = AMP_CONVOLUTIONAL}};
    struct amp_net_desc net = {.n = 2, .layers = layers};
    struct amp_fault f = {AMP_FAULT_FORWARD, 0, AMP_WATCH_Y, INFINITY};
    CHECK_STR(amp_fault_tensor(&f, &net), "input of a product");
    f.tensor = AMP_WATCH_WEIGHTS;
    CHECK_STR(amp_fault_tensor(&f, &net), "weights");
    f.tensor = AMP_WATCH_Y;
    f.layer = 1;
    CHECK_STR(amp_fault_tensor(&f, &net), "batch-norm input");
    f.layer = -1;
    CHECK_STR(amp_fault_tensor(&f, &net), "batch-norm input");
}

/* ---- layers that leave FP16 ---- */

AMP_TEST(layers_leaving_fp16_within_a_window_are_told_once)
{
    struct amp_demotions e = {.n = 0};
    CHECK(!amp_demotions_add(&e, 5, 20));
    CHECK(!amp_demotions_add(&e, 6, 20));
    CHECK(amp_demotions_add(&e, 24, 20)); /* 5 is the oldest of a window of 20 that ends with 24 */
    CHECK(!amp_demotions_add(&e, 25, 20));
}

AMP_TEST(layers_leaving_fp16_now_and_then_are_not)
{
    struct amp_demotions e = {.n = 0};
    for (int64_t iteration = 0; iteration < 200; iteration += 10)
        CHECK(!amp_demotions_add(&e, iteration, 20));
    CHECK(amp_demotions_add(&e, 195, 20)); /* after 180 and 190 */
}

static float largest(void)
{
    return (float)amp_largest_gradient((const uint32_t(*)[AMP_WATCHES])watch, fp16, LAYERS);
}

AMP_TEST(only_gradients_stored_as_fp16_count_as_the_largest)
{
    static const enum amp_watch others[] = {AMP_WATCH_INPUT, AMP_WATCH_TRUTH, AMP_WATCH_WEIGHTS,
                                            AMP_WATCH_Y,     AMP_WATCH_OUT,   AMP_WATCH_COPY,
                                            AMP_WATCH_LOSS,  AMP_WATCH_DW,    AMP_WATCH_DBIAS};
    reset();
    CHECK(largest() == 0);
    for (int i = 0; i < LAYERS; i++)
        for (enum amp_watch w = AMP_WATCH_DELTA; w <= AMP_WATCH_DY; w++) {
            reset();
            set(i, w, 70000); /* also one that FP16 refused */
            CHECK(largest() == 0);
            store_as_fp16(i, w);
            CHECK(largest() == 70000);
            for (int k = 0; k < 9; k++) {
                set(i, others[k], 80000);
                store_as_fp16(i, others[k]);
            }
            CHECK(largest() == 70000);
            set(i, w, INFINITY);
            CHECK(largest() == 0);
        }
}

/* Wherever the one number is, and whatever lies behind the last. */
AMP_TEST(every_number_must_be_finite)
{
    static const float bad[] = {NAN, -NAN, INFINITY, -INFINITY};
    float x[40];
    for (size_t n = 0; n < 38; n++)
        for (size_t k = 0; k <= n; k++) {
            for (size_t i = 0; i < 40; i++)
                x[i] = i < n ? (float)test_uniform(-3.4e38, 3.4e38) : NAN;
            if (k < n) x[k] = bad[test_random() % 4];
            if (amp_all_finite(x, n) != (k == n)) TEST_FAIL("number %zu of %zu", k, n);
        }
}

AMP_TEST_MAIN
