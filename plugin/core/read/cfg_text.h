/* A Darknet cfg file as text: sections in order, each with its keys, and a line number for every
 * one.
 *
 * The reader takes what Darknet's read_cfg takes. It drops blanks and tabs everywhere in a line,
 * and skips lines that are empty or begin with # or ;. "[name]" opens a section, and "key=value"
 * (split at the first =) belongs to the last one. Whatever Darknet drops, misreads or crashes on
 * without a clear word is an error here: a line without "=", without a key or without a value; a
 * line before the first section; a header without "]"; a carriage return (Darknet keeps it:
 * "[net]\r" is not "[net]"; at the end of a line the cfg decides) or another control character; a
 * byte-order mark; no section at all. A file has at most AMP_CFG_MAX_BYTES.
 *
 * What keys mean, key_table.h and options.h know; files are opened by cfg.h. */
#ifndef AMP_CFG_TEXT_H
#define AMP_CFG_TEXT_H

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

/* The Darknet by whose rules a cfg is trained (dialect.h). */
enum amp_dialect { AMP_DIALECT_STOCK, AMP_DIALECT_FORK };

struct amp_cfg_file {
    char *path;
    char *text, *raw; /* hold the names, keys and values without and with blanks */
    int n_sections;
    struct amp_cfg_section *sections;
    int carriage_return; /* the first line that ended with one, which is dropped; 0: none */
    enum amp_dialect dialect;
    char dialect_reason[128]; /* "line 12: iou_loss=ciou"; "" for stock's rules */
};

/* sectioned: a cfg; else a .data file, which has one section, named "". NULL on failure, with
 * "file:line: what, and what is allowed" in err. */
struct amp_cfg_file *amp_cfg_text_parse(const char *path, const char *text, size_t size,
                                        bool sectioned, char *err, size_t err_size);
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

/* Gives the section other entries: the same, but the key has this value, in its old line or the
 * section's. The entries before are the caller's, to free or to put back; key and value must
 * outlive the section. 0, or -1: out of memory, and nothing is changed. */
int amp_cfg_put(struct amp_cfg_section *, char *key, char *value);

/* ---- comma lists ---- */

/* How many elements Darknet sees: commas and one. */
int amp_list_count(const char *list);
/* The element behind this one; NULL behind the last. */
const char *amp_list_next(const char *element);

/* ---- for messages ---- */

#define AMP_CFG_CARRIAGE_RETURN                                                                    \
    "has a carriage return (Windows line end), which Darknet takes as part of the value; save "    \
    "the "                                                                                         \
    "file with Unix line ends (sed -i 's/\\r$//' FILE)"

/* Whether a number is not 0 and too near 0 for FP32, in which it would be 0 or lose digits. */
bool amp_number_vanishes(const char *value);
#define AMP_FP32_LEAST "; FP32 holds nothing between 0 and 1.2e-38"

/* If the value holds a remark ("1 # on"), words to end an error message with; else "". */
const char *amp_cfg_remark_hint(const char *value);

/* " (the default)" behind the value of a key that the section does not have, else "". */
const char *amp_cfg_default_hint(const struct amp_cfg_section *, const char *key);

#endif
