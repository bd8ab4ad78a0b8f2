/* The weights check against files that Darknet itself writes and loads, for every layer type that
 * has weights, cut at every place that matters. */
#include "plugin/core/net/weights_file.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <darknet.h>

#include "tests/rig/harness.h"

static const char every_layer[] =
    "[net]\nbatch=2\nsubdivisions=1\ntime_steps=1\nheight=8\nwidth=8\nchannels=3\n"
    "[convolutional]\nbatch_normalize=1\nfilters=4\nsize=3\npad=1\nactivation=leaky\n"
    "[convolutional]\nfilters=6\nsize=3\ngroups=2\nstride=2\npad=1\nactivation=linear\n"
    "[maxpool]\nsize=2\nstride=1\n"
    "[batchnorm]\n"
    "[local]\nfilters=3\nsize=3\npad=1\nactivation=linear\n"
    "[crnn]\nbatch_normalize=1\nhidden_filters=5\noutput_filters=2\nactivation=relu\n"
    "[connected]\nbatch_normalize=1\noutput=7\nactivation=relu\n"
    "[rnn]\nbatch_normalize=1\noutput=5\nactivation=tanh\n"
    "[gru]\noutput=6\n"
    "[gru]\nbatch_normalize=1\noutput=4\n"
    "[lstm]\nbatch_normalize=1\noutput=5\n"
    "[connected]\noutput=3\nactivation=linear\n"
    "[softmax]\n";

static char dir[] = "/tmp/amp-weights-XXXXXX", cfg_path[64], weights_path[64];
static char err[1024];
static struct amp_cfg_file *cfg;
static struct amp_net_desc *net;
static struct amp_weights_info info;

static void clean_up(void)
{
    amp_net_desc_free(net);
    amp_cfg_free(cfg);
    unlink(cfg_path);
    unlink(weights_path);
    rmdir(dir);
}

static void make_dir(void)
{
    if (*cfg_path) return;
    REQUIRE(mkdtemp(dir) != NULL);
    snprintf(cfg_path, sizeof cfg_path, "%s/a.cfg", dir);
    snprintf(weights_path, sizeof weights_path, "%s/a.weights", dir);
    atexit(clean_up);
}

static void describe(const char *text)
{
    make_dir();
    amp_net_desc_free(net);
    amp_cfg_free(cfg);
    net = NULL;
    cfg = amp_cfg_parse("a.cfg", text, strlen(text), err, sizeof err);
    if (cfg) net = amp_net_describe(cfg, 0, 0, true, err, sizeof err);
    if (!net) TEST_FAIL("%s", err);
    REQUIRE(net != NULL);
}

static network *parse_with_darknet(const char *text)
{
    FILE *fp = fopen(cfg_path, "w");
    REQUIRE(fp != NULL);
    fputs(text, fp);
    fclose(fp);
    return parse_network_cfg(cfg_path);
}

static void save_with_darknet(const char *text)
{
    network *n = parse_with_darknet(text);
    *n->seen = 123456789012;
    save_weights(n, weights_path);
    free_network(n);
}

static uint64_t file_size(void)
{
    FILE *fp = fopen(weights_path, "rb");
    REQUIRE(fp != NULL);
    fseek(fp, 0, SEEK_END);
    long size = ftell(fp);
    fclose(fp);
    return (uint64_t)size;
}

/* A file with the header of the given version and n floats: 0, 1, 2 ... */
static void write_counting(int32_t major, int32_t minor, int seen_bytes, uint64_t seen, int n)
{
    FILE *fp = fopen(weights_path, "wb");
    REQUIRE(fp != NULL);
    int32_t version[3] = {major, minor, 0};
    fwrite(version, sizeof version, 1, fp);
    fwrite(&seen, (size_t)seen_bytes, 1, fp);
    for (int i = 0; i < n; i++) {
        float value = (float)i;
        fwrite(&value, sizeof value, 1, fp);
    }
    fclose(fp);
}

static int check(void)
{
    err[0] = '\0';
    return amp_weights_check(weights_path, net, &info, err, sizeof err);
}

static void check_rejected(const char *message)
{
    char expected[512];
    snprintf(expected, sizeof expected, "weights file %s: %s", weights_path, message);
    CHECK_INT(check(), -1);
    CHECK_STR(err, expected);
}

AMP_TEST(what_darknet_saves)
{
    describe(every_layer);
    save_with_darknet(every_layer);
    CHECK_INT(file_size(), amp_weights_saved_bytes(net));
    CHECK_INT(check(), 0);
    CHECK(info.seen == 123456789012);
    CHECK_INT(info.layers, 11);
    CHECK_INT(info.layers_found, 11);
    CHECK_INT(info.first_absent, -1);
}

/* Goes backward through the file: at every tensor's end, and one byte before and after it. */
AMP_TEST(cut_anywhere)
{
    struct amp_weight_tensor list[AMP_LAYER_TENSORS_MAX];
    describe(every_layer);
    save_with_darknet(every_layer);
    uint64_t end = file_size();
    int absent = -1, left = 11;
    for (int i = net->n - 1; i >= 0; --i) {
        int n = amp_weights_layer_tensors(&net->layers[i], AMP_WEIGHTS_LOAD, list);
        for (int k = n - 1; k >= 0; --k) {
            REQUIRE(truncate(weights_path, (off_t)end) == 0);
            CHECK_INT(check(), k == n - 1 ? 0 : -1); /* a layer's end, or a tensor's inside it */
            if (k == n - 1) {
                CHECK_INT(info.layers_found, left);
                CHECK_INT(info.first_absent, absent);
            }
            REQUIRE(truncate(weights_path, (off_t)end - 1) == 0);
            CHECK_INT(check(), -1);
            char part[64];
            snprintf(part, sizeof part, "of its %s;", list[k].name);
            CHECK(strstr(err, part));
            snprintf(part, sizeof part, "inside layer %d (%s)", i,
                     amp_layer_type_name(net->layers[i].type));
            CHECK(strstr(err, part));
            end -= 4 * list[k].floats;
        }
        if (n) absent = i, --left;
    }
    CHECK_INT(end, 20);
    REQUIRE(truncate(weights_path, 20) == 0);
    check_rejected("has no layer after its header");
    REQUIRE(truncate(weights_path, 19) == 0);
    check_rejected("ends inside its header");
    REQUIRE(truncate(weights_path, 11) == 0);
    check_rejected("ends inside its header");
    REQUIRE(truncate(weights_path, 0) == 0);
    check_rejected("is empty (0 bytes): a download or a copy of it failed");
}

AMP_TEST(messages)
{
    static const char text[] = "[net]\nheight=4\nwidth=4\nchannels=3\n"
                               "[convolutional]\nfilters=2\nsize=1\nactivation=linear\n"
                               "[convolutional]\nfilters=2\nsize=1\nactivation=linear\n";
    describe(text);
    write_counting(0, 2, 8, 0, 8 + 6 + 1);
    check_rejected("4 bytes are left over after the last layer; it belongs to another network");
    write_counting(0, 1, 4, 0, 8 + 6 + 1);
    check_rejected("4 bytes are left over after the last layer: its header says a version before "
                   "0.2, of which it has 16 bytes, but it has 20, as from 0.2 on: what wrote it "
                   "must say 0.2; else it belongs to another network");
    write_counting(0, 1, 4, 0, 8 + 6 + 2);
    check_rejected("8 bytes are left over after the last layer; it belongs to another network");
    write_counting(0, 2, 8, 0, 7);
    check_rejected("ends inside layer 0 (convolutional), with 20 of the 24 bytes of its weights; "
                   "it is cut off, or belongs to another network");
    write_counting(0, 2, 8, 0, 8);
    CHECK_INT(check(), 0);
    CHECK_INT(info.layers, 2);
    CHECK_INT(info.layers_found, 1);
    CHECK_INT(info.first_absent, 1);
    unlink(weights_path);
    check_rejected("cannot read: No such file or directory");
    CHECK_INT(amp_weights_check(dir, net, &info, err, sizeof err), -1);
    CHECK(strstr(err, "a folder, not a file"));
}

AMP_TEST(other_kinds_of_files)
{
    static const char *const begins[][2] = {
        {"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 162482580\n",
         "is a pointer of Git LFS, not the weights: git lfs pull"},
        {"<!DOCTYPE html>\n<html><head><title>Virus scan warning</title></head></html>",
         "is an HTML or XML page, not weights: the download did not give the file"},
        {"PK\3\4 and the rest of a model of PyTorch",
         "is a ZIP archive, or a model of PyTorch: Darknet reads .weights alone"},
        {"\x89HDF\r\n and more of Keras", "is a model in HDF5: Darknet reads .weights alone"},
        {"\x1F\x8B and compressed bytes", "is compressed by gzip: unpack it first"}};
    describe("[net]\nheight=4\nwidth=4\nchannels=3\n"
             "[convolutional]\nfilters=2\nsize=1\nactivation=linear\n");
    for (size_t i = 0; i < sizeof begins / sizeof *begins; i++) {
        FILE *f = fopen(weights_path, "w");
        REQUIRE(f && fputs(begins[i][0], f) >= 0 && !fclose(f));
        check_rejected(begins[i][1]);
    }
}

AMP_TEST(header_versions)
{
    static const struct {
        int32_t major, minor;
        int seen_bytes;
    } versions[] = {{0, 1, 4}, {0, 0, 4}, {0, 2, 8}, {1, 0, 8}, {2, 1000, 4}, {1001, 0, 4}};
    describe("[net]\nheight=4\nwidth=4\nchannels=1\n"
             "[convolutional]\nfilters=1\nsize=1\nactivation=linear\n");
    for (size_t i = 0; i < sizeof versions / sizeof *versions; i++) {
        write_counting(versions[i].major, versions[i].minor, versions[i].seen_bytes, 64000, 2);
        CHECK_INT(check(), 0);
        CHECK_INT(info.seen, 64000);
    }
    write_counting(0, 1, 4, 0xffffffff, 2); /* -1, which Darknet makes a size_t */
    CHECK_INT(check(), 0);
    CHECK(info.seen == UINT64_MAX);
}

/* The floats that layer 1 gets tell how many layer 0 took: in Darknet, and by our count. */
static void check_offset(const char *layer0)
{
    char text[512];
    snprintf(text, sizeof text,
             "[net]\nbatch=1\nheight=4\nwidth=4\nchannels=2\n%s"
             "[convolutional]\nfilters=1\nsize=5\npad=1\nactivation=linear\n",
             layer0);
    describe(text);
    struct amp_weight_tensor list[AMP_LAYER_TENSORS_MAX];
    uint64_t floats = 0;
    for (int n = amp_weights_layer_tensors(&net->layers[0], AMP_WEIGHTS_LOAD, list); n > 0; n--)
        floats += list[n - 1].floats;
    write_counting(0, 2, 8, 0, (int)floats + 1 + 25 * net->layers[1].c);
    CHECK_INT(check(), 0);
    network *n = parse_with_darknet(text);
    load_weights(n, weights_path);
    CHECK_NEAR(n->layers[1].biases[0], (double)floats, 0);
    free_network(n);
}

AMP_TEST(what_darknet_loads)
{
    check_offset("[convolutional]\nbatch_normalize=1\nfilters=5\nsize=3\nactivation=linear\n");
    check_offset("[convolutional]\nbatch_normalize=1\nfilters=5\nsize=3\nactivation=linear\n"
                 "dontloadscales=1\n");
    check_offset("[convolutional]\nbatch_normalize=1\nfilters=5\nsize=3\nactivation=linear\n"
                 "numload=3\n");
    check_offset("[convolutional]\nfilters=5\nsize=3\nactivation=linear\nnumload=5\n");
    check_offset("[convolutional]\nfilters=5\nsize=3\nactivation=linear\ndontload=1\n");
    check_offset("[convolutional]\nfilters=4\nsize=3\ngroups=2\nactivation=linear\nnumload=2\n");
    check_offset("[local]\nfilters=4\nsize=3\npad=1\nactivation=linear\n");
    check_offset("[crnn]\nbatch_normalize=1\nhidden_filters=3\noutput_filters=2\n"
                 "activation=linear\ndontloadscales=1\n");
    check_offset("[batchnorm]\n");
}

AMP_TEST(layers_darknet_crashes_on)
{
    describe("[net]\nheight=4\nwidth=4\nchannels=3\n"
             "[deconvolutional]\nfilters=2\nsize=2\nstride=2\nnumload=-1\nactivation=linear\n");
    write_counting(0, 2, 8, 0, 26);
    check_rejected("layer 0 (deconvolutional): numload=-1; allowed: 0 to 2");
    CHECK_INT(amp_weights_saved_bytes(net), 20 + 26 * 4);
    describe("[net]\nheight=4\nwidth=4\nchannels=3\n"
             "[convolutional]\nfilters=2\nsize=1\nnumload=3\nactivation=linear\n");
    check_rejected("layer 0 (convolutional): numload=3; allowed: 0 to 2");
}

AMP_TEST(dontsave_and_counts_too_large)
{
    describe("[net]\nheight=4\nwidth=4\nchannels=3\n"
             "[convolutional]\nfilters=2\nsize=1\nactivation=linear\ndontsave=1\n"
             "[connected]\noutput=2\nactivation=linear\n");
    CHECK_INT(amp_weights_saved_bytes(net), 20 + 4 * (2 + 64));
    struct amp_weight_tensor list[AMP_LAYER_TENSORS_MAX];
    struct amp_layer_desc huge = {.type = AMP_LOCAL, .c = INT32_MAX, .outputs = INT32_MAX};
    huge.size = INT32_MAX;
    CHECK_INT(amp_weights_layer_tensors(&huge, AMP_WEIGHTS_LOAD, list), 2);
    CHECK(list[1].floats == UINT64_MAX);
}

AMP_TEST_MAIN
