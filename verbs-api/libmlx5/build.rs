//! Generates the versioned symbol table.

fn main() {
    rocade_symbols::build("libmlx5.so.1");
}
