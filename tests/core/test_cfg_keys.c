/* The table of Darknet's keys, and Darknet's own cfgs held against it. What is refused and noted:
 * ../input/verdicts/keys.txt. */
#include "plugin/core/read/cfg_checks.h"

#include <glob.h>
#include <stdlib.h>
#include <string.h>

#include "tests/rig/harness.h"

static char err[1024], notes[1024];
static const char *const own[] = {"mixed_precision", "seed"};

static struct amp_complaints complaints(const struct amp_cfg_file *file)
{
    return (struct amp_complaints){file, notes, sizeof notes, err, sizeof err};
}

static int check_keys(const char *text)
{
    struct amp_cfg_file *file = amp_cfg_parse("a.cfg", text, strlen(text), err, sizeof err);
    REQUIRE(file != NULL);
    err[0] = notes[0] = '\0';
    struct amp_complaints c = complaints(file);
    int result = amp_cfg_keys_check(&c, own, 2);
    amp_cfg_free(file);
    return result;
}

AMP_TEST(kinds)
{
    CHECK_INT(amp_cfg_key_kind("batch"), AMP_CFG_INTEGER);
    CHECK_INT(amp_cfg_key_kind("momentum"), AMP_CFG_NUMBER);
    CHECK_INT(amp_cfg_key_kind("mask"), AMP_CFG_INTEGERS);
    CHECK_INT(amp_cfg_key_kind("anchors"), AMP_CFG_NUMBERS);
    CHECK_INT(amp_cfg_key_kind("activation"), AMP_CFG_WORD);
    CHECK_INT(amp_cfg_key_kind("Batch"), AMP_CFG_UNKNOWN);
}

/* Rows are found by a binary search; a key has one row in a section. */
AMP_TEST(the_table_is_sorted_and_names_each_key_once)
{
    size_t n;
    const struct amp_key_row *rows = amp_key_rows(&n);
    CHECK(n > 200);
    for (size_t i = 0; i < n; i++) {
        const struct amp_key_row *next = &rows[i + 1];
        if (i + 1 < n && strcmp(rows[i].name, next->name) > 0) TEST_FAIL("%s", rows[i].name);
        for (; next < rows + n && !strcmp(next->name, rows[i].name); next++)
            if (next->sections & rows[i].sections) TEST_FAIL("%s", rows[i].name);
        CHECK(rows[i].sections && (rows[i].use != AMP_KEY_REFUSED || rows[i].lost));
        /* A default is in its own range and among its own words. */
        if (rows[i].allowed && rows[i].def) CHECK(amp_key_allows(&rows[i], atof(rows[i].def)));
        if (rows[i].words) CHECK(amp_key_word(&rows[i], rows[i].def) >= 0);
    }
}

AMP_TEST(so_many_keys_that_not_all_are_named)
{
    size_t size = 1 << 20;
    char *text = malloc(size);
    REQUIRE(text != NULL);
    int used = snprintf(text, size, "[net]\n");
    for (int i = 0; i < 20000; i++)
        used += snprintf(text + used, size - (size_t)used, "strange_word_%d=1\n", i);
    CHECK_INT(check_keys(text), 0);
    CHECK(strstr(notes, " strange_word_23 (line 25) and more\n") != NULL);
    free(text);
}

AMP_TEST(notes_may_be_absent_or_short)
{
    const char *text = "[net]\nauthor=me\n";
    struct amp_cfg_file *file = amp_cfg_parse("a.cfg", text, strlen(text), err, sizeof err);
    REQUIRE(file != NULL);
    struct amp_complaints c = {.cfg = file, .err = err, .err_size = sizeof err};
    CHECK_INT(amp_cfg_keys_check(&c, own, 2), 0);
    char few[8] = "";
    c.notes = few;
    c.notes_size = sizeof few;
    CHECK_INT(amp_cfg_keys_check(&c, own, 2), 0);
    CHECK_STR(few, "a.cfg:2");
    /* Behind what others noted; what is beyond the end is not touched. */
    char some[16] = "a note\n";
    memset(some + 12, '.', 4);
    c.notes = some;
    c.notes_size = 12;
    CHECK_INT(amp_cfg_keys_check(&c, own, 2), 0);
    CHECK_STR(some, "a note\na.cf");
    CHECK(!memcmp(some + 12, "....", 4));
    amp_cfg_free(file);
}

AMP_TEST(darknets_own_cfgs_have_no_such_key_or_value)
{
    glob_t found;
    REQUIRE(glob(AMP_DARKNET_CFGS, 0, NULL, &found) == 0);
    CHECK_INT(found.gl_pathc, 45);
    for (size_t i = 0; i < found.gl_pathc; i++) {
        struct amp_cfg_file *file = amp_cfg_read(found.gl_pathv[i], err, sizeof err);
        REQUIRE(file != NULL);
        err[0] = notes[0] = '\0';
        struct amp_complaints c = complaints(file);
        CHECK_INT(amp_cfg_keys_check(&c, own, 2), 0);
        CHECK_INT(amp_cfg_values_check_training(&c), 0);
        /* With the -1, Darknet never leaves the first rate of this one. */
        bool odd = strstr(file->path, "/yolov2-tiny-voc.cfg") != NULL;
        CHECK(odd == (strstr(notes, ": steps=-1,100,20000,30000 in [net]: ") != NULL));
        if (!odd) CHECK_STR(notes, "");
        CHECK_STR(err, "");
        amp_cfg_free(file);
    }
    globfree(&found);
}

AMP_TEST_MAIN
