/* Decides what a smaller image looks like and how it is kept. It must not know where images come
 * from or go. */
#include "shrink.h"

#include <errno.h>
#include <setjmp.h>
#include <stdio.h> /* jpeglib.h needs it */
#include <stdlib.h>
#include <string.h>

#include <jpeglib.h>

/* ---- the mean of an area ----
 *
 * In units of 1 / (w * W) of the image's width W, a pixel of the image is w wide and one of the
 * result W, so all widths are whole numbers, heights likewise, and the sums below are exact. */

static unsigned smaller(unsigned a, unsigned b)
{
    return a < b ? a : b;
}

/* Of each pixel of the result: the sum of what it covers of this row, times the width. */
static void sum_row(const uint8_t *in, unsigned from_w, unsigned to_w, uint32_t *sums)
{
    unsigned left = to_w; /* of the image's pixel */
    for (unsigned x = 0; x < to_w; x++, sums += 3) {
        uint32_t blue = 0, green = 0, red = 0;
        for (unsigned needed = from_w, part; needed; needed -= part) {
            part = smaller(needed, left);
            blue += part * in[0];
            green += part * in[1];
            red += part * in[2];
            left -= part;
            if (left) continue;
            in += 3;
            left = to_w;
        }
        sums[0] = blue;
        sums[1] = green;
        sums[2] = red;
    }
}

/* In double, which divides faster. The bytes are exact, too: a true quotient misses the next whole
 * number by 1 / (2 * area) or more, and one below 256 is rounded by less than 2^-45. */
static void divide_row(const uint64_t *sums, size_t n, double area, uint8_t *out)
{
    for (size_t i = 0; i < n; i++)
        out[i] = (uint8_t)(((double)(int64_t)sums[i] + area / 2) / area);
}

static void shrink_rows(const struct amp_pixels *from, struct amp_pixels *to, uint32_t *row,
                        uint64_t *sums)
{
    size_t stride = (size_t)from->w * 3, n = (size_t)to->w * 3;
    unsigned from_w = (unsigned)from->w, to_w = (unsigned)to->w, left = 0; /* of the image's row */
    const uint8_t *in = from->bytes;
    for (int y = 0; y < to->h; y++) {
        memset(sums, 0, n * sizeof *sums);
        for (unsigned needed = (unsigned)from->h, part; needed; needed -= part) {
            if (!left) {
                sum_row(in, from_w, to_w, row);
                in += stride;
                left = (unsigned)to->h;
            }
            part = smaller(needed, left);
            left -= part;
            for (size_t i = 0; i < n; i++)
                sums[i] += (uint64_t)part * row[i];
        }
        divide_row(sums, n, (double)from->w * from->h, to->bytes + (size_t)y * n);
    }
}

bool amp_shrink(const struct amp_pixels *from, int w, int h, struct amp_pixels *to)
{
    uint32_t *row = malloc((size_t)w * 3 * sizeof *row);
    uint64_t *sums = malloc((size_t)w * 3 * sizeof *sums);
    bool fits = row && sums && amp_pixels_resize(to, w, h);
    if (fits) shrink_rows(from, to, row, sums);
    free(row);
    free(sums);
    return fits;
}

/* The shorter side to the nearest whole number, but at least 1. */
static int shrink_side(int length, int from, int to)
{
    int shrunk = (int)(((int64_t)length * to + from / 2) / from);
    return shrunk ? shrunk : 1;
}

void amp_shrink_size(int w, int h, int side, int *to_w, int *to_h)
{
    *to_w = w >= h ? side : shrink_side(w, h, side);
    *to_h = h >= w ? side : shrink_side(h, w, side);
}

/* ---- a JPEG file ---- */

enum { QUALITY = 95 };

struct failure {
    struct jpeg_error_mgr manager; /* first: libjpeg gives back its address */
    jmp_buf back;
    char why[JMSG_LENGTH_MAX];
};

static void fail(j_common_ptr jpeg)
{
    struct failure *f = (struct failure *)jpeg->err;
    jpeg->err->format_message(jpeg, f->why);
    longjmp(f->back, 1);
}

static void write_rows(struct jpeg_compress_struct *jpeg, const struct amp_pixels *p)
{
    jpeg->image_width = (unsigned)p->w;
    jpeg->image_height = (unsigned)p->h;
    jpeg->input_components = 3;
    jpeg->in_color_space = JCS_EXT_BGR;
    jpeg_set_defaults(jpeg);
    jpeg_set_quality(jpeg, QUALITY, TRUE);
    /* Small objects have few pixels to tell their colour by. */
    jpeg->comp_info[0].h_samp_factor = jpeg->comp_info[0].v_samp_factor = 1;
    jpeg_start_compress(jpeg, TRUE);
    while (jpeg->next_scanline < jpeg->image_height) {
        JSAMPROW row = p->bytes + (size_t)jpeg->next_scanline * (size_t)p->w * 3;
        jpeg_write_scanlines(jpeg, &row, 1);
    }
    jpeg_finish_compress(jpeg);
}

static bool write_jpeg(const struct amp_pixels *p, FILE *to, struct failure *failure)
{
    struct jpeg_compress_struct jpeg = {.err = jpeg_std_error(&failure->manager)};
    failure->manager.error_exit = fail;
    if (setjmp(failure->back)) {
        jpeg_destroy_compress(&jpeg);
        return false;
    }
    jpeg_create_compress(&jpeg);
    jpeg_stdio_dest(&jpeg, to);
    write_rows(&jpeg, p);
    jpeg_destroy_compress(&jpeg);
    return true;
}

int amp_jpeg_write(const struct amp_pixels *p, const char *path, char *err, size_t err_size)
{
    struct failure failure;
    FILE *to = fopen(path, "wx");
    bool written = to && write_jpeg(p, to, &failure);
    const char *why = to && !written ? failure.why : NULL;
    if (to && fclose(to)) written = false;
    if (!written)
        snprintf(err, err_size, "%s: cannot write: %s", path, why ? why : strerror(errno));
    return written ? 0 : -1;
}
