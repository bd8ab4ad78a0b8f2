/* The file of plans found fastest: round trips, damage, other versions, several writers, folders
 * that cannot be written. */
#include "kernels/cuda/libs/plan_cache.h"

#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/rig/harness.h"

static char folder[64], path[128], text[1 << 16];

static void new_folder(void)
{
    strcpy(folder, "/tmp/plan-cache-XXXXXX");
    REQUIRE(mkdtemp(folder) != NULL);
    snprintf(path, sizeof path, "%s/a/b/plans", folder);
}

static void remove_folder(void)
{
    char command[256];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    CHECK_INT(system(command), 0);
}

static void read_text(void)
{
    FILE *f = fopen(path, "r");
    REQUIRE(f != NULL);
    text[fread(text, 1, sizeof text - 1, f)] = 0;
    fclose(f);
}

static void write_text(const char *s, size_t bytes)
{
    FILE *f = fopen(path, "w");
    REQUIRE(f != NULL);
    REQUIRE(fwrite(s, 1, bytes, f) == bytes);
    REQUIRE(fclose(f) == 0);
}

/* Opens and expects a warning that contains a word, or none. */
static struct ampk_plan_cache *open_cache(const char *word)
{
    char warning[512] = "old";
    struct ampk_plan_cache *cache = ampk_plan_cache_open(path, warning, sizeof warning);
    REQUIRE(cache != NULL);
    if (word ? !strstr(warning, word) : warning[0] != 0)
        TEST_FAIL("warning is \"%s\", expected %s", warning, word ? word : "none");
    return cache;
}

static void save(struct ampk_plan_cache *cache)
{
    char err[512] = "";
    if (!ampk_plan_cache_save(cache, err, sizeof err)) TEST_FAIL("%s", err);
}

/* A file with two plans. */
static void make_file(void)
{
    new_folder();
    struct ampk_plan_cache *cache = open_cache(NULL);
    ampk_plan_cache_add(cache, "H200 9.0 forward", "engine 62, 1=3");
    ampk_plan_cache_add(cache, "A100 8.0 forward", "engine 22");
    save(cache);
    ampk_plan_cache_close(cache);
}

static void check_value(const struct ampk_plan_cache *cache, const char *key, const char *value)
{
    const char *found = ampk_plan_cache_find(cache, key);
    if (value)
        CHECK_STR(found, value);
    else
        CHECK(found == NULL);
}

AMP_TEST(what_is_saved_is_found)
{
    make_file();
    struct ampk_plan_cache *cache = open_cache(NULL);
    check_value(cache, "H200 9.0 forward", "engine 62, 1=3");
    check_value(cache, "A100 8.0 forward", "engine 22");
    check_value(cache, "T4 7.5 forward", NULL);
    check_value(cache, "H200 9.0", NULL);
    ampk_plan_cache_add(cache, "A100 8.0 forward", "engine 23");
    check_value(cache, "A100 8.0 forward", "engine 23");
    CHECK(!ampk_plan_cache_is_saved(cache));
    save(cache);
    CHECK(ampk_plan_cache_is_saved(cache));
    ampk_plan_cache_close(cache);
    cache = open_cache(NULL);
    check_value(cache, "A100 8.0 forward", "engine 23");
    check_value(cache, "H200 9.0 forward", "engine 62, 1=3");
    ampk_plan_cache_close(cache);
    remove_folder();
}

AMP_TEST(what_others_save_is_found_when_asked_for)
{
    make_file();
    struct ampk_plan_cache *cache = open_cache(NULL), *other = open_cache(NULL);
    ampk_plan_cache_add(other, "new", "plan");
    save(other);
    check_value(cache, "new", NULL);
    ampk_plan_cache_refresh(cache);
    check_value(cache, "new", "plan");
    check_value(cache, "A100 8.0 forward", "engine 22");
    ampk_plan_cache_close(cache);
    ampk_plan_cache_close(other);
    remove_folder();
}

AMP_TEST(nothing_added_writes_nothing)
{
    new_folder();
    struct ampk_plan_cache *cache = open_cache(NULL);
    save(cache);
    CHECK(access(path, F_OK) != 0);
    ampk_plan_cache_close(cache);
    remove_folder();
}

AMP_TEST(what_does_not_fit_a_line_is_left_out)
{
    new_folder();
    char *many = calloc(1, 5000);
    memset(many, 'x', 4999);
    struct ampk_plan_cache *cache = open_cache(NULL);
    ampk_plan_cache_add(cache, "long", many);
    ampk_plan_cache_add(cache, "two\nlines", "a");
    ampk_plan_cache_add(cache, "a\ttab", "a");
    ampk_plan_cache_add(cache, "good", "a");
    check_value(cache, "long", NULL);
    save(cache);
    ampk_plan_cache_close(cache);
    cache = open_cache(NULL);
    check_value(cache, "good", "a");
    ampk_plan_cache_close(cache);
    free(many);
    remove_folder();
}

AMP_TEST(without_a_file_plans_live_in_memory)
{
    char warning[100], err[100];
    struct ampk_plan_cache *cache = ampk_plan_cache_open(NULL, warning, sizeof warning);
    CHECK_STR(warning, "");
    ampk_plan_cache_add(cache, "key", "value");
    check_value(cache, "key", "value");
    CHECK(ampk_plan_cache_save(cache, err, sizeof err));
    CHECK(!ampk_plan_cache_is_saved(cache));
    ampk_plan_cache_close(cache);
}

/* Whatever byte changes, no plan comes out that was not put in, and the damage is said once and
 * mended by the next save. */
AMP_TEST(damage_is_left_out_and_said)
{
    make_file();
    read_text();
    size_t size = strlen(text), first = strcspn(text, "\n") + 1;
    for (size_t i = first; i < size; i++) {
        char *damaged = strdup(text);
        damaged[i] ^= (char)(1 + test_random() % 127);
        write_text(damaged, size);
        struct ampk_plan_cache *cache = open_cache("damaged");
        const char *h200 = ampk_plan_cache_find(cache, "H200 9.0 forward");
        const char *a100 = ampk_plan_cache_find(cache, "A100 8.0 forward");
        CHECK(!h200 || !a100);
        if (h200) CHECK_STR(h200, "engine 62, 1=3");
        if (a100) CHECK_STR(a100, "engine 22");
        ampk_plan_cache_close(cache);
        free(damaged);
    }
    struct ampk_plan_cache *cache = open_cache("damaged");
    ampk_plan_cache_add(cache, "new", "plan");
    save(cache);
    ampk_plan_cache_close(cache);
    ampk_plan_cache_close(open_cache(NULL));
    remove_folder();
}

AMP_TEST(a_truncated_file_keeps_its_whole_lines)
{
    make_file();
    read_text();
    size_t size = strlen(text), first = strcspn(text, "\n") + 1;
    size_t second = first + strcspn(text + first, "\n") + 1;
    for (size_t keep = 0; keep < size; keep++) {
        write_text(text, keep);
        bool whole = keep == 0 || keep == first || keep == second;
        const char *word = whole ? NULL : keep < first ? "not a plan file" : "damaged";
        struct ampk_plan_cache *cache = open_cache(word);
        check_value(cache, "H200 9.0 forward", keep >= second ? "engine 62, 1=3" : NULL);
        check_value(cache, "A100 8.0 forward", NULL);
        ampk_plan_cache_close(cache);
    }
    remove_folder();
}

AMP_TEST(another_version_is_replaced)
{
    make_file();
    read_text();
    *strstr(text, "version 2") = 'V';
    write_text(text, strlen(text));
    struct ampk_plan_cache *cache = open_cache("not a plan file of this version");
    check_value(cache, "H200 9.0 forward", NULL);
    ampk_plan_cache_add(cache, "new", "plan");
    save(cache);
    ampk_plan_cache_close(cache);
    cache = open_cache(NULL);
    check_value(cache, "new", "plan");
    ampk_plan_cache_close(cache);
    remove_folder();
}

enum { WRITERS = 8, PLANS = 20 };

static void write_plans(int writer)
{
    char warning[256], err[256], key[32];
    for (int i = 0; i < PLANS; i++) {
        struct ampk_plan_cache *cache = ampk_plan_cache_open(path, warning, sizeof warning);
        snprintf(key, sizeof key, "%d of %d", i, writer);
        ampk_plan_cache_add(cache, key, key);
        if (warning[0] || !ampk_plan_cache_save(cache, err, sizeof err)) _exit(1);
        ampk_plan_cache_close(cache);
    }
    _exit(0);
}

AMP_TEST(several_writers_lose_nothing)
{
    new_folder();
    for (int i = 0; i < WRITERS; i++)
        if (fork() == 0) write_plans(i);
    for (int i = 0; i < WRITERS; i++) {
        int status = -1;
        wait(&status);
        CHECK_INT(status, 0);
    }
    struct ampk_plan_cache *cache = open_cache(NULL);
    for (int i = 0; i < WRITERS * PLANS; i++) {
        char key[32];
        snprintf(key, sizeof key, "%d of %d", i % PLANS, i / PLANS);
        check_value(cache, key, key);
    }
    ampk_plan_cache_close(cache);
    remove_folder();
}

/* A file where a folder should be: also root cannot write there. */
AMP_TEST(a_folder_that_cannot_be_written_is_said_once)
{
    new_folder();
    snprintf(path, sizeof path, "%s/a", folder);
    write_text("", 0);
    snprintf(path, sizeof path, "%s/a/plans", folder);
    struct ampk_plan_cache *cache = open_cache(NULL);
    char err[512] = "";
    ampk_plan_cache_add(cache, "key", "value");
    CHECK(!ampk_plan_cache_save(cache, err, sizeof err));
    CHECK(strstr(err, "/a/plans: cannot be written") != NULL);
    ampk_plan_cache_add(cache, "key 2", "value");
    CHECK(ampk_plan_cache_save(cache, err, sizeof err));
    CHECK(!ampk_plan_cache_is_saved(cache));
    check_value(cache, "key", "value");
    ampk_plan_cache_close(cache);
    remove_folder();
}

AMP_TEST(a_folder_in_its_place_is_said)
{
    new_folder();

    snprintf(path, sizeof path, "%s/plans", folder);
    REQUIRE(mkdir(path, 0777) == 0);
    char err[512] = "";
    struct ampk_plan_cache *cache = open_cache(NULL); /* a folder reads as an empty file */
    ampk_plan_cache_add(cache, "key", "value");
    CHECK(!ampk_plan_cache_save(cache, err, sizeof err));
    ampk_plan_cache_close(cache);
    remove_folder();
}

/* ---- what is tried ---- */

static void check_taken_up(int count, const char *key)
{
    char first[100] = "";
    struct ampk_plan_cache *cache = open_cache(NULL);
    CHECK_INT(ampk_plan_cache_take_up(cache, "faulted", first, sizeof first), count);
    CHECK_STR(first, key);
    ampk_plan_cache_close(cache);
}

/* Runs programs that try a key each, all at a time, and are killed. */
static void end_while_trying(const char *const keys[], int count)
{
    int ready[2];
    pid_t children[3];
    char byte;
    REQUIRE(pipe(ready) == 0);
    for (int i = 0; i < count; i++) {
        children[i] = fork();
        REQUIRE(children[i] >= 0);
        if (children[i]) continue;
        struct ampk_plan_cache *cache = open_cache(NULL);
        ampk_plan_cache_try(cache, "tried before, and it returned");
        ampk_plan_cache_try(cache, keys[i]);
        if (write(ready[1], "", 1) != 1) _exit(1);
        for (;;)
            pause();
    }
    for (int i = 0; i < count; i++)
        REQUIRE(read(ready[0], &byte, 1) == 1);
    check_taken_up(0, ""); /* they live */
    for (int i = 0; i < count; i++) {
        REQUIRE(kill(children[i], SIGKILL) == 0);
        REQUIRE(waitpid(children[i], NULL, 0) == children[i]);
    }
    close(ready[0]);
    close(ready[1]);
}

AMP_TEST(what_was_tried_when_a_program_ended_is_taken_up_once)
{
    static const char *const keys[] = {"one", "two", "three"};
    make_file();
    end_while_trying(keys, 3);
    struct ampk_plan_cache *cache = open_cache(NULL);
    ampk_plan_cache_try(cache, "beside them");
    char first[100] = "";
    CHECK_INT(ampk_plan_cache_take_up(cache, "faulted", first, sizeof first), 3);
    CHECK(!strcmp(first, "one") || !strcmp(first, "two") || !strcmp(first, "three"));
    ampk_plan_cache_try(cache, NULL);
    ampk_plan_cache_close(cache);
    check_taken_up(0, "");
    cache = open_cache(NULL);
    for (int i = 0; i < 3; i++)
        check_value(cache, keys[i], "faulted");
    check_value(cache, "tried before, and it returned", NULL);
    check_value(cache, "beside them", NULL);
    check_value(cache, "A100 8.0 forward", "engine 22");
    ampk_plan_cache_close(cache);
    remove_folder();
}

AMP_TEST(what_was_tried_and_is_known_is_not_said_again)
{
    make_file();
    struct ampk_plan_cache *cache = open_cache(NULL);
    ampk_plan_cache_add(cache, "known", "faulted");
    save(cache);
    ampk_plan_cache_close(cache);
    end_while_trying((const char *const[]){"known"}, 1);
    check_taken_up(0, "");
    remove_folder();
}

AMP_TEST(a_damaged_slot_is_nobody)
{
    make_file();
    char plans[sizeof path];
    end_while_trying((const char *const[]){"a key"}, 1);
    strcpy(plans, path);
    snprintf(path, sizeof path, "%.100s.trying.0", plans);
    write_text("0123456789abcdef\tother\t", 23);
    strcpy(path, plans);
    check_taken_up(0, "");
    remove_folder();
}

AMP_TEST(default_path_follows_the_environment)
{
    char found[256], small[10];
    setenv("XDG_CACHE_HOME", "/cache", 1);
    CHECK(ampk_plan_cache_default_path(found, sizeof found));
    CHECK_STR(found, "/cache/darknet-amp/plans");
    CHECK(!ampk_plan_cache_default_path(small, sizeof small));
    for (int i = 0; i < 4; i++) { /* what is not set, or not absolute, does not count */
        static const char *const ignored[] = {NULL, "", "cache", "./cache/"};
        unsetenv("XDG_CACHE_HOME");
        if (ignored[i]) setenv("XDG_CACHE_HOME", ignored[i], 1);
        setenv("HOME", "/home/me", 1);
        CHECK(ampk_plan_cache_default_path(found, sizeof found));
        CHECK_STR(found, "/home/me/.cache/darknet-amp/plans");
        unsetenv("HOME");
        if (ignored[i]) setenv("HOME", ignored[i], 1);
        CHECK(!ampk_plan_cache_default_path(found, sizeof found));
    }
}

AMP_TEST_MAIN
