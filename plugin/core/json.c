/* Escapes strings and prints numbers as JSON wants them. It must not know what they mean. */
#include "json.h"

#include <math.h>

void amp_json_string(FILE *f, const char *text)
{
    fputc('"', f);
    for (const unsigned char *c = (const unsigned char *)text; *c; c++) {
        if (*c == '"' || *c == '\\')
            fprintf(f, "\\%c", *c);
        else if (*c < 0x20)
            fprintf(f, "\\u%04x", *c);
        else
            fputc(*c, f);
    }
    fputc('"', f);
}

void amp_json_number(FILE *f, double value, int digits)
{
    if (isfinite(value))
        fprintf(f, "%.*g", digits, value);
    else
        fputs("null", f);
}
