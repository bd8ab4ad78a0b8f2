/* Random picture files of all kinds, for tests of what loads them: a picture and, where a test
 * writes one, its label file. */
#ifndef AMP_TEST_PICTURE_FILES_H
#define AMP_TEST_PICTURE_FILES_H

#include "tests/rig/files.h"
#include "tests/rig/harness.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jpeglib.h>

enum { MOST_PIXELS = 1 << 20 };

static int between(int low, int high)
{
    return low + (int)(test_random() % (uint64_t)(high - low + 1));
}

/* ---- files ---- */

static char image_path[300], label_path[300];

static void name_files(const char *stem, const char *suffix)
{
    char name[100];
    if (*image_path) remove(image_path);
    if (*label_path) remove(label_path);
    snprintf(name, sizeof name, "%s.%s", stem, suffix);
    strcpy(image_path, scratch(name));
    snprintf(name, sizeof name, "%s.txt", stem);
    strcpy(label_path, scratch(name));
}

/* Small and large; narrow ones too. */
static int random_side(void)
{
    return (int)pow(4000, test_uniform(0, 1));
}

static bool smooth; /* only pictures without noise and edges */

/* A picture with areas of one colour, greys, and noise, so that hues of all kinds occur. */
static uint8_t *paint(int w, int h, int channels)
{
    size_t count = (size_t)w * (size_t)h * (size_t)channels;
    uint8_t *bytes = malloc(count);
    REQUIRE(bytes);
    int kind = smooth ? 4 : between(0, 3), colour = between(0, 1 << 24), step = between(1, 60);
    for (size_t i = 0; i < count; i++) {
        int c = (int)(i % (size_t)channels), x = (int)(i / (size_t)channels) % w;
        bytes[i] = kind == 0   ? (uint8_t)test_random()
                   : kind == 1 ? (uint8_t)(colour >> c * 8)
                   : smooth    ? (uint8_t)(40 + (c + 1) * 60 * x / w)
                   : kind == 2 ? (uint8_t)(x / step * 40)
                               : (uint8_t)((colour >> c * 8) + x * (c + 1) / step);
    }
    return bytes;
}

/* An APP1 marker that says which side is up. */
static void write_orientation(struct jpeg_compress_struct *jpeg, int orientation, bool big_endian)
{
    uint8_t little[] = {'E', 'x', 'i', 'f', 0, 0, 'I', 'I', 42, 0, 8, 0, 0, 0,    2,
                        0,   0,   1,   4,   0, 1, 0,   0,   0,  9, 0, 0, 0, 0x12, 1,
                        3,   0,   1,   0,   0, 0, 0,   0,   0,  0, 0, 0, 0, 0};
    uint8_t big[] = {'E', 'x', 'i', 'f', 0, 0, 'M', 'M', 0, 42, 0, 0, 0, 8, 0,
                     2,   1,   0,   0,   4, 0, 0,   0,   1, 0,  0, 0, 9, 1, 0x12,
                     0,   3,   0,   0,   0, 1, 0,   0,   0, 0,  0, 0, 0, 0};
    little[36] = big[37] = (uint8_t)orientation;
    jpeg_write_marker(jpeg, JPEG_APP0 + 1, big_endian ? big : little, sizeof little);
}

/* colours: what libjpeg calls them; GREY and CMYK have 1 and 4. */
static void write_jpeg(int w, int h, J_COLOR_SPACE colours)
{
    struct jpeg_compress_struct jpeg;
    struct jpeg_error_mgr errors;
    FILE *file = fopen(image_path, "wb");
    REQUIRE(file);
    jpeg.err = jpeg_std_error(&errors);
    jpeg_create_compress(&jpeg);
    jpeg_stdio_dest(&jpeg, file);
    jpeg.image_width = (unsigned)w;
    jpeg.image_height = (unsigned)h;
    jpeg.input_components = colours == JCS_GRAYSCALE ? 1 : colours == JCS_CMYK ? 4 : 3;
    jpeg.in_color_space = colours;
    jpeg_set_defaults(&jpeg);
    jpeg_set_quality(&jpeg, between(5, 100), TRUE);
    if (between(0, 2) == 0) jpeg_simple_progression(&jpeg);
    jpeg.comp_info[0].h_samp_factor = between(1, 2);
    jpeg.comp_info[0].v_samp_factor = between(1, 2);
    if (between(0, 5) == 0) jpeg.restart_interval = 3;
    uint8_t *bytes = paint(w, h, jpeg.input_components);
    jpeg_start_compress(&jpeg, TRUE);
    if (between(0, 1)) write_orientation(&jpeg, between(0, 9), between(0, 1));
    for (int y = 0; y < h; y++) {
        JSAMPROW row = bytes + (size_t)y * (size_t)w * (size_t)jpeg.input_components;
        jpeg_write_scanlines(&jpeg, &row, 1);
    }
    jpeg_finish_compress(&jpeg);
    jpeg_destroy_compress(&jpeg);
    free(bytes);
    REQUIRE(!fclose(file));
}

/* Number of `bytes` bytes, the first one lowest (BMP) or highest (PNG). */
static void put(FILE *file, uint32_t number, int bytes, bool highest_first)
{
    for (int i = 0; i < bytes; i++)
        fputc((uint8_t)(number >> 8 * (highest_first ? bytes - 1 - i : i)), file);
}

static void write_bmp(int w, int h)
{
    FILE *file = fopen(image_path, "wb");
    uint32_t row = ((uint32_t)w * 3 + 3) & ~3u, header[] = {40, (uint32_t)w, (uint32_t)h};
    uint8_t *bytes = paint((int)row / 3 + 1, h, 3);
    REQUIRE(file);
    fputs("BM", file);
    put(file, 54 + row * (uint32_t)h, 4, false);
    put(file, 0, 4, false);
    put(file, 54, 4, false);
    for (int i = 0; i < 3; i++)
        put(file, header[i], 4, false);
    put(file, 1, 2, false);
    put(file, 24, 2, false);
    for (int i = 0; i < 6; i++)
        put(file, 0, 4, false);
    fwrite(bytes, row, (size_t)h, file);
    free(bytes);
    REQUIRE(!fclose(file));
}

static void write_chunk(FILE *file, const char *kind, const uint8_t *bytes, size_t n)
{
    uint32_t crc = ~0u;
    put(file, (uint32_t)n, 4, true);
    fputs(kind, file);
    fwrite(bytes, 1, n, file);
    for (size_t i = 0; i < n + 4; i++) {
        crc ^= i < 4 ? (uint8_t)kind[i] : bytes[i - 4];
        for (int k = 0; k < 8; k++)
            crc = crc >> 1 ^ (crc & 1 ? 0xedb88320 : 0);
    }
    put(file, ~crc, 4, true);
}

/* Of one row, not compressed: a stream of zlib's with one stored block. */
static void write_png(int w)
{
    FILE *file = fopen(image_path, "wb");
    size_t n = (size_t)w * 3 + 1; /* filter 0, then the row */
    uint8_t *bytes = paint(w, 1, 3), *stream = calloc(1, n + 11);
    uint8_t header[13] = {0, 0, (uint8_t)(w >> 8), (uint8_t)w, 0, 0, 0, 1, 8, 2};
    uint32_t a = 1, b = 0; /* Adler's sums */
    REQUIRE(file && stream);
    memcpy(stream,
           (uint8_t[]){0x78, 1, 1, (uint8_t)n, (uint8_t)(n >> 8), (uint8_t)~n, (uint8_t)(~n >> 8)},
           7);
    memcpy(stream + 8, bytes, n - 1);
    for (size_t i = 0; i < n; i++) {
        a = (a + stream[7 + i]) % 65521;
        b = (b + a) % 65521;
    }
    for (int i = 0; i < 4; i++)
        stream[7 + n + (size_t)i] = (uint8_t)((b << 16 | a) >> (24 - 8 * i));
    fwrite("\x89PNG\r\n\x1a\n", 1, 8, file);
    write_chunk(file, "IHDR", header, sizeof header);
    write_chunk(file, "IDAT", stream, n + 11);
    write_chunk(file, "IEND", stream, 0);
    free(bytes);
    free(stream);
    REQUIRE(!fclose(file));
}

static void random_size(int *w, int *h)
{
    do {
        *w = random_side();
        *h = random_side();
    } while (*w * *h > MOST_PIXELS);
}

/* Returns whether it is ours to read. The suffix means nothing: decoders go by the first bytes. */
static bool write_case(int kind, int w, int h)
{
    static const J_COLOR_SPACE colours[] = {JCS_RGB, JCS_RGB,       JCS_RGB,   JCS_RGB,
                                            JCS_RGB, JCS_GRAYSCALE, JCS_YCbCr, JCS_CMYK};
    if (kind < 8)
        write_jpeg(w, h, colours[kind]);
    else if (kind == 8)
        write_bmp(w, h);
    else
        write_png(w);
    return kind < 7;
}

#endif
