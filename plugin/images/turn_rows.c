/* Decides the arithmetic of amp_turn, row by row: where a pixel lies in the image, and what is
 * there between four pixels of it.
 *
 * Compiled once per instruction set (AMP_ISA). */
#include "turn_rows.h"

#include <math.h>

#define JOIN_(a, b) a##b
#define JOIN(a, b)  JOIN_(a, b)

/* A place in the image: the pixel above and left of it, and how far right and below of that. */
struct place {
    int x, y;
    float right, below;
};

static inline struct place find(const struct amp_turn *t, int x, int y)
{
    float at = (float)(t->left + x * t->across[0] + y * t->down[0]);
    float row = (float)(t->top + x * t->across[1] + y * t->down[1]);
    struct place p = {(int)floorf(at), (int)floorf(row), 0, 0};
    p.right = at - (float)p.x;
    p.below = row - (float)p.y;
    return p;
}

/* Zero around the image. */
static float pixel(const struct amp_pixels *image, int x, int y, int c)
{
    if (x < 0 || y < 0 || x >= image->w || y >= image->h) return 0;
    return image->bytes[((size_t)y * (size_t)image->w + (size_t)x) * 3 + (size_t)c];
}

static void blend_at_edge(const struct amp_pixels *image, struct place p, float bgr[3])
{
    for (int c = 0; c < 3; c++) {
        float above =
            pixel(image, p.x, p.y, c) * (1 - p.right) + pixel(image, p.x + 1, p.y, c) * p.right;
        float below = pixel(image, p.x, p.y + 1, c) * (1 - p.right) +
                      pixel(image, p.x + 1, p.y + 1, c) * p.right;
        bgr[c] = above * (1 - p.below) + below * p.below;
    }
}

static inline void blend_inside(const struct amp_pixels *image, struct place p, float bgr[3])
{
    size_t bytes = (size_t)image->w * 3;
    const uint8_t *a = image->bytes + (size_t)p.y * bytes + (size_t)p.x * 3, *b = a + bytes;
    for (int c = 0; c < 3; c++) {
        float above = (float)a[c] + (float)(a[c + 3] - a[c]) * p.right;
        float below = (float)b[c] + (float)(b[c + 3] - b[c]) * p.right;
        bgr[c] = above + (below - above) * p.below;
    }
}

void JOIN(amp_turn_, AMP_ISA)(const struct amp_pixels *image, const struct amp_turn *t,
                              float *canvas)
{
    size_t plane = (size_t)t->w * (size_t)t->h;
    for (int y = 0; y < t->h; y++) {
        float *red = canvas + (size_t)y * (size_t)t->w, *green = red + plane, *blue = green + plane;
        for (int x = 0; x < t->w; x++) {
            struct place p = find(t, t->flip ? t->w - 1 - x : x, y);
            float bgr[3];
            if (p.x >= 0 && p.y >= 0 && p.x + 1 < image->w && p.y + 1 < image->h)
                blend_inside(image, p, bgr);
            else
                blend_at_edge(image, p, bgr);
            blue[x] = bgr[0] / 255;
            green[x] = bgr[1] / 255;
            red[x] = bgr[2] / 255;
        }
        amp_distort(red, green, blue, t->w, &t->colours);
    }
}
