/* The table in docs/options.md is the one in plugin/core/read/options.c. --write puts it there. */
#include "plugin/core/read/options.h"

#include <stdlib.h>
#include <string.h>

#include "tests/rig/harness.h"

static const char begin[] = "<!-- options:begin -->\n", end[] = "<!-- options:end -->";

static char page[1 << 20];

/* Reads docs/options.md; where in it the table begins and ends. False: there is none. */
static bool find_table(char **from, char **to)
{
    FILE *fp = fopen(AMP_OPTIONS_PAGE, "rb");
    size_t size = fp ? fread(page, 1, sizeof page - 1, fp) : 0;
    if (fp) fclose(fp);
    page[size] = '\0';
    *from = strstr(page, begin);
    if (*from) *from += strlen(begin);
    *to = *from ? strstr(*from, end) : NULL;
    return *to && size < sizeof page - 1;
}

static void write_table(FILE *out)
{
    int n;
    const struct amp_option_row *r = amp_option_rows(&n);
    fputs("| Key | Type | Allowed | Default | Meaning |\n|---|---|---|---|---|\n", out);
    for (; n; n--, r++)
        fprintf(out, "| `%s` | %s | %s | %s | %s |\n", r->key, r->type, r->range, r->default_text,
                r->help);
}

AMP_TEST(options_page)
{
    char *from, *to, *table;
    size_t size;
    REQUIRE(find_table(&from, &to));
    *to = '\0';
    FILE *fp = open_memstream(&table, &size);
    REQUIRE(fp != NULL);
    write_table(fp);
    fclose(fp);
    if (strcmp(from, table))
        TEST_FAIL(
            "docs/options.md has another table than the program: run test_options_page --write");
    free(table);
}

static int write_page(void)
{
    char *from, *to;
    FILE *fp = find_table(&from, &to) ? fopen(AMP_OPTIONS_PAGE, "wb") : NULL;
    if (!fp) {
        fprintf(stderr, "%s: no table of options, or not writable\n", AMP_OPTIONS_PAGE);
        return 1;
    }
    fwrite(page, 1, (size_t)(from - page), fp);
    write_table(fp);
    fputs(to, fp);
    bool failed = ferror(fp);
    return fclose(fp) || failed;
}

int main(int argc, char **argv)
{
    if (argc > 1 && !strcmp(argv[1], "--write")) return write_page();
    return test_main(argc, argv);
}
