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

struct page {
    const struct amp_map_report *reports;
    int n;
};

static int write_data(FILE *out, const struct page *p)
{
    char *text = NULL;
    size_t size = 0;
    FILE *memory = open_memstream(&text, &size);
    if (!memory) return -1;
    fputc('[', memory);
    for (int i = 0; i < p->n; i++) {
        const struct amp_map_report *r = &p->reports[i];
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

static int print_page(FILE *f, const void *user)
{
    const char *at = strstr(map_template, mark);
    fwrite(map_template, 1, (size_t)(at - map_template), f);
    int failed = write_data(f, user);
    fputs(at + strlen(mark), f);
    return failed;
}

int amp_map_page_write(const char *path, const struct amp_map_report *reports, int n, char *err,
                       size_t err_size)
{
    const struct page p = {reports, n};
    return amp_whole_print(path, print_page, &p, err, err_size);
}
