/* Decides whether a file is a JPEG that is decoded here, and to which bytes. It must not know what
 * becomes of them. */
#include "jpeg.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdio.h> /* jpeglib.h needs it */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <jpeglib.h>

enum { OPENCVS_MOST_PIXELS = 1 << 30 };
enum { APP1 = JPEG_APP0 + 1, MARKER_BYTES = 0xffff, EXIF_HEADER = 6 };

/* Makes *bytes at least `needed` long; what was in it is lost. */
static bool grow(uint8_t **bytes, size_t *capacity, size_t needed)
{
    if (needed <= *capacity) return true;
    free(*bytes);
    *bytes = malloc(needed);
    *capacity = *bytes ? needed : 0;
    return *bytes != NULL;
}

bool amp_pixels_resize(struct amp_pixels *p, int w, int h)
{
    p->w = p->full_w = w;
    p->h = p->full_h = h;
    return grow(&p->bytes, &p->capacity, (size_t)w * (size_t)h * 3);
}

/* ---- EXIF: which side is up ---- */

struct tiff {
    const uint8_t *data;
    size_t size;
    bool big_endian;
};

/* 0 beyond the end. */
static unsigned read_number(const struct tiff *t, size_t at, int bytes)
{
    unsigned value = 0;
    if (at > t->size || t->size - at < (size_t)bytes) return 0;
    for (int i = 0; i < bytes; i++)
        value = value << 8 | t->data[at + (size_t)(t->big_endian ? i : bytes - 1 - i)];
    return value;
}

/* 1 (upright) to 8, from the first directory of TIFF 6.0 data; 1 if it does not say. */
static int orientation_in(const struct tiff *t)
{
    enum { MAGIC = 42, ENTRY_BYTES = 12, ORIENTATION = 0x112 };
    if (read_number(t, 2, 2) != MAGIC) return 1;
    size_t at = read_number(t, 4, 4);
    unsigned entries = read_number(t, at, 2);
    for (at += 2; entries-- > 0 && at < t->size; at += ENTRY_BYTES) {
        if (read_number(t, at, 2) != ORIENTATION) continue;
        unsigned value = read_number(t, at + 8, 2);
        return value >= 1 && value <= 8 ? (int)value : 1;
    }
    return 1;
}

/* OpenCV looks at the first APP1 marker only, so this does too. */
static int orientation_of(const struct jpeg_decompress_struct *jpeg)
{
    const struct jpeg_marker_struct *m = jpeg->marker_list;
    while (m && m->marker != APP1)
        m = m->next;
    if (!m || m->data_length <= EXIF_HEADER + 2) return 1;
    struct tiff t = {.data = m->data + EXIF_HEADER, .size = m->data_length - EXIF_HEADER};
    bool motorola = t.data[0] == 'M' && t.data[1] == 'M';
    if (!motorola && !(t.data[0] == 'I' && t.data[1] == 'I')) return 1;
    t.big_endian = motorola;
    return orientation_in(&t);
}

/* ---- decoding ---- */

_Static_assert(AMP_JPEG_DAMAGE >= JMSG_LENGTH_MAX, "room for libjpeg's messages");

struct failure {
    struct jpeg_error_mgr manager; /* first: libjpeg gives back its address */
    jmp_buf back;
    char *damage;
};

static void fail(j_common_ptr jpeg)
{
    longjmp(((struct failure *)jpeg->err)->back, 1);
}

/* libjpeg warns of damage that it can live with; who loads the file names it. */
static void note_damage(j_common_ptr jpeg)
{
    jpeg->err->format_message(jpeg, ((struct failure *)jpeg->err)->damage);
}

int amp_jpeg_reduction(int w, int h, int least)
{
    int shorter = w > h ? h : w, reduce = least > 0 ? 8 : 1;
    while (reduce > 1 && shorter / reduce < least)
        reduce /= 2;
    return reduce;
}

/* EXIF's eight ways: 5 to 8 exchange rows and columns, and then the image is mirrored. Writes one
 * row of the file to where it belongs. */
static void turn_row(const uint8_t *row, int width, int number, int orientation,
                     struct amp_pixels *to)
{
    bool exchange = orientation >= 5;
    bool mirror_x = orientation == 2 || orientation == 3 || orientation == 6 || orientation == 7;
    bool mirror_y = orientation == 3 || orientation == 4 || orientation == 7 || orientation == 8;
    for (int i = 0; i < width; i++, row += 3) {
        int x = exchange ? number : i, y = exchange ? i : number;
        if (mirror_x) x = to->w - 1 - x;
        if (mirror_y) y = to->h - 1 - y;
        memcpy(to->bytes + ((size_t)y * (size_t)to->w + (size_t)x) * 3, row, 3);
    }
}

static bool read_rows(struct jpeg_decompress_struct *jpeg, int orientation,
                      struct amp_jpeg_memory *memory)
{
    int w = (int)jpeg->output_width, h = (int)jpeg->output_height;
    bool exchange = orientation >= 5;
    struct amp_pixels *p = &memory->pixels;
    if (!amp_pixels_resize(p, exchange ? h : w, exchange ? w : h)) return false;
    p->full_w = (int)(exchange ? jpeg->image_height : jpeg->image_width);
    p->full_h = (int)(exchange ? jpeg->image_width : jpeg->image_height);
    bool turned = orientation != 1;
    if (turned && !grow(&memory->row, &memory->row_capacity, (size_t)w * 3)) return false;
    for (int y = 0; y < h; y++) {
        JSAMPROW row = turned ? memory->row : p->bytes + (size_t)y * (size_t)w * 3;
        jpeg_read_scanlines(jpeg, &row, 1);
        if (turned) turn_row(row, w, y, orientation, p);
    }
    return true;
}

const struct amp_pixels *amp_jpeg_decode(const uint8_t *file, size_t bytes, int least,
                                         struct amp_jpeg_memory *memory)
{
    struct jpeg_decompress_struct jpeg;
    struct failure failure;
    if (bytes < 3 || memcmp(file, "\xff\xd8\xff", 3) != 0) return NULL;
    jpeg.err = jpeg_std_error(&failure.manager);
    failure.manager.error_exit = fail;
    failure.manager.output_message = note_damage;
    failure.damage = memory->damage;
    *memory->damage = '\0';
    if (setjmp(failure.back)) {
        jpeg_destroy_decompress(&jpeg);
        return NULL;
    }
    jpeg_create_decompress(&jpeg);
    jpeg_save_markers(&jpeg, APP1, MARKER_BYTES);
    jpeg_mem_src(&jpeg, file, bytes);
    jpeg_read_header(&jpeg, TRUE);
    /* CMYK is left to OpenCV, as is what is too large for it: it says so. */
    bool read = jpeg.num_components != 4 &&
                (size_t)jpeg.image_width * jpeg.image_height <= OPENCVS_MOST_PIXELS;
    jpeg.out_color_space = JCS_EXT_BGR;
    jpeg.scale_num = 1;
    jpeg.scale_denom =
        (unsigned)amp_jpeg_reduction((int)jpeg.image_width, (int)jpeg.image_height, least);
    read = read && jpeg_start_decompress(&jpeg) &&
           read_rows(&jpeg, orientation_of(&jpeg), memory) && jpeg_finish_decompress(&jpeg);
    jpeg_destroy_decompress(&jpeg);
    return read ? &memory->pixels : NULL;
}

/* ---- files ---- */

static bool read_all(int fd, uint8_t *to, size_t bytes)
{
    for (ssize_t n; bytes; to += n, bytes -= (size_t)n) {
        n = read(fd, to, bytes);
        if (n <= 0) return false;
    }
    return true;
}

bool amp_jpeg_file(const char *path, struct amp_jpeg_memory *memory)
{
    struct stat info;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    memory->file_bytes = 0;
    if (fd < 0) return false;
    bool read = !fstat(fd, &info) && S_ISREG(info.st_mode) &&
                grow(&memory->file, &memory->file_capacity, (size_t)info.st_size) &&
                read_all(fd, memory->file, (size_t)info.st_size);
    close(fd);
    if (read) memory->file_bytes = (size_t)info.st_size;
    return read;
}

const struct amp_pixels *amp_jpeg_read(const char *path, int least, struct amp_jpeg_memory *memory)
{
    if (!amp_jpeg_file(path, memory)) return NULL;
    return amp_jpeg_decode(memory->file, memory->file_bytes, least, memory);
}

void amp_jpeg_free(struct amp_jpeg_memory *memory)
{
    free(memory->file);
    free(memory->row);
    free(memory->pixels.bytes);
    *memory = (struct amp_jpeg_memory){0};
}
