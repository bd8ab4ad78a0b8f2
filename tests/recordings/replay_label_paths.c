/* Prints for each image path of the input where AlexeyAB's Darknet looks for its labels; the path
 * itself if it looks nowhere. */
#include <stdio.h>
#include <string.h>

#include "plugin/core/read/label_path.h"

int main(void)
{
    char image[AMP_LABEL_PATH_MAX], label[AMP_LABEL_PATH_MAX];
    while (fgets(image, sizeof image, stdin)) {
        image[strcspn(image, "\n")] = 0;
        puts(amp_label_path_in(AMP_LABELS_FORK, image, label, sizeof label) ? label : image);
    }
    return 0;
}
