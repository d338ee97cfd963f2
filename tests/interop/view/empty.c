// A library that only needs others, or a program that prints what is preloaded (-DMAIN).
#ifdef MAIN
#include <stdio.h>
#include <stdlib.h>

int main(void)
{
    const char *preloaded = getenv("LD_PRELOAD");
    printf("preloaded: %s\n", preloaded ? preloaded : "nothing");
    return 0;
}
#else
int nothing;
#endif
