/* Which known word a misspelt one is taken for. */
#include "plugin/core/nearest.h"

#include <string.h>

#include "tests/rig/harness.h"

static const char *const words[] = {"batch", "angle", "learning_rate", "ignore_thresh",
                                    "-map",  "clear", "-clear",        "num"};

static const char *nearest(const char *word)
{
    const char *found = amp_nearest_word(word, words, sizeof words / sizeof *words);
    return found ? found : "none";
}

AMP_TEST(every_kind_of_slip)
{
    CHECK_STR(nearest("batch"), "batch");
    CHECK_STR(nearest("Batch"), "batch");
    CHECK_STR(nearest("LEARNING_RATE"), "learning_rate");
    CHECK_STR(nearest("anglee"), "angle");
    CHECK_STR(nearest("ange"), "angle");
    CHECK_STR(nearest("amgle"), "angle");
    CHECK_STR(nearest("nagle"), "angle");
    CHECK_STR(nearest("angel"), "angle");
    CHECK_STR(nearest("ignore_tresh"), "ignore_thresh");
    CHECK_STR(nearest("-mapp"), "-map");
    CHECK_STR(nearest("-claer"), "-clear");
    CHECK_STR(nearest("nun"), "num");
}

AMP_TEST(as_many_edits_as_a_third_of_the_characters)
{
    CHECK_STR(nearest("learn_rate"), "learning_rate"); /* 3 of at most 4 */
    CHECK_STR(nearest("learn_rat"), "learning_rate");
    CHECK_STR(nearest("learn_ra"), "none");
    CHECK_STR(nearest("-clearxy"), "-clear");
    CHECK_STR(nearest("-clearxyz"), "none");
    CHECK_STR(nearest("banglex"), "none"); /* short words: one */
    CHECK_STR(nearest("-mapxy"), "none");
}

AMP_TEST(the_nearest_counts_then_the_first)
{
    CHECK_STR(nearest("cclear"), "clear");
    CHECK_STR(nearest("--clear"), "-clear");
    static const char *const equals[] = {"steps", "step"};
    CHECK_STR(amp_nearest_word("stepx", equals, 2), "steps");
}

AMP_TEST(nothing_is_near)
{
    char long_word[300];
    memset(long_word, 'a', sizeof long_word - 1);
    long_word[sizeof long_word - 1] = '\0';
    const char *const long_words[] = {long_word};
    CHECK_STR(nearest(""), "none");
    CHECK_STR(nearest(long_word), "none");
    CHECK(amp_nearest_word("aaa", long_words, 1) == NULL);
    CHECK(amp_nearest_word(long_word, long_words, 1) == NULL);
    CHECK(amp_nearest_word("batch", NULL, 0) == NULL);
}

AMP_TEST_MAIN
