/* The README's options table is the one in plugin/core/options.c; with --write it is put there.
 */
#include "plugin/core/options.h"

#include <stdlib.h>
#include <string.h>

#include "tests/rig/harness.h"

static const char begin[] = "<!-- options:begin -->\n", end[] = "<!-- options:end -->";

static char readme[1 << 20];

/* Reads README.md; where in it the table begins and ends. False: there is none. */
static bool find_table(char **from, char **to)
{
    FILE *fp = fopen(AMP_README, "rb");
    size_t size = fp ? fread(readme, 1, sizeof readme - 1, fp) : 0;
    if (fp) fclose(fp);
    readme[size] = '\0';
    *from = strstr(readme, begin);
    if (*from) *from += strlen(begin);
    *to = *from ? strstr(*from, end) : NULL;
    return *to && size < sizeof readme - 1;
}

AMP_TEST(readme_options)
{
    char *from, *to, *table;
    size_t size;
    REQUIRE(find_table(&from, &to));
    *to = '\0';
    FILE *fp = open_memstream(&table, &size);
    REQUIRE(fp != NULL);
    amp_option_write_markdown(fp);
    fclose(fp);
    if (strcmp(from, table))
        TEST_FAIL("README.md's options differ from the program's: run test_readme_options --write");
    free(table);
}

static int write_readme(void)
{
    char *from, *to;
    FILE *fp = find_table(&from, &to) ? fopen(AMP_README, "wb") : NULL;
    if (!fp) {
        fprintf(stderr, "%s: no table of options, or not writable\n", AMP_README);
        return 1;
    }
    fwrite(readme, 1, (size_t)(from - readme), fp);
    amp_option_write_markdown(fp);
    fputs(to, fp);
    bool failed = ferror(fp);
    return fclose(fp) || failed;
}

int main(int argc, char **argv)
{
    if (argc > 1 && !strcmp(argv[1], "--write")) return write_readme();
    return test_main(argc, argv);
}
