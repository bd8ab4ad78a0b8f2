/* Decides how JSON is written. It must not know what is written. */
#include "json.h"

#include <math.h>
#include <stdarg.h>

static void quote(FILE *f, const char *text)
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

/* The break that was asked for. */
static bool break_line(struct amp_json *j)
{
    if (j->line) fprintf(j->out, "\n%*s", j->blanks, "");
    bool broken = j->line;
    j->line = false;
    return broken;
}

/* All that stands before a value. */
static void introduce(struct amp_json *j, const char *key)
{
    if (j->more) fputc(',', j->out);
    if (!break_line(j) && j->more) fputc(' ', j->out);
    j->more = true;
    if (!key) return;
    quote(j->out, key);
    fputs(": ", j->out);
}

void amp_json_begin(struct amp_json *j, const char *key, char bracket)
{
    introduce(j, key);
    fputc(bracket, j->out);
    j->more = false;
}

void amp_json_end(struct amp_json *j, char bracket)
{
    break_line(j);
    fputc(bracket, j->out);
    j->more = true;
}

void amp_json_line(struct amp_json *j, int blanks)
{
    j->line = true;
    j->blanks = blanks;
}

void amp_json_string(struct amp_json *j, const char *key, const char *text)
{
    introduce(j, key);
    if (text)
        quote(j->out, text);
    else
        fputs("null", j->out);
}

void amp_json_number(struct amp_json *j, const char *key, double value)
{
    introduce(j, key);
    if (isfinite(value))
        fprintf(j->out, "%.*g", j->digits, value);
    else
        fputs("null", j->out);
}

void amp_json_bool(struct amp_json *j, const char *key, bool value)
{
    amp_json_put(j, key, "%s", value ? "true" : "false");
}

void amp_json_put(struct amp_json *j, const char *key, const char *format, ...)
{
    va_list args;
    introduce(j, key);
    va_start(args, format);
    vfprintf(j->out, format, args);
    va_end(args);
}
