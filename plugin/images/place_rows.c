/* Decides the arithmetic of amp_place, row by row. The loops are plain C that the compiler turns
 * into vectors: no branches in them, and arrays that do not overlap.
 *
 * Compiled once per instruction set (AMP_ISA). */
#include "place_rows.h"

#define JOIN_(a, b) a##b
#define JOIN(a, b)  JOIN_(a, b)

/* One row between two rows of the image: a * above + b * below. */
static void blend_rows(float *restrict row, const uint8_t *restrict a, const uint8_t *restrict b,
                       int n, float above, float below)
{
    for (int i = 0; i < n; i++)
        row[i] = (float)a[i] * above + (float)b[i] * below;
}

static void blend_columns(const struct amp_columns *columns, float *restrict red,
                          float *restrict green, float *restrict blue)
{
    const int *restrict source = columns->source;
    const float *restrict right = columns->right, *restrict row = columns->row;
    for (int x = 0; x < columns->count; x++) {
        const float *p = row + source[x];
        float t = right[x];
        blue[x] = p[0] + (p[3] - p[0]) * t;
        green[x] = p[1] + (p[4] - p[1]) * t;
        red[x] = p[2] + (p[5] - p[2]) * t;
    }
}

static inline float smaller(float a, float b)
{
    return a < b ? a : b;
}

static inline float larger(float a, float b)
{
    return a > b ? a : b;
}

/* One of red, green, blue of a colour: from is 5, 3, 1 for them; hue is in [0, 6]. */
static inline float channel(float hue, float value, float chroma, float from)
{
    float k = hue + from;
    k -= k >= 6 ? 6.0f : 0.0f;
    float share = larger(smaller(smaller(k, 4 - k), 1), 0);
    return larger(smaller(value - chroma * share, 1), 0);
}

/* To hue, saturation and value, these changed, and back, as Darknet's rgb_to_hsv and hsv_to_rgb
 * do; the way back is the form without cases of the same function. */
static void distort(float *restrict red, float *restrict green, float *restrict blue, int n,
                    const struct amp_placement *p)
{
    float turn = p->hue, saturation = p->saturation, exposure = p->exposure;
    for (int x = 0; x < n; x++) {
        float r = red[x], g = green[x], b = blue[x];
        float most = larger(r, larger(g, b)), least = smaller(r, smaller(g, b));
        float range = most - least;
        float difference = r == most ? g - b : g == most ? b - r : r - g;
        float third = r == most ? 0.0f : g == most ? 2.0f : 4.0f;
        float hue = third + difference / (range > 0 ? range : 1);
        hue += hue < 0 ? 6.0f : 0.0f;
        hue = hue * (1 / 6.0f) + turn;
        hue -= hue > 1 ? 1.0f : 0.0f;
        hue += hue < 0 ? 1.0f : 0.0f;
        hue *= 6;
        float value = most * exposure;
        float chroma = value * (range / (most > 0 ? most : 1) * saturation);
        red[x] = channel(hue, value, chroma, 5);
        green[x] = channel(hue, value, chroma, 3);
        blue[x] = channel(hue, value, chroma, 1);
    }
}

static void fill(float *to, int n, float value)
{
    for (int i = 0; i < n; i++)
        to[i] = value;
}

/* Grey around the image: the canvas before anything is placed, with its exposure changed too. */
static void fill_row(float *to, const struct amp_placement *p, int first, int count, float grey)
{
    size_t plane = (size_t)p->canvas_w * (size_t)p->canvas_h;
    for (int c = 0; c < 3; c++)
        fill(to + (size_t)c * plane + first, count, grey);
}

/* Where row y of the placed image lies between the rows of the image itself. */
static void take_rows(const struct amp_pixels *image, const struct amp_placement *p, int y,
                      const struct amp_columns *columns)
{
    float at = amp_place_at(p, y, p->h, image->h);
    int row = (int)at < image->h ? (int)at : image->h - 1;
    float t = at - (float)row;
    bool ends = p->sampling == AMP_SAMPLE_AS_RESIZE_IMAGE_ENDS && y + 1 == p->h;
    bool last = row + 1 == image->h || ends; /* below it are zeros */
    size_t bytes = (size_t)image->w * 3;
    const uint8_t *above = image->bytes + (size_t)row * bytes;
    blend_rows(columns->row, above, last ? above : above + bytes, (int)bytes, (1 - t) / 255,
               last ? 0 : t / 255);
}

void JOIN(amp_place_, AMP_ISA)(const struct amp_pixels *image, const struct amp_placement *p,
                               const struct amp_columns *columns, float *canvas)
{
    size_t plane = (size_t)p->canvas_w * (size_t)p->canvas_h;
    float grey = p->distorts ? larger(smaller(0.5f * p->exposure, 1), 0) : 0.5f;
    int first = columns->first, end = first + columns->count;
    for (int row = 0; row < p->canvas_h; row++) {
        float *to = canvas + (size_t)row * (size_t)p->canvas_w;
        int y = row - p->top;
        if (y < 0 || y >= p->h || !columns->count) {
            fill_row(to, p, 0, p->canvas_w, grey);
            continue;
        }
        fill_row(to, p, 0, first, grey);
        fill_row(to, p, end, p->canvas_w - end, grey);
        take_rows(image, p, y, columns);
        float *red = to + first, *green = red + plane, *blue = green + plane;
        blend_columns(columns, red, green, blue);
        if (p->distorts) distort(red, green, blue, columns->count, p);
    }
}
