//! The exported symbols are exactly those of the library this one replaces.

#[test]
fn exports_are_those_of_the_original() {
    rocade_symbols::verify::assert_exports(env!("CARGO_MANIFEST_DIR"), "mana");
}
