/* Decides how errors and notes about a cfg are written. It must not know what is wrong. */
#include "complaints.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* What does not fit is cut off. */
__attribute__((format(printf, 3, 4))) static void append(char *text, size_t size,
                                                         const char *format, ...)
{
    size_t used = size ? strlen(text) : 0;
    if (used + 1 >= size) return;
    va_list args;
    va_start(args, format);
    vsnprintf(text + used, size - used, format, args);
    va_end(args);
}

static void append_list(char *text, size_t size, const char *format, va_list args)
{
    size_t used = size ? strlen(text) : 0;
    if (used + 1 < size) vsnprintf(text + used, size - used, format, args);
}

/* ---- errors ---- */

/* Each writes its beginning and then what the caller has to say. */
#define WRITE_ERROR(c, ...)                                                                        \
    va_list args;                                                                                  \
    if (!(c)->err_size) return -1;                                                                 \
    (c)->err[0] = '\0';                                                                            \
    append((c)->err, (c)->err_size, __VA_ARGS__);                                                  \
    va_start(args, format);                                                                        \
    append_list((c)->err, (c)->err_size, format, args);                                            \
    va_end(args);                                                                                  \
    return -1

int amp_fail_line(const struct amp_complaints *c, int line, const char *format, ...)
{
    char where[16] = "";
    if (line > 0) snprintf(where, sizeof where, ":%d", line);
    WRITE_ERROR(c, "%s%s: ", c->cfg->path, where);
}

int amp_fail_entry(const struct amp_complaints *c, const struct amp_cfg_entry *e,
                   const char *format, ...)
{
    WRITE_ERROR(c, "%s:%d: %s=%.80s: ", c->cfg->path, e->line, e->key, e->written);
}

int amp_fail_value(const struct amp_complaints *c, const struct amp_cfg_section *s,
                   const struct amp_cfg_entry *e, const char *format, ...)
{
    WRITE_ERROR(c, "%s:%d: %s=%.80s in %s: ", c->cfg->path, e->line, e->key, e->written, s->name);
}

const char *amp_fork_way_out(const struct amp_cfg_file *cfg)
{
    if (!cfg->fork_is_free) return "";
    return " (AlexeyAB's Darknet allows it; amp_dialect=fork under [net] follows its rules)";
}

/* ---- notes ---- */

static size_t room(const struct amp_complaints *c)
{
    return c->notes ? c->notes_size : 0;
}

#define WRITE_NOTE(c, ...)                                                                         \
    va_list args;                                                                                  \
    append((c)->notes, room(c), __VA_ARGS__);                                                      \
    va_start(args, format);                                                                        \
    append_list((c)->notes, room(c), format, args);                                                \
    va_end(args);                                                                                  \
    append((c)->notes, room(c), "\n")

void amp_note_line(const struct amp_complaints *c, int line, const char *format, ...)
{
    WRITE_NOTE(c, "%s:%d: ", c->cfg->path, line);
}

void amp_note_entry(const struct amp_complaints *c, const struct amp_cfg_entry *e,
                    const char *format, ...)
{
    WRITE_NOTE(c, "%s:%d: %s=%.80s: ", c->cfg->path, e->line, e->key, e->written);
}

void amp_note_value(const struct amp_complaints *c, const struct amp_cfg_section *s,
                    const struct amp_cfg_entry *e, const char *format, ...)
{
    WRITE_NOTE(c, "%s:%d: %s=%.80s in %s: ", c->cfg->path, e->line, e->key, e->written, s->name);
}

void amp_note_text(const struct amp_complaints *c, const char *text)
{
    append(c->notes, room(c), "%s\n", text);
}

int amp_doubt_line(const struct amp_complaints *c, int line, const char *format, ...)
{
    char what[512];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    if (c->cfg->dialect != AMP_DIALECT_FORK)
        return amp_fail_line(c, line, "%s%s", what, amp_fork_way_out(c->cfg));
    amp_note_line(c, line, "%s", what);
    return 0;
}

/* ---- keys without effect ---- */

void amp_cfg_idle_add(struct amp_cfg_idle *idle, const struct amp_cfg_entry *entry)
{
    if (entry && idle->n < (int)(sizeof idle->keys / sizeof *idle->keys))
        idle->keys[idle->n++] = entry;
}

void amp_note_idle(const struct amp_complaints *c, const struct amp_cfg_idle *idle,
                   const char *format, ...)
{
    va_list args;
    if (!idle->n) return;
    const struct amp_cfg_entry *e = idle->keys[0];
    append(c->notes, room(c), "%s:%d: %s=%.80s: ", c->cfg->path, e->line, e->key, e->written);
    va_start(args, format);
    append_list(c->notes, room(c), format, args);
    va_end(args);
    for (int i = 1; i < idle->n; i++) {
        e = idle->keys[i];
        append(c->notes, room(c), "%s %s=%.40s (line %d)", i == 1 ? "; likewise" : ",", e->key,
               e->written, e->line);
    }
    append(c->notes, room(c), "\n");
}
