/* A list of training images, beside two images that are there: a.jpg and b.png. */
#include <stdbool.h>

#include "fuzz.h"
#include "plugin/input/train_list.h"

static void note(void *context, const char *message)
{
    FUZZ_REQUIRE(*message);
    ++*(int *)context;
}

static void make_images(void)
{
    static bool made;
    if (made) return;
    made = true;
    fuzz_enter_folder();
    fuzz_write("a.jpg", "\xFF\xD8\xFF\xDA\0\2", 6);
    fuzz_write("a.txt", "0 .5 .5 .2 .2\n", 14);
    fuzz_write("b.png", "\x89PNG\r\n\x1A\n\0\0\0\rIHDR\0\0\0\1\0\0\0\1", 24);
    fuzz_write("b.txt", "1 .9 .5 .5 0\n3 x\n", 17);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    int told = 0;
    struct amp_train_list list;
    make_images();
    int failed =
        amp_train_list_check(fuzz_file(data, size), size % 2 ? AMP_DIALECT_FORK : AMP_DIALECT_STOCK,
                             2, 90, fuzz_nowhere(), &list, note, &told);
    amp_train_list_warn(&list, "list", fuzz_nowhere());
    size_t images = list.images;
    amp_train_list_free(&list);
    FUZZ_REQUIRE(failed == (told ? -1 : 0));
    FUZZ_REQUIRE(failed || images > 0);
    return 0;
}
