/* Which known word a misspelt one is taken for; notes line by line; and the progress line. */
#include "plugin/core/read/text.h"

#include <math.h>
#include <string.h>

#include "tests/rig/harness.h"

/* ---- words ---- */

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

AMP_TEST(every_edit_counts)
{
    static const struct {
        const char *a, *b;
        int edits;
    } cases[] = {{"", "", 0},         {"", "abc", 3},          {"aBc", "AbC", 0},
                 {"ab", "ba", 1},     {"abcd", "badc", 2},     {"ca", "abc", 3},
                 {"abc", "abxc", 1},  {"abc", "xbc", 1},       {"kitten", "sitting", 3},
                 {"abcde", "bac", 3}, {"abcdef", "abdcef", 1}, {"abc", "def", 3}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        CHECK_INT(amp_word_edits(cases[i].a, cases[i].b), cases[i].edits);
        CHECK_INT(amp_word_edits(cases[i].b, cases[i].a), cases[i].edits);
    }
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

/* ---- JSON ---- */

static char text[200];

static FILE *begin(void)
{
    memset(text, 0, sizeof text);
    FILE *f = fmemopen(text, sizeof text, "w");
    REQUIRE(f);
    return f;
}

/* ---- notes ---- */

static const char *printed(const char *notes)
{
    FILE *f = begin();
    amp_notes_print(notes, f);
    fclose(f);
    return text;
}

AMP_TEST(each_note_has_its_own_prefix)
{
    CHECK_STR(printed(""), "");
    CHECK_STR(printed("one\n"), "darknet-amp: one\n");
    CHECK_STR(printed("one\ntwo\n"), "darknet-amp: one\ndarknet-amp: two\n");
    CHECK_STR(printed("one\ncut of"), "darknet-amp: one\ndarknet-amp: cut of\n");
}

/* ---- progress ---- */

AMP_TEST(progress_line)
{
    char text[512] = "";
    struct amp_progress progress;
    FILE *out = fmemopen(text, sizeof text, "w");
    REQUIRE(out != NULL);
    amp_progress_start(&progress, out, "checking", 400);
    amp_progress_update(&progress, 50); /* too early */
    fflush(out);
    CHECK_STR(text, "");
    progress.start -= 10;
    progress.last -= 10;
    amp_progress_update(&progress, 100);
    amp_progress_update(&progress, 101);
    fclose(out);
    CHECK_STR(text, "checking: 100/400 images (25 %), 10 images/s, 30 s left\n");
    amp_progress_start(&progress, NULL, "checking", 400);
    progress.last -= 10;
    amp_progress_update(&progress, 100); /* silent */
}

AMP_TEST_MAIN
