/* Prints the options table as Markdown, for scripts/update-readme-options.sh. */
#include "options.h"

int main(void)
{
    amp_option_write_markdown(stdout);
    return fflush(stdout) ? 1 : 0;
}
