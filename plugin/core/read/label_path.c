/* Decides where an image's labels are. It must not look whether they are there. */
#include "label_path.h"

#include <stdio.h>
#include <string.h>

/* ---- stock Darknet ---- */

/* Darknet replaces the first match too, wherever in the path it is. */
int amp_replace_first(char *text, size_t size, const char *from, const char *to)
{
    char *at = strstr(text, from);
    if (!at) return 0;
    const char *rest = at + strlen(from);
    size_t rest_size = strlen(rest) + 1;
    if ((size_t)(at - text) + strlen(to) + rest_size > size) return -1;
    memmove(at + strlen(to), rest, rest_size);
    memcpy(at, to, strlen(to));
    return 0;
}

/* Darknet's own list, in its order (fill_truth_detection); one step may undo what a user meant by a
 * folder name, and then Darknet does so as well. */
static const char *const steps[][2] = {
    {"images", "labels"}, {"JPEGImages", "labels"}, {"raw", "labels"}, {".jpg", ".txt"},
    {".png", ".txt"},     {".JPG", ".txt"},         {".JPEG", ".txt"},
};
enum { STEPS = sizeof steps / sizeof *steps };

int amp_label_path(const char *image_path, char *label_path, size_t label_path_size, char *err,
                   size_t err_size)
{
    int failed = snprintf(label_path, label_path_size, "%s", image_path) >= (int)label_path_size;
    for (int i = 0; !failed && i < STEPS; i++)
        failed = amp_replace_first(label_path, label_path_size, steps[i][0], steps[i][1]);
    if (failed) {
        snprintf(err, err_size, "%.80s...: the label path is longer than %zu bytes", image_path,
                 label_path_size - 1);
        return -1;
    }
    /* Darknet would read the image file as labels. */
    if (strcmp(label_path, image_path) == 0) {
        snprintf(
            err, err_size,
            "%s: Darknet's rule gives no label file (it replaces .jpg .png .JPG .JPEG by .txt)",
            image_path);
        return -1;
    }
    return 0;
}

/* Takes the steps again, one by one, to see which of them found something. */
void amp_label_path_explain(const char *image_path, char *text, size_t size)
{
    char path[AMP_LABEL_PATH_MAX];
    int used = snprintf(text, size, "from the image's name"), taken = 0;
    bool has_suffix = false;
    snprintf(path, sizeof path, "%s", image_path);
    for (int i = 0; i < STEPS && used < (int)size; i++) {
        if (!strstr(path, steps[i][0]) ||
            amp_replace_first(path, sizeof path, steps[i][0], steps[i][1]))
            continue;
        has_suffix = has_suffix || *steps[i][0] == '.';
        used += snprintf(text + used, size - (size_t)used, "%s the first \"%s\" became \"%s\"",
                         taken++ ? "," : ":", steps[i][0], steps[i][1]);
    }
    if (!has_suffix && used < (int)size)
        snprintf(text + used, size - (size_t)used,
                 "%s the suffix stayed, since it is none of .jpg .png .JPG .JPEG",
                 taken ? "," : ":");
}

/* ---- AlexeyAB's Darknet ---- */

static bool cut_ending(char *path, const char *ending)
{
    size_t length = strlen(path), cut = strlen(ending);
    if (length < cut || strcmp(path + length - cut, ending) != 0) return false;
    path[length - cut] = 0;
    return true;
}

static void cut_blanks(char *path)
{
    size_t length = strlen(path);
    while (length && strchr(" \t\r\n", path[length - 1]))
        length--;
    path[length] = 0;
}

static bool fork_label_path(char *path, size_t size)
{
    static const char *const folders[][2] = {
        {"/images/train2017/", "/labels/train2017/"},
        {"/images/val2017/", "/labels/val2017/"},
        {"/images/train2014/", "/labels/train2014/"},
        {"/images/val2014/", "/labels/val2014/"},
        {"/JPEGImages/", "/labels/"},
    };
    static const char *const endings[] = {".jpg", ".JPG", ".jpeg", ".JPEG", ".png", ".PNG",
                                          ".bmp", ".BMP", ".ppm",  ".tiff", ".TIFF"};
    cut_blanks(path);
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++)
        if (amp_replace_first(path, size, folders[i][0], folders[i][1])) return false;
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++)
        if (cut_ending(path, endings[i])) {
            strcat(path, ".txt"); /* at most as long as what was cut */
            return true;
        }
    return false;
}

/* ---- all ---- */

static bool path_beside(char *path, size_t size)
{
    char *name = strrchr(path, '/'), *dot = strrchr(name ? name : path, '.');
    if (!dot || (size_t)(dot - path) + sizeof ".txt" > size) return false;
    strcpy(dot, ".txt");
    return true;
}

bool amp_label_path_in(enum amp_label_place place, const char *image_path, char *label_path,
                       size_t size)
{
    char err[1]; /* why not is not asked */
    if (place == AMP_LABELS_STOCK)
        return amp_label_path(image_path, label_path, size, err, sizeof err) == 0;
    if (snprintf(label_path, size, "%s", image_path) >= (int)size) return false;
    return place == AMP_LABELS_FORK ? fork_label_path(label_path, size)
                                    : path_beside(label_path, size);
}
