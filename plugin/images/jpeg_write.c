/* Decides how a picture becomes a JPEG file. It must not know what it shows. */
#include "jpeg.h"

#include <math.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include <jpeglib.h>

struct failure {
    struct jpeg_error_mgr manager; /* first: libjpeg gives back its address */
    jmp_buf back;
};

static void fail(j_common_ptr jpeg)
{
    longjmp(((struct failure *)jpeg->err)->back, 1);
}

static void take_row(const float *planes, int w, int h, int y, uint8_t *row)
{
    size_t plane = (size_t)w * (size_t)h, at = (size_t)y * (size_t)w;
    for (int x = 0; x < w; x++)
        for (size_t c = 0; c < 3; c++)
            *row++ = (uint8_t)lrintf(255 * fminf(fmaxf(planes[c * plane + at + (size_t)x], 0), 1));
}

static void write_rows(struct jpeg_compress_struct *jpeg, const float *planes, uint8_t *row)
{
    JSAMPROW rows[] = {row};
    int w = (int)jpeg->image_width, h = (int)jpeg->image_height;
    for (int y = 0; y < h; y++) {
        take_row(planes, w, h, y, row);
        jpeg_write_scanlines(jpeg, rows, 1);
    }
}

bool amp_jpeg_write(FILE *f, const float *planes, int w, int h, int quality, const char *comment)
{
    struct jpeg_compress_struct jpeg;
    struct failure failure;
    uint8_t *const row = malloc(3 * (size_t)w);
    if (!row) return false;
    jpeg.err = jpeg_std_error(&failure.manager);
    failure.manager.error_exit = fail;
    if (setjmp(failure.back)) {
        jpeg_destroy_compress(&jpeg);
        free(row);
        return false;
    }
    jpeg_create_compress(&jpeg);
    jpeg_stdio_dest(&jpeg, f);
    jpeg.image_width = (JDIMENSION)w;
    jpeg.image_height = (JDIMENSION)h;
    jpeg.input_components = 3;
    jpeg.in_color_space = JCS_RGB;
    jpeg_set_defaults(&jpeg);
    jpeg_set_quality(&jpeg, quality, TRUE);
    jpeg.comp_info[0].h_samp_factor = jpeg.comp_info[0].v_samp_factor = 1;
    jpeg_start_compress(&jpeg, TRUE);
    jpeg_write_marker(&jpeg, JPEG_COM, (const JOCTET *)comment, (unsigned)strlen(comment));
    write_rows(&jpeg, planes, row);
    jpeg_finish_compress(&jpeg);
    jpeg_destroy_compress(&jpeg);
    free(row);
    return true;
}
