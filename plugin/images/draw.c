/* Decides the cut of a picture and what is mixed, from random numbers. It must not know pixels or
 * labels.
 *
 * float, int and their order are as in the rules: a border is truncated to whole pixels after each
 * term, and another rounding would be another cut. */
#include "draw.h"

#include <math.h>

/* ---- numbers ---- */

static int next(const struct amp_random *random)
{
    return random->next(random->user);
}

static float next_fraction(const struct amp_random *random)
{
    return (float)next(random) / 2147483648.0f;
}

static float between(float low, float high, float fraction)
{
    return low < high ? fraction * (high - low) + low : fraction * (low - high) + high;
}

/* Up to `most` times as much or as little. */
static float draw_scale(float most, const struct amp_random *random)
{
    float scale = between(1, most, next_fraction(random));
    return next(random) % 2 ? scale : 1 / scale;
}

static int draw_whole(int low, int high, const struct amp_random *random)
{
    return low + next(random) % (high - low + 1);
}

/* ---- the cut ---- */

struct borders {
    int left, right, top, bottom;
};

struct fractions {
    float resize[2], left, right, top, bottom;
};

static struct fractions draw_fractions(const struct amp_random *random)
{
    struct fractions f;
    f.resize[0] = next_fraction(random);
    f.resize[1] = next_fraction(random);
    f.left = next_fraction(random);
    f.right = next_fraction(random);
    f.top = next_fraction(random);
    f.bottom = next_fraction(random);
    return f;
}

static struct borders jitter(float jitter, int w, int h, const struct fractions *f)
{
    int dw = (int)((float)w * jitter), dh = (int)((float)h * jitter);
    return (struct borders){.left = (int)between((float)-dw, (float)dw, f->left),
                            .right = (int)between((float)-dw, (float)dw, f->right),
                            .top = (int)between((float)-dh, (float)dh, f->top),
                            .bottom = (int)between((float)-dh, (float)dh, f->bottom)};
}

static int add(int border, float pixels)
{
    return (int)((float)border + pixels);
}

/* One side, both ends, each by a number of its own. With resize above 1 they grow or shrink, below
 * 1 they only grow. */
static void resize_side(float resize, int side, const float fraction[2], int *start, int *end)
{
    float most = resize > 1 ? resize : 1 / resize, least = resize > 1 ? 1 / resize : 1;
    float low = (float)(int)((float)side * (1 - most) / 2);
    float high = (float)(int)((float)side * (1 - least) / 2);
    *start = add(*start, between(low, high, fraction[0]));
    *end = add(*end, between(low, high, fraction[1]));
}

/* Adds what a picture of w x h lacks to the network's aspect, half at each end. */
static void add_letter_box(const struct amp_crop_rules *rules, int w, int h, struct borders *b)
{
    float aspect = (float)rules->w / (float)rules->h;
    if ((float)w / (float)h > aspect) {
        float half = ((float)w / aspect - (float)h) / 2;
        b->top = add(b->top, -half);
        b->bottom = add(b->bottom, -half);
    } else {
        float half = ((float)h * aspect - (float)w) / 2;
        b->left = add(b->left, -half);
        b->right = add(b->right, -half);
    }
}

/* Into the corner of its quadrant: what one end has is moved to the other. */
static void push_into_corner(int round, bool flip, struct borders *b)
{
    bool up = round < 2, to_left = (round % 2 == 0) != flip;
    int across = b->left + b->right, down = b->top + b->bottom;
    b->top = up ? 0 : down;
    b->bottom = up ? down : 0;
    b->left = to_left ? 0 : across;
    b->right = to_left ? across : 0;
}

/* A cut without area, or with nothing of the picture in it, is the whole picture. */
static void set_rectangle(const struct borders *b, int w, int h, struct amp_crop *crop)
{
    crop->left = b->left;
    crop->top = b->top;
    crop->right = b->right;
    crop->bottom = b->bottom;
    crop->w = w - b->left - b->right;
    crop->h = h - b->top - b->bottom;
    crop->picture_w = w;
    crop->picture_h = h;
    bool seen =
        crop->w > 0 && crop->h > 0 && b->left < w && b->right < w && b->top < h && b->bottom < h;
    if (seen) return;
    crop->left = crop->top = 0;
    crop->w = w;
    crop->h = h;
}

void amp_crop_draw(const struct amp_crop_rules *rules, int w, int h, int mosaic_round,
                   const struct amp_random *random, struct amp_crop *crop)
{
    struct fractions f = draw_fractions(random);
    crop->flip = rules->flip && next(random) % 2;
    (void)next(random); /* a scale that is not used */
    crop->hue = between(-rules->hue, rules->hue, next_fraction(random));
    crop->saturation = draw_scale(rules->saturation, random);
    crop->exposure = draw_scale(rules->exposure, random);
    struct borders b = jitter(rules->jitter, w, h, &f);
    if (rules->resize != 1) {
        resize_side(rules->resize, w, f.resize, &b.left, &b.right);
        resize_side(rules->resize, h, f.resize, &b.top, &b.bottom);
    }
    if (rules->letter_box) add_letter_box(rules, w, h, &b);
    if (mosaic_round != AMP_NO_MOSAIC && next(random) % 2 == 0)
        push_into_corner(mosaic_round, crop->flip, &b);
    set_rectangle(&b, w, h, crop);
}

/* ---- labels, mixing, sizes ---- */

void amp_label_order_draw(int n, const struct amp_random *random, int *index)
{
    for (int i = 0; i < n; i++)
        index[i] = i;
    for (int i = 0; i < n; i++) {
        int other = next(random) % n, kept = index[i];
        index[i] = index[other];
        index[other] = kept;
    }
}

struct amp_mix amp_mix_draw(enum amp_mixing mixing, int w, int h, int n,
                            const struct amp_random *random, struct amp_cut *cuts)
{
    (void)next(random);
    bool mixed = next(random) % 2;
    if (mixing == AMP_MIX_NONE || !mixed) return (struct amp_mix){AMP_MIX_NONE, 1};
    /* Which face stands for which way, no recording says. */
    if (mixing == AMP_MIX_ANY) mixing = next(random) % 2 ? AMP_MIX_MOSAIC : AMP_MIX_TWO;
    if (mixing == AMP_MIX_TWO) return (struct amp_mix){AMP_MIX_TWO, 2};
    for (int i = 0; i < n; i++) {
        cuts[i].x = draw_whole((int)((float)w * 0.2f), (int)((float)w * 0.8f), random);
        cuts[i].y = draw_whole((int)((float)h * 0.2f), (int)((float)h * 0.8f), random);
    }
    return (struct amp_mix){AMP_MIX_MOSAIC, AMP_MOSAIC_ROUNDS};
}

float amp_size_draw(const struct amp_size_rules *rules, const struct amp_random *random)
{
    return draw_scale(rules->coefficient, random);
}

int amp_size_of(const struct amp_size_rules *rules, int initial, float scale)
{
    int side = (int)lroundf(scale * (float)initial / (float)rules->step + 1) * rules->step;
    if (scale < 1 && side > initial) side = initial;
    return side < rules->step ? rules->step : side;
}
