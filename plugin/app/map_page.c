/* Decides how the page of `detector map` is put together: the template (page/), with the JSON of
 * each measurement in it. It must not know what is drawn: the page's script does that. */

#include "map_page.h"

#include <stdlib.h>
#include <string.h>

#include "plugin/core/files/file.h"

#include "map_template.h" /* map_template, made of page/ by CMakeLists.txt */

static const char mark[] = "<!--DATA-->";

/* No browser takes it for the end of its element. */
static void write_escaped(FILE *out, const char *text)
{
    for (; *text; text++) {
        if (*text == '<')
            fputs("\\u003c", out);
        else
            fputc(*text, out);
    }
}

static int write_data(FILE *out, const struct amp_map_report *reports, int n)
{
    char *text = NULL;
    size_t size = 0;
    FILE *memory = open_memstream(&text, &size);
    if (!memory) return -1;
    fputc('[', memory);
    for (int i = 0; i < n; i++) {
        const struct amp_map_report *r = &reports[i];
        static const struct amp_bootstrap none = {0};
        if (i) fputs(",\n", memory);
        amp_map_write_object(memory, &r->settings, r->set, &r->result, &none, &r->counts);
    }
    fputc(']', memory);
    int failed = fclose(memory);
    if (!failed) write_escaped(out, text);
    free(text);
    return failed ? -1 : 0;
}

int amp_map_page_write(const char *path, const struct amp_map_report *reports, int n, char *err,
                       size_t err_size)
{
    struct amp_whole_file whole = {.fd = -1};
    const char *at = strstr(map_template, mark);
    FILE *f = amp_whole_begin(&whole, path, err, err_size)
                  ? NULL
                  : amp_whole_stream(&whole, err, err_size);
    int failed = !f;
    if (f) {
        fwrite(map_template, 1, (size_t)(at - map_template), f);
        failed = write_data(f, reports, n);
        if (failed) snprintf(err, err_size, "%s: no memory for the page", path);
        fputs(at + strlen(mark), f);
        failed = amp_whole_end_stream(&whole, f, err, err_size) || failed;
    }
    failed =
        failed || amp_whole_flush(&whole, err, err_size) || amp_whole_place(&whole, err, err_size);
    amp_whole_drop(&whole);
    return failed ? -1 : 0;
}
