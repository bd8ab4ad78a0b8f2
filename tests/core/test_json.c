/* JSON as it is written (core/read/json.c): values, commas, lines. */
#include "tests/rig/harness.h"

#include "plugin/core/read/json.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static char text[400];

static struct amp_json begin(int digits)
{
    memset(text, 0, sizeof text);
    FILE *f = fmemopen(text, sizeof text, "w");
    REQUIRE(f);
    return (struct amp_json){.out = f, .digits = digits};
}

static const char *string_of(const char *s)
{
    struct amp_json j = begin(0);
    amp_json_string(&j, NULL, s);
    fclose(j.out);
    return text;
}

static const char *number_of(double value, int digits)
{
    struct amp_json j = begin(digits);
    amp_json_number(&j, NULL, value);
    fclose(j.out);
    return text;
}

AMP_TEST(strings)
{
    CHECK_STR(string_of(""), "\"\"");
    CHECK_STR(string_of("a \"b\" \\ c/\xc3\xa4"), "\"a \\\"b\\\" \\\\ c/\xc3\xa4\"");
    CHECK_STR(string_of("\n\x01\x1f "), "\"\\u000a\\u0001\\u001f \"");
    CHECK_STR(string_of(NULL), "null");
}

AMP_TEST(numbers)
{
    CHECK_STR(number_of(.25, AMP_JSON_FLOAT), "0.25");
    CHECK_STR(number_of(-3, AMP_JSON_FLOAT), "-3");
    CHECK_STR(number_of(INFINITY, AMP_JSON_FLOAT), "null");
    CHECK_STR(number_of(-INFINITY, AMP_JSON_FLOAT), "null");
    CHECK_STR(number_of(NAN, AMP_JSON_EXACT), "null");
    CHECK(strtod(number_of(1. / 3, AMP_JSON_EXACT), NULL) == 1. / 3);
}

AMP_TEST(commas_and_lines)
{
    struct amp_json j = begin(AMP_JSON_FLOAT);
    amp_json_begin(&j, NULL, '{');
    amp_json_begin(&j, "none", '[');
    amp_json_end(&j, ']');
    amp_json_begin(&j, "two \"lists\"", '[');
    for (int i = 0; i < 2; i++) {
        amp_json_begin(&j, NULL, '[');
        amp_json_number(&j, NULL, i);
        amp_json_bool(&j, NULL, i);
        amp_json_end(&j, ']');
    }
    amp_json_end(&j, ']');
    amp_json_line(&j, 1);
    amp_json_put(&j, "size", "%zu", (size_t)7);
    amp_json_begin(&j, "object", '{');
    amp_json_line(&j, 2);
    amp_json_string(&j, "a", "b");
    amp_json_line(&j, 1);
    amp_json_end(&j, '}');
    amp_json_line(&j, 0);
    amp_json_end(&j, '}');
    fclose(j.out);
    CHECK_STR(text, "{\"none\": [], \"two \\\"lists\\\"\": [[0, false], [1, true]],\n"
                    " \"size\": 7, \"object\": {\n  \"a\": \"b\"\n }\n}");
}

AMP_TEST_MAIN
