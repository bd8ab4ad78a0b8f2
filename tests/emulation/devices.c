/* Several devices in one host memory (emulation.h): whose a piece of memory is, and which device a
 * thread uses. */
#include "emulation.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int devices = 1;
static _Thread_local int current;

void emulation_devices(int count)
{
    devices = count;
}

int emulation_device_count(void)
{
    return devices;
}

int emulation_device(void)
{
    return current;
}

bool emulation_use_device(int device)
{
    if (device < 0 || device >= devices) return false;
    current = device;
    return true;
}

void emulation_only_on(int device, const char *what)
{
    if (device == current) return;
    fprintf(stderr, "CUDA emulation: %s of device %d while the thread uses device %d\n", what,
            device, current);
    abort();
}

/* ---- memory ---- */

struct piece {
    const char *data;
    size_t bytes;
    int device;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct piece *pieces; /* in the order of their addresses */
static size_t count, room;

/* The first that begins behind p. */
static size_t behind(const void *p)
{
    size_t low = 0, high = count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (pieces[middle].data > (const char *)p)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

void emulation_memory_made(const void *data, size_t bytes)
{
    pthread_mutex_lock(&lock);
    if (count == room) {
        room = room ? 2 * room : 256;
        pieces = realloc(pieces, room * sizeof *pieces);
        if (!pieces) abort();
    }
    size_t at = behind(data);
    for (size_t i = count++; i > at; i--)
        pieces[i] = pieces[i - 1];
    pieces[at] = (struct piece){data, bytes, current};
    pthread_mutex_unlock(&lock);
}

/* Under the lock; NULL: no device's. */
static const struct piece *piece_of(const void *p)
{
    size_t at = behind(p);
    const struct piece *found = at ? &pieces[at - 1] : NULL;
    return found && (const char *)p < found->data + found->bytes ? found : NULL;
}

void emulation_memory_gone(const void *data)
{
    pthread_mutex_lock(&lock);
    const struct piece *found = piece_of(data);
    if (found && found->data == data) {
        count--;
        for (size_t i = (size_t)(found - pieces); i < count; i++)
            pieces[i] = pieces[i + 1];
    }
    pthread_mutex_unlock(&lock);
}

int emulation_memory_device(const void *p)
{
    pthread_mutex_lock(&lock);
    const struct piece *found = piece_of(p);
    int device = found ? found->device : -1;
    pthread_mutex_unlock(&lock);
    return device;
}

__attribute__((visibility("default"))) void emulation_check_memory(const void *p, const char *what)
{
    int device = devices > 1 ? emulation_memory_device(p) : -1;
    if (device >= 0) emulation_only_on(device, what);
}

void emulation_check_words(const void *words, size_t bytes, const char *what)
{
    const void *word;
    for (size_t i = 0; devices > 1 && i + sizeof word <= bytes; i += sizeof word) {
        memcpy(&word, (const char *)words + i, sizeof word);
        emulation_check_memory(word, what);
    }
}
