/* Replacing a pair, with the program killed, an error, or the power lost at every system call that
 * it makes: there is always a matching pair to resume from, and the next save cleans up.
 *
 * Linked with --wrap for the calls below. */
#include "tests/rig/harness.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "plugin/core/files/checkpoint.h"
#include "tests/rig/files.h"

/* ---- system calls ---- */

static int calls, die_at, fail_at; /* 0: never */

/* Whether the call is to fail. */
static bool counted(void)
{
    ++calls;
    if (calls == die_at) _exit(77);
    errno = EIO;
    return calls == fail_at;
}

int __real_link(const char *, const char *);
int __real_rename(const char *, const char *);
int __real_unlink(const char *);
int __wrap_fsync(int);
int __wrap_link(const char *, const char *);
int __wrap_rename(const char *, const char *);
int __wrap_unlink(const char *);
static bool without_links;

/* What a save asks of the disk, in order. */
enum event_kind { SYNC_FILE, SYNC_FOLDER, LINK, RENAME, UNLINK };

struct event {
    enum event_kind kind;
    ino_t file;
    char from[64], to[64]; /* names in the scratch folder */
    char bytes[512];       /* SYNC_FILE: what the file holds now */
    ssize_t n;
    int held; /* keeps the inode's number from being given to another file */
};

static struct event events[64];
static int n_events;
static bool recording;

static const char *base_of(const char *path)
{
    return strrchr(path, '/') + 1;
}

/* held: a descriptor of the event's file, now the event's; -1: it has none. */
static struct event *record(enum event_kind kind, int held)
{
    struct stat info = {0};
    if (held >= 0) REQUIRE(!fstat(held, &info));
    REQUIRE(n_events < 64);
    struct event *e = &events[n_events++];
    *e = (struct event){.kind = kind, .file = info.st_ino, .held = held};
    return e;
}

static void record_names(enum event_kind kind, const char *from, const char *to)
{
    struct event *e = record(kind, kind == UNLINK ? -1 : open(from, O_RDONLY));
    snprintf(e->from, sizeof e->from, "%s", base_of(from));
    snprintf(e->to, sizeof e->to, "%s", base_of(to));
}

static void record_sync(int fd)
{
    struct stat info;
    REQUIRE(!fstat(fd, &info));
    struct event *e = record(S_ISDIR(info.st_mode) ? SYNC_FOLDER : SYNC_FILE, dup(fd));
    if (e->kind == SYNC_FILE) e->n = pread(fd, e->bytes, sizeof e->bytes, 0);
    REQUIRE(e->n >= 0 && e->n < (ssize_t)sizeof e->bytes);
}

int __wrap_fsync(int fd)
{
    if (counted()) return -1;
    if (recording) record_sync(fd);
    return 0;
}
int __wrap_link(const char *from, const char *to)
{
    if (without_links) errno = EPERM;
    if (without_links || counted()) return -1;
    if (recording) record_names(LINK, from, to);
    return __real_link(from, to);
}
int __wrap_rename(const char *from, const char *to)
{
    if (counted()) return -1;
    if (recording) record_names(RENAME, from, to);
    return __real_rename(from, to);
}
int __wrap_unlink(const char *path)
{
    if (counted()) return -1;
    if (recording) record_names(UNLINK, path, path);
    return __real_unlink(path);
}

/* ---- pairs: the sidecar's t is the number in the weights ---- */

static char err[3 * PATH_MAX], warning[3 * PATH_MAX];
static float momentum[3];
static struct amp_param param = {.kind = AMP_PARAM_WEIGHTS, .layer = 0, .n = 3, .update = momentum};
static enum amp_format demoted[2];
static int layers = 1;

static struct amp_run run_at(int t)
{
    return (struct amp_run){.seen = (uint64_t)t,
                            .dtype = AMP_DTYPE_FP16,
                            .t = t,
                            .scaler = {.dynamic = true, .scale = 8, .min = 1, .max = 1024},
                            .n_layers = layers,
                            .demoted = demoted,
                            .n_params = 1,
                            .params = &param};
}

static void begin(struct amp_whole_file *f, const char *name)
{
    if (amp_whole_begin(f, scratch(name), err, sizeof err)) TEST_FAIL("%s", err);
    REQUIRE(f->fd >= 0);
}

/* What an attached network's save_weights does. */
static int save(int t, bool pair)
{
    struct amp_whole_file weights = {.fd = -1}, sidecar = {.fd = -1};
    struct amp_file_id id;
    begin(&weights, "w");
    dprintf(weights.fd, "weights %d", t);
    REQUIRE(!amp_file_identify(weights.temp, &id, err, sizeof err));
    if (pair) {
        struct amp_run r = run_at(t);
        begin(&sidecar, "w.amp");
        REQUIRE(!amp_sidecar_write(sidecar.fd, &r, &id, err, sizeof err));
    }
    int failed = amp_checkpoint_place(&weights, pair ? &sidecar : NULL, err, sizeof err);
    amp_whole_drop(&weights);
    amp_whole_drop(&sidecar);
    return failed;
}

/* The t that training resumes from; -1: weights without a sidecar. *previous: of the older pair. */
static int resume(bool *previous)
{
    struct amp_checkpoint found;
    struct amp_run r = run_at(0);
    char text[100];
    amp_checkpoint_find(scratch("w"), &r, &found, warning, sizeof warning);
    *previous = strcmp(found.weights, scratch("w")) != 0;
    CHECK((*previous || !found.sidecar) == (*warning != 0) || !found.sidecar);
    if (!found.sidecar) return -1;
    REQUIRE(!amp_sidecar_restore(found.sidecar, &r, err, sizeof err));
    amp_sidecar_close(found.sidecar);
    scratch_read(*previous ? "w.prev" : "w", text, sizeof text);
    CHECK_INT(atoi(text + strlen("weights ")), r.t);
    return (int)r.t;
}

static void start_with_a_pair(void)
{
    if (scratch_path[0]) scratch_empty();
    die_at = fail_at = calls = 0;
    CHECK_INT(save(1, true), 0);
}

/* Saves in a process that dies at its call number `at`; false where it does not get so far. */
static bool save_and_die(int t, int at)
{
    pid_t child = fork();
    REQUIRE(child >= 0);
    if (!child) {
        calls = 0;
        die_at = at;
        save(t, true);
        _exit(0);
    }
    int status;
    REQUIRE(waitpid(child, &status, 0) == child && WIFEXITED(status));
    REQUIRE(WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == 77);
    return WEXITSTATUS(status) == 77;
}

static void check_next_save(int t)
{
    bool previous;
    CHECK_INT(save(t, true), 0);
    CHECK_INT(resume(&previous), t);
    CHECK(!previous && !*warning);
    CHECK_INT(scratch_count(), 2);
}

/* ---- tests ---- */

AMP_TEST(pairs_replace_pairs)
{
    bool previous;
    start_with_a_pair();
    for (int t = 1; t < 4; t++) {
        CHECK_INT(resume(&previous), t);
        CHECK(!previous && !*warning);
        CHECK_INT(scratch_count(), 2);
        CHECK_INT(save(t + 1, true), 0);
    }
    scratch_empty();
}

AMP_TEST(killed_at_every_call)
{
    int at = 1, resumed, newest = 0, older = 0;
    bool previous;
    for (bool killed = true; killed; at++) {
        start_with_a_pair();
        killed = save_and_die(2, at);
        resumed = resume(&previous);
        CHECK(resumed == 1 || resumed == 2);
        CHECK(killed || resumed == 2);
        newest += resumed == 2;
        older += previous;
        check_next_save(3);
        if (test_failures) TEST_FAIL("killed at call %d", at);
    }
    CHECK(at > 10 && newest > 1);
    CHECK_INT(older, 1);
    scratch_empty();
}

AMP_TEST(killed_twice)
{
    bool previous, killed = true, again;
    for (int first = 1; killed; first++) {
        again = true;
        for (int second = 1; again; second++) {
            start_with_a_pair();
            killed = save_and_die(2, first);
            again = save_and_die(3, second);
            int resumed = resume(&previous);
            CHECK(resumed >= 1 && resumed <= 3);
            check_next_save(4);
            if (test_failures) TEST_FAIL("killed at calls %d, %d", first, second);
        }
    }
    scratch_empty();
}

AMP_TEST(killed_where_links_are_not_possible)
{
    bool previous, killed = true;
    without_links = true;
    for (int at = 1; killed; at++) {
        start_with_a_pair();
        killed = save_and_die(2, at);
        int resumed = resume(&previous);
        CHECK(resumed == 1 || resumed == 2);
        check_next_save(3);
        if (test_failures) TEST_FAIL("killed at call %d", at);
    }
    without_links = false;
    scratch_empty();
}

AMP_TEST(error_at_every_call)
{
    bool previous;
    int made = 1000, failures = 0;
    for (int at = 1; at <= made; at++) {
        start_with_a_pair();
        calls = 0;
        fail_at = at;
        *err = 0;
        int failed = save(2, true), resumed;
        fail_at = 0;
        if (calls < at) break;
        resumed = resume(&previous);
        CHECK(resumed == 2 || (failed && resumed == 1));
        CHECK(!failed || strstr(err, "Input/output error"));
        failures += failed != 0;
        check_next_save(3);
        if (test_failures) TEST_FAIL("error at call %d", at);
    }
    CHECK(failures >= 6);
    scratch_empty();
}

/* Of the probe's files each is removed, then flushed. */
AMP_TEST(a_folder_whose_files_cannot_be_flushed)
{
    const uint64_t bytes[] = {1, 1, 1};
    start_with_a_pair();
    scratch_empty();
    for (int flush = 1; flush <= 4; flush++) {
        calls = 0, fail_at = 2 * flush;
        int failed = amp_folder_check(scratch_path, bytes, 3, "weights", err, sizeof err);
        fail_at = 0;
        CHECK_INT(failed, flush <= 3 ? -1 : 0);
        CHECK(!failed || strstr(err, "3 bytes of weights cannot be written: Input/output error"));
        CHECK_INT(scratch_count(), 0);
    }
}

AMP_TEST(first_save_of_all)
{
    bool previous, killed = true;
    for (int at = 1; killed; at++) {
        scratch("");
        scratch_empty();
        killed = save_and_die(1, at);
        int resumed = resume(&previous);
        CHECK(!previous && (resumed == 1 || (killed && access(scratch("w"), F_OK))));
        check_next_save(2);
    }
    scratch_empty();
}

/* And the pair before, if a killed program left it there. */
AMP_TEST(weights_alone_take_the_sidecar_away)
{
    bool previous;
    start_with_a_pair();
    amp_whole_keep(scratch("w"), scratch("w.prev"), err, sizeof err);
    amp_whole_keep(scratch("w.amp"), scratch("w.prev.amp"), err, sizeof err);
    CHECK_INT(save(2, false), 0);
    CHECK_INT(scratch_count(), 1);
    CHECK_INT(resume(&previous), -1);
    CHECK_STR(warning, "");
    scratch_empty();
}

AMP_TEST(weights_that_another_program_wrote)
{
    bool previous;
    start_with_a_pair();
    scratch_write("w", "weights 9", 9);
    CHECK_INT(resume(&previous), -1);
    CHECK(!previous && strstr(warning, "w.amp: belongs to other weights than those in"));
    CHECK(strstr(warning, "momentum and loss scale start anew") != NULL);
    check_next_save(2);
    scratch_empty();
}

AMP_TEST(damaged_sidecar)
{
    bool previous;
    start_with_a_pair();
    scratch_write("w.amp", "damaged", 7);
    CHECK_INT(resume(&previous), -1);
    CHECK(!previous && strstr(warning, "w.amp: is cut off; momentum"));
    check_next_save(2);
    scratch_empty();
}

/* A previous pair, even one of the network that is trained, is no reason to leave weights that
 * match their sidecar. */
/* A sidecar is looked for as long as the names of both pairs fit. */
AMP_TEST(the_longest_names)
{
    start_with_a_pair();
    for (int more = 0; more < 2; more++) {
        struct amp_checkpoint found;
        struct amp_run r = run_at(0);
        char name[PATH_MAX];
        size_t length = PATH_MAX - sizeof ".prev.amp" + (size_t)more, n = strlen(scratch_path);
        memset(name, '/', length);
        memcpy(name, scratch_path, n);
        strcpy(name + length - 1, "w");
        amp_checkpoint_find(name, &r, &found, warning, sizeof warning);
        CHECK_INT(!found.sidecar, more);
        if (found.sidecar) amp_sidecar_close(found.sidecar);
    }
    scratch_empty();
}

AMP_TEST(pair_of_another_network)
{
    struct amp_checkpoint found;
    bool previous;
    layers = 2;
    start_with_a_pair();
    amp_whole_keep(scratch("w"), scratch("of_two"), err, sizeof err);
    amp_whole_keep(scratch("w.amp"), scratch("of_two.amp"), err, sizeof err);
    layers = 1;
    CHECK_INT(save(2, true), 0);
    amp_whole_keep(scratch("of_two"), scratch("w.prev"), err, sizeof err);
    amp_whole_keep(scratch("of_two.amp"), scratch("w.prev.amp"), err, sizeof err);
    layers = 2;
    struct amp_run r = run_at(0);
    layers = 1;
    amp_checkpoint_find(scratch("w"), &r, &found, warning, sizeof warning);
    CHECK(!found.sidecar && !strcmp(found.weights, scratch("w")));
    CHECK(strstr(warning, "belongs to another network") != NULL);
    CHECK_INT(resume(&previous), 2);
    CHECK(!previous);
    scratch_empty();
}

/* ---- the power is lost ----
 *
 * Of a file the disk then has what it held when it was last flushed, nothing if it never was. Of
 * the changes of names since the folder was last flushed, any may be there and any may be lost. */

struct entry {
    char name[64];
    ino_t file;
};

/* The names in the folder; file 0: free. */
struct names {
    struct entry list[16];
};

static struct entry *entry_of(struct names *d, const char *name)
{
    for (int i = 0; i < 16; i++)
        if (!d->list[i].file || !strcmp(d->list[i].name, name)) {
            snprintf(d->list[i].name, sizeof d->list[i].name, "%s", name);
            return &d->list[i];
        }
    TEST_FAIL("more names than expected");
    exit(1);
}

static void forget(struct names *d, const char *name)
{
    struct entry *e = entry_of(d, name), *last = e;
    if (!e->file) return;
    while (last + 1 < d->list + 16 && last[1].file)
        last++;
    *e = *last;
    last->file = 0;
}

static void apply(struct names *d, const struct event *e)
{
    if (e->kind == UNLINK) forget(d, e->from);
    if (e->kind == LINK || e->kind == RENAME) entry_of(d, e->to)->file = e->file;
    if (e->kind == RENAME) forget(d, e->from);
}

/* The folder before the save: the first pair, all of it on the disk. */
static struct names names_before(void)
{
    struct names d = {0};
    static const char *const names[] = {"w", "w.amp"};
    for (int i = 0; i < 2; i++) {
        int fd = open(scratch(names[i]), O_RDONLY);
        record_sync(fd);
        close(fd);
        entry_of(&d, names[i])->file = events[i].file;
    }
    return d;
}

/* What the disk has of the file after the first n events. */
static const struct event *flushed(ino_t file, int n)
{
    static const struct event nothing = {.n = 0};
    while (n-- > 0)
        if (events[n].kind == SYNC_FILE && events[n].file == file) return &events[n];
    return &nothing;
}

static void write_folder(const struct names *d, int n)
{
    scratch_empty();
    for (int i = 0; i < 16 && d->list[i].file; i++) {
        const struct event *e = flushed(d->list[i].file, n);
        if (!strstr(d->list[i].name, ".part-"))
            scratch_write(d->list[i].name, e->bytes, (size_t)e->n);
    }
}

static bool changes_names(const struct event *e)
{
    return e->kind == LINK || e->kind == RENAME || e->kind == UNLINK;
}

/* After the first n events, with each selection of the unflushed changes of names. check: what must
 * hold of the folder then. Returns how many selections there are. */
static int lose_power(const struct names *before, int n, void (*check)(bool ended))
{
    struct names flushed_names = *before;
    int unflushed[16], count = 0;
    for (int i = 0; i < n; i++) {
        if (changes_names(&events[i])) unflushed[count++] = i;
        for (int k = 0; events[i].kind == SYNC_FOLDER && k < count; k++)
            apply(&flushed_names, &events[unflushed[k]]);
        if (events[i].kind == SYNC_FOLDER) count = 0;
        REQUIRE(count < 10);
    }
    for (int selection = 0; selection < 1 << count; selection++) {
        struct names d = flushed_names;
        for (int k = 0; k < count; k++)
            if (selection >> k & 1) apply(&d, &events[unflushed[k]]);
        write_folder(&d, n);
        check(n == n_events);
        if (test_failures) TEST_FAIL("power lost after event %d, selection %d", n, selection);
    }
    return 1 << count;
}

static void check_power_lost_in_pair(bool ended)
{
    bool previous;
    int resumed = resume(&previous);
    CHECK(resumed == 2 || (resumed == 1 && !ended));
}

static void check_power_lost_in_weights(bool ended)
{
    char text[100] = "";
    scratch_read("w", text, sizeof text);
    CHECK(!strcmp(text, "weights 2") || (!strcmp(text, "weights 1") && !ended));
}

static void lose_power_everywhere(bool pair)
{
    int cases = 0;
    start_with_a_pair();
    n_events = 0;
    struct names before = names_before();
    recording = true;
    CHECK_INT(save(2, pair), 0);
    recording = false;
    for (int n = 2; n <= n_events && !test_failures; n++)
        cases +=
            lose_power(&before, n, pair ? check_power_lost_in_pair : check_power_lost_in_weights);
    CHECK(cases > n_events);
    for (int i = 0; i < n_events; i++)
        if (events[i].held >= 0) close(events[i].held);
    scratch_empty();
}

AMP_TEST(power_lost_at_every_call)
{
    lose_power_everywhere(true);
}

AMP_TEST(power_lost_where_links_are_not_possible)
{
    without_links = true;
    lose_power_everywhere(true);
    without_links = false;
}

AMP_TEST(power_lost_while_weights_alone_are_saved)
{
    lose_power_everywhere(false);
}

/* ==== what the name of a weights file says ==== */

AMP_TEST(one_of_a_runs_files)
{
    static const struct {
        const char *name;
        bool backup, final, numbered;
    } files[] = {
        {"yolo.backup", true, false, false},
        {".backup", true, false, false},
        {"yolo.backup.amp", false, false, false},
        {"backup", false, false, false},
        {"yolo_final.weights", false, true, false},
        {"out_1/yolo.weights", false, true, false},
        {"yolo_.weights", false, true, false},
        {"yolo1000.weights", false, true, false},
        {"yolo_x1000.weights", false, true, false},
        {"yolo_1000x.weights", false, true, false},
        {&"_1000.weights"[1], false, true, false}, /* what stands before a name is not read */
        {"backup_1/1000.weights", false, true, false},
        {".weights", false, true, false},
        {"yolo_1000.weights", false, false, true},
        {"a/yolo_1.weights", false, false, true},
        {"_1000.weights", false, false, true},
        {"yolo_1000.weights.amp", false, false, false},
        {"yolo_1000", false, false, false},
        {"weights", false, false, false},
        {"", false, false, false},
    };
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        const char *name = files[i].name;
        if (amp_weights_is_backup(name) != files[i].backup ||
            amp_weights_is_final(name) != files[i].final ||
            amp_weights_is_numbered(name) != files[i].numbered)
            TEST_FAIL("%s: backup %d, final %d, numbered %d", name, amp_weights_is_backup(name),
                      amp_weights_is_final(name), amp_weights_is_numbered(name));
    }
}

AMP_TEST(a_link_stands_for_its_file)
{
    char path[PATH_MAX];
    const char *file = scratch("a.weights"), *link = scratch("b.weights");
    const char *nowhere = scratch("c.weights");
    scratch_write("a.weights", "", 0);
    REQUIRE(!symlink(file, link) && !symlink(scratch("gone"), nowhere));
    CHECK(amp_weights_behind(file, path) == file);
    CHECK_STR(amp_weights_behind(link, path), file);
    CHECK(amp_weights_behind(nowhere, path) == nowhere);
    CHECK(amp_weights_behind(scratch_path, path) == scratch_path);
}

AMP_TEST(devices_and_pipes_are_special)
{
    scratch_write("a.weights", "", 0);
    REQUIRE(!mkfifo(scratch("pipe"), 0600));
    CHECK(amp_weights_is_special("/dev/null"));
    CHECK(amp_weights_is_special(scratch("pipe")));
    CHECK(!amp_weights_is_special(scratch("a.weights")));
    CHECK(!amp_weights_is_special(scratch("gone")));
    CHECK(!amp_weights_is_special(scratch_path));
}

AMP_TEST_MAIN
