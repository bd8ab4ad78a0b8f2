/* Loads chunks of pictures as AlexeyAB's loader does, with glibc's rand in its place of random
 * numbers, and writes what came of it for loader.py to compare.
 *
 *   replay_loader W H CLASSES N PIXELS LABEL_PATH... < calls > text
 *
 * A label path has its picture beside it as .jpg, or else as raw bytes (.raw: width, height, rows
 * of blue, green, red). A call is a line "seed mixing flip jitter resize hue saturation exposure
 * letter_box mosaic_bound boxes". Text: a line for each draw, cut, truth and loaded picture, named
 * by its first word. PIXELS: 16-bit units of 1/510 of each loaded picture. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plugin/images/mix.h"

enum { MOST_LABELS = 100, MOST_PICTURES = 32, MOST_N = 16 };

struct picture {
    struct amp_jpeg_memory memory;
    const struct amp_pixels *pixels;
    struct amp_box_label labels[MOST_LABELS];
    int count;
};

static struct {
    int w, h, classes, n, pictures;
    struct picture picture[MOST_PICTURES];
    FILE *pixels;
} all;

struct call {
    unsigned seed;
    int mixing, mosaic_bound;
    struct amp_crop_rules crop;
    struct amp_truth_rules truths;
};

__attribute__((noreturn)) static void stop(const char *what)
{
    fprintf(stderr, "replay_loader: %s\n", what);
    exit(1);
}

/* ---- pictures ---- */

static const struct amp_pixels *read_raw(const char *path, struct amp_jpeg_memory *memory)
{
    int size[2];
    FILE *f = fopen(path, "rb");
    if (!f || fread(size, sizeof size, 1, f) != 1) stop(path);
    if (!amp_pixels_resize(&memory->pixels, size[0], size[1])) stop("no memory");
    size_t bytes = (size_t)size[0] * (size_t)size[1] * 3;
    if (fread(memory->pixels.bytes, 1, bytes, f) != bytes) stop(path);
    fclose(f);
    return &memory->pixels;
}

static void read_labels(const char *path, struct picture *p)
{
    FILE *f = fopen(path, "r");
    struct amp_box_label l;
    if (!f) stop(path);
    while (fscanf(f, "%d %f %f %f %f", &l.class_id, &l.x, &l.y, &l.w, &l.h) == 5) {
        if (p->count == MOST_LABELS) stop("too many labels");
        p->labels[p->count++] = l;
    }
    fclose(f);
}

static void read_picture(const char *label_path, struct picture *p)
{
    char path[4096];
    int stem = (int)strlen(label_path) - 4;
    read_labels(label_path, p);
    snprintf(path, sizeof path, "%.*s.jpg", stem, label_path);
    p->pixels = amp_jpeg_read(path, 0, &p->memory);
    if (p->pixels) return;
    snprintf(path, sizeof path, "%.*s.raw", stem, label_path);
    p->pixels = read_raw(path, &p->memory);
}

/* ---- numbers ---- */

static int next(void *user)
{
    (void)user;
    int number = rand();
    printf("draw %d\n", number);
    return number;
}

static const struct amp_random numbers = {.next = next};

static void draw_paths(struct picture **chosen)
{
    for (int k = 0; k < all.n; k++)
        chosen[k] = &all.picture[next(NULL) % all.pictures];
}

/* ---- loading ---- */

struct loaded {
    float *planes, *truths;
    int count;
};

static struct loaded new_loaded(const struct call *c)
{
    struct loaded l = {
        .planes = calloc((size_t)all.w * (size_t)all.h * 3, sizeof(float)),
        .truths = calloc((size_t)c->truths.max * AMP_TRUTH_FLOATS, sizeof(float)),
    };
    if (!l.planes || !l.truths) stop("no memory");
    return l;
}

static void free_loaded(struct loaded *l)
{
    free(l->planes);
    free(l->truths);
}

/* Truths of the cut alone. */
static void draw_cut(const struct call *c, const struct picture *p, int round,
                     struct amp_crop *crop, struct loaded *l)
{
    int order[MOST_LABELS];
    amp_crop_draw(&c->crop, p->pixels->w, p->pixels->h, round, &numbers, crop);
    amp_label_order_draw(p->count, &numbers, order);
    printf("crop %d %d %d %d %d %.9g %.9g %.9g\n", crop->left, crop->top, crop->w, crop->h,
           crop->flip, crop->hue, crop->saturation, crop->exposure);
    l->count = amp_crop_truths(&c->truths, crop, p->labels, p->count, order, l->truths);
}

static void load(const struct call *c, const struct picture *p, struct loaded *l)
{
    struct amp_crop crop;
    draw_cut(c, p, AMP_NO_MOSAIC, &crop, l);
    if (!amp_crop_picture(p->pixels, &crop, all.w, all.h, l->planes)) stop("no memory");
}

static void mix_in(const struct call *c, const struct picture *p, struct loaded *l)
{
    struct loaded other = new_loaded(c);
    load(c, p, &other);
    amp_mixup_planes(l->planes, other.planes, (size_t)all.w * (size_t)all.h * 3);
    l->count = amp_mixup_truths(&c->truths, l->truths, l->count, other.truths, other.count);
    free_loaded(&other);
}

static void put_into_mosaic(const struct call *c, const struct picture *p, int round,
                            const struct amp_cut *cut, struct loaded *l)
{
    struct amp_crop crop;
    struct loaded other = new_loaded(c);
    draw_cut(c, p, round, &crop, &other);
    struct amp_part part = amp_mosaic_part(&c->truths, &crop, cut, round);
    if (!amp_crop_part(p->pixels, &crop, all.w, all.h, &part, l->planes)) stop("no memory");
    l->count = amp_mosaic_truths(&c->truths, &part, c->mosaic_bound, l->truths, l->count,
                                 other.truths, other.count);
    free_loaded(&other);
}

static void write_loaded(struct loaded *l)
{
    size_t n = (size_t)all.w * (size_t)all.h * 3;
    printf("picture\n");
    for (int i = 0; i < l->count; i++) {
        const float *t = l->truths + i * AMP_TRUTH_FLOATS;
        printf("truth %.9g %.9g %.9g %.9g %g\n", t[0], t[1], t[2], t[3], t[4]);
    }
    for (size_t i = 0; i < n; i++) {
        uint16_t value = (uint16_t)lrintf(l->planes[i] * 510);
        fwrite(&value, sizeof value, 1, all.pixels);
    }
    free_loaded(l);
}

static void run(const struct call *c)
{
    struct amp_cut cuts[MOST_N];
    struct picture *chosen[MOST_N];
    struct loaded l[MOST_N];
    srand(c->seed);
    struct amp_mix mix =
        amp_mix_draw((enum amp_mixing)c->mixing, all.w, all.h, all.n, &numbers, cuts);
    printf("rounds %d\n", mix.rounds);
    for (int round = 0; round < mix.rounds; round++) {
        draw_paths(chosen);
        for (int k = 0; k < all.n; k++) {
            if (round == 0) l[k] = new_loaded(c);
            if (mix.mixing == AMP_MIX_MOSAIC)
                put_into_mosaic(c, chosen[k], round, &cuts[k], &l[k]);
            else if (round == 0)
                load(c, chosen[k], &l[k]);
            else
                mix_in(c, chosen[k], &l[k]);
        }
    }
    for (int k = 0; k < all.n; k++)
        write_loaded(&l[k]);
}

static bool read_call(struct call *c)
{
    int flip, letter_box;
    *c = (struct call){.crop = {.w = all.w, .h = all.h},
                       .truths = {.w = all.w, .h = all.h, .classes = all.classes}};
    if (scanf("%u %d %d %f %f %f %f %f %d %d %d", &c->seed, &c->mixing, &flip, &c->crop.jitter,
              &c->crop.resize, &c->crop.hue, &c->crop.saturation, &c->crop.exposure, &letter_box,
              &c->mosaic_bound, &c->truths.max) != 11)
        return false;
    c->crop.flip = flip;
    c->crop.letter_box = letter_box;
    return true;
}

int main(int argc, char **argv)
{
    struct call c;
    if (argc < 7 || argc - 6 > MOST_PICTURES) stop("W H CLASSES N PIXELS LABEL_PATH...");
    all.w = atoi(argv[1]);
    all.h = atoi(argv[2]);
    all.classes = atoi(argv[3]);
    all.n = atoi(argv[4]);
    all.pixels = fopen(argv[5], "wb");
    if (!all.pixels || all.n > MOST_N) stop(argv[5]);
    for (all.pictures = 0; all.pictures < argc - 6; all.pictures++)
        read_picture(argv[6 + all.pictures], &all.picture[all.pictures]);
    while (read_call(&c)) {
        printf("call\n");
        run(&c);
    }
    for (int i = 0; i < all.pictures; i++)
        amp_jpeg_free(&all.picture[i].memory);
    return fclose(all.pixels) != 0;
}
