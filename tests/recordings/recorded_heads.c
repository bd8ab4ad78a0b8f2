/* The yolo head against recordings of AlexeyAB's Darknet: the reference, the CPU's instruction sets
 * and, in builds without CUDA, the CUDA backend emulated. recorded_heads.py writes the cases to
 * stdin, as numbers; the arrays are in the file.
 *
 *     test_recorded_heads HEAD.BIN CASES < cases
 *
 * Tolerances: delta 2e-5 (of the value where that is above 1), output 1e-6, cost 1e-5 of it. The
 * recorded program computes in FP32: against double precision it was within 7.8e-6, 1.2e-7 and
 * 8e-7. Counts are exact. Averages were printed with six digits. */
#include "kernels/kernels.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_ANCHORS = 32, MOST_CLASSES = 100, MOST_NAME = 64 };

/* What was recorded of a case beside its arrays. */
struct record {
    long long input, output, delta; /* floats from the file's start */
    double cost, count, iou;        /* count is at least 1 */
    int details;                    /* 0: the cost is the sum of all squares */
    double class_loss, total_loss;  /* per image, as printed; NaN: not printed */
};

struct head_case {
    char name[MOST_NAME];
    int n, w, h, room;
    float anchors[2 * MOST_ANCHORS], multipliers[MOST_CLASSES];
    int mask[MOST_ANCHORS], map[MOST_CLASSES];
    float *truth;
    struct ampk_yolo_rules rules;
    struct ampk_yolo_head head;
    struct record record;
};

static float *recorded; /* the file */
static long long recorded_count;
static int failures;

/* ---- reading ---- */

static void end(const char *why)
{
    fprintf(stderr, "recorded_heads: %s\n", why);
    exit(2);
}

static double next(void)
{
    double v;
    if (scanf("%lf", &v) != 1) end("a number is missing in the cases");
    return v;
}

static int next_int(int most)
{
    double v = next();
    if (!(v >= 0 && v <= most)) end("a number of the cases is out of range");
    return (int)v;
}

static void read_arrays(const char *path)
{
    FILE *f = fopen(path, "rb");
    if (!f || fseek(f, 0, SEEK_END)) end("the file of arrays cannot be read");
    recorded_count = ftell(f) / (long long)sizeof *recorded;
    recorded = malloc((size_t)recorded_count * sizeof *recorded + 1);
    rewind(f);
    if (!recorded ||
        fread(recorded, sizeof *recorded, (size_t)recorded_count, f) != (size_t)recorded_count)
        end("the file of arrays cannot be read");
    fclose(f);
}

static size_t count_of(const struct head_case *c)
{
    return (size_t)c->n * c->w * c->h * c->head.boxes * (5 + c->head.classes);
}

/* The truths of each image as often as they come; a 0 follows the last. */
static void read_truths(struct head_case *c)
{
    int most = 10000;
    c->room = c->head.truths_used;
    c->truth = calloc((size_t)c->n * most * 5, sizeof *c->truth);
    if (!c->truth) end("out of memory");
    for (int n = 0; n < c->n; n++) {
        int count = next_int(most - 1);
        for (int k = 0; k < 5 * count; k++) {
            float v = (float)next();
            if (k < 5 * c->room) c->truth[(size_t)n * c->room * 5 + k] = v;
        }
    }
    c->head.truths = c->room;
}

static void read_rules(struct head_case *c)
{
    struct ampk_yolo_rules *r = &c->rules;
    r->box_loss = (enum ampk_box_loss)next_int(AMPK_BOX_CIOU);
    r->iou_thresh_kind = (enum ampk_box_loss)next_int(AMPK_BOX_CIOU);
    r->iou_thresh = (float)next();
    r->iou_normalizer = (float)next();
    r->obj_normalizer = (float)next();
    r->cls_normalizer = (float)next();
    r->max_delta = (float)next();
    r->label_smooth_eps = (float)next();
    r->focal_loss = next_int(1);
    r->objectness_smooth = next_int(1);
    int multipliers = next_int(MOST_CLASSES);
    for (int i = 0; i < multipliers; i++)
        c->multipliers[i] = (float)next();
    r->class_multipliers = multipliers ? c->multipliers : NULL;
}

static long long read_place(const struct head_case *c)
{
    double place = next();
    if (!(place >= 0 && place + (double)count_of(c) <= (double)recorded_count))
        end("an array of the cases is not in the file");
    return (long long)place;
}

static void read_case(struct head_case *c)
{
    struct ampk_yolo_head *o = &c->head;
    memset(c, 0, sizeof *c);
    if (scanf("%63s", c->name) != 1) end("a name is missing in the cases");
    c->n = next_int(64), c->w = next_int(1000), c->h = next_int(1000);
    o->boxes = next_int(MOST_ANCHORS), o->anchors = next_int(MOST_ANCHORS);
    o->classes = next_int(MOST_CLASSES);
    o->net_w = next_int(100000), o->net_h = next_int(100000);
    for (int i = 0; i < 2 * o->anchors; i++)
        c->anchors[i] = (float)next();
    for (int i = 0; i < o->boxes; i++)
        c->mask[i] = next_int(o->anchors - 1);
    o->map_size = next_int(MOST_CLASSES);
    for (int i = 0; i < o->map_size; i++)
        c->map[i] = next_int(10000);
    o->anchor_sizes = c->anchors, o->mask = c->mask, o->map = o->map_size ? c->map : NULL;
    o->ignore_thresh = (float)next(), o->truth_thresh = (float)next();
    o->scale_x_y = (float)next(), o->new_coords = next_int(1);
    o->truths_used = next_int(AMPK_MOST_TRUTHS);
    read_rules(c);
    o->rules = &c->rules;
    read_truths(c);
    struct record *r = &c->record;
    r->input = read_place(c), r->output = read_place(c), r->delta = read_place(c);
    r->cost = next(), r->count = next(), r->iou = next(), r->details = next_int(1);
    r->class_loss = next(), r->total_loss = next();
}

/* ---- running ---- */

struct side {
    const struct ampk_backend *backend;
    struct ampk_context *context;
    const char *name;
};

struct result {
    float *output, *delta;
    struct ampk_loss_sums sums;
};

static void *given(const struct side *s, const void *data, size_t bytes)
{
    if (!data) return NULL;
    void *memory = s->backend->alloc(s->context, bytes);
    if (!memory) end("out of memory");
    s->backend->write(s->context, memory, data, bytes);
    return memory;
}

static void *taken(const struct side *s, void *data, size_t bytes)
{
    void *host = malloc(bytes);
    if (!host) end("out of memory");
    s->backend->read(s->context, host, data, bytes);
    s->backend->free(s->context, data);
    return host;
}

static struct result run(const struct side *s, const struct head_case *c)
{
    size_t count = count_of(c), bytes = count * sizeof(float);
    int channels = c->head.boxes * (5 + c->head.classes);
    struct ampk_yolo_rules rules = c->rules;
    struct ampk_yolo_head o = c->head;
    struct ampk_tensor x = {given(s, recorded + c->record.input, bytes),
                            AMPK_FP32,
                            AMPK_NCHW,
                            c->n,
                            channels,
                            c->h,
                            c->w,
                            count / c->n,
                            0};
    struct ampk_tensor out = x;
    struct ampk_loss_sums none = {0};
    float *truth = given(s, c->truth, (size_t)c->n * c->room * 5 * sizeof(float));
    float *delta = given(s, recorded + c->record.input, bytes);
    struct ampk_loss_sums *sums = given(s, &none, sizeof none);
    out.data = given(s, recorded + c->record.input, bytes);
    o.rules = &rules;
    o.anchor_sizes = given(s, o.anchor_sizes, 2 * o.anchors * sizeof(float));
    o.mask = given(s, o.mask, o.boxes * sizeof(int));
    o.map = given(s, o.map, o.map_size * sizeof(int));
    rules.class_multipliers = given(s, rules.class_multipliers, o.classes * sizeof(float));
    s->backend->yolo_forward(s->context, &o, &x, &out, NULL);
    s->backend->yolo_loss(s->context, &o, &out, truth, delta, sums, NULL);
    struct result r = {taken(s, out.data, bytes), taken(s, delta, bytes), none};
    s->backend->read(s->context, &r.sums, sums, sizeof r.sums);
    void *rest[] = {x.data,
                    truth,
                    sums,
                    (void *)o.anchor_sizes,
                    (void *)o.mask,
                    (void *)o.map,
                    (void *)rules.class_multipliers};
    for (size_t i = 0; i < sizeof rest / sizeof *rest; i++)
        if (rest[i]) s->backend->free(s->context, rest[i]);
    return r;
}

/* ---- comparing ---- */

static double largest[4]; /* differences over the tolerance: output, delta, cost, average */

static void judge(const struct side *s, const struct head_case *c, const char *what, size_t i,
                  double is, double expected, double tolerance, double *most)
{
    double off = fabs(is - expected) / tolerance;
    if (is == expected || (isnan(is) && isnan(expected))) off = 0;
    if (most && off > *most) *most = off;
    if (off <= 1) return;
    if (failures++ < 40)
        fprintf(stderr, "%s, %s: %s %zu is %.9g, recorded %.9g, allowed %.3g\n", c->name, s->name,
                what, i, is, expected, tolerance);
}

/* The recorded program stores 0 where it counts objectness that is not finite as 0. */
static bool was_replaced(float is, float expected)
{
    return !isfinite(is) && expected == 0;
}

static void compare(const struct side *s, const struct head_case *c, const struct result *r)
{
    const float *output = recorded + c->record.output, *delta = recorded + c->record.delta;
    for (size_t i = 0; i < count_of(c); i++) {
        if (!was_replaced(r->output[i], output[i]))
            judge(s, c, "output", i, r->output[i], output[i], 1e-6, &largest[0]);
        judge(s, c, "delta", i, r->delta[i], delta[i], 2e-5 * fmax(1, fabs(delta[i])), &largest[1]);
    }
    const struct record *e = &c->record;
    const struct ampk_yolo_rules *rules = &c->rules;
    double count = fmax(r->sums.count, 1), mean = r->sums.iou / count, cost = r->sums.cost;
    double overlap = rules->box_loss == AMPK_BOX_GIOU ? r->sums.giou : r->sums.iou;
    double by_overlap = rules->iou_normalizer * (r->sums.count - overlap) / count;
    double others =
        rules->box_loss == AMPK_BOX_MSE ? cost - r->sums.box_squares : cost - by_overlap;
    double weight = rules->box_loss == AMPK_BOX_MSE ? 1 : rules->obj_normalizer;
    double total = others / weight + r->sums.box_squares;
    if (!e->details) cost = total;
    judge(s, c, "cost", 0, cost, e->cost, 1e-5 * fabs(e->cost), &largest[2]);
    judge(s, c, "count", 0, count, e->count, .1, NULL);
    judge(s, c, "average IoU", 0, mean, e->iou, 1.5e-6, &largest[3]);
    if (!isnan(e->total_loss))
        judge(s, c, "total_loss", 0, total / c->n, e->total_loss, 2e-5 * fabs(e->total_loss) + 1e-6,
              NULL);
    if (!isnan(e->class_loss) && weight == rules->obj_normalizer)
        judge(s, c, "class_loss", 0, others / c->n, e->class_loss,
              2e-5 * fabs(e->class_loss) + 1e-6, NULL);
}

static void check(const struct side *s, const struct head_case *c)
{
    struct result r = run(s, c);
    compare(s, c, &r);
    free(r.output);
    free(r.delta);
}

/* ---- all of them ---- */

enum { MOST_SIDES = 8 };

/* The backends that this machine can run, each instruction set by itself. */
static int open_sides(struct side *sides)
{
    static const char *const isas[] = {"avx512", "avx2", "base"};
    char err[200] = "";
    int count = 0;
    sides[count++] = (struct side){&ampk_reference, NULL, "reference"};
    for (int i = 0; i < 3; i++) {
        setenv("AMPK_CPU_ISA", isas[i], 1);
        struct ampk_context *context = ampk_cpu.context_create(2, err, sizeof err);
        if (context) sides[count++] = (struct side){&ampk_cpu, context, isas[i]};
    }
    unsetenv("AMPK_CPU_ISA");
    if (count == 1) end(err);
#ifdef CUDA_EMULATED
    struct ampk_context *context = ampk_cuda.context_create(0, err, sizeof err);
    if (!context) end(err);
    sides[count++] = (struct side){&ampk_cuda, context, "cuda, emulated"};
#endif
    return count;
}

int main(int argc, char **argv)
{
    if (argc != 3) end("usage: test_recorded_heads HEAD.BIN CASES < cases");
    struct side sides[MOST_SIDES];
    int count = open_sides(sides), cases = atoi(argv[2]);
    read_arrays(argv[1]);
    for (int i = 0; i < cases; i++) {
        struct head_case c;
        read_case(&c);
        int before = failures;
        for (int k = 0; k < count; k++)
            check(&sides[k], &c);
        printf("%s: %s\n", c.name, failures > before ? "WRONG" : "right");
        free(c.truth);
    }
    for (int k = 1; k < count; k++)
        sides[k].backend->context_destroy(sides[k].context);
    free(recorded);
    printf("%d cases on %d backends, %d differences; the largest ones over the tolerance: output "
           "%.3f, delta %.3f, cost %.3f, average %.3f\n",
           cases, count, failures, largest[0], largest[1], largest[2], largest[3]);
    return failures != 0;
}
