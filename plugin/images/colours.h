/* The change of colours that Darknet's distort_image makes, on a row of planes: for files that are
 * compiled once per instruction set. No branches, so that the compiler makes vectors of it. */
#ifndef AMP_COLOURS_H
#define AMP_COLOURS_H

struct amp_colours {
    float hue, saturation, exposure; /* added to the hue; factors of saturation and value */
};

static inline float amp_smaller(float a, float b)
{
    return a < b ? a : b;
}

static inline float amp_larger(float a, float b)
{
    return a > b ? a : b;
}

/* One of red, green, blue of a colour: from is 5, 3, 1 for them; hue is in [0, 6]. */
static inline float amp_channel(float hue, float value, float chroma, float from)
{
    float k = hue + from;
    k -= k >= 6 ? 6.0f : 0.0f;
    float share = amp_larger(amp_smaller(amp_smaller(k, 4 - k), 1), 0);
    return amp_larger(amp_smaller(value - chroma * share, 1), 0);
}

/* To hue, saturation and value, these changed, and back, as Darknet's rgb_to_hsv and hsv_to_rgb
 * do; the way back is the form without cases of the same function. */
static inline void amp_distort(float *restrict red, float *restrict green, float *restrict blue,
                               int n, const struct amp_colours *c)
{
    float turn = c->hue, saturation = c->saturation, exposure = c->exposure;
    for (int x = 0; x < n; x++) {
        float r = red[x], g = green[x], b = blue[x];
        float most = amp_larger(r, amp_larger(g, b)), least = amp_smaller(r, amp_smaller(g, b));
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
        red[x] = amp_channel(hue, value, chroma, 5);
        green[x] = amp_channel(hue, value, chroma, 3);
        blue[x] = amp_channel(hue, value, chroma, 1);
    }
}

#endif
