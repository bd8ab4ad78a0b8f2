/* Decides whether the file of an image's truths is what one of Darknet's trainers can load: tags,
 * values or masks. It must not know which trainer that is (check_trainers.c), and boxes are
 * labels.c's. */
#define _GNU_SOURCE
#include "truth_files.h"

#include <errno.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "image_files.h"
#include "masks.h"
#include "plugin/core/read/label_path.h"
#include "plugin/core/read/lines.h"

/* ---- where the file is ---- */

struct replacement {
    const char *from, *to;
};

static const struct replacement of_tags[] = {{"images", "labels"}, {".jpg", ".txt"}, {0}};
static const struct replacement of_masks[] = {{"images", "mask"}, {"JPEGImages", "mask"},
                                              {".jpg", ".txt"},   {".JPG", ".txt"},
                                              {".JPEG", ".txt"},  {0}};
static const struct replacement of_values[] = {
    {"images", "labels"}, {"JPEGImages", "labels"}, {".BMP", ".txt"},
    {".JPEG", ".txt"},    {".JPG", ".txt"},         {".JPeG", ".txt"},
    {".Jpeg", ".txt"},    {".PNG", ".txt"},         {".TIF", ".txt"},
    {".bmp", ".txt"},     {".jpeg", ".txt"},        {".jpg", ".txt"},
    {".png", ".txt"},     {".tif", ".txt"},         {0}};

/* Opens it. NULL with the reason in why. */
static FILE *open_truths(const char *image, const struct replacement *names, char *why, size_t size)
{
    char path[AMP_LABEL_PATH_MAX];
    errno = 0;
    snprintf(path, sizeof path, "%s", image);
    for (const struct replacement *r = names; r->from; r++)
        if (amp_replace_first(path, sizeof path, r->from, r->to)) {
            snprintf(why, size, "%.80s...: the path of its truths is too long", image);
            return NULL;
        }
    const char *reason = "Darknet's rule for names gives no other file for its truths";
    FILE *file = strcmp(path, image) ? amp_text_open(path, &reason) : NULL;
    snprintf(why, size, "%s%s%s", path, file ? "" : ": ", file ? "" : reason);
    return file;
}

static bool refuse(FILE *file, char *why, size_t size, const char *text)
{
    size_t used = strlen(why);
    snprintf(why + used, size - used, ": %s", text);
    fclose(file);
    return false;
}

/* ---- what is in it ---- */

/* An image without such a file has no tags. */
bool amp_truths_are_tags(void *context, const char *image, char *why, size_t size)
{
    struct amp_truth_rule *rule = context;
    char text[100], word[41], *end;
    FILE *file = open_truths(image, of_tags, why, size);
    if (!file) return errno == ENOENT;
    rule->files++;
    while (fscanf(file, "%40s", word) == 1) { /* Darknet stops at what is no number */
        long tag = strtol(word, &end, 10);
        snprintf(text, sizeof text, "tag %s; allowed: whole numbers from 0 to %d", word,
                 rule->classes - 1);
        if (*end || tag < 0 || tag >= rule->classes) return refuse(file, why, size, text);
    }
    fclose(file);
    return true;
}

bool amp_truths_are_values(void *context, const char *image, char *why, size_t size)
{
    struct amp_truth_rule *rule = context;
    char text[100], word[41], *end;
    int n = 0;
    FILE *file = open_truths(image, of_values, why, size);
    if (!file) return false;
    for (; fscanf(file, "%40s", word) == 1; n++) {
        float value = strtof(word, &end);
        snprintf(text, sizeof text, "\"%s\"; allowed: finite numbers with blanks between them",
                 word);
        if (*end || !isfinite(value)) return refuse(file, why, size, text);
    }
    snprintf(text, sizeof text, "holds %d numbers; needed: %d, as many as classes", n,
             rule->classes);
    if (n != rule->classes) return refuse(file, why, size, text);
    fclose(file);
    return true;
}

/* Darknet draws the runs into an image of this one's size. */
bool amp_truths_are_masks(void *context, const char *image, char *why, size_t size)
{
    struct amp_truth_rule *rule = context;
    char text[300];
    int w, h, objects;
    FILE *file = open_truths(image, of_masks, why, size);
    if (!file) return false;
    if (amp_image_file_fault(image)) { /* told of the image itself */
        fclose(file);
        return true;
    }
    if (!amp_image_file_size(image, &w, &h))
        return refuse(
            file, why, size,
            "masks of an image that is neither JPEG, PNG nor BMP cannot be compared with its "
            "size, and Darknet writes beyond its end: convert the image");
    if (!amp_masks_check(file, rule->classes, (uint64_t)w * (uint64_t)h, &objects, text,
                         sizeof text))
        return refuse(file, why, size, text);
    fclose(file);
    if (rule->room && objects > rule->room) {
        rule->beyond++;
        rule->beyond_objects += (size_t)(objects - rule->room);
    }
    return true;
}
