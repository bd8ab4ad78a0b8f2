/* Proves without a GPU that cuDNN has a plan for everything that convolutions ask of it: for the
 * shapes of Darknet's own cfgs, on cards that are described by their properties only (cuDNN's
 * deviceless compilation). A plan stays within the limit of workspace and uses Tensor Cores, or the
 * shape is one that ampk_tc_obstacle explains; but for one in a thousand of which cuDNN just names
 * no engine with them.
 *
 *     plans PROPS_FOLDER CFG_FOLDER        some shapes, all cards
 *     plans PROPS_FOLDER CFG_FOLDER CARD   all shapes, one card
 *
 * Not proved: that the numbers are right, or fast. */
#include "kernels/cuda/libs/libraries.h"
#include "plugin/core/net/net.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WORKSPACE_LIMIT = 256 << 20, BATCHES = 4 };
static const int batches[BATCHES] = {1, 4, 16, 64};
static const struct ampk_cudnn_terms terms = {.workspace_limit = WORKSPACE_LIMIT};

static int failures;

static void fail(const char *what, const char *why)
{
    if (++failures <= 50) fprintf(stderr, "FAILED: %s: %s\n", what, why);
}

/* ---- shapes ---- */

struct shapes {
    struct ampk_conv_shape *at;
    size_t count, room;
};

static int compare_shapes(const void *a, const void *b)
{
    return memcmp(a, b, sizeof(struct ampk_conv_shape));
}

static void add_shape(struct shapes *s, struct ampk_conv_shape shape)
{
    if (s->count == s->room) {
        s->room = s->room ? 2 * s->room : 1024;
        s->at = realloc(s->at, s->room * sizeof *s->at);
        if (!s->at) abort();
    }
    struct ampk_conv_shape *to = &s->at[s->count++];
    memset(to, 0, sizeof *to); /* compared whole, with the bytes between members */
    to->n = shape.n, to->c = shape.c, to->h = shape.h, to->w = shape.w, to->k = shape.k;
    to->kh = shape.kh, to->kw = shape.kw, to->stride = shape.stride, to->pad = shape.pad;
    to->groups = shape.groups, to->compute = shape.compute;
}

static void remove_doubles(struct shapes *s)
{
    size_t kept = 0;
    qsort(s->at, s->count, sizeof *s->at, compare_shapes);
    for (size_t i = 0; i < s->count; i++)
        if (i == 0 || compare_shapes(&s->at[i], &s->at[i - 1])) s->at[kept++] = s->at[i];
    s->count = kept;
}

static void add_layer(struct shapes *s, const struct amp_net_desc *net, int layer)
{
    if (!amp_layer_is_matrix(&net->layers[layer])) return;
    struct ampk_conv_shape shape = amp_conv_shape(net, layer);
    shape.compute = AMPK_COMPUTE_FP16;
    for (int i = 0; i < BATCHES; i++) {
        shape.n = batches[i];
        add_shape(s, shape);
    }
}

/* False where the cfg cannot be read; side 0: the cfg's own. */
static bool add_net(struct shapes *s, const struct amp_cfg_file *cfg, int side, bool *random)
{
    char err[1000];
    struct amp_net_desc *net = amp_net_describe(cfg, side, side, false, err, sizeof err);
    *random = false;
    for (int i = 0; net && i < net->n; i++) {
        add_layer(s, net, i);
        *random |= net->layers[i].random != 0;
    }
    if (!net) printf("SKIPPED a cfg: %s\n", err);
    amp_net_desc_free(net);
    return net != NULL;
}

static bool is_cfg(const char *name)
{
    size_t length = strlen(name);
    return length > 4 && !strcmp(name + length - 4, ".cfg");
}

/* Every cfg of a folder, at every size that random=1 chooses. */
static int add_folder(struct shapes *s, const char *folder)
{
    char path[4096], err[1000];
    DIR *dir = opendir(folder);
    int nets = 0;
    for (struct dirent *e; dir && (e = readdir(dir));) {
        if (!is_cfg(e->d_name)) continue;
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        struct amp_cfg_file *cfg = amp_cfg_read(path, err, sizeof err);
        bool random = false, ignored;
        if (cfg && add_net(s, cfg, 0, &random)) nets++;
        for (int side = 320; random && side <= 608; side += 32)
            add_net(s, cfg, side, &ignored);
        amp_cfg_free(cfg);
    }
    if (dir) closedir(dir);
    remove_doubles(s);
    return nets;
}

/* What the kinds of layers in those nets look like, and what is unusual. */
static const struct ampk_conv_shape some_shapes[] = {
    {4, 3, 416, 416, 32, 3, 3, 1, 1, 1, AMPK_COMPUTE_FP16, 0, 0, 0},  /* first layer */
    {4, 32, 416, 416, 64, 3, 3, 2, 1, 1, AMPK_COMPUTE_FP16, 0, 0, 0}, /* downsampling */
    {4, 64, 208, 208, 32, 1, 1, 1, 0, 1, AMPK_COMPUTE_FP16, 0, 0, 0}, /* residual block */
    {16, 256, 26, 26, 512, 3, 3, 1, 1, 1, AMPK_COMPUTE_FP16, 0, 0, 0},
    {64, 512, 19, 19, 1024, 3, 3, 1, 1, 1, AMPK_COMPUTE_FP16, 0, 0, 0},
    {1, 1024, 13, 13, 255, 1, 1, 1, 0, 1, AMPK_COMPUTE_FP16, 0, 0, 0}, /* head */
    {16, 256, 52, 52, 255, 1, 1, 1, 0, 1, AMPK_COMPUTE_FP16, 0, 0, 0},
    {4, 1280, 13, 13, 1024, 3, 3, 1, 1, 1, AMPK_COMPUTE_FP16, 0, 0, 0}, /* after a concatenation */
    {1, 3, 224, 224, 64, 7, 7, 2, 3, 1, AMPK_COMPUTE_FP16, 0, 0, 0},
    {16, 128, 56, 56, 128, 3, 3, 1, 1, 32, AMPK_COMPUTE_FP16, 0, 0, 0}, /* groups of 4 */
    {16, 512, 14, 14, 512, 3, 3, 1, 1, 32, AMPK_COMPUTE_FP16, 0, 0, 0}, /* and of 16 */
    {16, 64, 28, 28, 64, 3, 3, 1, 1, 64, AMPK_COMPUTE_FP16, 0, 0, 0},   /* depthwise */
    {64, 4096, 1, 1, 1470, 1, 1, 1, 0, 1, AMPK_COMPUTE_FP16, 0, 0, 0},  /* connected */
    {16, 256, 6, 6, 4096, 6, 6, 1, 0, 1, AMPK_COMPUTE_FP16, 0, 0, 0}, /* the same, after an image */
    {4, 256, 26, 26, 512, 3, 3, 1, 1, 1, AMPK_COMPUTE_BF16, 0, 0, 0},
    {4, 256, 26, 26, 512, 3, 3, 1, 1, 1, AMPK_COMPUTE_TF32, 0, 0, 0},
    {4, 256, 26, 26, 512, 3, 3, 1, 1, 1, AMPK_COMPUTE_FP32, 0, 0, 0},
    {4, 6, 26, 26, 18, 5, 5, 3, 2, 1, AMPK_COMPUTE_TF32, 0, 0, 0},
};

/* ---- plans ---- */

enum question { FORWARD, DATA, DATA_ADDED, WEIGHTS, QUESTIONS };
static const char *const question_names[] = {"forward", "data gradient", "data gradient, added",
                                             "weight gradient"};

struct count {
    int plans, tensor_cores, unexplained;
    size_t workspace;
    struct {
        const char *why;
        int count;
    } without[8]; /* Tensor Cores */
};

static void count_reason(struct count *count, const char *why)
{
    for (int i = 0; i < 8; i++) {
        if (count->without[i].why && strcmp(count->without[i].why, why)) continue;
        count->without[i].why = why;
        count->without[i].count++;
        return;
    }
}

static void count_unexplained(struct count *count, const char *what)
{
    printf("%s: cuDNN names no engine with Tensor Cores\n", what);
    count->unexplained++;
}

static void describe(char *text, size_t size, const char *card, const char *question,
                     const struct ampk_conv_shape *s)
{
    snprintf(text, size,
             "%s, %s, %dx%dx%dx%d by %d of %dx%d, stride %d, pad %d, groups %d, compute %d", card,
             question, s->n, s->c, s->h, s->w, s->k, s->kh, s->kw, s->stride, s->pad, s->groups,
             s->compute);
}

static void try_plan(const struct ampk_cudnn_device *device, const char *card,
                     const struct ampk_conv_shape *shape, enum question q, struct count *count)
{
    static const enum ampk_tc_pass pass[] = {AMPK_TC_FORWARD, AMPK_TC_DATA, AMPK_TC_DATA,
                                             AMPK_TC_WEIGHTS};
    char what[300], why[500];
    struct ampk_cudnn_choice choice, read;
    struct ampk_tc_problem p =
        ampk_conv_problem(shape, pass[q], ampk_tc_operand(shape->compute), q == DATA_ADDED);
    const char *obstacle = ampk_tc_obstacle(&p, device->compute_capability);
    describe(what, sizeof what, card, question_names[q], shape);
    struct ampk_cudnn_plan *plan =
        ampk_cudnn_plan_expected(device, &p, &terms, &choice, why, sizeof why);
    if (!plan && p.compute == AMPK_COMPUTE_BF16 && obstacle) return; /* refused, with the reason */
    if (!plan) {
        fail(what, why);
        return;
    }
    count->plans++;
    if (plan->workspace > count->workspace) count->workspace = plan->workspace;
    if (plan->tensor_cores)
        count->tensor_cores++;
    else if (obstacle)
        count_reason(count, obstacle);
    else
        count_unexplained(count, what);
    ampk_cudnn_choice_write(&choice, why, sizeof why);
    if (!ampk_cudnn_choice_read(why, &read) || memcmp(read.knob, choice.knob, sizeof read.knob) ||
        read.engine != choice.engine || read.knobs != choice.knobs)
        fail(what, "the choice is another one after writing and reading");
    ampk_cudnn_plan_destroy(plan);
}

static void print_count(const char *card, const char *question, const struct count *c)
{
    printf("%-12s %-20s %7d %7d %9.1f ", card, question, c->plans, c->tensor_cores,
           (double)c->workspace / (1 << 20));
    for (int i = 0; i < 8 && c->without[i].why; i++)
        printf(" %d: %s;", c->without[i].count, c->without[i].why);
    if (c->unexplained) printf(" %d: cuDNN names none", c->unexplained);
    if (c->unexplained * 1000 > c->plans) fail(card, "too many without Tensor Cores");
    printf("\n");
}

/* ---- cards ---- */

struct card {
    char name[64];
    struct ampk_cudnn_set set;
    struct ampk_cudnn_device device;
};

/* From their JSON text. False with the reason in the set. */
static bool read_properties(struct ampk_cudnn_set *set, const char *json,
                            cudnnBackendDescriptor_t *properties)
{
#if CUDNN_VERSION >= 91002
    cudnnBackendDescriptor_t d = ampk_cudnn_make(set, CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
    ampk_cudnn_attribute(set, d, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
                         (int64_t)strlen(json), json);
    *properties = ampk_cudnn_finalize(set, d, "device properties");
#else
    (void)json;
    puts("SKIPPED: cuDNN before 9.10.2 has no device properties");
    snprintf(set->error, sizeof set->error, "device properties need cuDNN 9.10.2");
    *properties = NULL;
#endif
    return *properties != NULL;
}

static void open_card(struct card *card, const char *folder, const char *file)
{
    char path[4096], json[4096];
    snprintf(path, sizeof path, "%s/%s", folder, file);
    FILE *f = fopen(path, "r");
    json[f ? fread(json, 1, sizeof json - 1, f) : 0] = 0;
    if (f) fclose(f);
    memset(card, 0, sizeof *card);
    const char *version = strstr(json, "\"deviceVer\":");
    int ver = version ? atoi(version + 12) : 0; /* 900: compute capability 9.0 */
    snprintf(card->name, sizeof card->name, "%.*s", (int)strcspn(file, "."), file);
    card->device.compute_capability = ver / 10;
    if (!read_properties(&card->set, json, &card->device.properties)) fail(path, card->set.error);
}

static void test_card(struct card *card, const struct ampk_conv_shape *shapes, size_t count)
{
    struct count counts[QUESTIONS] = {0};
    for (size_t i = 0; i < count; i++)
        for (int q = 0; q < QUESTIONS; q++)
            try_plan(&card->device, card->name, &shapes[i], (enum question)q, &counts[q]);
    for (int q = 0; q < QUESTIONS; q++)
        print_count(card->name, question_names[q], &counts[q]);
}

/* ---- settings that the heuristics do not name ---- */

enum { NEIGHBOURS = 400 };

static int settings_apart(const struct ampk_cudnn_choice *a, const struct ampk_cudnn_choice *b)
{
    int apart = a->engine != b->engine || a->knobs != b->knobs ? AMPK_CUDNN_KNOBS : 0;
    for (int i = 0; i < a->knobs && i < b->knobs; i++)
        apart += a->knob[i].type != b->knob[i].type ? AMPK_CUDNN_KNOBS
                                                    : a->knob[i].value != b->knob[i].value;
    return apart;
}

/* About the first choice. Returns how many there are, of which `plans` make a plan. */
static int try_neighbours(const struct card *card, const struct ampk_conv_shape *shape,
                          enum ampk_tc_pass pass, int *plans)
{
    static struct ampk_cudnn_choice choices[NEIGHBOURS];
    char what[300], why[500];
    const struct ampk_cudnn_device *device = &card->device;
    struct ampk_tc_problem p =
        ampk_conv_problem(shape, pass, ampk_tc_operand(shape->compute), false);
    describe(what, sizeof what, card->name, "settings", shape);
    struct ampk_cudnn_plan *plan =
        ampk_cudnn_plan_expected(device, &p, &terms, &choices[0], why, sizeof why);
    if (!plan) return 0;
    ampk_cudnn_plan_destroy(plan);
    int count = ampk_cudnn_neighbours(device, &p, &choices[0], choices, 1, NEIGHBOURS);
    if (count == NEIGHBOURS) fail(what, "too many neighbours");
    for (int i = 1; i < count; i++) {
        if (settings_apart(&choices[0], &choices[i]) != 1) fail(what, "no neighbour");
        plan = ampk_cudnn_plan_create(device, &p, &choices[i], WORKSPACE_LIMIT, why, sizeof why);
        *plans += plan != NULL;
        ampk_cudnn_plan_destroy(plan);
    }
    if (ampk_cudnn_neighbours(device, &p, &choices[0], choices, count, NEIGHBOURS) != count)
        fail(what, "neighbours come twice");
    return count - 1;
}

static void test_neighbours(const struct card *card, const struct ampk_conv_shape *shapes,
                            size_t count)
{
    int neighbours = 0, plans = 0;
    for (size_t i = 0; i < count; i++)
        for (int pass = AMPK_TC_FORWARD; pass <= AMPK_TC_WEIGHTS; pass++)
            neighbours += try_neighbours(card, &shapes[i], (enum ampk_tc_pass)pass, &plans);
    printf("%-12s one setting changed: %d of %d make a plan\n", card->name, plans, neighbours);
    if (plans < (int)count) fail(card->name, "too few plans with one setting changed");
}

/* FP32 weight gradients of 16-bit operands: all engines for them are compiled when a plan is made,
 * and so none is a candidate. */
static void test_compiled(const struct card *card)
{
    static const struct ampk_conv_shape shapes[] = {
        {4, 256, 26, 26, 512, 3, 3, 1, 1, 1, AMPK_COMPUTE_FP16, 0, 0, 0},
        {4, 32, 416, 416, 64, 3, 3, 2, 1, 1, AMPK_COMPUTE_FP16, 0, 0, 0},
        {4, 3, 416, 416, 32, 3, 3, 1, 1, 1, AMPK_COMPUTE_FP16, 0, 0, 0},
    };
    for (int i = 0; i < 3; i++) {
        char what[300], why[500];
        struct ampk_cudnn_choice choices[NEIGHBOURS];
        struct ampk_tc_problem p = ampk_conv_problem(&shapes[i], AMPK_TC_WEIGHTS, AMPK_FP32, false);
        int count = 0;
        for (int mode = 0; mode < AMPK_CUDNN_MODES; mode++)
            count = ampk_cudnn_candidates(&card->device, &p, ampk_cudnn_modes[mode], choices, count,
                                          NEIGHBOURS, why, sizeof why);
        describe(what, sizeof what, card->name, "FP32 weight gradient", &shapes[i]);
        if (count) fail(what, "an engine that is compiled is a candidate");
    }
}

int main(int argc, char **argv)
{
    if (argc < 3) {
        fprintf(stderr, "usage: plans PROPS_FOLDER CFG_FOLDER [CARD]\n");
        return 2;
    }
    const char *only = argc > 3 ? argv[3] : NULL;
    struct shapes shapes = {0};
    if (only) {
        int nets = add_folder(&shapes, argv[2]);
        printf("%zu convolutions in %d nets\n", shapes.count, nets);
        if (nets < 30) fail(argv[2], "most cfgs are missing");
    }
    printf("%-12s %-20s %7s %7s %9s   without Tensor Cores\n", "card", "", "plans", "Tensor C",
           "MiB most");
    int cards = 0;
    struct dirent **files;
    int count = scandir(argv[1], &files, NULL, alphasort);
    for (int i = 0; i < count; i++) {
        static struct card card;
        const char *dot = strrchr(files[i]->d_name, '.');
        size_t length = dot ? (size_t)(dot - files[i]->d_name) : 0;
        bool wanted = !only || (strlen(only) == length && !strncmp(only, files[i]->d_name, length));
        if (dot && !strcmp(dot, ".json") && wanted) {
            cards++;
            open_card(&card, argv[1], files[i]->d_name);
            if (only)
                test_card(&card, shapes.at, shapes.count);
            else {
                test_card(&card, some_shapes, sizeof some_shapes / sizeof *some_shapes);
                test_neighbours(&card, some_shapes, sizeof some_shapes / sizeof *some_shapes);
                test_compiled(&card);
            }
            ampk_cudnn_clear(&card.set);
        }
        free(files[i]);
    }
    if (count >= 0) free(files);
    free(shapes.at);
    if (!cards) fail(argv[1], "no such card");
    if (failures) fprintf(stderr, "%d failed\n", failures);
    return failures != 0;
}
