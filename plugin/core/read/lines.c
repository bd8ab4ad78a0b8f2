/* Decides which files can be read as text, and what their lines are. It must not know what a line
 * means. */
#define _GNU_SOURCE
#include "lines.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- before reading ---- */

const char *amp_file_irregular(mode_t mode)
{
    return S_ISDIR(mode) ? "a folder, not a file" : S_ISREG(mode) ? NULL : "not a regular file";
}

/* With the effective user's rights, as open will use them. */
const char *amp_file_unreadable(const char *path)
{
    struct stat info;
    if (stat(path, &info)) return strerror(errno);
    if (!S_ISREG(info.st_mode)) return amp_file_irregular(info.st_mode);
    return faccessat(AT_FDCWD, path, R_OK, AT_EACCESS) ? strerror(errno) : NULL;
}

static bool begins(const unsigned char *x, size_t n, const char *mark, size_t length)
{
    return n >= length && !memcmp(x, mark, length);
}

/* Text without a mark: every other byte of the first two characters is 0. */
static bool looks_like_utf16(const unsigned char *x, size_t n)
{
    return n >= 4 && ((x[0] && !x[1] && x[2] && !x[3]) || (!x[0] && x[1] && !x[2] && x[3]));
}

const char *amp_text_encoding(const void *begin, size_t bytes)
{
    const unsigned char *x = begin;
    if (begins(x, bytes, "\xEF\xBB\xBF", 3))
        return "begins with a UTF-8 byte-order mark (BOM), which cannot be seen and which Darknet "
               "takes for a part of the first line; save the file as UTF-8 without BOM, or: "
               "sed -i '1s/^\\xef\\xbb\\xbf//' FILE";
    if (begins(x, bytes, "\xFF\xFE", 2) || begins(x, bytes, "\xFE\xFF", 2) ||
        looks_like_utf16(x, bytes))
        return "is in UTF-16 (\"Unicode\" of Windows), which Darknet cannot read; save the file as "
               "UTF-8 without BOM, or: iconv -f UTF-16 -t UTF-8 FILE >NEW";
    return NULL;
}

/* What a download or checkout leaves where a text should be. */
static const char *other_kind(const unsigned char *x, size_t n)
{
    if (begins(x, n, "<!DOCTYPE", 9) || begins(x, n, "<!doctype", 9) || begins(x, n, "<html", 5))
        return "is an HTML page: the download did not give the file";
    if (begins(x, n, "version https://git-lfs", 23))
        return "is a pointer of Git LFS, not the file: git lfs pull";
    return NULL;
}

static const char *unreadable(FILE *file)
{
    struct stat info;
    unsigned char begin[32];
    if (fstat(fileno(file), &info)) return strerror(errno);
    if (!S_ISREG(info.st_mode)) return amp_file_irregular(info.st_mode);
    if (info.st_size > 1 << 30) return "larger than 1 GiB";
    size_t n = fread(begin, 1, sizeof begin, file);
    if (ferror(file)) return strerror(errno);
    rewind(file);
    const char *why = amp_text_encoding(begin, n);
    return why ? why : other_kind(begin, n);
}

FILE *amp_text_open(const char *path, const char **why)
{
    /* First, since opening a pipe would wait. */
    *why = amp_file_unreadable(path);
    if (*why) return NULL;
    FILE *file = fopen(path, "re");
    *why = file ? unreadable(file) : strerror(errno);
    if (!*why) return file;
    if (file) fclose(file);
    return NULL;
}

const char *amp_text_unreadable(const char *path)
{
    const char *why;
    FILE *file = amp_text_open(path, &why);
    if (file) fclose(file);
    return why;
}

size_t amp_line_cut(char *line)
{
    size_t n = strlen(line);
    if (n && line[n - 1] == '\n') n--;
    if (n && line[n - 1] == '\r') n--;
    line[n] = '\0';
    return n;
}

/* ---- all lines ---- */

void amp_lines_free(struct amp_lines *lines)
{
    for (int i = 0; i < lines->count; i++)
        free(lines->line[i]);
    free(lines->line);
    free(lines->number);
    *lines = (struct amp_lines){0};
}

/* The list doubles when its count is a power of two, so it needs no capacity. */
static int append_line(struct amp_lines *lines, const char *text, int number)
{
    int n = lines->count;
    if ((n & (n - 1)) == 0) { /* grows at 0 and at every power of two */
        size_t capacity = n ? 2 * (size_t)n : 1;
        char **line = realloc(lines->line, capacity * sizeof *line);
        if (line) lines->line = line;
        int *numbers = realloc(lines->number, capacity * sizeof *numbers);
        if (numbers) lines->number = numbers;
        if (!line || !numbers) return -1;
    }
    lines->line[n] = strdup(text);
    lines->number[n] = number;
    lines->count += lines->line[n] != NULL;
    return lines->line[n] ? 0 : -1;
}

static size_t trim_end(char *text)
{
    size_t n = strlen(text);
    while (n > 0 && strchr(" \t\r\n", text[n - 1]))
        text[--n] = '\0';
    return n;
}

static bool ends_in_return(const char *text)
{
    size_t n = strcspn(text, "\n");
    return n && text[n - 1] == '\r';
}

/* 0, or -1 without memory. */
static int read_all(FILE *file, bool keep_blank, struct amp_lines *lines)
{
    char *text = NULL;
    size_t size = 0;
    int number = 0, blanks = 0, failed = 0;
    while (!failed && getline(&text, &size, file) >= 0) {
        number++;
        if (!lines->carriage_return && ends_in_return(text)) lines->carriage_return = number;
        if (trim_end(text) == 0) {
            blanks++;
            continue;
        }
        for (; keep_blank && blanks > 0 && !failed; blanks--)
            failed = append_line(lines, "", number - blanks);
        blanks = 0;
        if (!failed) failed = append_line(lines, text, number);
    }
    free(text);
    return failed;
}

int amp_lines_read(const char *path, bool keep_blank, struct amp_lines *lines, const char **why)
{
    FILE *file = amp_text_open(path, why);
    if (!file) return -1;
    if (read_all(file, keep_blank, lines)) *why = "no memory";
    if (!*why && ferror(file)) *why = strerror(errno);
    fclose(file);
    return *why ? -1 : 0;
}
