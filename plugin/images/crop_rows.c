/* Decides the arithmetic of crop.h, row by row. The loops are plain C that the compiler turns into
 * vectors: no branches in them, and arrays that do not overlap.
 *
 * Compiled once per instruction set (AMP_ISA). */
#include "crop_rows.h"

#include <string.h>

#define JOIN_(a, b) a##b
#define JOIN(a, b)  JOIN_(a, b)

static inline int smaller(int a, int b)
{
    return a < b ? a : b;
}

static inline int larger(int a, int b)
{
    return a > b ? a : b;
}

/* ---- a row of the cut ---- */

static void fill(uint8_t *to, int pixels, const uint8_t colour[3])
{
    for (int i = 0; i < pixels; i++, to += 3)
        memcpy(to, colour, 3);
}

/* Row y of the picture, or what is around it. */
static void cut_row(const struct amp_crop_work *k, int y)
{
    int left = k->crop->left > 0 ? 0 : smaller(-k->crop->left, k->crop->w);
    int first = left + k->crop->left; /* column of the picture */
    int seen = smaller(k->crop->w - left, k->image->w - first);
    if (y == AMP_ROW_OUTSIDE) {
        fill(k->row, k->crop->w + 1, k->mean);
        return;
    }
    fill(k->row, left, k->mean);
    memcpy(k->row + left * 3,
           k->image->bytes + ((size_t)y * (size_t)k->image->w + (size_t)first) * 3,
           (size_t)seen * 3);
    fill(k->row + (left + seen) * 3, k->crop->w + 1 - left - seen, k->mean);
}

static inline uint32_t four_bytes(const uint8_t *p)
{
    return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static void take_pixels(const uint8_t *restrict row, const struct amp_column_taps *t, int w)
{
    const int *restrict byte = t->byte;
    uint32_t *restrict first = t->first, *restrict second = t->second;
    for (int x = 0; x < w; x++) {
        first[x] = four_bytes(row + byte[x]);
        second[x] = four_bytes(row + byte[x] + 3);
    }
}

/* 19 bits, of which OpenCV forgets 4. They are exact in float, and faster than in int. */
static inline int16_t blend(uint32_t a, uint32_t b, int bit, float weight_a, float weight_b)
{
    float level_a = (float)(int)(a >> bit & 255), level_b = (float)(int)(b >> bit & 255);
    return (int16_t)((int)(level_a * weight_a + level_b * weight_b) >> 4);
}

static void blend_columns(const struct amp_column_taps *t, int w, int16_t *restrict blue)
{
    const uint32_t *restrict a = t->first, *restrict b = t->second;
    const float *restrict weight_a = t->first_weight, *restrict weight_b = t->second_weight;
    int16_t *restrict green = blue + w, *restrict red = green + w;
    for (int x = 0; x < w; x++) {
        blue[x] = blend(a[x], b[x], 0, weight_a[x], weight_b[x]);
        green[x] = blend(a[x], b[x], 8, weight_a[x], weight_b[x]);
        red[x] = blend(a[x], b[x], 16, weight_a[x], weight_b[x]);
    }
}

static int row_of_picture(const struct amp_crop_work *k, int row)
{
    int y = row + k->crop->top;
    return y >= 0 && y < k->image->h ? y : AMP_ROW_OUTSIDE;
}

static void stretch(const struct amp_crop_work *k, int y, struct amp_stretched *to)
{
    if (to->row == y) return;
    cut_row(k, y);
    take_pixels(k->row, &k->columns, k->part.w);
    blend_columns(&k->columns, k->part.w, to->values);
    to->row = y;
}

/* ---- a row of the result ---- */

/* OpenCV's rounding of bytes: the high halves of two products, and two bits more. */
static void blend_rows(const int16_t *restrict a, const int16_t *restrict b, int16_t weight_a,
                       int16_t weight_b, int n, uint8_t *restrict to)
{
    for (int i = 0; i < n; i++) {
        int16_t high_a = (int16_t)((a[i] * weight_a) >> 16);
        int16_t high_b = (int16_t)((b[i] * weight_b) >> 16);
        to[i] = (uint8_t)((int16_t)(high_a + high_b + 2) >> 2);
    }
}

static void resize_row(struct amp_crop_work *k, const struct amp_row_tap *t)
{
    int first = row_of_picture(k, t->first), second = row_of_picture(k, t->second);
    if (k->above.row != first && k->below.row == first) {
        struct amp_stretched above = k->above;
        k->above = k->below;
        k->below = above;
    }
    stretch(k, first, &k->above);
    if (second != first) stretch(k, second, &k->below);
    blend_rows(k->above.values, second != first ? k->below.values : k->above.values,
               t->first_weight, t->second_weight, 3 * k->part.w, k->bytes);
}

static void write_row(const uint8_t *restrict from, int n, float *restrict to)
{
    for (int i = 0; i < n; i++)
        to[i] = (float)from[i] / 255;
}

/* ---- colours ---- */

/* To the nearest whole number, ties to even, for less than 2^22. */
static inline float whole(float x)
{
    return (x + 0x1.8p23f) - 0x1.8p23f;
}

static inline float to_byte(float x)
{
    x = whole(x);
    x = x > 0 ? x : 0;
    return x < 255 ? x : 255;
}

/* Hue 0 to 179 and saturation 0 to 255, as cvtColor computes them with its tables of 12 bits after
 * the point; then changed, again to whole numbers. */
static void to_hues(const struct amp_crop *crop, const uint8_t *restrict bytes, int n,
                    float *restrict hue, float *restrict saturation, float *restrict value)
{
    float turn = 179 * crop->hue, purer = crop->saturation, brighter = crop->exposure;
    const uint8_t *restrict bytes_g = bytes + n, *restrict bytes_r = bytes_g + n;
    for (int x = 0; x < n; x++) {
        int b = bytes[x], g = bytes_g[x], r = bytes_r[x];
        int most = larger(r, larger(g, b)), range = most - smaller(r, smaller(g, b));
        int per_value = (int)whole((float)(255 << 12) / (float)larger(most, 1));
        int per_range = (int)whole((float)(30 << 12) / (float)larger(range, 1));
        /* Masks, because cases become branches. */
        int is_r = -(most == r), is_g = -(most == g) & ~is_r, is_b = ~(is_r | is_g);
        int difference = (is_r & (g - b)) | (is_g & (b - r)) | (is_b & (r - g));
        int third = (is_g & 2) | (is_b & 4);
        int h = ((difference + third * range) * per_range + (1 << 11)) >> 12;
        hue[x] = to_byte((float)(h + (180 & -(h < 0))) + turn);
        saturation[x] = to_byte((float)((range * per_value + (1 << 11)) >> 12) * purer);
        value[x] = to_byte((float)most * brighter);
    }
}

/* One of red, green, blue; from is 5, 3, 1 for them. In its sixth of the circle a channel has all
 * of the value, falls, has what the saturation leaves, or rises. OpenCV's vectors cut off what is
 * below a whole level. */
static inline float channel(float sector, float part, float s, float v, float from)
{
    float at = sector + from;
    at -= at >= 6 ? 6.0f : 0.0f;
    float falling = at + part, rising = (3 - at) + (1 - part);
    float share = falling < rising ? falling : rising;
    share = share < 1 ? share : 1;
    share = share > 0 ? share : 0;
    return (float)(int)(v * (1 - s * share) * 255) / 255;
}

/* From hue, saturation and value in the places of red, green and blue. */
static void from_hues(int n, float *restrict red, float *restrict green, float *restrict blue)
{
    for (int x = 0; x < n; x++) {
        float h = red[x] * (6 / 180.0f), s = green[x] * (1 / 255.0f), v = blue[x] * (1 / 255.0f);
        h -= h >= 6 ? 6.0f : 0.0f;
        float sector = (float)(int)h, part = h - sector;
        red[x] = channel(sector, part, s, v, 5);
        green[x] = channel(sector, part, s, v, 3);
        blue[x] = channel(sector, part, s, v, 1);
    }
}

/* ---- all ---- */

void JOIN(amp_crop_, AMP_ISA)(struct amp_crop_work *k, float *planes)
{
    size_t plane = (size_t)k->w * (size_t)k->h;
    int w = k->part.w;
    float *red = planes + (size_t)k->part.y * (size_t)k->w + k->part.x;
    for (int y = 0; y < k->part.h; y++, red += k->w) {
        float *green = red + plane, *blue = green + plane;
        resize_row(k, &k->rows[y]);
        if (k->recolours) {
            to_hues(k->crop, k->bytes, w, red, green, blue);
            from_hues(w, red, green, blue);
            continue;
        }
        write_row(k->bytes, w, blue);
        write_row(k->bytes + w, w, green);
        write_row(k->bytes + 2 * w, w, red);
    }
}

static void add_row(uint32_t *restrict columns, const uint8_t *restrict row, size_t n)
{
    for (size_t i = 0; i < n; i++)
        columns[i] += row[i];
}

void JOIN(amp_sum_, AMP_ISA)(const struct amp_pixels *p, uint32_t *columns, uint64_t sums[3])
{
    size_t n = (size_t)p->w * 3;
    memset(columns, 0, n * sizeof *columns);
    memset(sums, 0, 3 * sizeof *sums);
    for (int y = 0; y < p->h; y++)
        add_row(columns, p->bytes + (size_t)y * n, n);
    for (size_t i = 0; i < n; i++)
        sums[i % 3] += columns[i];
}
