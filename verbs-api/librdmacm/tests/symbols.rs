//! Checks that this library exports exactly the symbols of the library that it replaces.

#[test]
fn exports_are_those_of_the_original() {
    rocade_symbols::verify::assert_exports(env!("CARGO_MANIFEST_DIR"), "rdmacm");
}

/// A library that takes over the sockets of the program does not get Rocade's.
#[test]
fn its_system_calls_are_its_own() {
    rocade_symbols::verify::assert_own_system_calls("rdmacm");
}
