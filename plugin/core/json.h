/* Writes JSON values; the caller writes the object around them. */
#ifndef AMP_JSON_H
#define AMP_JSON_H

#include <stdio.h>

#define AMP_JSON_EXACT 17 /* digits that keep a double exact */

/* A string in quotes, escaped; bytes above 127 stay as they are. */
void amp_json_string(FILE *, const char *text);
/* A number, or null for inf and NaN, which JSON lacks. */
void amp_json_number(FILE *, double value, int digits);

#endif
