/* Images or truths of other sizes than the network's end the program with both numbers, before
 * anything is trained, with mixed precision and without. (Our program looks at a trainer's inputs
 * first: tests/input/trainers.py.) Each case in a process of its own. */

#include "tests/rig/harness.h"
#include "tests/rig/child.h"
#include "tests/rig/attached.h"

static const char *keys;
static int more_images, more_truths;

static void train(void)
{
    network *net = parse(keys, CLASSIFIER);
    data d = {.X = make_matrix(net->batch, net->inputs + more_images),
              .y = make_matrix(net->batch, net->truths + more_truths)};
    train_network(net, d);
}

AMP_TEST(sizes_that_are_not_the_networks_end_the_program)
{
    static const char *const both[] = {MIXED, ""};
    static const struct {
        int images, truths;
        const char *said;
    } cases[] = {{-1, 0, "each loaded image has "},
                 {1, 0, "each loaded image has "},
                 {0, -1, "the truths of each loaded image are "},
                 {0, 1, "the truths of each loaded image are "}};
    for (int k = 0; k < 2; k++) {
        keys = both[k];
        for (int i = 0; i < 4; i++) {
            more_images = cases[i].images;
            more_truths = cases[i].truths;
            CHECK_INT(run(train), 1);
            if (!strstr(text, cases[i].said) || !strstr(text, ": nothing is trained"))
                TEST_FAIL("case %d: %s", i, text);
        }
        more_images = more_truths = 0;
        CHECK_INT(run(train), ALIVE);
    }
}

AMP_TEST_MAIN
