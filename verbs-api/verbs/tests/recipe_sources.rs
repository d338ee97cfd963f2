//! Each recipe has a test of what a program sees, whose comment names the source that it follows.

use rocade_emulator::faults::recipes::Recipe;

/// The files with the tests of recipes.
const TESTS: [&str; 3] = [
    include_str!("recipes.rs"),
    include_str!("device_failures.rs"),
    include_str!("../../libibverbs/tests/c/peer_failures.c"),
];

/// Returns the comments and the code of tests: parts that begin with a comment on a function, or
/// the whole file in C, where the first comment is for all of it.
fn tests() -> Vec<&'static str> {
    let [rust @ .., c] = TESTS;
    let parts = rust.into_iter().flat_map(|file| file.split("\n}\n"));
    parts.chain([c]).collect()
}

/// Returns true if a comment names a file of rdma-core or of the kernel.
fn names_a_source(test: &str) -> bool {
    let comment = |line: &&str| {
        let line = line.trim_start();
        line.starts_with("///") || line.starts_with("/*") || line.starts_with('*')
    };
    let comments = test.lines().filter(comment);
    comments
        .flat_map(|line| line.split(|c: char| !(c.is_alphanumeric() || "_./".contains(c))))
        .any(|word| word.trim_end_matches('.').ends_with(".c"))
}

#[test]
fn each_recipe_has_a_test_with_a_source() {
    let tests = tests();
    for recipe in Recipe::ALL {
        let name = format!("recipe:{}", recipe.name);
        let is_of_recipe = |test: &&&str| {
            let mut rests = test.split(&*name).skip(1);
            rests.any(|rest| rest.starts_with([',', '"', ';', ' ']))
        };
        let of_recipe: Vec<_> = tests.iter().filter(is_of_recipe).collect();
        assert!(!of_recipe.is_empty(), "{name} has no test");
        let has_source = of_recipe.iter().any(|test| names_a_source(test));
        assert!(has_source, "no test of {name} names its source");
    }
}

#[test]
fn a_missing_source_is_found() {
    assert!(names_a_source("/// As in `f` of core/umem.c.\nfn test() {"));
    assert!(names_a_source("/* (hdr_check of rxe_recv.c),\n */"));
    assert!(!names_a_source("/// Without one.\nlet file = \"umem.c\";"));
}
