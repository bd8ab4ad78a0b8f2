/* A Darknet cfg file as text: sections in order, each with its keys, and a line number for every
 * one.
 *
 * The reader takes what Darknet's read_cfg takes. It drops blanks and tabs everywhere in a line,
 * and skips lines that are empty or begin with # or ;. "[name]" opens a section, and "key=value"
 * (split at the first =) belongs to the last one. Whatever Darknet drops, misreads or crashes on
 * without a clear word is an error here: a line without "=", without a key or without a value; a
 * line before the first section; a header without "]"; a carriage return (Darknet keeps it:
 * "[net]\r" is not "[net]") or another control character; a byte-order mark; no section at all. A
 * file has at most AMP_CFG_MAX_BYTES.
 *
 * This file also writes a cfg with some keys or sections changed, for Darknet's parser.
 * It does not know what keys mean: cfg_checks.h and options.h do. */
#ifndef AMP_CFG_H
#define AMP_CFG_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#define AMP_CFG_MAX_BYTES (16u << 20)

struct amp_cfg_entry {
    char *key, *value; /* without blanks, as Darknet reads them */
    char *written;     /* the value with the blanks inside it, for messages */
    int line;
};

struct amp_cfg_section {
    char *name; /* with brackets: "[net]" */
    int line;
    int n_entries;
    struct amp_cfg_entry *entries;
};

struct amp_cfg_file {
    char *path;
    char *text, *raw; /* hold the names, keys and values without and with blanks */
    int n_sections;
    struct amp_cfg_section *sections;
};

/* NULL on failure, with "file:line: what, and what is allowed" in err. */
struct amp_cfg_file *amp_cfg_read(const char *path, char *err, size_t err_size);
/* The same from a text; messages name path. */
struct amp_cfg_file *amp_cfg_parse(const char *path, const char *text, size_t size, char *err,
                                   size_t err_size);
/* Reads a Darknet .data file: the same lines without sections (Darknet's read_data_cfg). The result
 * has exactly one section, named "". A "[" opens no section there. */
struct amp_cfg_file *amp_cfg_read_data(const char *path, char *err, size_t err_size);
void amp_cfg_free(struct amp_cfg_file *);

/* The section of layer i, which must exist. The first section is the net's. */
const struct amp_cfg_section *amp_cfg_layer(const struct amp_cfg_file *, int i);

/* The FIRST entry with this key (as Darknet's option_find), or NULL. */
const struct amp_cfg_entry *amp_cfg_find(const struct amp_cfg_section *, const char *key);

/* The line of a key, or of its section if the key is absent. */
int amp_cfg_line(const struct amp_cfg_section *, const char *key);

/* The value of a key, or def if it is absent, converted as Darknet does (atoi, atof). */
int amp_cfg_int(const struct amp_cfg_section *, const char *key, int def);
double amp_cfg_float(const struct amp_cfg_section *, const char *key, double def);
const char *amp_cfg_string(const struct amp_cfg_section *, const char *key, const char *def);

/* Writes "file:line: key=value: ", which names an entry, and then the formatted text. */
void amp_cfg_describe(const struct amp_cfg_file *, const struct amp_cfg_entry *, char *out,
                      size_t size, const char *format, va_list);
/* The same as an error: always -1. */
__attribute__((format(printf, 5, 6))) int amp_cfg_fail(const struct amp_cfg_file *,
                                                       const struct amp_cfg_entry *, char *err,
                                                       size_t err_size, const char *format, ...);

/* Keys of one cfg that have no effect for one reason. There are fewer keys than places; if some are
 * given many times, the last ones are not named. */
struct amp_cfg_idle {
    const struct amp_cfg_entry *keys[64];
    int n;
};
void amp_cfg_idle_add(struct amp_cfg_idle *, const struct amp_cfg_entry *);
/* Appends one line that names all of them, with the formatted reason; nothing if there is none, or
 * size is 0. */
__attribute__((format(printf, 5, 6))) void amp_cfg_idle_note(const struct amp_cfg_idle *,
                                                             const struct amp_cfg_file *,
                                                             char *notes, size_t size,
                                                             const char *format, ...);

/* Whether a number is not 0 and too near 0 for FP32, in which it would be 0 or lose digits. */
bool amp_number_vanishes(const char *value);
#define AMP_FP32_LEAST "; FP32 holds nothing between 0 and 1.2e-38"

/* If the value holds a remark ("1 # on"), words to end an error message with; else "". */
const char *amp_cfg_remark_hint(const char *value);

/* ---- a cfg with some keys changed: a file in memory, nothing is written to a disk ---- */

struct amp_cfg_key {
    const char *key;   /* NULL: value is the whole section, with its name */
    const char *value; /* NULL: the key is left out */
    int section;       /* 0: [net]; layer i's is i + 1 */
};

struct amp_cfg_variant {
    int fd;
    char path[32]; /* path to open it by, in this process only */
};

/* Opens the changed cfg; close it when it has been read. 0, or -1 with text in err. */
int amp_cfg_variant_open(struct amp_cfg_variant *, const struct amp_cfg_file *,
                         const struct amp_cfg_key *keys, int n, char *err, size_t err_size);
void amp_cfg_variant_close(struct amp_cfg_variant *);
/* True for the path of an open one. Its keys and lines are not the user's, so nobody is told what
 * is odd about them. The program and the plugin may have a copy of this file each. */
bool amp_cfg_is_variant(const char *path);

#endif
