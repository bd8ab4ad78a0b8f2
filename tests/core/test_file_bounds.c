/* What a hostile file can make us allocate: the largest request while it is refused. Files are
 * sparse: their sizes cost nothing. */
#include "tests/rig/harness.h"

#include <fcntl.h>
#include <sys/stat.h>

#include "plugin/input/check_train.h"
#include "plugin/input/labels.h"
#include "plugin/core/net/net.h"
#include "plugin/app/map.h"
#include "plugin/core/files/sidecar.h"
#include "tests/rig/files.h"

#define MIB (1 << 20)

static size_t largest;
static char err[1 << 16];

void *__real_malloc(size_t size);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *old, size_t size);

static void count(size_t size)
{
    if (size > largest) largest = size;
}

void *__wrap_malloc(size_t size)
{
    count(size);
    return __real_malloc(size);
}

void *__wrap_calloc(size_t n, size_t size)
{
    count(n * size);
    return __real_calloc(n, size);
}

void *__wrap_realloc(void *old, size_t size)
{
    count(size);
    return __real_realloc(old, size);
}

/* A file that begins with these bytes and is so long. */
static const char *sparse(const char *name, const void *bytes, size_t n, off_t size)
{
    scratch_write(name, bytes, n);
    CHECK_INT(truncate(scratch(name), size), 0);
    largest = 0;
    return scratch(name);
}

AMP_TEST(cfg_and_data)
{
    const char *path = sparse("x.cfg", "[net]\n", 6, (off_t)1 << 40);
    CHECK(!amp_cfg_read(path, err, sizeof err));
    CHECK_SAYS(err, "larger than 16 MiB");
    CHECK(!amp_cfg_read_data(path, err, sizeof err));
    CHECK(largest < MIB);
    sparse("x.cfg", "[net]\n", 6, 16 * MIB);
    CHECK(!amp_cfg_read(scratch("x.cfg"), err, sizeof err));
    CHECK_SAYS(err, "NUL byte");
    CHECK(largest <= 16 * MIB + 1);
}

/* Numbers in a cfg size nothing before they are checked. */
AMP_TEST(numbers_of_a_cfg)
{
    static const char *const cfgs[] = {
        "[net]\nwidth=999999\nheight=999999\nchannels=999999\n[conv]\n",
        ("[net]\nwidth=8\nheight=8\nchannels=7\n[yolo]\nmask=0\nclasses=2\nnum=1000000\n"
         "anchors=1,1\n"),
        "[net]\nwidth=8\nheight=8\nchannels=1\n[conv]\nfilters=1000000\nsize=60000\n",
        "[net]\nwidth=8\nheight=8\nchannels=1\nbatch=1000000\n[conv]\nfilters=1000\n"};
    for (int i = 0; i < 4; i++) {
        struct amp_cfg_file *cfg =
            amp_cfg_parse("x.cfg", cfgs[i], strlen(cfgs[i]), err, sizeof err);
        REQUIRE(cfg);
        largest = 0;
        CHECK(!amp_net_describe(cfg, 0, 0, true, err, sizeof err));
        CHECK(largest < MIB);
        amp_cfg_free(cfg);
    }
}

/* Counts of the head that its own length would allow. */
AMP_TEST(sidecar)
{
    unsigned char head[136] = {0x89, 'A', 'M', 'P', '\r', '\n', 0x1a, '\n', AMP_SIDECAR_VERSION};
    for (int field = 16; field <= 20; field += 4) { /* n_params, n_demoted */
        memset(head + 16, 0, 8);
        memset(head + field, 0xff, 4);
        CHECK(
            !amp_sidecar_open(sparse("x.amp", head, sizeof head, (off_t)1 << 40), err, sizeof err));
        CHECK_SAYS(err, "more than any network");
        CHECK(largest < MIB);
    }
}

static void tell(void *context, const char *message)
{
    (void)context;
    snprintf(err, sizeof err, "%s", message);
}

AMP_TEST(labels)
{
    struct amp_labels labels = {0};
    const char *path = sparse("x.txt", "0 .5 .5 .1 .1\n", 14, (off_t)1 << 40);
    CHECK_INT(amp_labels_read(path, 2, &labels, tell, NULL), -1);
    CHECK_SAYS(err, "larger than 16 MiB");
    CHECK(largest < MIB);
    amp_labels_free(&labels);
}

/* Lists, names and maps that never end: also a device. */
AMP_TEST(lists_and_names)
{
    char data[400], *said;
    size_t size;
    struct amp_eval_set set;
    sparse("long", "a\n", 2, (off_t)1 << 40);
    const char *const endless[] = {scratch("long"), "/dev/zero"};
    for (int i = 0; i < 2; i++) {
        int n = snprintf(data, sizeof data, "classes=1\nnames=%s\nvalid=%s\ntrain=%s\nbackup=/\n",
                         endless[i], endless[i], endless[i]);
        scratch_write("x.data", data, (size_t)n);
        FILE *log = open_memstream(&said, &size);
        REQUIRE(log);
        largest = 0;
        CHECK_INT(amp_eval_set_load(scratch("x.data"), AMP_DIALECT_STOCK, &set, log), -1);
        const struct amp_trainer_inputs in = {.data = scratch("x.data"), .cfg = "/none"};
        CHECK_INT(amp_check_train_inputs(&in, NULL, NULL, err, sizeof err), -1);
        CHECK(largest < MIB);
        fclose(log);
        CHECK_SAYS(err, i ? "not a regular file" : "larger than 1 GiB");
        if (!strstr(said, i ? "not a regular file" : "larger than 1 GiB")) TEST_FAIL("%s", said);
        free(said);
    }
}

AMP_TEST_MAIN
