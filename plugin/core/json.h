/* Values of JSON, for whoever writes an object. */
#ifndef AMP_JSON_H
#define AMP_JSON_H

#include <stdio.h>

#define AMP_JSON_EXACT 17 /* digits that give back the same double */

/* In quotes, escaped; bytes above 127 as they are. */
void amp_json_string(FILE *, const char *text);
/* null for inf and NaN, for which JSON has no word. */
void amp_json_number(FILE *, double value, int digits);

#endif
