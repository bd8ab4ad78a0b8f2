/* Decides the arithmetic of amp_place, row by row. The loops are plain C that the compiler turns
 * into vectors: no branches in them, and arrays that do not overlap.
 *
 * Compiled once per instruction set (AMP_ISA). */
#include "colours.h"
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
    float grey = p->distorts ? amp_larger(amp_smaller(0.5f * p->exposure, 1), 0) : 0.5f;
    const struct amp_colours colours = {p->hue, p->saturation, p->exposure};
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
        if (p->distorts) amp_distort(red, green, blue, columns->count, &colours);
    }
}
