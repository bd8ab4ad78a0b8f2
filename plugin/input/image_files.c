/* Decides from size and first bytes whether a file can be an image, and which files need not be
 * looked into again. It must not decode, and must not know lists. */
#define _GNU_SOURCE
#include "image_files.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "plugin/core/files/file.h"
#include "plugin/core/read/lines.h"

/* ---- first bytes ---- */

#define FIRST 32 /* bytes that are looked at */

/* What a file begins with, from byte `at` on. */
struct mark {
    int at, length;
    const char *bytes;
    const char *what; /* NULL: an image */
};

#define CONVERT ", which OpenCV does not read: convert it to JPEG or PNG"

#define VIDEO "is a video, not an image: take images out of it, as by ffmpeg -i VIDEO %06d.jpg"

/* Formats that OpenCV reads (a build may lack some of the rarer ones: then the decoder tells);
 * after them files that are often found under an image's name. */
static const struct mark marks[] = {
    {0, 3, "\xFF\xD8\xFF", NULL},       /* JPEG */
    {0, 8, "\x89PNG\r\n\x1A\n", NULL},  /* PNG */
    {0, 2, "BM", NULL},                 /* BMP */
    {0, 4, "II*\0", NULL},              /* TIFF */
    {0, 4, "MM\0*", NULL},              /* TIFF */
    {0, 4, "II+\0", NULL},              /* BigTIFF */
    {8, 4, "WEBP", NULL},               /* WebP */
    {4, 8, "ftypavif", NULL},           /* AVIF */
    {4, 4, "jP  ", NULL},               /* JPEG 2000 */
    {0, 4, "\xFF\x4F\xFF\x51", NULL},   /* its stream */
    {0, 2, "#?", NULL},                 /* Radiance HDR */
    {0, 4, "\x76\x2F\x31\x01", NULL},   /* OpenEXR */
    {0, 4, "\x59\xA6\x6A\x95", NULL},   /* Sun raster */
    {0, 2, "Pf", NULL},                 /* PFM */
    {0, 2, "PF", NULL},                 /* PFM */
    {0, 4, "8BPS", NULL},               /* PSD, without OpenCV */
    {0, 4, "GIF8", "is a GIF" CONVERT}, /* and an animation has many images */
    {4, 4, "ftyp", "is HEIC or a video" CONVERT},
    {8, 4, "AVI ", VIDEO},
    {0, 4, "\x1A\x45\xDF\xA3", VIDEO}, /* Matroska, WebM */
    {0, 5, "%PDF-", "is a PDF, not an image"},
    {0, 4, "PK\3\4", "is a ZIP archive, not an image"},
    {0, 2, "\x1F\x8B", "is compressed by gzip, not an image"},
    {0, 23, "version https://git-lfs", "is a pointer of Git LFS, not the image: git lfs pull"},
};

static bool is_netpbm(const unsigned char *x, size_t n)
{
    return n >= 3 && x[0] == 'P' && x[1] >= '1' && x[1] <= '7' && x[2] && strchr(" \t\r\n#", x[2]);
}

/* A download that failed is often a page that says so. */
static const char *text_fault(const char *x)
{
    x += strspn(x, " \t\r\n\xEF\xBB\xBF");
    if (*x == '<') return "is an HTML or XML page, not an image";
    if (*x == '{' || *x == '[') return "is JSON text, not an image";
    return "does not begin as an image does (JPEG, PNG, BMP, TIFF, WebP, ...)";
}

static const char *bytes_fault(const unsigned char *x, size_t n)
{
    char text[FIRST + 1] = "";
    for (size_t i = 0; i < sizeof marks / sizeof *marks; i++) {
        const struct mark *m = &marks[i];
        if (n >= (size_t)(m->at + m->length) && !memcmp(x + m->at, m->bytes, (size_t)m->length))
            return m->what;
    }
    if (is_netpbm(x, n)) return NULL;
    memcpy(text, x, n);
    return text_fault(text);
}

/* ---- a JPEG's header ---- */

#define CUT "is a JPEG that ends before its pixels begin: it was not copied to its end"

/* C0 to CF but for tables of Huffman and arithmetic coding and JPG's own. */
static bool is_frame(unsigned char mark)
{
    return (mark & 0xf0) == 0xc0 && mark != 0xc4 && mark != 0xc8 && mark != 0xcc;
}

/* Walks the segments up to the pixels. Rubbish between them is the decoder's business. frame: place
 * of the segment that says the size, 0 without one. */
static const char *jpeg_fault(int fd, off_t size, off_t *frame)
{
    *frame = 0;
    unsigned char x[4];
    for (off_t at = 2;;) {
        if (at + 4 > size || pread(fd, x, 4, at) != 4) return CUT;
        if (x[0] != 0xff || x[1] == 0xda) return NULL;
        if (is_frame(x[1])) *frame = at;
        bool alone = x[1] == 0xff || x[1] == 0x01 || (x[1] & 0xf8) == 0xd0;
        at += x[1] == 0xff ? 1 : alone ? 2 : 2 + (x[2] << 8) + x[3];
    }
}

/* ---- other headers ---- */

enum { PNG_HEAD = 24 };

static bool is_png(const unsigned char *x, ssize_t n)
{
    return n >= 8 && !memcmp(x, "\x89PNG\r\n\x1A\n", 8);
}

/* Files whose first bytes alone were written, or came back from a damaged disk as zeros, and
 * animations. */
static const char *header_fault(const unsigned char *x, ssize_t n)
{
    if (is_png(x, n) && (n < PNG_HEAD || memcmp(x + 12, "IHDR", 4)))
        return "is a PNG without its header (IHDR): it was not written to its end";
    if (n >= 12 && !memcmp(x + 8, "WEBP", 4) && (n < 16 || memcmp(x + 12, "VP8", 3)))
        return "is a WebP without an image (VP8): it was not written to its end";
    if (n >= 21 && !memcmp(x + 8, "WEBPVP8X", 8) && x[20] & 2) return "is an animated WebP" CONVERT;
    return NULL;
}

/* ---- its size ---- */

static bool is_jpeg(const unsigned char *x, ssize_t n)
{
    return n >= 2 && x[0] == 0xff && x[1] == 0xd8;
}

static bool is_bmp(const unsigned char *x, ssize_t n)
{
    return n >= 2 && x[0] == 'B' && x[1] == 'M';
}

/* Big-endian, of so many bytes. */
static uint32_t number_at(const unsigned char *x, int bytes)
{
    uint32_t n = 0;
    for (int i = 0; i < bytes; i++)
        n = n << 8 | x[i];
    return n;
}

static int32_t little(const unsigned char *x, int bytes)
{
    uint32_t n = 0;
    for (int i = bytes; i--;)
        n = n << 8 | x[i];
    return (int32_t)n;
}

/* x: the first n bytes. Of a BMP that stands from top to bottom the height is below 0; one of OS/2
 * has 16 bits. False: the header does not say. */
static bool read_size(int fd, off_t length, const unsigned char *x, ssize_t n, int64_t *w,
                      int64_t *h)
{
    unsigned char frame[9];
    off_t at;
    if (n >= PNG_HEAD && is_png(x, n)) {
        *w = number_at(x + 16, 4);
        *h = number_at(x + 20, 4);
    } else if (n >= 26 && is_bmp(x, n)) {
        int bytes = little(x + 14, 4) == 12 ? 2 : 4;
        *w = little(x + 18, bytes);
        *h = llabs((long long)little(x + 18 + bytes, bytes));
    } else if (is_jpeg(x, n) && !jpeg_fault(fd, length, &at) && at &&
               pread(fd, frame, sizeof frame, at) == sizeof frame) {
        *h = number_at(frame + 5, 2);
        *w = number_at(frame + 7, 2);
    } else {
        return false;
    }
    return true;
}

#define TOO_LARGE                                                                                  \
    "says in its header that it has more than 2^30 pixels, or a side of more than 2^20, which "    \
    "OpenCV does not read: make it smaller"
#define NO_PIXELS                                                                                  \
    "says in its header that it is 0 pixels wide or high: it was not written to its end"

/* OpenCV refuses more, whatever memory there is. */
static const char *size_fault(int fd, off_t length, const unsigned char *x, ssize_t n)
{
    enum { MOST_PIXELS = 1 << 30, LONGEST_SIDE = 1 << 20 };
    int64_t w, h;
    if (!read_size(fd, length, x, n, &w, &h)) return NULL;
    if (w <= 0 || h <= 0) return NO_PIXELS;
    return w > LONGEST_SIDE || h > LONGEST_SIDE || w * h > MOST_PIXELS ? TOO_LARGE : NULL;
}

/* ---- a file ---- */

static const char *look(int fd, off_t size)
{
    unsigned char x[FIRST];
    off_t frame;
    if (!size) return "is empty (0 bytes)";
    ssize_t n = pread(fd, x, sizeof x, 0);
    if (n < 0) return strerror(errno);
    const char *why = bytes_fault(x, (size_t)n);
    if (!why) why = header_fault(x, n);
    if (!why && is_jpeg(x, n)) why = jpeg_fault(fd, size, &frame);
    return why ? why : size_fault(fd, size, x, n);
}

/* stat comes first: opening a pipe would wait. */
static const char *fault_of(const char *path, const struct stat *info)
{
    if (!S_ISREG(info->st_mode)) return amp_file_irregular(info->st_mode);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return strerror(errno);
    /* Else the system would read ahead what nobody looks at. */
    posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM);
    const char *why = look(fd, info->st_size);
    close(fd);
    return why;
}

const char *amp_image_file_fault(const char *path)
{
    struct stat info;
    return stat(path, &info) ? strerror(errno) : fault_of(path, &info);
}

bool amp_image_file_size(const char *path, int *w, int *h)
{
    struct stat info;
    unsigned char x[FIRST];
    int64_t across = 0, down = 0;
    if (stat(path, &info) || !S_ISREG(info.st_mode)) return false;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : pread(fd, x, sizeof x, 0);
    bool known = n > 0 && read_size(fd, info.st_size, x, n, &across, &down) && across > 0 &&
                 across <= INT_MAX && down > 0 && down <= INT_MAX;
    if (fd >= 0) close(fd);
    *w = known ? (int)across : 0;
    *h = known ? (int)down : 0;
    return known;
}

/* ---- files that were found good ---- */

#define MAGIC      "darknet-amp images 2\n"
#define MOST_KEPT  (1 << 23) /* 64 MiB */
#define FIRST_ROOM 1024

struct amp_known_images {
    char path[PATH_MAX], folder[PATH_MAX]; /* folder: the working one, for relative paths */
    uint64_t *old, *new;                   /* old: sorted */
    size_t n_old, n_new, room;
};

const char *amp_known_images_place(void)
{
    static char path[PATH_MAX];
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    bool own = cache && *cache == '/';
    if (!own && !(home && *home == '/')) return NULL;
    int n = snprintf(path, sizeof path, "%s%s/darknet-amp/images", own ? cache : home,
                     own ? "" : "/.cache");
    return n < (int)sizeof path ? path : NULL;
}

static int compare(const void *a, const void *b)
{
    const uint64_t *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

/* A file that somebody else wrote, or a part of one, is as good as none. */
static void read_old(struct amp_known_images *k)
{
    char magic[sizeof MAGIC];
    struct stat info;
    FILE *f = *k->path && !amp_file_unreadable(k->path) ? fopen(k->path, "re") : NULL;
    if (!f) return;
    size_t length = sizeof MAGIC - 1;
    bool ours = fread(magic, 1, length, f) == length && !memcmp(magic, MAGIC, length) &&
                !fstat(fileno(f), &info) && info.st_size <= (off_t)(length + 8UL * MOST_KEPT);
    size_t n = ours ? ((size_t)info.st_size - length) / 8 : 0;
    k->old = n ? malloc(n * sizeof *k->old) : NULL;
    if (k->old) k->n_old = fread(k->old, sizeof *k->old, n, f);
    fclose(f);
    qsort(k->old ? k->old : (uint64_t[1]){0}, k->n_old, sizeof *k->old, compare);
}

struct amp_known_images *amp_known_images_open(const char *path)
{
    struct amp_known_images *k = calloc(1, sizeof *k);
    if (!k) return NULL;
    if (path && strlen(path) < sizeof k->path) strcpy(k->path, path);
    if (!getcwd(k->folder, sizeof k->folder)) *k->folder = '\0';
    read_old(k);
    return k;
}

static uint64_t number_of(const struct amp_known_images *k, const char *path,
                          const struct stat *info)
{
    struct amp_hash hash;
    int64_t what[] = {(int64_t)info->st_size, (int64_t)info->st_mtim.tv_sec,
                      (int64_t)info->st_mtim.tv_nsec, (int64_t)info->st_ino};
    amp_hash_begin(&hash);
    if (*path != '/') amp_hash_add(&hash, k->folder, strlen(k->folder) + 1);
    amp_hash_add(&hash, path, strlen(path) + 1);
    amp_hash_add(&hash, what, sizeof what);
    return amp_hash_value(&hash);
}

/* Without memory the image is looked into again next time. */
static void remember(struct amp_known_images *k, uint64_t number)
{
    if (k->n_new == k->room) {
        size_t room = k->room ? 2 * k->room : FIRST_ROOM;
        uint64_t *new = realloc(k->new, room * sizeof *new);
        if (!new) return;
        k->new = new;
        k->room = room;
    }
    k->new[k->n_new++] = number;
}

static bool knows(const struct amp_known_images *k, const char *path, const struct stat *info)
{
    uint64_t number = k->n_old ? number_of(k, path, info) : 0;
    return k->n_old && bsearch(&number, k->old, k->n_old, sizeof number, compare);
}

bool amp_known_images_has(const struct amp_known_images *k, const char *path)
{
    struct stat info;
    return !stat(path, &info) && knows(k, path, &info);
}

const char *amp_known_images_fault(struct amp_known_images *k, const char *path)
{
    struct stat info;
    if (stat(path, &info)) return strerror(errno);
    /* Whether it may be read can change without a trace in it. */
    if (knows(k, path, &info))
        return faccessat(AT_FDCWD, path, R_OK, AT_EACCESS) ? strerror(errno) : NULL;
    const char *why = fault_of(path, &info);
    if (!why) remember(k, number_of(k, path, &info));
    return why;
}

size_t amp_known_images_new(const struct amp_known_images *k)
{
    return k->n_new;
}

/* A full cache starts anew, with the images of this run. */
static bool write_all(const struct amp_known_images *k, int fd)
{
    int copy = dup(fd);
    FILE *f = copy < 0 ? NULL : fdopen(copy, "w");
    if (!f) return false;
    size_t n = k->n_new < MOST_KEPT ? k->n_new : MOST_KEPT;
    bool written = fwrite(MAGIC, sizeof MAGIC - 1, 1, f) == 1;
    if (k->n_old + n <= MOST_KEPT && k->n_old)
        written = written && fwrite(k->old, sizeof *k->old, k->n_old, f) == k->n_old;
    if (n) written = written && fwrite(k->new, sizeof *k->new, n, f) == n;
    return !fclose(f) && written;
}

int amp_known_images_keep(struct amp_known_images *k)
{
    char err[2 * PATH_MAX], folder[PATH_MAX];
    struct amp_whole_file whole = {.fd = -1};
    const char *slash = strrchr(k->path, '/');
    if (!slash) return -1;
    /* Its parent too: a new user has no ~/.cache. */
    snprintf(folder, sizeof folder, "%.*s", (int)(slash - k->path), k->path);
    char *last = strrchr(folder, '/');
    if (last && last > folder) {
        *last = '\0';
        mkdir(folder, 0700);
        *last = '/';
    }
    mkdir(folder, 0755);
    int failed = amp_whole_begin(&whole, k->path, err, sizeof err) || !write_all(k, whole.fd) ||
                 amp_whole_place(&whole, err, sizeof err);
    amp_whole_drop(&whole);
    return failed ? -1 : 0;
}

void amp_known_images_free(struct amp_known_images *k)
{
    if (!k) return;
    free(k->old);
    free(k->new);
    free(k);
}
