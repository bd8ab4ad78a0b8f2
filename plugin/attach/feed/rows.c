/* Decides which rows are kept. It must not know what is in them. */
#include "rows.h"

#include "images.h"

#include <pthread.h>
#include <stdlib.h>

/* Lies in the row itself. */
struct kept {
    struct kept *next;
};

static struct {
    pthread_mutex_t lock;
    struct kept *first;
    size_t floats; /* of each */
    size_t lent;
} rows = {.lock = PTHREAD_MUTEX_INITIALIZER};

static struct kept *pop(void)
{
    struct kept *row = rows.first;
    if (row) rows.first = row->next;
    return row;
}

static void free_all(void)
{
    for (struct kept *row; (row = pop());)
        free(row);
}

float *amp_row_take(int w, int h)
{
    size_t floats = 3 * (size_t)w * (size_t)h;
    pthread_mutex_lock(&rows.lock);
    if (floats != rows.floats) {
        free_all();
        rows.floats = floats;
        rows.lent = 0;
    }
    float *row = (float *)pop();
    rows.lent++;
    pthread_mutex_unlock(&rows.lock);
    return row ? row : amp_image_make(w, h, 3).data;
}

void amp_row_give(float *row, size_t floats)
{
    pthread_mutex_lock(&rows.lock);
    bool keeps = row && floats == rows.floats && rows.lent;
    if (keeps) {
        struct kept *k = (struct kept *)row;
        k->next = rows.first;
        rows.first = k;
        rows.lent--;
    }
    pthread_mutex_unlock(&rows.lock);
    if (!keeps) free(row);
}

void amp_rows_free(void)
{
    pthread_mutex_lock(&rows.lock);
    free_all();
    pthread_mutex_unlock(&rows.lock);
}
