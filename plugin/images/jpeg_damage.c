/* Decides where libjpeg's warnings go. It must not know which file they are of. OpenCV lets libjpeg
 * print what is wrong with a file, without the file's name. */
#define _GNU_SOURCE
#include "jpeg.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include <jpeglib.h>

static _Thread_local char *kept;

void amp_jpeg_keep_damage(char *damage)
{
    kept = damage;
}

static void note(j_common_ptr jpeg)
{
    char said[AMP_JPEG_DAMAGE];
    jpeg->err->format_message(jpeg, kept ? kept : said);
    if (!kept) fprintf(stderr, "%s\n", said);
}

/* In the place of libjpeg's, which OpenCV calls for each file. One that is hidden in another
 * library still prints. */
__attribute__((visibility("default"))) struct jpeg_error_mgr *
jpeg_std_error(struct jpeg_error_mgr *manager)
{
    __typeof__(&jpeg_std_error) real = (__typeof__(real))dlsym(RTLD_NEXT, "jpeg_std_error");
    if (!real) abort(); /* it is libjpeg's, which jpeg.c needs */
    real(manager)->output_message = note;
    return manager;
}
