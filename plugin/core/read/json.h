/* Writes one JSON value, member by member: it knows commas, quotes and null. The layout is that of
 * Python's json.dumps, with line breaks where the caller asks for them. Errors of writing stay in
 * the stream (ferror). */
#ifndef AMP_JSON_H
#define AMP_JSON_H

#include <stdbool.h>
#include <stdio.h>

#define AMP_JSON_FLOAT 9  /* digits that keep a float exact */
#define AMP_JSON_EXACT 17 /* digits that keep a double exact */

struct amp_json {
    FILE *out;
    int digits; /* of numbers */
    bool more;  /* a value stands before the next one, which takes a comma */
    bool line;  /* the next value begins one, behind so many blanks */
    int blanks;
};

/* The key of all these is NULL in a list, and for the outermost value. */

/* bracket: '{' or '['; end has the closing one. */
void amp_json_begin(struct amp_json *, const char *key, char bracket);
void amp_json_end(struct amp_json *, char bracket);
/* The next value, or the next closing bracket, begins a line, behind so many blanks. */
void amp_json_line(struct amp_json *, int blanks);

/* A string, escaped; bytes above 127 stay as they are. NULL: null. */
void amp_json_string(struct amp_json *, const char *key, const char *text);
/* A number, or null for inf and NaN, which JSON lacks. */
void amp_json_number(struct amp_json *, const char *key, double value);
void amp_json_bool(struct amp_json *, const char *key, bool value);
/* What the format makes, as it is: whole numbers of any type. */
__attribute__((format(printf, 3, 4))) void amp_json_put(struct amp_json *, const char *key,
                                                        const char *format, ...);

#endif
