/* Where a check of a cfg puts what it finds: an error that ends the check, or notes worth printing
 * once. Every line names the file and a line of it, so that an editor can jump there. */
#ifndef AMP_COMPLAINTS_H
#define AMP_COMPLAINTS_H

#include <stddef.h>

#include "cfg_text.h"

struct amp_complaints {
    const struct amp_cfg_file *cfg;
    char *notes; /* lines; new ones are appended. NULL: nobody reads them */
    size_t notes_size;
    char *err;
    size_t err_size;
};

/* Errors: always -1. "file:line: " and the text; line 0: the whole file. */
__attribute__((format(printf, 3, 4))) int amp_fail_line(const struct amp_complaints *, int line,
                                                        const char *format, ...);
/* "file:line: key=value: " and the text. */
__attribute__((format(printf, 3, 4))) int amp_fail_entry(const struct amp_complaints *,
                                                         const struct amp_cfg_entry *,
                                                         const char *format, ...);
/* "file:line: key=value in [section]: " and the text. */
__attribute__((format(printf, 4, 5))) int amp_fail_value(const struct amp_complaints *,
                                                         const struct amp_cfg_section *,
                                                         const struct amp_cfg_entry *,
                                                         const char *format, ...);

/* Notes, one line each, in the same three forms. */
__attribute__((format(printf, 3, 4))) void amp_note_line(const struct amp_complaints *, int line,
                                                         const char *format, ...);
__attribute__((format(printf, 3, 4))) void amp_note_entry(const struct amp_complaints *,
                                                          const struct amp_cfg_entry *,
                                                          const char *format, ...);
__attribute__((format(printf, 4, 5))) void amp_note_value(const struct amp_complaints *,
                                                          const struct amp_cfg_section *,
                                                          const struct amp_cfg_entry *,
                                                          const char *format, ...);

/* A note that names its line itself. */
void amp_note_text(const struct amp_complaints *, const char *text);

/* Keys of one cfg that have no effect for one reason. There are fewer keys than places; if some are
 * given many times, the last ones are not named. */
struct amp_cfg_idle {
    const struct amp_cfg_entry *keys[64];
    int n;
};
void amp_cfg_idle_add(struct amp_cfg_idle *, const struct amp_cfg_entry *);
/* One note that names all of them, with the formatted reason; nothing if there is none. */
__attribute__((format(printf, 3, 4))) void
amp_note_idle(const struct amp_complaints *, const struct amp_cfg_idle *, const char *format, ...);

#endif
