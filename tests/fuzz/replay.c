/* Runs a fuzz target on every input of its corpus: as a test, without libFuzzer. The corpus is a
 * text file with an input on each line: its name, a blank, and its bytes, of which scripts/fuzz.py
 * has written those that are not printable as \\, \n, \t or \xNN. */
#define _POSIX_C_SOURCE 200809L /* getline */
#include "fuzz.h"

#include <sys/types.h>

static unsigned hex_digit(char c)
{
    const char *digits = "0123456789abcdef", *at = c ? strchr(digits, c) : NULL;
    FUZZ_REQUIRE(at);
    return (unsigned)(at - digits);
}

/* Moves *text behind the byte that it returns. */
static uint8_t next_byte(const char **text)
{
    char c = *(*text)++;
    if (c != '\\') return (uint8_t)c;
    c = *(*text)++;
    FUZZ_REQUIRE(c && strchr("\\ntx", c));
    if (c != 'x') return c == 'n' ? '\n' : c == 't' ? '\t' : '\\';
    unsigned high = hex_digit(*(*text)++), low = hex_digit(*(*text)++);
    return (uint8_t)(high << 4 | low);
}

static void replay_line(char *line)
{
    char *blank = strchr(line, ' ');
    FUZZ_REQUIRE(blank);
    const char *text = blank + 1;
    /* Exactly as long as the input, so that ASan sees what reads behind its end. */
    uint8_t *bytes = malloc(strlen(text) + 1), *input = NULL;
    size_t size = 0;
    FUZZ_REQUIRE(bytes);
    while (*text)
        bytes[size++] = next_byte(&text);
    FUZZ_REQUIRE(input = malloc(size ? size : 1));
    memcpy(input, bytes, size);
    free(bytes);
    fprintf(stderr, "%.*s, %zu bytes\n", (int)(blank - line), line, size);
    LLVMFuzzerTestOneInput(input, size);
    free(input);
}

int main(int argc, char **argv)
{
    FILE *file = argc == 2 ? fopen(argv[1], "r") : NULL;
    char *line = NULL;
    size_t room = 0;
    ssize_t length;
    int inputs = 0;
    FUZZ_REQUIRE(file);
    while ((length = getline(&line, &room, file)) > 0) {
        FUZZ_REQUIRE(line[length - 1] == '\n' && strlen(line) == (size_t)length);
        line[length - 1] = '\0';
        replay_line(line);
        inputs++;
    }
    free(line);
    fclose(file);
    printf("%d inputs\n", inputs);
    return inputs ? 0 : 1;
}
