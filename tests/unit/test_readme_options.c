/* The README's options table is the one in plugin/decide/options.c. */
#include "plugin/decide/options.h"

#include <stdlib.h>
#include <string.h>

#include "tests/harness.h"

static const char begin[] = "<!-- options:begin -->\n", end[] = "<!-- options:end -->";

static char *read_readme(void)
{
    FILE *fp = fopen(AMP_README, "rb");
    REQUIRE(fp != NULL);
    char *text = calloc(1, 1 << 20);
    CHECK(text && fread(text, 1, (1 << 20) - 1, fp) > 0);
    fclose(fp);
    return text;
}

AMP_TEST(readme_options)
{
    char *readme = read_readme(), *table;
    char *from = strstr(readme, begin), *to = from ? strstr(from, end) : NULL;
    REQUIRE(from != NULL && to != NULL);
    *to = '\0';

    size_t size;
    FILE *fp = open_memstream(&table, &size);
    REQUIRE(fp != NULL);
    amp_option_write_markdown(fp);
    fclose(fp);
    if (strcmp(from + strlen(begin), table))
        TEST_FAIL("README.md's options differ from the program's: run "
                  "scripts/update-readme-options.sh");
    free(table);
    free(readme);
}

AMP_TEST_MAIN
