// Asks librdmacm.so.1 for an event channel.
#include <dlfcn.h>
#include <stdio.h>

int main(void)
{
    void *library = dlopen("librdmacm.so.1", RTLD_NOW);
    if (!library) {
        puts(dlerror());
        return 2;
    }
    void *(*create)(void) = (void *(*)(void))dlsym(library, "rdma_create_event_channel");
    puts(create && create() ? "a channel" : "no channel");
    return 0;
}
