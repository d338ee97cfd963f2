// Looks for devices as a libibverbs does that is linked into a program.
#include <dirent.h>
#include <stdio.h>

int main(void)
{
    DIR *class = opendir("/sys/class/infiniband_verbs");
    puts(class ? "class" : "no class");
    return 0;
}
