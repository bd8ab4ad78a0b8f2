/* Looks for one number in the lines that log_file.c writes. */
#define _GNU_SOURCE
#include "noise_log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int read_line(const char *line, double *images, size_t *iteration)
{
    const char *number = strstr(line, "\"gradient_noise_scale\": ");
    return number && sscanf(line, "{\"iteration\": %zu", iteration) == 1 &&
                   sscanf(strchr(number, ':'), ": %lf", images) == 1
               ? 0
               : -1;
}

int amp_noise_log_read(const char *path, double *images, size_t *iteration)
{
    char *line = NULL;
    size_t size = 0, at;
    double value;
    int found = -1;
    FILE *f = fopen(path, "r");
    while (f && getline(&line, &size, f) >= 0)
        if (!read_line(line, &value, &at)) {
            *images = value;
            *iteration = at;
            found = 0;
        }
    free(line);
    if (f) fclose(f);
    return found;
}
