/* Batches that are loaded image by image: the same bytes with any number of loader threads, the
 * right iteration also after a resize or a resume, names, and images that cannot be decoded. */

#include "tests/rig/small_set.h"

#include "plugin/attach/feed/batches.h"
#include "plugin/attach/feed/seed.h"
#include "plugin/attach/session.h"
#include "plugin/core/host.h"

#include <fcntl.h>
#include <stdio.h> /* jpeglib.h needs it */

#include <jpeglib.h>

#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

static const uint64_t seed7 = 7, seed8 = 8;
static char *class_names[] = {"boxes", "masks"};

/* n images of this type, every kind of augmentation on. */
static load_args arguments(data_type type, int n, data *d)
{
    load_args args = {.type = type,
                      .paths = box_paths,
                      .n = n,
                      .m = SMALL_SET_IMAGES,
                      .labels = class_names,
                      .classes = 2,
                      .w = 8,
                      .h = 6,
                      .out_w = 4,
                      .out_h = 4,
                      .scale = 2,
                      .size = 8,
                      .min = 8,
                      .max = 14,
                      .angle = 7,
                      .aspect = 1.3f,
                      .hue = .1f,
                      .saturation = 1.5f,
                      .exposure = 1.5f,
                      .jitter = .2f,
                      .num_boxes = 3,
                      .coords = 4 + 14 * 14,
                      .threads = 1,
                      .d = d};
    if (type == SEGMENTATION_DATA || type == INSTANCE_DATA || type == ISEG_DATA)
        args.paths = mask_paths;
    return args;
}

static int same_matrix(matrix a, matrix b)
{
    if (a.rows != b.rows || a.cols != b.cols) return 0;
    for (int i = 0; i < a.rows; i++)
        if (memcmp(a.vals[i], b.vals[i], sizeof(float) * (size_t)a.cols)) return 0;
    return 1;
}

static int same_data(data a, data b)
{
    return a.w == b.w && a.h == b.h && same_matrix(a.X, b.X) && same_matrix(a.y, b.y);
}

static size_t seen;
static const network tiny_net = {.seen = &seen, .batch = 5, .subdivisions = 2, .c = 3};

/* The first batch of a run that starts at `seen`. */
static data first_batch(data_type type, const uint64_t *seed, int threads)
{
    data d;
    load_args args = arguments(type, 10, &d);
    args.threads = threads;
    amp_batches_follow(&tiny_net, seed);
    pthread_join(load_data(args), NULL);
    return d;
}

static const data_type types[] = {OLD_CLASSIFICATION_DATA,
                                  CLASSIFICATION_DATA,
                                  REGRESSION_DATA,
                                  TAG_DATA,
                                  SUPER_DATA,
                                  WRITING_DATA,
                                  SEGMENTATION_DATA,
                                  INSTANCE_DATA,
                                  ISEG_DATA,
                                  REGION_DATA,
                                  DETECTION_DATA};

static void check_type(data_type type)
{
    static const int threads[] = {3, 64, 0, -1};
    seen = 40;
    data one = first_batch(type, &seed7, 1);
    CHECK_INT(one.X.rows, 10);
    CHECK_INT(one.y.rows, 10);
    for (size_t t = 0; t < sizeof threads / sizeof *threads; t++) {
        data many = first_batch(type, &seed7, threads[t]);
        if (!same_data(one, many)) TEST_FAIL("type %d differs with %d threads", type, threads[t]);
        free_data(many);
    }
    data other = first_batch(type, &seed8, 3);
    if (same_data(one, other)) TEST_FAIL("type %d does not follow the seed", type);
    free_data(other);
    seen = 50;
    other = first_batch(type, &seed7, 3);
    if (same_data(one, other)) TEST_FAIL("type %d does not follow the iteration", type);
    free_data(other);
    free_data(one);
}

AMP_TEST(every_type_is_the_same_with_any_number_of_threads)
{
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        check_type(types[i]);
    amp_batches_follow(NULL, NULL);
}

AMP_TEST(load_data_in_thread_gives_the_same_batch)
{
    seen = 0;
    data a = first_batch(DETECTION_DATA, &seed7, 3), b;
    amp_batches_follow(&tiny_net, &seed7);
    pthread_join(load_data_in_thread(arguments(DETECTION_DATA, 10, &b)), NULL);
    CHECK(same_data(a, b));
    free_data(a);
    free_data(b);
    amp_batches_follow(NULL, NULL);
}

/* Every image of a batch is another draw: of 10 out of 12 about 7 are different. */
AMP_TEST(images_of_a_batch_differ)
{
    seen = 0;
    data d = first_batch(OLD_CLASSIFICATION_DATA, &seed7, 3);
    int different = 0;
    for (int k = 0; k < 10; k++) {
        int same = 0;
        while (same < k && d.X.vals[same][0] != d.X.vals[k][0])
            same++;
        different += same == k;
    }
    CHECK(different > 4);
    free_data(d);
    amp_batches_follow(NULL, NULL);
}

AMP_TEST(without_a_network_to_follow_nothing_changes)
{
    data a, b;
    amp_batches_follow(NULL, NULL);
    srand(3);
    load_data_blocking(arguments(DETECTION_DATA, 10, &a));
    int next = rand();
    srand(3);
    pthread_join(load_data(arguments(DETECTION_DATA, 10, &b)), NULL);
    CHECK_INT(rand(), next);
    CHECK(same_data(a, b));
    CHECK(!amp_batches_image(0));
    free_data(a);
    free_data(b);
}

/* ---- the iteration ---- */

enum { FEW_STEPS = 7, MAX_STEPS = 9 };

/* What a trainer saw in every iteration. */
struct record {
    data train[MAX_STEPS];
    int size[MAX_STEPS];  /* drawn before the step, as with random=1; 0: not drawn */
    int draws[MAX_STEPS]; /* drawn in the passes, as dropout does */
};

/* Image k of the batch in hand must be the one that its name says. */
static void check_names(data train)
{
    for (int k = 0; k < train.X.rows; k++) {
        const char *name = amp_batches_image(k);
        int red = (int)lround(train.X.vals[k][0] * 255);
        REQUIRE(name != NULL);
        CHECK_STR(name, box_paths[red / SMALL_SET_STEP]);
    }
    CHECK(!amp_batches_image(-1));
    CHECK(!amp_batches_image(train.X.rows));
}

/* Darknet's train_detector, from iteration first to last, without the arithmetic. resize: every how
 * many iterations a batch is thrown away and loaded again in another size; 0: never. */
static void train(struct record *r, data_type type, const uint64_t *seed, int first, int last,
                  int resize, int threads)
{
    data buffer, batch;
    load_args args = arguments(type, 10, &buffer);
    args.threads = threads;
    seen = 0;
    amp_batches_follow(&tiny_net, seed);
    seen = (size_t)first * 10; /* as load_weights sets it */
    pthread_t thread = load_data(args);
    int count = 0;
    for (int i = first; i < last; i++) {
        r->size[i] = 0;
        if (resize && count++ % resize == 0) {
            args.w = args.h = r->size[i] = (rand() % 10 + 10) * 2;
            pthread_join(thread, NULL);
            batch = buffer;
            free_data(batch);
            thread = load_data(args);
        }
        pthread_join(thread, NULL);
        batch = buffer;
        thread = load_data(args);
        if (type == OLD_CLASSIFICATION_DATA) check_names(batch);
        r->draws[i] = 0;
        for (int pass = 0; pass < 2; pass++) {
            seen += 5;
            r->draws[i] = r->draws[i] * 31 + rand() % 1000;
        }
        r->train[i] = copy_data(batch);
        free_data(batch);
    }
    pthread_join(thread, NULL);
    free_data(buffer);
}

static void free_record(struct record *r, int first, int last)
{
    for (int i = first; i < last; i++)
        free_data(r->train[i]);
}

static void check_resume(int resize)
{
    static struct record whole, parts;
    train(&whole, DETECTION_DATA, &seed7, 0, MAX_STEPS, resize, 3);
    for (int stop = 3; stop <= 6; stop += 3) {
        train(&parts, DETECTION_DATA, &seed7, 0, stop, resize, 1);
        train(&parts, DETECTION_DATA, &seed7, stop, MAX_STEPS, resize, 64);
        for (int i = 0; i < MAX_STEPS; i++) {
            if (!same_data(whole.train[i], parts.train[i]))
                TEST_FAIL("stopped at %d: batch %d is another one", stop, i);
            CHECK_INT(parts.size[i], whole.size[i]);
            CHECK_INT(parts.draws[i], whole.draws[i]);
        }
        free_record(&parts, 0, MAX_STEPS);
    }
    for (int i = 1; i < MAX_STEPS; i++) {
        CHECK(!same_data(whole.train[i], whole.train[i - 1]));
        CHECK(whole.draws[i] != whole.draws[i - 1]);
    }
    free_record(&whole, 0, MAX_STEPS);
    amp_batches_follow(NULL, NULL);
}

AMP_TEST(a_resumed_run_gets_the_same_batches)
{
    check_resume(0);
}

AMP_TEST(a_resumed_run_with_random_sizes_gets_the_same_batches)
{
    check_resume(3);
}

/* A size that is drawn twice the same must not matter either: iteration i has stream i however
 * often its batch was loaded. */
AMP_TEST(throwing_a_batch_away_does_not_shift_the_next)
{
    static struct record plain, resized;
    train(&plain, OLD_CLASSIFICATION_DATA, &seed7, 0, FEW_STEPS, 0, 3);
    train(&resized, OLD_CLASSIFICATION_DATA, &seed7, 0, FEW_STEPS, 2, 3);
    for (int i = 0; i < FEW_STEPS; i++)
        for (int k = 0; k < 10; k++)
            CHECK(plain.train[i].X.vals[k][0] == resized.train[i].X.vals[k][0]);
    free_record(&plain, 0, FEW_STEPS);
    free_record(&resized, 0, FEW_STEPS);
    amp_batches_follow(NULL, NULL);
}

AMP_TEST(names_are_known_without_a_seed)
{
    static struct record r;
    train(&r, OLD_CLASSIFICATION_DATA, NULL, 0, FEW_STEPS, 3, 4);
    free_record(&r, 0, FEW_STEPS);
    CHECK(!amp_batches_image(0));
    amp_batches_follow(NULL, NULL);
}

/* ---- training ---- */

/* Weights after some iterations of the small net, FP32, with this many loader threads. */
static float *trained_weights(const char *keys, int threads, int *n)
{
    data buffer, batch;
    load_args args = arguments(DETECTION_DATA, 4, &buffer);
    network *net = load_network((char *)write_small_cfg(keys), NULL, 0);
    layer head = net->layers[net->n - 1];
    args.threads = threads;
    args.w = args.h = 16;
    args.num_boxes = head.max_boxes;
    pthread_t thread = load_data(args);
    for (int i = 0; i < 4; i++) {
        pthread_join(thread, NULL);
        batch = buffer;
        thread = load_data(args);
        train_network(net, batch);
        free_data(batch);
    }
    pthread_join(thread, NULL);
    free_data(buffer);
    *n = net->layers[0].nweights;
    float *weights = malloc(sizeof(float) * (size_t)*n);
    memcpy(weights, net->layers[0].weights, sizeof(float) * (size_t)*n);
    free_network(net);
    return weights;
}

AMP_TEST(training_does_not_depend_on_the_loader_threads)
{
    int n;
    float *one = trained_weights("seed=7", 1, &n);
    for (int threads = 3; threads <= 64; threads += 61) {
        float *many = trained_weights("seed=7", threads, &n);
        CHECK(!memcmp(one, many, sizeof(float) * (size_t)n));
        free(many);
    }
    float *other = trained_weights("seed=8", 1, &n);
    CHECK(memcmp(one, other, sizeof(float) * (size_t)n));
    free(other);
    free(one);
}

/* Not since the last iteration of the one before it. */
AMP_TEST(a_wait_is_of_the_network_that_trains)
{
    for (int i = 0; i < 2; i++) {
        data first, second;
        load_args args = arguments(DETECTION_DATA, 4, &first);
        network *net = load_network((char *)write_small_cfg("mixed_precision=1\nseed=7"), NULL, 0);
        args.w = args.h = 16;
        args.num_boxes = net->layers[net->n - 1].max_boxes;
        pthread_join(load_data(args), NULL);
        train_network(net, first);
        args.d = &second;
        pthread_t thread = load_data(args);
        CHECK(amp_session_of(net->layers)->log.waiting == 0);
        pthread_join(thread, NULL);
        free_data(first);
        free_data(second);
        free_network(net);
    }
}

/* Of a program that loads several batches after an iteration, too. */
AMP_TEST(no_wait_is_counted_twice)
{
    enum { LOADS = 4 };
    data buffers[LOADS + 1];
    load_args args = arguments(DETECTION_DATA, 4, &buffers[0]);
    network *net = load_network((char *)write_small_cfg("mixed_precision=1\nseed=7"), NULL, 0);
    const struct amp_log *log = &amp_session_of(net->layers)->log;
    args.w = args.h = 16;
    args.num_boxes = net->layers[net->n - 1].max_boxes;
    pthread_join(load_data(args), NULL);
    train_network(net, buffers[0]);
    double began = amp_clock_seconds();
    free_data(buffers[0]);
    for (int i = 1; i <= LOADS; i++) {
        args.d = &buffers[i];
        pthread_join(load_data(args), NULL);
    }
    CHECK(log->waiting > 0 && log->waiting <= amp_clock_seconds() - began);
    for (int i = 1; i <= LOADS; i++)
        free_data(buffers[i]);
    free_network(net);
}

/* ---- what cannot be loaded ---- */

/* Runs a function in a child process; its status, and what it wrote to stderr. */
static int in_child(void (*run)(char *), char *argument, char *text, size_t size)
{
    int ends[2];
    if (pipe(ends)) abort();
    fflush(NULL);
    pid_t child = fork();
    if (!child) {
        dup2(ends[1], 2);
        run(argument);
        fflush(NULL);
        _exit(0);
    }
    close(ends[1]);
    size_t got = 0;
    ssize_t n;
    while (got + 1 < size && (n = read(ends[0], text + got, size - 1 - got)) > 0)
        got += (size_t)n;
    text[got] = 0;
    close(ends[0]);
    int status;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void load_file(char *path, const network *follow)
{
    data d;
    load_args args = arguments(OLD_CLASSIFICATION_DATA, 4, &d);
    args.paths = &path;
    args.m = 1;
    args.threads = 3;
    amp_batches_follow(follow, &seed7);
    pthread_join(load_data(args), NULL);
}

static void load_file_alone(char *path)
{
    load_file(path, NULL);
}

static void load_file_for_training(char *path)
{
    load_file(path, &tiny_net);
}

static int contains(const char *path, const char *line)
{
    char buffer[4096];
    FILE *f = fopen(path, "r");
    int found = 0;
    while (f && fgets(buffer, sizeof buffer, f)) {
        buffer[strcspn(buffer, "\n")] = 0;
        found |= !strcmp(buffer, line);
    }
    if (f) fclose(f);
    return found;
}

static void check_bad_image(char *path)
{
    char text[8192];
    unlink("bad.list");
    CHECK_INT(in_child(load_file_alone, path, text, sizeof text), 0);
    CHECK(contains("bad.list", path));
    unlink("bad.list");
    CHECK_INT(in_child(load_file_for_training, path, text, sizeof text), 1);
    CHECK(strstr(text, path) != NULL);
    CHECK(strstr(text, "cannot be read or decoded") != NULL);
    CHECK(access("bad.list", F_OK) != 0);
}

AMP_TEST(an_undecodable_image_is_named_and_no_shell_sees_it)
{
    write_text("boxes/; touch boxes_shell; .jpg", "no image\n");
    check_bad_image("boxes/; touch boxes_shell; .jpg");
    CHECK(access("boxes_shell", F_OK) != 0);
    check_bad_image("boxes/missing.jpg");
}

AMP_TEST(a_long_name_overruns_nothing)
{
    char folder[300] = "boxes/", path[600];
    memset(folder + 6, 'x', 200);
    folder[206] = 0;
    mkdir(folder, 0777);
    snprintf(path, sizeof path, "%s/%.100s.jpg", folder, folder + 6);
    write_text(path, "no image\n");
    check_bad_image(path);
    write_small_image(path, 3);
    image im = load_image_color(path, 0, 0);
    CHECK_INT(im.w, SMALL_SET_W);
    CHECK_NEAR(im.data[0], 3 * SMALL_SET_STEP / 255., 1e-6);
    free_image(im);
}

/* The first bytes of a file, with these behind. */
static void write_cut(const char *path, size_t bytes, const char *end)
{
    static char jpeg[1 << 18];
    FILE *from = fopen(AMP_JPEG, "rb"), *to = fopen(path, "wb");
    REQUIRE(from && to);
    size_t n = fread(jpeg, 1, sizeof jpeg, from);
    REQUIRE(n > 1000 && n < sizeof jpeg);
    fwrite(jpeg, 1, bytes && bytes < n ? bytes : n, to);
    fputs(end, to);
    fclose(from);
    fclose(to);
}

/* How often it is said, in a batch of four of it. */
static int cut_told(size_t bytes, const char *end, void (*load)(char *))
{
    char text[8192];
    int told = 0;
    write_cut("boxes/cut.jpg", bytes, end);
    CHECK_INT(in_child(load, "boxes/cut.jpg", text, sizeof text), 0);
    for (const char *p = text; (p = strstr(p, "image \"boxes/cut.jpg\" ends early")); p++)
        told++;
    return told;
}

AMP_TEST(a_jpeg_that_ends_early_is_named_once)
{
    static const size_t sizes[] = {20000, 50000, 140000};
    for (int i = 0; i < 3; i++) {
        CHECK_INT(cut_told(sizes[i], "", load_file_for_training), 1);
        CHECK_INT(cut_told(sizes[i], "", load_file_alone), 0);
    }
    CHECK_INT(cut_told(0, "", load_file_for_training), 0);
    CHECK_INT(cut_told(0, "bytes behind the end", load_file_for_training), 0);
}

/* The picture with a restart marker behind every row of blocks, which is no end of its pixels. */
static void write_with_restarts(const char *path, const char *end)
{
    struct jpeg_decompress_struct from;
    struct jpeg_compress_struct to;
    struct jpeg_error_mgr errors;
    FILE *in = fopen(AMP_JPEG, "rb"), *out = fopen(path, "wb");
    REQUIRE(in && out);
    from.err = to.err = jpeg_std_error(&errors);
    jpeg_create_decompress(&from);
    jpeg_create_compress(&to);
    jpeg_stdio_src(&from, in);
    jpeg_stdio_dest(&to, out);
    jpeg_read_header(&from, TRUE);
    jvirt_barray_ptr *blocks = jpeg_read_coefficients(&from);
    jpeg_copy_critical_parameters(&from, &to);
    to.restart_in_rows = 1;
    jpeg_write_coefficients(&to, blocks);
    jpeg_finish_compress(&to);
    jpeg_destroy_compress(&to);
    jpeg_destroy_decompress(&from);
    fputs(end, out);
    fclose(in);
    fclose(out);
}

AMP_TEST(restart_markers_are_no_end)
{
    static const char *const ends[] = {"", "bytes behind the end"};
    char text[8192];
    for (int i = 0; i < 2; i++) {
        write_with_restarts("boxes/whole.jpg", ends[i]);
        CHECK_INT(in_child(load_file_for_training, "boxes/whole.jpg", text, sizeof text), 0);
        CHECK(!strstr(text, "ends early"));
    }
    struct stat info;
    REQUIRE(!stat("boxes/whole.jpg", &info));
    REQUIRE(!truncate("boxes/whole.jpg", info.st_size - 1000)); /* among its pixels */
    CHECK_INT(in_child(load_file_for_training, "boxes/whole.jpg", text, sizeof text), 0);
    CHECK_SAYS(text, "ends early");
}

#ifndef AMP_SANITIZED /* which need address space of their own */
/* No more than so many MiB from here on. */
static void limit_memory(size_t mib)
{
    FILE *f = fopen("/proc/self/statm", "r");
    size_t pages = 0;
    REQUIRE(f && fscanf(f, "%zu", &pages) == 1);
    fclose(f);
    size_t bytes = pages * (size_t)sysconf(_SC_PAGESIZE) + (mib << 20);
    REQUIRE(!setrlimit(RLIMIT_AS, &(struct rlimit){bytes, bytes}));
}

static void load_large_batch(char *path)
{
    data d;
    load_args args = arguments(DETECTION_DATA, 4, &d);
    args.paths = &path;
    args.m = 1;
    args.w = args.h = 3000;
    amp_batches_follow(&tiny_net, &seed7);
    limit_memory(200);
    pthread_join(load_data(args), NULL);
}

static void load_large_image(char *path)
{
    limit_memory(200);
    load_file_for_training(path);
}

AMP_TEST(memory_that_ends_is_told_with_its_size)
{
    char text[8192];
    CHECK_INT(in_child(load_large_batch, box_paths[0], text, sizeof text), 1);
    CHECK_SAYS(
        text,
        "no memory for an image of 3000x3000 (103.0 MiB) while a batch is loaded: lower batch");
    FILE *f = fopen("boxes/large.jpg", "wb");
    REQUIRE(f);
    fprintf(f, "P6 4000 5000 255\n");
    for (int i = 0; i < 4000 * 5000 * 3; i++)
        putc(i % 251, f);
    fclose(f);
    CHECK_INT(in_child(load_large_image, "boxes/large.jpg", text, sizeof text), 1);
    CHECK(strstr(text, "no memory for an image of 4000x5000 (228.9 MiB)") ||
          strstr(text, "image \"boxes/large.jpg\" cannot be read or decoded: "));
}
#endif

static void load_swag(char *unused)
{
    (void)unused;
    seen = 0;
    amp_batches_follow(&tiny_net, &seed7);
    for (int i = 0; i < 2; i++) {
        data d;
        load_args args = arguments(SWAG_DATA, SMALL_SET_IMAGES, &d);
        pthread_join(load_data_in_thread(args), NULL);
        free_data(d);
    }
}

AMP_TEST(a_type_that_ignores_the_seed_says_so_once)
{
    char text[8192];
    CHECK_INT(in_child(load_swag, NULL, text, sizeof text), 0);
    const char *first = strstr(text, "seed=7 has no effect");
    CHECK(first && !strstr(first + 1, "seed=7 has no effect"));
}

AMP_TEST_MAIN
