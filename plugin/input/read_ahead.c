/* Decides how far ahead of a check files are read, and by how many threads. It must not know what
 * is wrong with a file. */
#define _GNU_SOURCE
#include "read_ahead.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "labels.h"
#include "plugin/core/read/lines.h"

#define THREADS 8    /* a disk serves so many requests at a time */
#define LEAD    4096 /* lines: what was read must still be in memory when it is checked */

struct amp_read_ahead {
    char *list;
    enum amp_dialect dialect;
    const struct amp_known_images *known;
    atomic_size_t checked; /* lines */
    atomic_bool stop;
    atomic_int next; /* the number of the thread that starts */
    pthread_t threads[THREADS];
    int n;
};

static void touch(const char *path)
{
    char first[1];
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) return;
    ssize_t n = pread(fd, first, sizeof first, 0);
    (void)n; /* the check will tell */
    close(fd);
}

static void read_line(const struct amp_read_ahead *r, char *image)
{
    char label[AMP_LABEL_PATH_MAX], err[300];
    amp_line_cut(image);
    if (!r->known || !amp_known_images_has(r->known, image)) amp_image_file_fault(image);
    bool has_label = r->dialect == AMP_DIALECT_FORK
                         ? amp_labels_find(image, label, sizeof label)
                         : !amp_label_path(image, label, sizeof label, err, sizeof err);
    if (has_label) touch(label);
}

/* False: stop. */
static bool wait_for(struct amp_read_ahead *r, size_t line)
{
    const struct timespec moment = {.tv_nsec = 1000000};
    while (!r->stop && line > r->checked + LEAD)
        nanosleep(&moment, NULL);
    return !r->stop;
}

/* Each thread reads the list by itself and takes every THREADSth line. */
static void *work(void *p)
{
    struct amp_read_ahead *r = p;
    const char *why;
    char *line = NULL;
    size_t size = 0, number = 0, mine = (size_t)atomic_fetch_add(&r->next, 1);
    FILE *file = amp_text_open(r->list, &why);
    while (file && getline(&line, &size, file) >= 0) {
        size_t n = number++;
        if (n % THREADS != mine || n < r->checked) continue;
        if (!wait_for(r, n)) break;
        read_line(r, line);
    }
    free(line);
    if (file) fclose(file);
    return NULL;
}

struct amp_read_ahead *amp_read_ahead_start(const char *list, enum amp_dialect dialect,
                                            const struct amp_known_images *known)
{
    struct amp_read_ahead *r = calloc(1, sizeof *r);
    if (!r) return NULL;
    r->list = strdup(list);
    r->dialect = dialect;
    r->known = known;
    while (r->list && r->n < THREADS && !pthread_create(&r->threads[r->n], NULL, work, r))
        r->n++;
    return r;
}

void amp_read_ahead_advance(struct amp_read_ahead *r, size_t lines)
{
    if (r) r->checked = lines;
}

void amp_read_ahead_stop(struct amp_read_ahead *r)
{
    if (!r) return;
    r->stop = true;
    for (int i = 0; i < r->n; i++)
        pthread_join(r->threads[i], NULL);
    free(r->list);
    free(r);
}
