/* The sidecar's format: what is written comes back; anything else is refused and changes nothing.
 */
#include "tests/rig/harness.h"

#include <fcntl.h>
#include <sys/stat.h>

#include "plugin/core/files/sidecar.h"
#include "tests/rig/files.h"

#define LAYERS 4
#define PARAMS 3
#define FLOATS 64
#define HEAD   136
#define DTYPE  128 /* its place in the head; version 1 ends there */
#define ROW    24

/* A run whose arrays all lie in values. */
struct state {
    struct amp_run run;
    struct amp_param params[PARAMS];
    enum amp_format demoted[LAYERS];
    float values[FLOATS];
};

static const struct amp_file_id weights = {12345, 0x0123456789abcdef};
static char err[PATH_MAX + 400];

/* Weights and biases of layer 1, weights of layer 3 with Adam moments: 7 + 2 + 3*5 floats. */
static void set_up(struct state *s)
{
    struct amp_param params[PARAMS] = {
        {.kind = AMP_PARAM_WEIGHTS, .layer = 1, .n = 7, .update = s->values},
        {.kind = AMP_PARAM_BIASES, .layer = 1, .n = 2, .update = s->values + 7},
        {.kind = AMP_PARAM_WEIGHTS,
         .layer = 3,
         .n = 5,
         .update = s->values + 9,
         .m = s->values + 14,
         .v = s->values + 19},
    };
    memset(s, 0, sizeof *s);
    memcpy(s->params, params, sizeof params);
    for (int i = 0; i < LAYERS; i++)
        s->demoted[i] = AMP_FORMATS;
    s->run = (struct amp_run){.dtype = AMP_DTYPE_BF16,
                              .n_layers = LAYERS,
                              .demoted = s->demoted,
                              .n_params = PARAMS,
                              .params = s->params};
    s->run.scaler = (struct amp_scaler){.dynamic = true, .scale = 1, .min = 1, .max = 1 << 24};
}

static void set_values(struct state *s)
{
    for (int i = 0; i < FLOATS; i++)
        s->values[i] = (float)test_uniform(-1, 1);
    s->demoted[0] = s->demoted[2] = AMP_FORMAT_FP32;
    s->run.seen = 1234567890123;
    s->run.t = 4321;
    s->run.scaler.scale = 4096;
    s->run.scaler.searching = true;
    s->run.scaler.tracker = 17;
    s->run.scaler.floor_skips = 3;
    s->run.scaler.redone = 101;
    s->run.scaler.skipped = 102;
    s->run.scaler.applied = 103;
    s->run.scaler.grown = 104;
    s->run.scaler.backed_off = 105;
}

static void write_sidecar(const char *name, const struct amp_run *r)
{
    int fd = open(scratch(name), O_WRONLY | O_CREAT | O_TRUNC, 0666);
    REQUIRE(fd >= 0);
    CHECK_INT(amp_sidecar_write(fd, r, &weights, err, sizeof err), 0);
    close(fd);
}

/* Opens, checks and restores as an attached network does. 0, or -1 with the reason in err. */
static int read_sidecar(const char *name, struct amp_run *r)
{
    struct amp_sidecar *s = amp_sidecar_open(scratch(name), err, sizeof err);
    if (!s) return -1;
    int failed = amp_sidecar_check_weights(s, &weights, "a.weights", err, sizeof err) ||
                 amp_sidecar_check_net(s, r, err, sizeof err) ||
                 amp_sidecar_restore(s, r, err, sizeof err);
    amp_sidecar_close(s);
    return failed ? -1 : 0;
}

static void check_equal(const struct state *a, const struct state *b)
{
    CHECK(!memcmp(a->values, b->values, 24 * sizeof(float)));
    CHECK(!memcmp(a->demoted, b->demoted, sizeof a->demoted));
    CHECK(a->run.seen == b->run.seen && a->run.t == b->run.t);
    CHECK(!memcmp(&a->run.scaler, &b->run.scaler, sizeof a->run.scaler));
}

/* The file is refused for this reason, and the run stays as it is. */
static void check_refused(const char *name, const char *reason)
{
    struct state now, before;
    set_up(&now);
    set_up(&before);
    *err = 0;
    CHECK_INT(read_sidecar(name, &now.run), -1);
    CHECK_SAYS(err, reason);
    if (!strstr(err, name)) TEST_FAIL("\"%s\" does not name the file", err);
    check_equal(&now, &before);
}

static char good[2048], changed[2048];
static size_t good_bytes;

static void make_good(void)
{
    struct state s;
    set_up(&s);
    set_values(&s);
    write_sidecar("good", &s.run);
    good_bytes = (size_t)scratch_read("good", good, sizeof good);
    CHECK_INT(good_bytes, HEAD + 3 * ROW + 2 * 4 + 24 * 4 + 8);
    memcpy(changed, good, sizeof good);
}

static void write_changed(size_t bytes, bool reseal)
{
    struct amp_hash h;
    amp_hash_begin(&h);
    amp_hash_add(&h, changed, bytes - 8);
    uint64_t sum = amp_hash_value(&h);
    if (reseal) memcpy(changed + bytes - 8, &sum, 8);
    scratch_write("changed", changed, bytes);
    memcpy(changed, good, sizeof good);
}

AMP_TEST(round_trip)
{
    struct state a, b;
    set_up(&a);
    set_up(&b);
    set_values(&a);
    write_sidecar("a", &a.run);
    CHECK_INT(read_sidecar("a", &b.run), 0);
    check_equal(&a, &b);
    write_sidecar("b", &b.run);
    char x[2048], y[2048];
    CHECK_INT(scratch_read("a", x, sizeof x), scratch_read("b", y, sizeof y));
    CHECK(!memcmp(x, y, HEAD + 3 * ROW + 2 * 4 + 24 * 4 + 8));
    scratch_empty();
}

AMP_TEST(earlier_demotions_do_not_outlive_restoring)
{
    struct state a, b;
    set_up(&a);
    set_up(&b);
    b.demoted[1] = AMP_FORMAT_FP32;
    write_sidecar("a", &a.run);
    CHECK_INT(read_sidecar("a", &b.run), 0);
    check_equal(&a, &b);
    scratch_empty();
}

AMP_TEST(a_run_without_parameters)
{
    struct state a, b;
    set_up(&a);
    set_up(&b);
    a.run.t = 9;
    a.run.n_params = b.run.n_params = 0;
    write_sidecar("a", &a.run);
    CHECK_INT(read_sidecar("a", &b.run), 0);
    CHECK_INT(b.run.t, 9);
    scratch_empty();
}

AMP_TEST(cut_off_at_every_length)
{
    make_good();
    for (size_t n = 0; n < good_bytes; n++) {
        scratch_write("changed", good, n);
        check_refused("changed", "is cut off");
    }
    scratch_empty();
}

AMP_TEST(longer_than_it_should_be)
{
    make_good();
    for (size_t n = 1; n < 40; n++) {
        scratch_write("changed", good, good_bytes + n);
        check_refused("changed", "has bytes after its end");
    }
    scratch_empty();
}

AMP_TEST(every_bit_of_every_byte_flipped)
{
    make_good();
    for (size_t i = 0; i < good_bytes; i++) {
        changed[i] = (char)~changed[i];
        write_changed(good_bytes, false);
        check_refused("changed", "");
        for (int bit = 0; bit < 8; bit++) {
            changed[i] ^= (char)(1 << bit);
            write_changed(good_bytes, false);
            check_refused("changed", "");
        }
    }
    scratch_empty();
}

AMP_TEST(a_float_that_was_changed_is_damage)
{
    make_good();
    changed[good_bytes - 20] ^= 1;
    write_changed(good_bytes, false);
    check_refused("changed", "is damaged (its checksum differs)");
    scratch_empty();
}

AMP_TEST(another_version)
{
    make_good();
    for (char version = 0; version < 5; version += 4) {
        char said[100];
        changed[8] = version;
        write_changed(good_bytes, true);
        snprintf(said, sizeof said, "has format version %d; this program reads versions 1 to 3",
                 version);
        check_refused("changed", said);
    }
    scratch_empty();
}

static enum amp_dtype_choice dtype_in(const char *name)
{
    struct amp_sidecar *s = amp_sidecar_open(scratch(name), err, sizeof err);
    if (!s) TEST_FAIL("%s", err);
    enum amp_dtype_choice dtype = s ? amp_sidecar_dtype(s) : AMP_DTYPE_AUTO;
    amp_sidecar_close(s);
    return dtype;
}

AMP_TEST(the_dtype_is_kept)
{
    struct state s;
    set_up(&s);
    for (int dtype = AMP_DTYPE_FP16; dtype <= AMP_DTYPE_FP32; dtype++) {
        s.run.dtype = (enum amp_dtype_choice)dtype;
        write_sidecar("a", &s.run);
        CHECK_INT(dtype_in("a"), dtype);
    }
    scratch_empty();
}

/* It has all but the dtype, which was fp16 unless the cfg said otherwise. */
AMP_TEST(version_1_is_read)
{
    struct state a, b;
    set_up(&a);
    set_values(&a);
    make_good();
    scratch_write("good", good, good_bytes);
    CHECK_INT(read_sidecar("good", &a.run), 0); /* a is what the file has */
    changed[8] = 1;
    memmove(changed + DTYPE, changed + HEAD, good_bytes - HEAD);
    write_changed(good_bytes - (HEAD - DTYPE), true);
    set_up(&b);
    CHECK_INT(read_sidecar("changed", &b.run), 0);
    CHECK(b.run.t == 4321 && b.run.scaler.backed_off == 105);
    check_equal(&a, &b);
    CHECK_INT(dtype_in("good"), AMP_DTYPE_BF16);
    CHECK_INT(dtype_in("changed"), AMP_DTYPE_FP16);
    scratch_empty();
}

/* ---- version 3 ---- */

static void check_forged(size_t at, const void *value, size_t bytes, const char *reason);

#define NAME_SIZE 24

/* The same run with averages of all that can have one: 7 + 2 + 5 + 3 floats behind the others. */
struct averaged {
    struct state s;
    struct amp_rolling rolling[2]; /* the first has none, as what a recurrent layer carries */
};

static void set_up_averaged(struct averaged *a)
{
    set_up(&a->s);
    memset(a->rolling, 0, sizeof a->rolling);
    a->s.params[0].average = a->s.values + 24;
    a->s.params[1].average = a->s.values + 31;
    a->s.params[2].average = a->s.values + 33;
    a->rolling[0] = (struct amp_rolling){.n = 9, .carried = true};
    a->rolling[1] = (struct amp_rolling){.n = 3, .average = a->s.values + 38};
    a->s.run.n_rolling = 2;
    a->s.run.rolling = a->rolling;
}

static void set_averaged(struct averaged *a)
{
    set_up_averaged(a);
    set_values(&a->s);
    a->s.run.counts = (struct amp_counts){77, 5};
}

static void make_good_averaged(void)
{
    struct averaged a;
    set_averaged(&a);
    write_sidecar("good", &a.s.run);
    good_bytes = (size_t)scratch_read("good", good, sizeof good);
    CHECK_INT(good_bytes, HEAD + 3 * ROW + 2 * 4 + 8 + 2 * 32 + 4 * 40 + (24 + 17) * 4 + 8);
    CHECK_INT(good[8], 3);
    memcpy(changed, good, sizeof good);
}

AMP_TEST(averages_and_counts_come_back)
{
    struct averaged a, b;
    set_averaged(&a);
    set_up_averaged(&b);
    write_sidecar("a", &a.s.run);
    CHECK_INT(read_sidecar("a", &b.s.run), 0);
    check_equal(&a.s, &b.s);
    CHECK(!memcmp(a.s.values, b.s.values, 41 * sizeof(float)));
    CHECK(b.s.run.counts.averaged == 77 && b.s.run.counts.clipped == 5);
    write_sidecar("b", &b.s.run);
    char x[2048], y[2048];
    long n = scratch_read("a", x, sizeof x);
    CHECK(n == scratch_read("b", y, sizeof y) && !memcmp(x, y, (size_t)n));
    scratch_empty();
}

AMP_TEST(a_run_without_averages_passes_over_them)
{
    struct averaged a;
    struct state b;
    set_averaged(&a);
    set_up(&b);
    write_sidecar("a", &a.s.run);
    struct amp_sidecar *s = amp_sidecar_open(scratch("a"), err, sizeof err);
    REQUIRE(s != NULL);
    CHECK(amp_sidecar_has_averages(s));
    amp_sidecar_close(s);
    CHECK_INT(read_sidecar("a", &b.run), 0);
    check_equal(&a.s, &b);
    /* And the other way round: the averages stay as they were made. */
    set_up(&b);
    set_values(&b);
    write_sidecar("b", &b.run);
    set_up_averaged(&a);
    a.s.values[30] = 4;
    CHECK_INT(read_sidecar("b", &a.s.run), 0);
    CHECK(a.s.values[30] == 4 && a.s.run.counts.averaged == 0);
    scratch_empty();
}

/* Names of a later program: a scalar, and an array of a row and one of nothing that is here. */
AMP_TEST(unknown_names_are_passed_over)
{
    struct averaged b;
    size_t scalars = HEAD + 3 * ROW + 2 * 4 + 8, arrays = scalars + 2 * 32;
    uint32_t far = 1000;
    make_good_averaged();
    memcpy(changed + scalars, "later", 6);
    memcpy(changed + arrays, "later", 6);
    memcpy(changed + arrays + 40 + NAME_SIZE + 4, &far, 4);
    write_changed(good_bytes, true);
    set_up_averaged(&b);
    CHECK_INT(read_sidecar("changed", &b.s.run), 0);
    CHECK(b.s.run.counts.averaged == 0 && b.s.run.counts.clipped == 5);
    for (int i = 24; i < 33; i++)
        CHECK_NEAR(b.s.values[i], 0, 0);
    for (int i = 33; i < 41; i++)
        CHECK(b.s.values[i] != 0);
    scratch_empty();
}

/* The first two rows' averages, of 7 and 2 floats, each under the other's number. */
AMP_TEST(averages_of_another_length_are_passed_over)
{
    struct averaged b;
    char *arrays = changed + HEAD + 3 * ROW + 2 * 4 + 8 + 2 * 32;
    make_good_averaged();
    for (uint32_t i = 0; i < 2; i++) {
        uint32_t other = 1 - i;
        memcpy(arrays + i * 40 + NAME_SIZE + 4, &other, 4);
    }
    write_changed(good_bytes, true);
    set_up_averaged(&b);
    CHECK_INT(read_sidecar("changed", &b.s.run), 0);
    for (int i = 24; i < 41; i++)
        CHECK((b.s.values[i] != 0) == (i >= 33));
    scratch_empty();
}

AMP_TEST(damage_of_version_3)
{
    make_good_averaged();
    for (size_t n = 0; n < good_bytes; n++) {
        scratch_write("changed", good, n);
        check_refused("changed", "is cut off");
    }
    for (size_t i = 0; i < good_bytes; i++) {
        changed[i] = (char)~changed[i];
        write_changed(good_bytes, false);
        check_refused("changed", "");
    }
    scratch_write("changed", good, good_bytes + 3);
    check_refused("changed", "has bytes after its end");
    scratch_empty();
}

AMP_TEST(forged_names)
{
    size_t names = HEAD + 3 * ROW + 2 * 4, scalars = names + 8, arrays = scalars + 2 * 32;
    double bad[] = {-1, .5, NAN, INFINITY, 1e16};
    uint32_t two = 2, all = UINT32_MAX, million = 1 << 20;
    uint64_t huge[] = {UINT64_MAX, UINT64_MAX / 4, 1ull << 62, 1ull << 40};
    char full[NAME_SIZE];
    memset(full, 'x', sizeof full);
    make_good_averaged();
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        memcpy(changed + scalars + NAME_SIZE, &bad[i], 8);
        write_changed(good_bytes, true);
        check_refused("changed", "holds values that no run has");
    }
    check_forged(scalars, full, sizeof full, "holds values that no run has");
    check_forged(arrays, full, sizeof full, "holds values that no run has");
    check_forged(arrays + NAME_SIZE, &two, 4, "holds values that no run has"); /* owner */
    check_forged(names, &all, 4, "is cut off");
    check_forged(names + 4, &all, 4, "is cut off");
    check_forged(names + 4, &million, 4, "is cut off");
    for (size_t i = 0; i < sizeof huge / sizeof *huge; i++)
        check_forged(arrays + NAME_SIZE + 8, &huge[i], 8, "is cut off");
    float nan = NAN;
    check_forged(good_bytes - 12, &nan, 4, "that is not finite");
    scratch_empty();
}

AMP_TEST(of_another_optimizer)
{
    struct state a, b;
    set_up(&a);
    set_values(&a);
    a.run.optimizer = AMP_OPTIMIZER_LARS;
    write_sidecar("a", &a.run);
    CHECK_INT(scratch_read("a", good, sizeof good), HEAD + 3 * ROW + 2 * 4 + 8 + 32 + 24 * 4 + 8);
    set_up(&b);
    CHECK_INT(read_sidecar("a", &b.run), -1);
    CHECK_SAYS(err, "is of optimizer=lars, this cfg has sgd");
    b.run.optimizer = AMP_OPTIMIZER_LARS;
    CHECK_INT(read_sidecar("a", &b.run), 0);
    check_equal(&a, &b);
    a.run.optimizer = AMP_OPTIMIZER_SGD;
    write_sidecar("a", &a.run);
    CHECK_INT(read_sidecar("a", &b.run), -1);
    CHECK_SAYS(err, "is of optimizer=sgd or adam, this cfg has lars");
    scratch_empty();
}

/* Moments that are made only when the run goes on: they count as there. */
AMP_TEST(moments_that_are_not_made_yet)
{
    struct state a, b;
    set_up(&a);
    set_up(&b);
    a.params[0].m = a.params[0].v = a.values;
    a.params[1].m = a.params[1].v = a.values;
    write_sidecar("a", &a.run);
    struct amp_sidecar *s = amp_sidecar_open(scratch("a"), err, sizeof err);
    REQUIRE(s != NULL);
    CHECK_INT(amp_sidecar_check_net(s, &b.run, err, sizeof err), -1);
    b.run.keeps_moments = true;
    CHECK_INT(amp_sidecar_check_net(s, &b.run, err, sizeof err), 0);
    amp_sidecar_close(s);
    scratch_empty();
}

AMP_TEST(another_kind_of_file)
{
    make_good();
    memset(changed, 'x', 8);
    write_changed(good_bytes, true);
    check_refused("changed", "not a sidecar");
    check_refused("absent", "No such file or directory");
    REQUIRE(mkdir(scratch("folder"), 0777) == 0);
    check_refused("folder", "not a regular file");
    rmdir(scratch("folder"));
    REQUIRE(mkfifo(scratch("fifo"), 0666) == 0);
    check_refused("fifo", "not a regular file");
    scratch_empty();
}

AMP_TEST(of_other_weights)
{
    struct state s, before;
    struct amp_file_id other = weights;
    set_up(&s);
    set_up(&before);
    make_good();
    struct amp_sidecar *sidecar = amp_sidecar_open(scratch("good"), err, sizeof err);
    REQUIRE(sidecar != NULL);
    CHECK(amp_sidecar_seen(sidecar) == 1234567890123);
    CHECK_STR(amp_sidecar_path(sidecar), scratch("good"));
    CHECK_INT(amp_sidecar_check_weights(sidecar, &weights, "a.weights", err, sizeof err), 0);
    other.hash ^= 1;
    CHECK_INT(amp_sidecar_check_weights(sidecar, &other, "a.weights", err, sizeof err), -1);
    CHECK(strstr(err, "belongs to other weights than those in a.weights") != NULL);
    other = weights;
    other.bytes++;
    CHECK_INT(amp_sidecar_check_weights(sidecar, &other, "a.weights", err, sizeof err), -1);
    amp_sidecar_close(sidecar);
    check_equal(&s, &before);
    scratch_empty();
}

static void check_other_net(void (*change)(struct state *), const char *reason)
{
    struct state now, before;
    set_up(&now);
    change(&now);
    before = now;
    CHECK_INT(read_sidecar("good", &now.run), -1);
    CHECK_SAYS(err, reason);
    CHECK(!memcmp(now.values, before.values, sizeof now.values));
    CHECK(now.run.t == before.run.t && now.run.scaler.scale == before.run.scaler.scale);
}

static void more_layers(struct state *s)
{
    s->run.n_layers++;
}
static void fewer_params(struct state *s)
{
    s->run.n_params--;
}
static void another_size(struct state *s)
{
    s->params[0].n = 6;
}
static void another_layer(struct state *s)
{
    s->params[0].layer = 0;
}
static void another_param(struct state *s)
{
    s->params[1].kind = AMP_PARAM_SCALES;
}
static void without_adam(struct state *s)
{
    s->params[2].m = s->params[2].v = NULL;
}

AMP_TEST(of_another_network)
{
    make_good();
    check_other_net(more_layers, "has 4 layers and 3 arrays of parameters, this one 5 and 3");
    check_other_net(fewer_params, "has 4 layers and 3 arrays of parameters, this one 4 and 2");
    check_other_net(another_size, "has 7 weights of layer 1, this one 6 weights of layer 1");
    check_other_net(another_layer, "has 7 weights of layer 1, this one 7 weights of layer 0");
    check_other_net(another_param, "has 2 biases of layer 1, this one 2 scales of layer 1");
    check_other_net(without_adam, "5 weights of layer 3 with Adam moments, this one 5 weights");
    scratch_empty();
}

/* What only a forged file holds: the checksum is right. */
static void check_forged(size_t at, const void *value, size_t bytes, const char *reason)
{
    memcpy(changed + at, value, bytes);
    write_changed(good_bytes, true);
    check_refused("changed", reason);
}

static void check_forged_int(size_t at, int64_t value)
{
    check_forged(at, &value, 8, "holds values that no run has");
}

static void check_forged_scale(double scale)
{
    check_forged(56, &scale, 8, "holds values that no run has");
}

AMP_TEST(forged_values)
{
    double bad[] = {0, -1, 0.5, 3, 1 << 25, NAN, INFINITY};
    float inf = INFINITY, nan = NAN;
    uint32_t two = 2, many = 4, top = 1u << 31, all = UINT32_MAX;
    make_good();
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        check_forged_scale(bad[i]);
    check_forged(64, &two, 4, "holds values that no run has");
    check_forged(68, &two, 4, "holds values that no run has");
    for (size_t at = 72; at < HEAD; at += 8)
        check_forged_int(at, -1);
    check_forged_int(DTYPE, AMP_DTYPE_AUTO);
    check_forged_int(DTYPE, AMP_DTYPE_FP32 + 1);
    check_forged_int(DTYPE, AMP_DTYPE_FP32 + (1ll << 32)); /* the zero behind it */
    check_forged_int(72, 1ll << 31);
    check_forged_int(80, AMP_SCALER_FLOOR_STOP + 1);
    check_forged_int(40, -1); /* seen */
    check_forged_int(48, 1ll << 31);
    check_forged(12, &top, 4, "holds values that no run has"); /* layers */
    check_forged(HEAD, &many, 4, "holds values that no run has");
    check_forged(HEAD + 4, &many, 4, "holds values that no run has");
    check_forged(HEAD + 16, &two, 4, "is damaged");
    check_forged(HEAD + 16, &all, 4, "is damaged");
    check_forged(HEAD + 3 * ROW, &many, 4, "holds values that no run has");
    check_forged(HEAD + 3 * ROW, &two, 4, "holds values that no run has"); /* 2, 2 */
    check_forged(good_bytes - 12, &inf, 4, "momentum that is not finite");
    check_forged(HEAD + 3 * ROW + 8, &nan, 4, "momentum that is not finite");
    scratch_empty();
}

/* Arrays are read piece by piece: every piece is checked, and all of them come back. */
AMP_TEST(arrays_of_several_pieces)
{
    enum { N = 20000 };
    static float values[3][N], back[3][N];
    static const int places[] = {0, 4095, 4096, 8191, 8192, 12345, N - 1};
    struct amp_param param = {
        .kind = AMP_PARAM_WEIGHTS, .n = N, .update = values[0], .m = values[1], .v = values[2]};
    struct amp_param other = param;
    struct state s;
    set_up(&s);
    s.run.n_params = 1;
    s.run.params = &param;
    for (int k = 0; k < 3; k++)
        for (int i = 0; i < N; i++)
            values[k][i] = (float)test_uniform(-1, 1);
    write_sidecar("large", &s.run);
    s.run.params = &other;
    other.update = back[0], other.m = back[1], other.v = back[2];
    CHECK_INT(read_sidecar("large", &s.run), 0);
    CHECK(!memcmp(back, values, sizeof values));
    s.run.params = &param;
    for (int k = 0; k < 3; k++)
        for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
            float *value = &values[k][places[i]], kept = *value;
            *value = i % 2 ? NAN : INFINITY;
            write_sidecar("large", &s.run);
            *value = kept;
            CHECK(!amp_sidecar_open(scratch("large"), err, sizeof err));
            CHECK_SAYS(err, "momentum that is not finite");
        }
    scratch_empty();
}

/* All layers that left FP16 are in the file, whatever their number and places. */
AMP_TEST(several_demotions)
{
    for (unsigned chosen = 0; chosen < 1u << LAYERS; chosen++) {
        struct state a, b;
        set_up(&a);
        set_up(&b);
        for (int i = 0; i < LAYERS; i++) {
            if (chosen >> i & 1) a.demoted[i] = AMP_FORMAT_FP32;
            b.demoted[i] = AMP_FORMAT_FP32;
        }
        write_sidecar("a", &a.run);
        CHECK_INT(read_sidecar("a", &b.run), 0);
        check_equal(&a, &b);
    }
    scratch_empty();
}

AMP_TEST(forged_sizes)
{
    uint32_t all = UINT32_MAX, half = 1u << 31;
    uint64_t huge[] = {UINT64_MAX, UINT64_MAX / 4, UINT64_MAX / 12, 1ull << 62, 1ull << 40};
    make_good();
    check_forged(16, &all, 4, "is cut off");
    check_forged(16, &half, 4, "is cut off");
    check_forged(20, &all, 4, "is cut off");
    for (size_t i = 0; i < sizeof huge / sizeof *huge; i++)
        check_forged(HEAD + 8, &huge[i], 8, "is cut off");
    scratch_empty();
}

/* Restoring reads the file that was checked, though another has its name; not one that was changed
 * in place. */
AMP_TEST(file_that_changes_after_the_check)
{
    struct state a, b;
    set_up(&a);
    set_up(&b);
    set_values(&a);
    write_sidecar("a", &a.run);
    struct amp_sidecar *s = amp_sidecar_open(scratch("a"), err, sizeof err);
    REQUIRE(s != NULL);
    unlink(scratch("a"));
    scratch_write("a", "other", 5);
    CHECK_INT(amp_sidecar_restore(s, &b.run, err, sizeof err), 0);
    check_equal(&a, &b);
    amp_sidecar_close(s);
    make_good();
    s = amp_sidecar_open(scratch("good"), err, sizeof err);
    REQUIRE(s != NULL);
    good[good_bytes - 20] ^= 1;
    scratch_write("good", good, good_bytes);
    CHECK_INT(amp_sidecar_restore(s, &b.run, err, sizeof err), -1);
    CHECK(strstr(err, "changed after it was checked") != NULL);
    amp_sidecar_close(s);
    scratch_empty();
}

AMP_TEST(a_write_that_fails)
{
    struct state s;
    set_up(&s);
    int fd = open("/dev/full", O_WRONLY);
    REQUIRE(fd >= 0);
    CHECK_INT(amp_sidecar_write(fd, &s.run, &weights, err, sizeof err), -1);
    CHECK_STR(err, "cannot write: No space left on device");
    close(fd);
}

AMP_TEST_MAIN
