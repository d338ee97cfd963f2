//! Checks that this library exports exactly the symbols of the library that it replaces.

#[test]
fn exports_are_those_of_the_original() {
    rocade_symbols::verify::assert_exports(env!("CARGO_MANIFEST_DIR"), "rdmacm");
}
