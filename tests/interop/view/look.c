// Prints the file of the library LIBRARY, and the RDMA devices that a program finds in it.
//
//     look LIBRARY      loads the library by this name
//     look              uses the library that the program is linked with (-DLINKED), or the one
//                       that it has the path of (-DLIBRARY="...")
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <stdio.h>

#ifdef LINKED
extern void **ibv_get_device_list(int *);
extern const char *ibv_get_device_name(void *);
#endif

static void **(*list)(int *);
static const char *(*name)(void *);

static int load(const char *file)
{
    void *library = dlopen(file, RTLD_NOW);
    if (!library) {
        printf("%s\n", dlerror());
        return 0;
    }
    struct link_map *map;
    dlinfo(library, RTLD_DI_LINKMAP, &map);
    printf("library %s\n", map->l_name);
    list = (void **(*)(int *))dlsym(library, "ibv_get_device_list");
    name = (const char *(*)(void *))dlsym(library, "ibv_get_device_name");
    return 1;
}

int main(int count, char **words)
{
    if (count > 1 && !load(words[1]))
        return 2;
#ifdef LIBRARY
    if (count == 1 && !load(LIBRARY))
        return 2;
#endif
#ifdef LINKED
    if (count == 1) {
        Dl_info info = {0};
        dladdr((void *)ibv_get_device_list, &info);
        printf("library %s\n", info.dli_fname);
        list = ibv_get_device_list;
        name = ibv_get_device_name;
    }
#endif
    if (!list)
        return 0;
    int devices = 0;
    void **all = list(&devices);
    if (!all)
        perror("ibv_get_device_list");
    for (int i = 0; all && i < devices; i++)
        printf("device %s\n", name(all[i]));
    printf("%d devices\n", all ? devices : 0);
    return 0;
}
