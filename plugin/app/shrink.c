/* `darknet amp shrink`: decides what is refused, which image is copied as it is, and what stands in
 * the folder at the end. It must not know how an image is made smaller (images/shrink.c) or what a
 * copy is called (shrink_names.c). */

#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "amp.h"
#include "commands.h"
#include "darknet.h"
#include "plugin/core/cfg.h"
#include "plugin/core/file.h"
#include "plugin/core/text.h"
#include "plugin/images/shrink.h"
#include "plugin/input/labels.h"
#include "shrink_names.h"

enum { LEAST_SIDE = 16, ERR_SIZE = 4 * PATH_MAX };

struct shrink {
    const char *data_path, *out;
    int side;
    char folder[PATH_MAX]; /* `out`, absolute */
    struct amp_cfg_file *data;
    struct amp_shrink_set set;
    size_t train;      /* images of the list train=; those behind them are valid='s */
    atomic_int failed; /* an image could not be copied: no other one is begun */
    size_t done;
};

__attribute__((format(printf, 2, 3))) static int fail(char *err, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(err, ERR_SIZE, format, args);
    va_end(args);
    return -1;
}

/* ---- arguments ---- */

static void read_arguments(int argc, char **argv, struct shrink *s)
{
    int unused; /* Darknet's general options, which may stand in front of any command */
    const struct amp_argument options[] = {
        {.name = "side",
         .value = "N",
         .help = "Longest side that a copy may have, in pixels; no image is enlarged",
         .kind = AMP_ARGUMENT_COUNT,
         .target = &s->side,
         .low = LEAST_SIDE,
         .high = AMP_JPEG_MOST_SIDE},
        {.name = "out",
         .value = "DIR",
         .help = "Folder for the copy; made if it is not there, else it must be empty",
         .kind = AMP_ARGUMENT_TEXT,
         .target = &s->out},
        AMP_GPU_ARGUMENTS(&unused),
        {.name = NULL}};
    const struct amp_command_line line = {
        .files = "DATA --side N --out DIR",
        .help = "Writes a copy of a detection data set with smaller images, which training loads "
                "in less time: all images of the lists train= and valid= as upright JPEGs, their "
                "labels, the names and the lists. DIR has the data file to train with, under the "
                "name of DATA. Nothing of DATA is changed.",
        .file = {&s->data_path},
        .least_files = 1,
        .options = options};
    amp_arguments_read(&line, argc, argv);
}

static const char *data_name(const struct shrink *s)
{
    const char *slash = strrchr(s->data_path, '/');
    return slash ? slash + 1 : s->data_path;
}

static int check_empty(const char *folder, char *err)
{
    int entries = 0;
    DIR *dir = opendir(folder);
    if (!dir) return errno == ENOENT ? 0 : fail(err, "--out %s: %s", folder, strerror(errno));
    while (readdir(dir))
        entries++;
    closedir(dir);
    /* "." and ".." */
    return entries <= 2 ? 0 : fail(err, "--out %s: is not empty; allowed: a new folder", folder);
}

static int check_arguments(struct shrink *s, char *err)
{
    char here[PATH_MAX] = "", why[ERR_SIZE / 2];
    if (!s->side || !s->out || !*s->out) return fail(err, "needed: --side N and --out DIR");
    if (*s->out != '/' && !getcwd(here, sizeof here))
        return fail(err, "the current folder has no path: %s", strerror(errno));
    int n = snprintf(s->folder, sizeof s->folder, "%s%s%s", here, *here ? "/" : "", s->out);
    if (n >= (int)sizeof s->folder) return fail(err, "--out %.80s...: is too long", s->out);
    while (n > 1 && s->folder[n - 1] == '/')
        s->folder[--n] = '\0';
    if (amp_shrink_folder_check(s->folder, why, sizeof why)) return fail(err, "--out %s", why);
    return check_empty(s->folder, err);
}

/* ---- the data set ---- */

static void tell(void *context, const char *message)
{
    (void)context;
    /* Indented lines belong to the fault before them. */
    fprintf(stderr, "%s%s\n", *message == ' ' ? "" : "error: ", message);
}

/* The value of a key of the data file; NULL: it has none. */
static const char *value_of(const struct shrink *s, const char *key)
{
    return amp_cfg_string(&s->data->sections[0], key, NULL);
}

/* Classes are not looked at here: labels are copied as they are. */
static bool is_good_list(const struct shrink *s, const char *key)
{
    struct amp_train_list list;
    const char *path = value_of(s, key);
    return !path || !amp_train_list_check(path, INT_MAX, stderr, &list, tell, NULL);
}

static int check_data(struct shrink *s, char *err)
{
    s->data = amp_cfg_read_data(s->data_path, err, ERR_SIZE);
    if (!s->data) return -1;
    const char *names = value_of(s, "names"), *why = names ? amp_text_unreadable(names) : NULL;
    if (why) return fail(err, "%s: names=%s: %s", s->data_path, names, why);
    if (!value_of(s, "train") && !value_of(s, "valid"))
        return fail(err, "%s: has neither train= nor valid=, the lists of images", s->data_path);
    /* The faults of both are told. */
    bool good = is_good_list(s, "train");
    return is_good_list(s, "valid") && good ? 0 : -1;
}

static int read_lists(struct shrink *s, char *err)
{
    const char *train = value_of(s, "train"), *valid = value_of(s, "valid");
    s->set.folder = s->folder;
    if (train && amp_shrink_list_add(&s->set, train, err, ERR_SIZE)) return -1;
    s->train = s->set.count;
    if (valid && amp_shrink_list_add(&s->set, valid, err, ERR_SIZE)) return -1;
    return amp_shrink_name(&s->set, err, ERR_SIZE);
}

/* ---- one image ---- */

/* What a thread works with. */
struct desk {
    struct amp_jpeg_memory jpeg;
    struct amp_pixels other, small;
};

/* By Darknet, what is no JPEG; it ends the program if it cannot. NULL: no memory. */
static const struct amp_pixels *read_other(char *path, struct amp_pixels *p)
{
    image im = load_image_color(path, 0, 0);
    size_t plane = (size_t)im.w * (size_t)im.h;
    bool fits = amp_pixels_resize(p, im.w, im.h);
    for (size_t i = 0; fits && i < plane; i++)
        for (size_t c = 0; c < 3; c++)
            p->bytes[3 * i + c] = (uint8_t)(im.data[(2 - c) * plane + i] * 255 + .5f);
    free_image(im);
    return fits ? p : NULL;
}

static const struct amp_pixels *shrink(const struct amp_pixels *p, int side, struct amp_pixels *to)
{
    int w, h;
    amp_shrink_size(p->w, p->h, side, &w, &h);
    return amp_shrink(p, w, h, to) ? to : NULL;
}

static int write_image(const struct shrink *s, struct desk *d, char *path, const char *to,
                       char *err)
{
    const struct amp_pixels *p = amp_jpeg_read(path, 0, &d->jpeg);
    bool is_upright_jpeg = p && !d->jpeg.turned;
    if (p && d->jpeg.damaged)
        fprintf(stderr, "warning: image %s is damaged: a part of its copy may be grey\n", path);
    if (!p) p = read_other(path, &d->other);
    if (p && (p->w > s->side || p->h > s->side))
        p = shrink(p, s->side, &d->small);
    else if (is_upright_jpeg)
        return amp_file_copy(path, to, err, ERR_SIZE);
    return p ? amp_jpeg_write(p, to, err, ERR_SIZE) : fail(err, "%s: no memory", path);
}

/* ---- all images ---- */

static void write_one(struct shrink *s, struct desk *d, size_t i, struct amp_progress *progress,
                      char *err)
{
    const struct amp_shrink_image *image = &s->set.images[i];
    char to[AMP_LABEL_PATH_MAX], why[ERR_SIZE];
    amp_shrink_path(&s->set, i, to, sizeof to);
    int failed = amp_folders_make(to, why, ERR_SIZE) || write_image(s, d, image->path, to, why) ||
                 amp_folders_make(image->label_to, why, ERR_SIZE) ||
                 amp_file_copy(image->label, image->label_to, why, ERR_SIZE);
#pragma omp critical
    if (!failed)
        amp_progress_update(progress, ++s->done);
    else if (!s->failed++)
        fail(err, "%s", why);
}

static int write_images(struct shrink *s, char *err)
{
    struct amp_progress progress;
    amp_progress_start(&progress, stderr, "shrinking", s->set.different);
#pragma omp parallel
    {
        struct desk d = {0};
#pragma omp for schedule(dynamic)
        for (size_t i = 0; i < s->set.count; i++)
            if (!s->set.images[i].again && !s->failed) write_one(s, &d, i, &progress, err);
        amp_jpeg_free(&d.jpeg);
        free(d.other.bytes);
        free(d.small.bytes);
    }
    return s->failed ? -1 : 0;
}

/* ---- the files beside them ---- */

static FILE *create(const struct shrink *s, const char *name, char *path, char *err)
{
    snprintf(path, 2 * PATH_MAX, "%s/%s", s->folder, name);
    FILE *file = fopen(path, "wx");
    if (!file) fail(err, "%s: cannot write: %s", path, strerror(errno));
    return file;
}

static int finish(FILE *file, const char *path, char *err)
{
    bool failed = ferror(file) != 0;
    if (fclose(file) || failed) return fail(err, "%s: cannot write: %s", path, strerror(errno));
    return 0;
}

static int write_list(const struct shrink *s, const char *name, size_t from, size_t to, char *err)
{
    char path[2 * PATH_MAX], copy[AMP_LABEL_PATH_MAX];
    FILE *file = create(s, name, path, err);
    if (!file) return -1;
    for (size_t i = from; i < to; i++) {
        amp_shrink_path(&s->set, i, copy, sizeof copy);
        fprintf(file, "%s\n", copy);
    }
    return finish(file, path, err);
}

static int copy_names(const struct shrink *s, char *err)
{
    char path[2 * PATH_MAX];
    const char *names = value_of(s, "names");
    snprintf(path, sizeof path, "%s/names.list", s->folder);
    return names ? amp_file_copy(names, path, err, ERR_SIZE) : 0;
}

/* Keys that name no file of the copy stay as they are. */
static int write_data(const struct shrink *s, char *err)
{
    static const char *const ours[][2] = {{"train", "train.list"},
                                          {"valid", "valid.list"},
                                          {"names", "names.list"},
                                          {"backup", "backup"}};
    char path[2 * PATH_MAX];
    FILE *file = create(s, data_name(s), path, err);
    if (!file) return -1;
    for (int i = 0; i < s->data->sections[0].n_entries; i++) {
        const struct amp_cfg_entry *e = &s->data->sections[0].entries[i];
        const char *name = NULL;
        for (size_t k = 0; k < sizeof ours / sizeof *ours; k++)
            if (!strcmp(e->key, ours[k][0])) name = ours[k][1];
        if (name)
            fprintf(file, "%s=%s/%s\n", e->key, s->folder, name);
        else
            fprintf(file, "%s=%s\n", e->key, e->value);
    }
    if (!value_of(s, "backup")) fprintf(file, "backup=%s/backup\n", s->folder);
    return finish(file, path, err);
}

/* ---- the whole ---- */

static void report_rest(const struct shrink *s)
{
    fprintf(stderr,
            "%s: %zu of %zu images are there, and no data file; remove the folder before you start "
            "again\n",
            s->folder, s->done, s->set.different);
}

/* The data file comes last: with it the copy is whole. */
static int write_all(struct shrink *s, char *err)
{
    char backup[PATH_MAX + 8];
    amp_refuse_bad_images(1);
    snprintf(backup, sizeof backup, "%s/backup/", s->folder);
    if (amp_folders_make(backup, err, ERR_SIZE) || copy_names(s, err) || write_images(s, err))
        return -1;
    if (value_of(s, "train") && write_list(s, "train.list", 0, s->train, err)) return -1;
    if (value_of(s, "valid") && write_list(s, "valid.list", s->train, s->set.count, err)) return -1;
    return write_data(s, err);
}

static int work(struct shrink *s)
{
    char err[ERR_SIZE] = "";
    bool began = !check_arguments(s, err) && !check_data(s, err) && !read_lists(s, err);
    if (began && !write_all(s, err)) return 0;
    if (*err) fprintf(stderr, "error: %s\n", err);
    if (began && check_empty(s->folder, err))
        report_rest(s);
    else
        fputs("nothing was written\n", stderr);
    return -1;
}

int amp_command_shrink(int argc, char **argv)
{
    struct shrink s = {0};
    read_arguments(argc, argv, &s);
    int failed = work(&s);
    if (!failed) printf("%zu images: %s/%s\n", s.done, s.folder, data_name(&s));
    if (!failed && fflush(stdout)) {
        fprintf(stderr, "error: %s\n", strerror(errno));
        failed = -1;
    }
    amp_shrink_set_free(&s.set);
    amp_cfg_free(s.data);
    return failed ? 1 : 0;
}
