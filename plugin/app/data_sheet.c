/* Decides what the sheet of `amp data` shows: images of a batch, side by side, with what the loader
 * says is in them. It must not know how an image is loaded: the network's own training does. */
#define _GNU_SOURCE
#include "data.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "amp.h"
#include "darknet.h"
#include "image.h"
#include "measuring.h"

#include "plugin/core/files/file.h"
#include "plugin/images/jpeg.h"

enum { ACROSS = 4, IMAGES = ACROSS * ACROSS, QUALITY = 95, BOX_FLOATS = 5 };
/* Of an image on the sheet. Letters cannot be read on smaller ones; larger ones make a file that
 * viewers cannot open, or no JPEG, whose sides are below 2^16. */
enum { LEAST_SIDE = 192, LONGEST_SIDE = 4096, MOST_PIXELS = 1 << 20 };

float get_color(int c, int x, int max); /* of Darknet's image.c; no header declares it */

struct sheet {
    const struct amp_data *d;
    image **alphabet;
    int enlarge, reduce; /* an image's sides are multiplied and divided by; one of them is 1 */
    image all;
};

/* ---- loading ---- */

/* A whole batch of 16 images, of a network that holds one. A seed gives what a training with this
 * cfg begins with. NULL: told. */
static network *load(const struct amp_data *d, data *loaded)
{
    static const struct amp_cfg_key keys[] = {{.key = "batch", .value = "1"},
                                              {.key = "subdivisions", .value = "1"},
                                              {.key = "amp_log"},
                                              {.key = "amp_log_layers"},
                                              {.key = "amp_log_noise"}};
    load_args args;
    srand((unsigned)time(NULL)); /* as Darknet's trainers */
    network *net = amp_variant_load("amp data: the network that the images are loaded for",
                                    d->cfg_file, keys, sizeof keys / sizeof *keys, NULL);
    if (!net) return NULL;
    amp_training_args(net, d->data, &args);
    args.n = IMAGES;
    args.d = loaded;
    pthread_join(load_data(args), NULL);
    return net;
}

/* ---- drawing ---- */

static bool is_too_large(int64_t w, int64_t h)
{
    return w > LONGEST_SIDE || h > LONGEST_SIDE || w * h > MOST_PIXELS;
}

static void choose_scale(struct sheet *s, int w, int h)
{
    int least = w < h ? w : h;
    s->enlarge = s->reduce = 1;
    while (least * s->enlarge < LEAST_SIDE &&
           !is_too_large((int64_t)w * (s->enlarge + 1), (int64_t)h * (s->enlarge + 1)))
        s->enlarge++;
    while (is_too_large(w / s->reduce, h / s->reduce))
        s->reduce++;
}

/* Of an image's side on the sheet. */
static int scaled(const struct sheet *s, int side)
{
    side = side * s->enlarge / s->reduce;
    return side > 1 ? side : 1;
}

/* The mean of the pixels that become one. */
static float mean(const float *plane, int w, int h, int left, int top, int side)
{
    float sum = 0;
    int right = left + side < w ? left + side : w, bottom = top + side < h ? top + side : h;
    for (int y = top; y < bottom; y++)
        for (int x = left; x < right; x++)
            sum += plane[(size_t)y * (size_t)w + (size_t)x];
    return sum / (float)((right - left) * (bottom - top));
}

static image resize(const struct sheet *s, const float *planes, int w, int h)
{
    image im = make_image(scaled(s, w), scaled(s, h), 3);
    float *to = im.data;
    for (int c = 0; c < 3; c++, planes += (size_t)w * (size_t)h)
        for (int y = 0; y < im.h; y++)
            for (int x = 0; x < im.w; x++)
                *to++ = mean(planes, w, h, x * s->reduce / s->enlarge, y * s->reduce / s->enlarge,
                             s->reduce);
    return im;
}

/* top: of a box, above which the text stands where there is room. Darknet has letters for ASCII
 * only. */
static void draw_text(const struct sheet *s, image im, char *text, int top, int left,
                      const float rgb[3])
{
    for (char *p = text; *p; p++)
        if (*p < 32 || *p > 126) *p = '?';
    image label = get_label(s->alphabet, text, 0);
    draw_label(im, top, left, label, rgb);
    free_image(label);
}

/* The colour that Darknet draws boxes of this class in. */
static void choose_colour(int class_id, int classes, float rgb[3])
{
    int offset = (int)((long long)class_id * 123457 % classes);
    for (int c = 0; c < 3; c++)
        rgb[c] = get_color(2 - c, offset, classes);
}

static int inside(float at, int length)
{
    return at < 0 ? 0 : at > (float)(length - 1) ? length - 1 : (int)at;
}

static void draw_box_of(const struct sheet *s, image im, const float *truth)
{
    float rgb[3];
    char text[60], number[16];
    int class_id = (int)truth[4];
    choose_colour(class_id, s->d->classes > class_id ? s->d->classes : class_id + 1, rgb);
    int left = inside((truth[0] - truth[2] / 2) * (float)im.w, im.w),
        right = inside((truth[0] + truth[2] / 2) * (float)im.w, im.w),
        top = inside((truth[1] - truth[3] / 2) * (float)im.h, im.h),
        bottom = inside((truth[1] + truth[3] / 2) * (float)im.h, im.h);
    draw_box_width(im, left, top, right, bottom, 2, rgb[0], rgb[1], rgb[2]);
    snprintf(text, sizeof text, "%s", amp_data_class_name(s->d, class_id, number));
    draw_text(s, im, text, top, left, rgb);
}

/* An image with tags has several. */
static void draw_classes(const struct sheet *s, image im, const float *truths, int n)
{
    static const float white[] = {1, 1, 1};
    char text[200] = "", number[16];
    size_t used = 0;
    for (int k = 0; k < n && used < sizeof text; k++)
        if (truths[k] > 0)
            used += (size_t)snprintf(text + used, sizeof text - used, "%s%s", used ? ", " : "",
                                     amp_data_class_name(s->d, k, number));
    if (used) draw_text(s, im, text, 0, 0, white);
}

/* Behind the last box the loader leaves zeros. */
static void draw_boxes(const struct sheet *s, image im, const float *truths, int n)
{
    for (int k = 0; k + BOX_FLOATS <= n; k += BOX_FLOATS)
        if (truths[k] != 0 || truths[k + 1] != 0) draw_box_of(s, im, truths + k);
}

static void draw_all(struct sheet *s, const data *loaded)
{
    const struct amp_net_desc *net = s->d->net;
    choose_scale(s, net->w, net->h);
    s->all = make_image(ACROSS * scaled(s, net->w), ACROSS * scaled(s, net->h), 3);
    s->alphabet = load_alphabet();
    for (int i = 0; i < IMAGES; i++) {
        image im = resize(s, loaded->X.vals[i], net->w, net->h);
        (s->d->classifier ? draw_classes : draw_boxes)(s, im, loaded->y.vals[i], loaded->y.cols);
        embed_image(im, s->all, i % ACROSS * im.w, i / ACROSS * im.h);
        free_image(im);
    }
}

/* ---- the file ---- */

static int print(FILE *f, const void *user)
{
    const struct sheet *s = user;
    return amp_jpeg_write(f, s->all.data, s->all.w, s->all.h, QUALITY, AMP_DATA_SHEET) ? 0 : -1;
}

int amp_data_sheet(const struct amp_data *d, const char *path)
{
    char err[PATH_MAX + 600];
    data loaded;
    struct sheet s = {.d = d};
    int kept = amp_quiet_begin();
    network *net = load(d, &loaded);
    amp_quiet_end(kept);
    if (!net) return -1;
    draw_all(&s, &loaded);
    int failed = amp_whole_print(path, print, &s, err, sizeof err) ? amp_complain(err) : 0;
    free_image(s.all);
    free_data(loaded);
    free_network(net);
    return failed;
}
