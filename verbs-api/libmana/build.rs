//! Generates the versioned symbol table.

fn main() {
    rocade_symbols::build("libmana.so.1");
}
