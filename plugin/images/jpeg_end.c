/* Decides whether a JPEG was copied to its end. It must not decode. */
#include "jpeg.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* Returns where the segment that begins at i ends. A segment with pixels (0xda) is followed by data
 * without a length: its end is the next marker that is neither a stuffed 0xff nor a restart. */
static size_t after_segment(const unsigned char *x, size_t i, size_t n)
{
    bool pixels = x[i + 1] == 0xda;
    i += 2 + (size_t)(x[i + 2] << 8) + x[i + 3];
    while (pixels && i + 1 < n && (x[i] != 0xff || !x[i + 1] || (x[i + 1] & 0xf8) == 0xd0))
        i++;
    return i;
}

/* True if a JPEG has no end marker. Walks the segments, because a thumbnail inside one has an end
 * marker, too. */
static bool is_cut(const unsigned char *x, size_t n)
{
    size_t i = 2;
    while (i + 3 < n && x[i] == 0xff && x[i + 1] != 0xd9)
        i = x[i + 1] == 0xff ? i + 1 : after_segment(x, i, n);
    return i + 1 >= n || (i + 3 >= n && (x[i] != 0xff || x[i + 1] != 0xd9));
}

/* Cheap tests first: almost every file is whole, and two bytes tell. Only the others are mapped and
 * walked. */
static bool ends_early(int fd, size_t n)
{
    unsigned char first[2], last[2];
    if (n < 4 || pread(fd, first, 2, 0) != 2 || pread(fd, last, 2, (off_t)n - 2) != 2) return false;
    if (first[0] != 0xff || first[1] != 0xd8 || (last[0] == 0xff && last[1] == 0xd9)) return false;
    unsigned char *x = mmap(NULL, n, PROT_READ, MAP_PRIVATE, fd, 0);
    if (x == MAP_FAILED) return false;
    bool cut = is_cut(x, n);
    munmap(x, n);
    return cut;
}

bool amp_jpeg_ends_early(const char *path)
{
    struct stat info;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    bool cut = !fstat(fd, &info) && ends_early(fd, (size_t)info.st_size);
    close(fd);
    return cut;
}
