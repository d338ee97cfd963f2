//! Generates the versioned symbol table.

fn main() {
    rocade_symbols::build("libibverbs.so.1");
}
