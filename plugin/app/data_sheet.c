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
#include "measuring.h"

#include "plugin/core/files/file.h"
#include "plugin/images/jpeg.h"

/* Letters cannot be read on smaller images, which are enlarged. */
enum { ACROSS = 4, IMAGES = ACROSS * ACROSS, LEAST_SIDE = 192, QUALITY = 95, BOX_FLOATS = 5 };

float get_color(int c, int x, int max); /* of Darknet's image.c; no header declares it */

struct sheet {
    const struct amp_data *d;
    image **alphabet;
    int scale; /* pixels of the sheet that a pixel of an image becomes, in either direction */
    image all;
};

/* ---- loading ---- */

/* A whole batch of 16 images, of a network that holds one. A seed gives what a training with this
 * cfg begins with. */
static int load(const struct amp_data *d, data *loaded)
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
    if (!net) return -1;
    amp_training_args(net, d->data, &args);
    args.n = IMAGES;
    args.d = loaded;
    pthread_join(load_data(args), NULL);
    return 0;
}

/* ---- drawing ---- */

static void put_enlarged(struct sheet *s, const float *planes, int w, int h, int left, int top)
{
    for (int c = 0; c < 3; c++)
        for (int y = 0; y < h * s->scale; y++)
            for (int x = 0; x < w * s->scale; x++)
                s->all.data[((size_t)c * (size_t)s->all.h + (size_t)(top + y)) * (size_t)s->all.w +
                            (size_t)(left + x)] =
                    planes[((size_t)c * (size_t)h + (size_t)(y / s->scale)) * (size_t)w +
                           (size_t)(x / s->scale)];
}

/* Darknet has letters for these only. */
static void write_name(const struct sheet *s, int class_id, char *text, size_t size)
{
    char number[16];
    snprintf(text, size, "%s", amp_data_class_name(s->d, class_id, number));
    for (char *p = text; *p; p++)
        if (*p < 32 || *p > 126) *p = '?';
}

static void draw_name(struct sheet *s, int class_id, int top, int left, const float rgb[3])
{
    char text[60];
    write_name(s, class_id, text, sizeof text);
    image label = get_label(s->alphabet, text, 0);
    draw_label(s->all, top, left, label, rgb);
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

/* left, top, w, h: of the image on the sheet. */
static void draw_one(struct sheet *s, const float *truth, int left, int top, int w, int h)
{
    float rgb[3];
    int class_id = (int)truth[4];
    choose_colour(class_id, s->d->classes > class_id ? s->d->classes : class_id + 1, rgb);
    int x1 = left + inside((truth[0] - truth[2] / 2) * (float)w, w),
        x2 = left + inside((truth[0] + truth[2] / 2) * (float)w, w),
        y1 = top + inside((truth[1] - truth[3] / 2) * (float)h, h),
        y2 = top + inside((truth[1] + truth[3] / 2) * (float)h, h);
    draw_box_width(s->all, x1, y1, x2, y2, 2, rgb[0], rgb[1], rgb[2]);
    draw_name(s, class_id, y1, x1, rgb);
}

static void draw_truths(struct sheet *s, const float *truths, int n, int left, int top, int w,
                        int h)
{
    static const float white[] = {1, 1, 1};
    if (s->d->classifier) {
        for (int k = 0; k < n; k++)
            if (truths[k] > 0) draw_name(s, k, top, left, white);
        return;
    }
    /* Behind the last box the loader leaves zeros. */
    for (int k = 0; k + BOX_FLOATS <= n; k += BOX_FLOATS)
        if (truths[k] != 0 || truths[k + 1] != 0) draw_one(s, truths + k, left, top, w, h);
}

static void draw_all(struct sheet *s, const data *loaded)
{
    const struct amp_net_desc *net = s->d->net;
    int w = net->w * s->scale, h = net->h * s->scale;
    s->all = make_image(ACROSS * w, ACROSS * h, 3);
    s->alphabet = load_alphabet();
    for (int i = 0; i < IMAGES; i++) {
        int left = i % ACROSS * w, top = i / ACROSS * h;
        put_enlarged(s, loaded->X.vals[i], net->w, net->h, left, top);
        draw_truths(s, loaded->y.vals[i], loaded->y.cols, left, top, w, h);
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
    int least = d->net->w < d->net->h ? d->net->w : d->net->h;
    struct sheet s = {.d = d, .scale = least < LEAST_SIDE ? (LEAST_SIDE + least - 1) / least : 1};
    int kept = amp_quiet_begin(), failed = load(d, &loaded);
    amp_quiet_end(kept);
    if (failed) return -1;
    draw_all(&s, &loaded);
    return amp_whole_print(path, print, &s, err, sizeof err) ? amp_complain(err) : 0;
}
