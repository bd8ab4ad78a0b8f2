/* Decides where the columns of the canvas come from, and which instruction set computes it. The
 * arithmetic of a row is in place_rows.c. */
#include "place.h"

#include <stdlib.h>
#include <string.h>

#include "place_rows.h"

/* Column x of the canvas shows column `at` of the placed image, which is mirrored with the canvas.
 */
static void map_columns(const struct amp_pixels *image, const struct amp_placement *p,
                        struct amp_columns *columns)
{
    int left = p->flip ? p->canvas_w - p->left - p->w : p->left;
    int end = left + p->w < p->canvas_w ? left + p->w : p->canvas_w;
    columns->first = left > 0 ? left : 0;
    columns->count = end > columns->first ? end - columns->first : 0;
    for (int i = 0; i < columns->count; i++) {
        int x = columns->first + i - left;
        if (p->flip) x = p->w - 1 - x;
        float at = amp_place_at(p, x, p->w, image->w);
        int column = (int)at < image->w ? (int)at : image->w - 1;
        columns->source[i] = column * 3;
        columns->right[i] = at - (float)column;
    }
    if (!columns->count) columns->first = 0;
}

static amp_place_function *best_function(void)
{
#ifdef __x86_64__
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
        return amp_place_avx512;
    if (__builtin_cpu_supports("avx2")) return amp_place_avx2;
#endif
    return amp_place_base;
}

bool amp_place(const struct amp_pixels *image, const struct amp_placement *p, float *canvas)
{
    size_t width = (size_t)p->canvas_w, row = (size_t)image->w * 3 + 3;
    struct amp_columns columns = {.source = malloc(width * sizeof *columns.source),
                                  .right = malloc(width * sizeof *columns.right),
                                  .row = calloc(row, sizeof *columns.row)};
    bool memory = columns.source && columns.right && columns.row;
    if (memory) {
        map_columns(image, p, &columns);
        best_function()(image, p, &columns, canvas);
    }
    free(columns.source);
    free(columns.right);
    free(columns.row);
    return memory;
}
