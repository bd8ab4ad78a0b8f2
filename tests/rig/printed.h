/* What a layer of Darknet prints. Include after tests/rig/harness.h and darknet.h. */
#ifndef AMP_TEST_PRINTED_H
#define AMP_TEST_PRINTED_H

#include <unistd.h>

/* Runs the layer's forward; what it printed is appended to text. */
static inline void forward_printed(layer l, network net, char *text, size_t size)
{
    FILE *file = tmpfile();
    REQUIRE(file);
    fflush(stdout);
    int console = dup(1);
    dup2(fileno(file), 1);
    l.forward(l, net);
    fflush(stdout);
    dup2(console, 1);
    close(console);
    rewind(file);
    size_t used = strlen(text);
    text[used + fread(text + used, 1, size - used - 1, file)] = 0;
    fclose(file);
}

#endif
