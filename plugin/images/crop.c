/* Decides where rows and columns of the result come from, what colour is around the picture, and
 * which instruction set computes it. The arithmetic of a row is in crop_rows.c. */
#include "crop.h"

#include <math.h>
#include <stdlib.h>

#include "crop_rows.h"

/* ---- where from ---- */

/* In units of 1/2048. */
static float weight_of(float share)
{
    return rintf(share * AMP_RESIZE_ONE);
}

/* Middle of place i of n between the middles of `size` places. OpenCV rounds to float only here. */
static float middle(int i, int n, int size)
{
    return (float)((i + 0.5) * ((double)size / n) - 0.5);
}

/* Place x of w, in a row of `size` pixels. At its ends the outermost pixel counts alone. */
static void map_column(int x, int w, int size, int i, struct amp_column_taps *t)
{
    float at = middle(x, w, size);
    int first = (int)floorf(at);
    float share = at - (float)first;
    if (first < 0) first = 0, share = 0;
    if (first >= size - 1) first = size - 1, share = 0;
    t->byte[i] = 3 * first;
    t->first_weight[i] = weight_of(1 - share);
    t->second_weight[i] = weight_of(share);
}

static int within(int i, int size)
{
    return i < 0 ? 0 : i < size ? i : size - 1;
}

/* At the ends of a column the outermost pixel counts twice, each part rounded. */
static struct amp_row_tap row_tap(int y, int h, int size)
{
    float at = middle(y, h, size);
    int first = (int)floorf(at);
    float share = at - (float)first;
    return (struct amp_row_tap){within(first, size), within(first + 1, size),
                                (int16_t)weight_of(1 - share), (int16_t)weight_of(share)};
}

static void map(struct amp_crop_work *k)
{
    for (int i = 0; i < k->part.w; i++) {
        int x = k->part.from_x + i;
        map_column(k->crop->flip ? k->w - 1 - x : x, k->w, k->crop->w, i, &k->columns);
    }
    for (int i = 0; i < k->part.h; i++)
        k->rows[i] = row_tap(k->part.from_y + i, k->h, k->crop->h);
}

/* ---- instruction sets ---- */

int amp_crop_sets(struct amp_crop_set sets[AMP_CROP_SETS])
{
    int count = 0;
    sets[count++] = (struct amp_crop_set){amp_crop_base, amp_sum_base};
#ifdef __x86_64__
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2"))
        sets[count++] = (struct amp_crop_set){amp_crop_avx2, amp_sum_avx2};
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
        sets[count++] = (struct amp_crop_set){amp_crop_avx512, amp_sum_avx512};
#endif
    return count;
}

/* ---- all ---- */

static bool reaches_over(const struct amp_crop *c, const struct amp_pixels *p)
{
    return c->left < 0 || c->top < 0 || c->left + c->w > p->w || c->top + c->h > p->h;
}

static bool find_mean(struct amp_crop_work *k, amp_sum_function *sum)
{
    uint64_t sums[3];
    double share = 1 / ((double)k->image->w * k->image->h);
    if (!reaches_over(k->crop, k->image)) return true;
    uint32_t *columns = malloc((size_t)k->image->w * 3 * sizeof *columns);
    if (!columns) return false;
    sum(k->image, columns, sums);
    free(columns);
    for (int c = 0; c < 3; c++)
        k->mean[c] = (uint8_t)lrint((double)sums[c] * share);
    return true;
}

/* One block of memory, the widest things first. */
static void *allocate(struct amp_crop_work *k)
{
    size_t w = (size_t)k->part.w, h = (size_t)k->part.h, row = (size_t)k->crop->w * 3 + 4;
    size_t words = 5 * w * 4 + h * sizeof *k->rows, halves = 2 * 3 * w * 2, bytes = 3 * w + row;
    char *block = malloc(words + halves + bytes);
    if (!block) return NULL;
    struct amp_column_taps *t = &k->columns;
    t->byte = (int *)block;
    t->first_weight = (float *)(t->byte + w);
    t->second_weight = t->first_weight + w;
    t->first = (uint32_t *)(t->second_weight + w);
    t->second = t->first + w;
    k->rows = (struct amp_row_tap *)(t->second + w);
    k->above.values = (int16_t *)(k->rows + h);
    k->below.values = k->above.values + 3 * w;
    k->bytes = (uint8_t *)(k->below.values + 3 * w);
    k->row = k->bytes + 3 * w;
    return block;
}

bool amp_crop_part_on(const struct amp_crop_set *set, const struct amp_pixels *image,
                      const struct amp_crop *crop, int w, int h, const struct amp_part *part,
                      float *planes)
{
    struct amp_crop_work k = {.image = image,
                              .crop = crop,
                              .w = w,
                              .h = h,
                              .part = *part,
                              .recolours =
                                  crop->hue != 0 || crop->saturation != 1 || crop->exposure != 1,
                              .above.row = AMP_ROW_NONE,
                              .below.row = AMP_ROW_NONE};
    void *block = allocate(&k);
    bool memory = block && find_mean(&k, set->sum);
    if (memory) {
        map(&k);
        set->crop(&k, planes);
    }
    free(block);
    return memory;
}

bool amp_crop_part(const struct amp_pixels *image, const struct amp_crop *crop, int w, int h,
                   const struct amp_part *part, float *planes)
{
    struct amp_crop_set sets[AMP_CROP_SETS];
    return amp_crop_part_on(&sets[amp_crop_sets(sets) - 1], image, crop, w, h, part, planes);
}

bool amp_crop_picture(const struct amp_pixels *image, const struct amp_crop *crop, int w, int h,
                      float *planes)
{
    struct amp_part whole = {.w = w, .h = h};
    return amp_crop_part(image, crop, w, h, &whole, planes);
}
