//! Generates the versioned symbol table.

fn main() {
    rocade_symbols::build("libibverbs.so.1");
    // The library's thread and signal handler outlive a dlclose.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
