//! Generates the versioned symbol table.

fn main() {
    rocade_symbols::build("librdmacm.so.1");
}
