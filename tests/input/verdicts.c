/* Text in, verdict out: the rows of verdicts/NAME.txt, each given to the part of the program that
 * its table names.
 *
 * A table has remarks (# ...), rows and two settings, which hold until the next one:
 *
 *   @judge NAME         who reads the rows (judges below)
 *
 *   @around A | * | B   what stands around them; a row's text replaces the *
 *
 * A row is text whose lines are set apart by " | ", with a newline at its end. It has C's escapes,
 * \# for a # that begins it, and \c at its end for no newline there. {a b} stands for two rows, one
 * with a and one with b; a row may have two such sets.
 *
 * Behind a row, after two blanks, or below it, indented, is what must come of it:
 *
 *   ok       accepted without a word
 *
 *   ? text   accepted with this note
 *
 *   ! text   refused with this error
 *
 * Several such lines are the lines of one message. {1} and {2} are what the row took from its sets,
 * ... is any text. A message goes on, after a blank, in a line that is indented further; any other
 * line that ends in " |" goes on in the next one. */
#define _GNU_SOURCE
#include "plugin/core/net/net.h"
#include "plugin/core/read/cfg_checks.h"
#include "plugin/core/read/options.h"

#include <ctype.h>
#include <stdarg.h>

#include "tests/rig/harness.h"
#include "tests/rig/files.h"

enum { TEXT = 1 << 14 };

struct verdict {
    int status;
    char notes[TEXT], err[TEXT];
};

static struct verdict got;

/* ---- judges ---- */

static struct amp_cfg_file *file;

static struct amp_complaints complaints(void)
{
    return (struct amp_complaints){file, got.notes, sizeof got.notes, got.err, sizeof got.err};
}

static int judge_cfg(void)
{
    return 0;
}

/* The names of two of our keys stand for all. */
static int judge_keys(void)
{
    static const char *const own[] = {"mixed_precision", "seed"};
    struct amp_complaints c = complaints();
    return amp_cfg_keys_check(&c, own, 2);
}

static int judge_values(void)
{
    struct amp_complaints c = complaints();
    return amp_cfg_values_check(&c);
}

static int judge_training_values(void)
{
    struct amp_complaints c = complaints();
    return amp_cfg_values_check_training(&c);
}

static int judge_options(void)
{
    struct amp_options o;
    return amp_options_read(file, &o, got.notes, sizeof got.notes, got.err, sizeof got.err);
}

static int judge_net(void)
{
    struct amp_net_desc *net = amp_net_describe(file, 0, 0, true, got.err, sizeof got.err);
    amp_net_desc_free(net);
    return net ? 0 : -1;
}

static int judge_options_and_net(void)
{
    return judge_options() || judge_net() ? -1 : 0;
}

static int judge_what_is_trained(void)
{
    struct amp_net_desc *net = amp_net_describe(file, 0, 0, true, got.err, sizeof got.err);
    int status = net ? amp_net_check_dialect(file, net, got.err, sizeof got.err) : -1;
    amp_net_desc_free(net);
    return status;
}

/* Its note is the reason for the fork's rules. */
static int judge_dialect(void)
{
    if (*file->dialect_reason) snprintf(got.notes, sizeof got.notes, "%s\n", file->dialect_reason);
    bool fork = file->dialect == AMP_DIALECT_FORK;
    return fork == (*got.notes != '\0') ? 0 : -1;
}

static const struct judge {
    const char *name;
    int (*judge)(void);
} judges[] = {{"cfg", judge_cfg},
              {"keys", judge_keys},
              {"values", judge_values},
              {"training values", judge_training_values},
              {"options", judge_options},
              {"net", judge_net},
              {"options and net", judge_options_and_net},
              {"what is trained", judge_what_is_trained},
              {"dialect", judge_dialect}};

static void judge_text(const struct judge *j, const char *text, size_t size)
{
    got.notes[0] = got.err[0] = '\0';
    file = amp_cfg_parse("a.cfg", text, size, got.err, sizeof got.err);
    got.status = file ? j->judge() : -1;
    amp_cfg_free(file);
}

/* ---- rows ---- */

/* Behind what stands in text, which has room for TEXT bytes. */
__attribute__((format(printf, 2, 3))) static void add(char *text, const char *format, ...)
{
    size_t used = strlen(text);
    va_list values;
    va_start(values, format);
    int n = vsnprintf(text + used, TEXT - used, format, values);
    va_end(values);
    REQUIRE(n >= 0 && used + (size_t)n < TEXT);
}

static int digit(char c)
{
    return isdigit((unsigned char)c) ? c - '0' : tolower((unsigned char)c) - 'a' + 10;
}

/* The text of a row without its escapes; returns its size. */
static size_t spell(const char *row, char *text)
{
    char *end = text;
    for (const char *p = row; *p; p++) {
        if (!strncmp(p, " | ", 3)) {
            *end++ = '\n';
            p += 2;
        } else if (*p != '\\') {
            *end++ = *p;
        } else if (*++p == 'x') {
            *end++ = (char)(16 * digit(p[1]) + digit(p[2]));
            p += 2;
        } else if (*p == 'c') {
            return (size_t)(end - text);
        } else {
            static const char names[] = "tr0e#\\", meant[] = "\t\r\0\033#\\";
            const char *name = strchr(names, *p);
            REQUIRE(name && *name);
            *end++ = meant[name - names];
        }
    }
    *end++ = '\n';
    return (size_t)(end - text);
}

/* Whether the pattern, in which ... is any text, is the message. */
static bool fits(const char *pattern, const char *message)
{
    const char *any = strstr(pattern, "...");
    size_t n = any ? (size_t)(any - pattern) : strlen(pattern);
    if (strncmp(pattern, message, n)) return false;
    if (!any) return !message[n];
    for (message += n; !fits(any + 3, message); message++)
        if (!*message) return false;
    return true;
}

/* s with each `what` in it replaced by `by`. */
static void put_in(char *s, const char *what, const char *by)
{
    static char rest[TEXT];
    for (char *at = s; (at = strstr(at, what)); at += strlen(by)) {
        strcpy(rest, at + strlen(what));
        *at = '\0';
        add(s, "%s%s", by, rest);
    }
}

struct row {
    const struct judge *judge;
    const char *table;
    int line;
    char around[TEXT], text[TEXT], note[TEXT], error[TEXT];
    bool ok;
};

static int n_cases;

static void check_row(const struct row *r)
{
    static char text[TEXT];
    size_t size = spell(r->text, text);
    bool refused = *r->error;
    n_cases++;
    judge_text(r->judge, text, size);
    if (refused != (got.status != 0) ||
        !fits(refused ? r->error : r->note, refused ? got.err : got.notes))
        TEST_FAIL("%s:%d: %s\n  error: %s\n  note: %s", r->table, r->line, r->text, got.err,
                  got.notes);
}

/* The row for each member of its first set, which is number k of the row as it was written. */
static void check_each(const struct row *r, int k)
{
    const char *open = strchr(r->text, '{');
    if (!open) {
        check_row(r);
        return;
    }
    char members[TEXT] = "", *rest = members;
    const char *name = k == 1 ? "{1}" : "{2}", *close = strchr(open, '}');
    REQUIRE(close != NULL && k <= 2);
    add(members, "%.*s", (int)(close - open - 1), open + 1);
    for (char *member; (member = strsep(&rest, " "));) {
        struct row *one = malloc(sizeof *one);
        REQUIRE(one != NULL);
        *one = *r;
        one->text[0] = '\0';
        add(one->text, "%.*s%s%s", (int)(open - r->text), r->text, member, close + 1);
        put_in(one->error, name, member);
        put_in(one->note, name, member);
        check_each(one, k + 1);
        free(one);
    }
}

static void end_row(struct row *r)
{
    if (!*r->text) return;
    if (r->ok + !!*r->note + !!*r->error != 1)
        TEST_FAIL("%s:%d: not one verdict", r->table, r->line);
    put_in(r->around, "*", r->text);
    strcpy(r->text, r->around);
    check_each(r, 1);
    *r->text = '\0';
}

/* A line below a row, or what is written behind it. A note ends in a newline, an error does not. */
static void expect(struct row *r, const char *line)
{
    char *said = *r->error ? r->error : r->note;
    bool more = !strncmp(line, "    ", 4) && *said;
    if (!strcmp(line, "  ok"))
        r->ok = true;
    else if (!strncmp(line, "  ? ", 4))
        add(r->note, "%s\n", line + 4);
    else if (!strncmp(line, "  ! ", 4))
        add(r->error, "%s%s", *r->error ? "\n" : "", line + 4);
    else if (!more)
        TEST_FAIL("%s:%d: what is \"%s\"?", r->table, r->line, line);
    else if (said == r->error)
        add(said, " %s", line + 4);
    else {
        said[strlen(said) - 1] = ' ';
        add(said, "%s\n", line + 4);
    }
}

static void begin_row(struct row *r, const char *around, const char *line, int number)
{
    const char *verdict = strstr(line, "  ! "), *end = line + strlen(line);
    if (!verdict) verdict = strstr(line, "  ? ");
    if (!verdict && end - line > 4 && !strcmp(end - 4, "  ok")) verdict = end - 4;
    r->line = number;
    r->ok = false;
    r->around[0] = r->text[0] = r->note[0] = r->error[0] = '\0';
    add(r->around, "%s", around);
    add(r->text, "%.*s", (int)((verdict ? verdict : end) - line), line);
    if (verdict) expect(r, verdict);
}

static const struct judge *judge_named(const char *name)
{
    for (size_t i = 0; i < sizeof judges / sizeof *judges; i++)
        if (!strcmp(judges[i].name, name)) return &judges[i];
    TEST_FAIL("no judge %s", name);
    return NULL;
}

/* The next line of the table with those that it goes on in, and how many these are; 0 at the end.
 */
static int read_line(FILE *f, char *line)
{
    char *part = NULL;
    size_t size = 0;
    int n = 0;
    for (*line = '\0'; getline(&part, &size, f) >= 0;) {
        n++;
        part[strcspn(part, "\n")] = '\0';
        add(line, "%s", part);
        size_t used = strlen(line);
        if (used < 2 || strcmp(line + used - 2, " |")) break;
        add(line, " ");
    }
    free(part);
    return n;
}

static void check_table(const char *name)
{
    static struct row r;
    char around[TEXT] = "*", path[TEXT] = "", line[TEXT];
    add(path, "%s/%s.txt", AMP_VERDICTS, name);
    FILE *f = fopen(path, "r");
    REQUIRE(f != NULL);
    r = (struct row){.table = path};
    n_cases = 0;
    for (int number = 1, n; (n = read_line(f, line)); number += n) {
        if (*line == ' ') {
            expect(&r, line);
            continue;
        }
        end_row(&r);
        if (!strncmp(line, "@judge ", 7)) {
            REQUIRE((r.judge = judge_named(line + 7)) != NULL);
            strcpy(around, "*");
        } else if (!strncmp(line, "@around ", 8)) {
            *around = '\0';
            add(around, "%s", line + 8);
        } else if (*line && *line != '#') {
            begin_row(&r, around, line, number);
        }
    }
    end_row(&r);
    fclose(f);
    printf("%s: %d cases\n", name, n_cases);
}

AMP_TEST(cfg)
{
    check_table("cfg");
}

AMP_TEST(keys)
{
    check_table("keys");
}

AMP_TEST(options)
{
    check_table("options");
}

AMP_TEST(schedule)
{
    check_table("schedule");
}

AMP_TEST(net)
{
    check_table("net");
}

AMP_TEST(fork)
{
    check_table("fork");
}

AMP_TEST_MAIN
