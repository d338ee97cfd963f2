//! Generates the versioned symbol table.

fn main() {
    rocade_symbols::build("libefa.so.1");
}
