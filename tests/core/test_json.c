/* Values of JSON: what must be escaped is, and there is no inf or NaN. */
#include "tests/rig/harness.h"

#include "plugin/core/json.h"

#include <math.h>

static char text[200];

static FILE *begin(void)
{
    memset(text, 0, sizeof text);
    FILE *f = fmemopen(text, sizeof text, "w");
    REQUIRE(f);
    return f;
}

static const char *string_of(const char *s)
{
    FILE *f = begin();
    amp_json_string(f, s);
    fclose(f);
    return text;
}

static const char *number_of(double value, int digits)
{
    FILE *f = begin();
    amp_json_number(f, value, digits);
    fclose(f);
    return text;
}

AMP_TEST(strings)
{
    CHECK_STR(string_of(""), "\"\"");
    CHECK_STR(string_of("a \"b\" \\ c/\xc3\xa4"), "\"a \\\"b\\\" \\\\ c/\xc3\xa4\"");
    CHECK_STR(string_of("\n\x01\x1f "), "\"\\u000a\\u0001\\u001f \"");
}

AMP_TEST(numbers)
{
    CHECK_STR(number_of(.25, 9), "0.25");
    CHECK_STR(number_of(-3, 9), "-3");
    CHECK_STR(number_of(INFINITY, 9), "null");
    CHECK_STR(number_of(-INFINITY, 9), "null");
    CHECK_STR(number_of(NAN, AMP_JSON_EXACT), "null");
    CHECK(strtod(number_of(1. / 3, AMP_JSON_EXACT), NULL) == 1. / 3);
}

AMP_TEST_MAIN
