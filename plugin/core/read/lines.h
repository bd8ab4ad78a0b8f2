/* Text files: whether they can be read at all, in which encoding they are, and their lines. Every
 * list, label file, names file, map and tree is opened here. Pure C. */
#ifndef AMP_LINES_H
#define AMP_LINES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/types.h>

/* ---- before reading ---- */

/* NULL if a file of this mode (stat's) is a regular one, else the reason. */
const char *amp_file_irregular(mode_t mode);
/* NULL if it is a regular file that can be read, else the reason. */
const char *amp_file_unreadable(const char *path);
/* The same for a text file that is read line by line: at most 1 GiB, in an encoding that Darknet
 * reads. */
const char *amp_text_unreadable(const char *path);

/* What is wrong with the encoding of a text that begins so, and the cure, as the end of a sentence
 * whose subject is the file; NULL: nothing. A byte-order mark is invisible in editors, and Darknet
 * takes it for a part of the first name or number; of UTF-16 it reads one character. 4 bytes are
 * enough. */
const char *amp_text_encoding(const void *begin, size_t bytes);

/* NULL with the reason in why: amp_text_unreadable's, or that of opening it. */
FILE *amp_text_open(const char *path, const char **why);

/* Cuts off the end of a line, "\n", "\r\n" or what a last line has of it. Returns the line's new
 * length. */
size_t amp_line_cut(char *line);

/* ---- all lines ---- */

struct amp_lines {
    char **line;
    int *number; /* line number in the file, from 1 */
    int count;
    int carriage_return; /* number of the first line that ends in one, which Darknet takes for a
                            part of it; 0: none does */
};

/* Reads all lines, with white space cut from their ends. Empty lines are kept only with keep_blank
 * (a class may have an empty name), and never at the end of the file. lines: zero-initialised. 0,
 * or -1 with the reason in why; amp_lines_free in both cases. */
int amp_lines_read(const char *path, bool keep_blank, struct amp_lines *lines, const char **why);
void amp_lines_free(struct amp_lines *lines);

#endif
